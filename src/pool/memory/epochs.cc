#include "pool/memory/epochs.h"

#include <algorithm>
#include <cassert>

#include "base/mutex.h"
#include "pool/operation.h"

namespace pando::pool {

// ---- Epochs ----

void Epochs::join(Session* session) {
  const base::MutexLock lock(mutex_);
  sessions_.push_back(session);
}

void Epochs::leave(Session* session) {
  const base::MutexLock lock(mutex_);
  std::erase(sessions_, session);
}

void Epochs::observe(std::uint64_t global) {
  Moment seen = now();
  while (epoch_of(seen) < global && !now_.compare_exchange_weak(seen, start_of(global))) {
  }
}

// now() before the pins: see Operation::pin().
std::uint64_t Epochs::announceable() const {
  const base::MutexLock lock(mutex_);
  Moment least = now();
  for (const Session* session : sessions_) least = std::min(least, session->pinned());
  return epoch_of(least);
}

Epochs::Moment Epochs::stamp_barrier() {
  // More than there are threads, each of which may add one after this look.
  constexpr std::uint64_t kMargin = 1 << 14;
  constexpr std::uint64_t kTicks = std::uint64_t{1} << kTickBits;
  const bool left = now_.load(std::memory_order_relaxed) % kTicks < kTicks - kMargin;
  return now_.fetch_add(left ? 1 : 0, std::memory_order_acq_rel);
}

Epochs::Moment Epochs::oldest_pin() const {
  const base::MutexLock lock(mutex_);
  Moment least = Session::kUnpinned;
  for (const Session* session : sessions_) least = std::min(least, session->pinned());
  return least;
}

Epochs::Moment Epochs::oldest_pin_barrier() const {
  const base::MutexLock lock(mutex_);
  Moment least = Session::kUnpinned;
  for (const Session* session : sessions_) least = std::min(least, session->pinned_barrier());
  return least;
}

// ---- Limbo ----

Limbo::~Limbo() {
  assert(epochs_.oldest_pin() == Session::kUnpinned);
  run(first_);
}

void Limbo::defer(Deferred* object, void (*free)(Deferred*)) {
  const base::MutexLock lock(mutex_);
  object->stamp = epochs_.stamp_barrier();
  object->free = free;
  object->next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = object;
  last_ = object;
  waiting_.store(true, std::memory_order_relaxed);
}

void Limbo::collect() {
  if (!waiting_.load(std::memory_order_relaxed)) return;
  if (!mutex_.try_lock()) return;  // somebody is at it
  Deferred* const safe = take_safe();
  mutex_.unlock();
  // Outside the lock: freeing one object may defer another.
  run(safe);
}

Limbo::Deferred* Limbo::take_safe() {
  // A plain look first: barriers take the sessions' cache lines away from their threads.
  if (first_ == nullptr || first_->stamp >= epochs_.oldest_pin()) return nullptr;
  const Epochs::Moment pinned = epochs_.oldest_pin_barrier();

  Deferred* const safe = first_;
  Deferred* last_safe = nullptr;
  while (first_ != nullptr && first_->stamp < pinned) {
    last_safe = first_;
    first_ = first_->next;
  }
  if (last_safe == nullptr) return nullptr;
  last_safe->next = nullptr;
  waiting_.store(first_ != nullptr, std::memory_order_relaxed);
  return safe;
}

void Limbo::run(Deferred* first) {
  while (first != nullptr) {
    Deferred* const next = first->next;
    first->free(first);
    first = next;
  }
}

}  // namespace pando::pool
