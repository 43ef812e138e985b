#include "pool/memory/fetcher.h"

#include <atomic>
#include <utility>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/memory/allocator_state.h"
#include "pool/pause.h"

namespace pando::pool {

struct Fetcher::Request {
  BlockKind kind;
  std::size_t size_class;
  std::optional<fabric::NodeId> near;
  bool abandoned = false;
  Answer answer;
  Counters cost;
  std::atomic<bool> answered{false};  // answer and cost change no more
};

// Of who waits for an answer. A block that nobody takes is free again.
class Fetcher::Ticket {
 public:
  Ticket(Fetcher& fetcher, std::shared_ptr<Request> request)
      : fetcher_(fetcher), request_(std::move(request)) {}
  ~Ticket() {
    const base::MutexLock lock(fetcher_.mutex_);
    request_->abandoned = true;
    if (request_->answered && request_->answer && *request_->answer) {
      fetcher_.allocator_.put_back(**request_->answer);
    }
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  bool answered() const { return request_->answered.load(std::memory_order_acquire); }
  Answer take(Operation& op) {
    if (op.cost() != nullptr) *op.cost() += request_->cost;
    return std::exchange(request_->answer, std::optional<Block>());
  }

 private:
  Fetcher& fetcher_;
  const std::shared_ptr<Request> request_;
};

// ---- Those who wait ----

std::shared_ptr<Fetcher::Request> Fetcher::ask(BlockKind kind, std::size_t size_class,
                                               std::optional<fabric::NodeId> near) {
  const base::MutexLock lock(mutex_);
  if (!serving_ || base::mutated(base::Mutant::kDroppedFetch)) return nullptr;
  requests_.push_back(std::make_shared<Request>(kind, size_class, near));
  return requests_.back();
}

Task<Fetcher::Answer> Fetcher::fetch(Operation& op, BlockKind kind, std::size_t size_class,
                                     std::optional<fabric::NodeId> near) {
  std::shared_ptr<Request> request = ask(kind, size_class, near);
  if (request == nullptr) co_return co_await allocator_.attempt(op, kind, size_class, near);
  Ticket ticket(*this, std::move(request));
  wakeup_.set();
  for (Pause pause(op); !ticket.answered();) {
    if (Status waited = co_await pause.wait("memory to be fetched"); !waited) {
      co_return fail(waited.error());
    }
  }
  co_return ticket.take(op);
}

// ---- The housekeeper ----

std::shared_ptr<Fetcher::Request> Fetcher::next() {
  const base::MutexLock lock(mutex_);
  while (!requests_.empty()) {
    std::shared_ptr<Request> request = std::move(requests_.front());
    requests_.pop_front();
    if (!request->abandoned) return request;
  }
  return nullptr;
}

void Fetcher::answer(Request& request, Answer answer) {
  const base::MutexLock lock(mutex_);
  if (request.abandoned && answer && *answer) allocator_.put_back(**answer);
  request.answer = std::move(answer);
  request.answered.store(true, std::memory_order_release);
}

Task<void> Fetcher::serve(Session& session) {
  {
    const base::MutexLock lock(mutex_);
    serving_ = true;
  }
  for (;;) {
    if (const std::shared_ptr<Request> request = next()) {
      Operation op(session, &request->cost);
      Answer got =
          co_await allocator_.attempt(op, request->kind, request->size_class, request->near);
      // What does not answer now does not answer the others either: nobody waits for it in turn.
      const std::optional<Error> silent = !got && got.error().code() == ErrorCode::kUnavailable
                                              ? std::optional(got.error())
                                              : std::nullopt;
      answer(*request, std::move(got));
      while (const std::shared_ptr<Request> other = silent ? next() : nullptr) {
        answer(*other, fail(*silent));
      }
      continue;
    }
    {
      const base::MutexLock lock(mutex_);
      if (!serving_ && requests_.empty()) co_return;
    }
    co_await wakeup_.wait(session.worker());
  }
}

void Fetcher::stop() {
  {
    const base::MutexLock lock(mutex_);
    serving_ = false;
  }
  wakeup_.set();
}

}  // namespace pando::pool
