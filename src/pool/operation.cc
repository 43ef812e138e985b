#include "pool/operation.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "pool/compute_node.h"

namespace pando::pool {

// ---- Session ----

Session::Session(ComputeNode& node, task::Worker& worker,
                 std::unique_ptr<fabric::Endpoint> endpoint)
    : node_(node), worker_(worker), endpoint_(std::move(endpoint)) {
  node_.budget().take(BudgetUse::kMembership, sizeof(Session));
  node_.epochs().join(this);
  node_.add_session(this);
  endpoint_->set_listener(this);
}

Session::~Session() {
  assert(oldest_ == nullptr);
  publish();
  node_.remove_session(this);
  node_.epochs().leave(this);
  node_.budget().give_back(BudgetUse::kMembership, sizeof(Session));
}

// Whose verb it is is not known here; the oldest operation's epoch is no later.
void Session::left_in_doubt(fabric::NodeId node) {
  const std::uint64_t pinned = this->pinned();
  const std::uint64_t epoch =
      pinned == kUnpinned ? node_.epochs().current() : Epochs::epoch_of(pinned);
  node_.in_doubt().add(node, epoch);
}

void Session::publish() {
  using Words = std::array<std::uint64_t, std::tuple_size_v<decltype(published_)>>;
  const auto words = std::bit_cast<Words>(endpoint_->counters());
  for (std::size_t i = 0; i < words.size(); ++i) {
    published_[i].store(words[i], std::memory_order_relaxed);
  }
  published_buffers_.store(endpoint_->buffer_bytes(), std::memory_order_relaxed);
}

Counters Session::counters() const {
  std::array<std::uint64_t, std::tuple_size_v<decltype(published_)>> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = published_[i].load(std::memory_order_relaxed);
  }
  return std::bit_cast<Counters>(words);
}

// ---- Operation ----

Operation::Operation(Session& session, Counters* cost)
    : Operation(session, task::TimePoint{}, cost) {}

task::TimePoint Operation::deadline() const {
  if (deadline_ == task::TimePoint{})
    deadline_ = worker().now() + compute_node().options().deadline;
  return deadline_;
}

Operation::Operation(Session& session, task::TimePoint deadline, Counters* cost)
    : session_(session), cost_(cost), deadline_(deadline) {
  pin();
}

// Why the moment is looked at again. announceable() reads now() first and the pins after. If it
// missed this pin, its read of the pin precedes our exchange in the one order of all seq_cst
// operations, so its read of now() precedes our second one: what it announced is at most what
// we read then, which is what we pin. If the two reads differ, nothing is known of the first: pin
// again. Operations beside an older one need none of this: the older one's pin covers them, and
// when it ends, theirs takes its place without a gap.
void Operation::pin() {
  const Epochs& epochs = compute_node().epochs();
  pinned_ = epochs.now();
  older_ = session_.newest_;
  session_.newest_ = this;
  if (older_ != nullptr) {
    older_->newer_ = this;
    return;
  }
  session_.oldest_ = this;
  for (;;) {
    // An exchange rather than a store, which costs the same, so that Limbo's barrier can pair.
    session_.pinned_.exchange(pinned_, std::memory_order_seq_cst);
    const Epochs::Moment now = epochs.now();
    if (now == pinned_) return;
    pinned_ = now;
  }
}

Operation::~Operation() {
  (newer_ != nullptr ? newer_->older_ : session_.newest_) = older_;
  if (older_ != nullptr) {
    older_->newer_ = newer_;
  } else {
    session_.oldest_ = newer_;
    session_.pinned_.store(newer_ != nullptr ? newer_->pinned_ : Session::kUnpinned,
                           std::memory_order_release);
  }
  session_.publish();
}

Task<Result<std::uint64_t>> read_word(Operation& op, fabric::Address from) {
  const fabric::Buffer buffer = op.buffer(sizeof(std::uint64_t));
  fabric::Batch batch(op.cost());
  batch.read(from, buffer.data(), buffer.size());
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  std::uint64_t word = 0;
  std::memcpy(&word, buffer.data(), sizeof(word));
  co_return word;
}

}  // namespace pando::pool
