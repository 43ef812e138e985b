#include "task/worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <thread>
#include <utility>

#include "base/spin.h"

namespace pando::task {
namespace {

// So long the worker looks before it goes to sleep: about what being woken costs.
constexpr Duration kSpin = std::chrono::microseconds(20);
// The same while an answer is under way, which takes a round trip over a socket.
constexpr Duration kSpinForAnswers = std::chrono::microseconds(60);
// Looks between looks at the clock.
constexpr std::uint32_t kRoundsOfSpin = 16;
constexpr Duration kLongestWait = std::chrono::milliseconds(100);

}  // namespace

// ---- Ready queue ----

void ReadyQueue::grow() {
  const std::size_t capacity = std::max<std::size_t>(16, capacity_ * 2);
  auto slots = std::make_unique<std::coroutine_handle<>[]>(capacity);
  const std::size_t count = size();
  for (std::size_t i = 0; i < count; ++i) slots[i] = slots_[(head_ + i) & (capacity_ - 1)];
  slots_ = std::move(slots);
  capacity_ = capacity;
  head_ = 0;
  tail_ = count;
}

// ---- Spawned tasks ----

// Owns the task in its frame, and destroys itself when the task has ended.
struct Worker::Detached {
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct SignOff {
    bool await_ready() const noexcept { return false; }
    void await_suspend(Handle self) const noexcept;
    void await_resume() const noexcept {}
  };

  struct promise_type {
    promise_type(Worker& on, Task<void>& task) : worker(on) { static_cast<void>(task); }
    static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
    static void operator delete(void* frame, std::size_t bytes) noexcept {
      free_frame(frame, bytes);
    }
    Detached get_return_object() noexcept { return {Handle::from_promise(*this)}; }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    SignOff final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }

    Worker& worker;
    std::size_t place = 0;  // in worker.detached_
  };

  Handle handle;
};

void Worker::Detached::SignOff::await_suspend(Handle self) const noexcept {
  auto& detached = self.promise().worker.detached_;
  const std::size_t place = self.promise().place;
  detached[place] = detached.back();
  Handle::from_address(detached[place].address()).promise().place = place;
  detached.pop_back();
  self.destroy();
}

Worker::Detached Worker::drive([[maybe_unused]] Worker& worker, Task<void> task) {
  co_await std::move(task);
}

void Worker::spawn(Task<void> task) {
  const Detached::Handle handle = drive(*this, std::move(task)).handle;
  handle.promise().place = detached_.size();
  detached_.push_back(handle);
  schedule(handle);
}

void Worker::drop_tasks() {
  // What frames hold may close things, which lets others run, this worker on a simulated clock
  // among them: only when it has nothing left that is destroyed.
  const Resuming mark;
  for (Poller* poller : pollers_) poller->abandon();
  while (!detached_.empty()) {
    const std::coroutine_handle<> last = detached_.back();
    detached_.pop_back();
    last.destroy();  // may spawn or schedule: what it holds may hand on to others
  }
  timers_.clear();
  ready_.clear();
  const base::MutexLock lock(inbox_mutex_);
  inbox_.clear();
  inbox_signal_.store(false, std::memory_order_relaxed);
}

// ---- Rounds ----

Worker::Worker(Clock& clock)
    : clock_(clock),
      simulator_(clock.simulator()),
      seat_(simulator_ != nullptr ? simulator_->join(*this) : 0) {}

Worker::~Worker() {
  drop_tasks();
  if (wakeup_ >= 0) close(wakeup_);
  if (simulator_ != nullptr) simulator_->leave(seat_);
}

void Worker::run() {
  while (!detached_.empty()) step();
}

void Worker::step() {
  if (simulator_ != nullptr) {
    simulator_->pass_time(seat_);
  } else if (run_ready()) {
    idle_rounds_ = 0;
  } else {
    idle();
  }
}

bool Worker::run_ready() {
  if (inbox_signal_.load(std::memory_order_acquire)) take_inbox();
  if (!timers_.empty()) fire_timers();
  // Only what is ready now: those who yield must let pollers and timers in between.
  const std::size_t count = ready_.size();
  if (count > 0) {
    const Resuming mark;
    for (std::size_t i = 0; i < count; ++i) ready_.pop_front().resume();
  }

  bool completed = false;
  for (std::size_t i = 0; i < pollers_.size(); ++i) completed |= pollers_[i]->poll();
  return count > 0 || completed;
}

void Worker::idle() {
  base::cpu_relax();
  if (++idle_rounds_ % kRoundsOfSpin != 0) return;
  if (idle_rounds_ == kRoundsOfSpin) idle_since_ = now();
  const bool pending = std::ranges::any_of(pollers_, [](Poller* p) { return p->pending(); });
  if (now() - idle_since_ < (pending ? kSpinForAnswers : kSpin)) return;
  if (!pending) {
    block();
  } else if (!block_on_descriptors()) {
    std::this_thread::yield();  // the other side may need this core
  }
}

// False where a poller has work under way that no descriptor tells of.
bool Worker::block_on_descriptors() {
  if (wakeup_ < 0) wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wakeup_ < 0) return false;
  descriptors_.assign(1, {.fd = wakeup_, .events = POLLIN, .revents = 0});
  for (const Poller* poller : pollers_) {
    if (poller->pending() && !poller->add_descriptors(descriptors_)) return false;
  }
  {
    const base::MutexLock lock(inbox_mutex_);
    if (!inbox_.empty()) return true;
    polling_ = true;
  }
  // Pollers have deadlines of their own.
  const Duration most = std::min<Duration>(next_timer() - now(), kLongestWait);
  if (most > Duration::zero()) {
    const timespec wait = {.tv_sec = 0, .tv_nsec = most.count()};
    ppoll(descriptors_.data(), descriptors_.size(), &wait, nullptr);
  }
  const base::MutexLock lock(inbox_mutex_);
  polling_ = false;
  std::uint64_t wakes = 0;
  (void)!read(wakeup_, &wakes, sizeof(wakes));
  return true;
}

void Worker::block() {
  const base::MutexLock lock(inbox_mutex_);
  blocked_ = true;
  if (const TimePoint timer = next_timer(); timer == TimePoint::max()) {
    while (inbox_.empty()) inbox_filled_.wait(inbox_mutex_);
  } else {
    const auto until = std::chrono::steady_clock::now() + (timer - now());
    while (inbox_.empty() && inbox_filled_.wait_until(inbox_mutex_, until)) continue;
  }
  blocked_ = false;
}

// ---- Waking ----

void Worker::wake(std::coroutine_handle<> ready) {
  // All under the lock: once it is released, the worker may run the coroutine and be destroyed.
  const base::MutexLock lock(inbox_mutex_);
  inbox_.push_back(ready);
  inbox_signal_.store(true, std::memory_order_release);
  if (blocked_) inbox_filled_.notify_one();
  if (polling_) {
    const std::uint64_t one = 1;
    (void)!write(wakeup_, &one, sizeof(one));
  }
  if (simulator_ != nullptr) simulator_->ready(seat_);
}

void Worker::take_inbox() {
  const base::MutexLock lock(inbox_mutex_);
  for (const std::coroutine_handle<> ready : inbox_) ready_.push_back(ready);
  inbox_.clear();
  inbox_signal_.store(false, std::memory_order_relaxed);
}

// ---- Timers ----

bool Worker::fires_later(const Timer& a, const Timer& b) {
  return a.when != b.when ? a.when > b.when : a.order > b.order;
}

void Worker::add_timer(TimePoint when, std::coroutine_handle<> waiter) {
  timers_.push_back({when, timers_set_++, waiter});
  std::ranges::push_heap(timers_, fires_later);
  if (simulator_ != nullptr) simulator_->ready_at(seat_, when);
}

void Worker::fire_timers() {
  const TimePoint moment = now();
  while (!timers_.empty() && timers_.front().when <= moment) {
    std::ranges::pop_heap(timers_, fires_later);
    schedule(timers_.back().waiter);
    timers_.pop_back();
  }
}

TimePoint Worker::next_timer() const {
  return timers_.empty() ? TimePoint::max() : timers_.front().when;
}

// ---- Pollers ----

void Worker::add_poller(Poller* poller) { pollers_.push_back(poller); }

void Worker::remove_poller(Poller* poller) { std::erase(pollers_, poller); }

}  // namespace pando::task
