#include "fabric/remote/endpoint.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

namespace pando::fabric::remote {

bool LinkedEndpoint::poll() {
  if (!pending()) return false;
  completed_ = false;
  const task::TimePoint now = worker().now();
  for (const auto& link : links_) {
    if (link != nullptr) link->poll(now);
  }
  if (simulator_ != nullptr) ask_to_be_polled();
  return completed_;
}

// On simulated time nobody looks again and again.
void LinkedEndpoint::ask_to_be_polled() {
  const task::TimePoint now = worker().now();
  task::TimePoint first = task::TimePoint::max();
  for (const auto& link : links_) {
    if (link != nullptr) first = std::min(first, link->due());
  }
  if (first == task::TimePoint::max() || (due_ > now && due_ <= first)) return;
  due_ = first;
  simulator_->ready_at(worker().seat(), first);
}

bool LinkedEndpoint::add_descriptors(std::vector<pollfd>& to) const {
  bool all = true;
  for (const auto& link : links_) {
    if (link != nullptr && !link->idle()) all &= link->add_descriptors(to);
  }
  return all;
}

void LinkedEndpoint::abandon() {
  for (const auto& flight : all_) flight->batch = nullptr;
  for (const auto& link : links_) {
    if (link != nullptr) link->drop_waiting();
  }
  fencings_ = 0;
  const task::TimePoint until = worker().now() + cluster_->options().timeout;
  while (flights_ > 0 && worker().now() < until) {
    std::vector<pollfd> waiting;
    add_descriptors(waiting);
    constexpr auto kBetweenPolls = std::chrono::milliseconds(1);
    cluster_->options().network->wait(waiting, worker().now() + kBetweenPolls, &worker());
    poll();
  }
  for (const auto& link : links_) {
    if (link != nullptr && !link->idle()) link->break_off(Error(ErrorCode::kUnavailable));
  }
}

// At every node that is known. One that is not has never been used by anybody: a pool uses a new
// node only once all its compute nodes know it.
Task<Status> LinkedEndpoint::fence(ClientId client) {
  struct Answers {
    Fencing& fencing;
    bool await_ready() const { return fencing.left == 0; }
    void await_suspend(std::coroutine_handle<> waiter) const { fencing.waiter = waiter; }
    void await_resume() const {}
  };
  const task::TimePoint now = worker().now();
  Fencing fencing{.client = client, .until = now + cluster_->options().timeout};
  const std::span<const std::uint64_t> sizes = cluster_->sizes();
  fencing.left = sizes.size() - static_cast<std::size_t>(std::ranges::count(sizes, 0u));
  ++fencings_;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 0) link_to(static_cast<NodeId>(i)).ask(fencing, now);
  }
  if (simulator_ != nullptr) simulator_->ready(worker().seat());
  co_await Answers{fencing};
  if (fencing.error) co_return fail(*fencing.error);
  co_return Status{};
}

void LinkedEndpoint::answered(Fencing& fencing, const Status& status) {
  // Memory that is gone cannot be harmed.
  const bool done = status || status.error().code() == ErrorCode::kDataLost;
  if (!done && !fencing.error) fencing.error = status.error();
  if (--fencing.left > 0) return;
  --fencings_;
  worker().schedule(fencing.waiter);
  completed_ = true;
}

bool LinkedEndpoint::post(Batch& batch) {
  std::optional<Error> error = too_long(batch);
  if (!error) error = unfit(batch);
  if (error) [[unlikely]] {
    batch.refuse(std::move(*error));
    return true;
  }
  const task::TimePoint now = worker().now();
  Flight& flight = take_flight();
  flight.batch = &batch;
  flight.until = now + cluster_->options().timeout;
  if (BatchWatcher* const watcher = cluster_->options().watcher) [[unlikely]] {
    watcher->posted(cluster_->client());
  }
  cut(batch, flight);
  flight.left = node_batches_.size();
  // Posting may end a node batch at once, so the number of all must be known before.
  for (auto& [node, node_batch] : node_batches_) link_to(node).post(std::move(node_batch), now);
  node_batches_.clear();
  if (simulator_ != nullptr) simulator_->ready(worker().seat());
  return false;
}

std::optional<Error> LinkedEndpoint::too_long(const Batch& batch) const {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (is_atomic(batch[i].kind) || batch[i].length <= limits_.verb_bytes) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a READ or WRITE of {} bytes; {} moves {} at most", batch[i].length,
                             limits_.fabric, limits_.verb_bytes));
  }
  return std::nullopt;
}

// Into one node batch a node, or several where one would be too long.
void LinkedEndpoint::cut(const Batch& batch, Flight& flight) {
  struct Open {
    std::size_t place;
    std::size_t request = wire::kBatchHead;
    std::size_t answer = wire::kAnswerHead;
  };
  std::vector<std::pair<NodeId, Open>> open;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Verb& verb = batch[i];
    const NodeId node = verb.target.node();
    const std::size_t request = wire::request_bytes(verb);
    const std::size_t answer = wire::result_bytes(verb);
    auto at = std::ranges::find(open, node, [](const auto& each) { return each.first; });
    const bool full =
        at != open.end() && (at->second.request + request > limits_.message_bytes ||
                             at->second.answer + answer > limits_.message_bytes ||
                             node_batches_[at->second.place].second.verbs.size() >= limits_.verbs);
    if (at == open.end() || full) {
      const Open fresh{node_batches_.size()};
      node_batches_.emplace_back(node, NodeBatch{&flight, {}});
      if (full) {
        at->second = fresh;
      } else {
        open.emplace_back(node, fresh);
        at = open.end() - 1;
      }
    }
    at->second.request += request;
    at->second.answer += answer;
    node_batches_[at->second.place].second.verbs.push_back(static_cast<std::uint32_t>(i));
  }
}

Link& LinkedEndpoint::link_to(NodeId node) {
  if (node >= links_.size()) links_.resize(cluster_->sizes().size());
  if (links_[node] == nullptr) {
    Link::Owner& owner = *this;
    links_[node] = make_link(node, owner);
  }
  return *links_[node];
}

void LinkedEndpoint::ended(NodeBatch node_batch, const Status& status) {
  Flight& flight = *node_batch.flight;
  if (!status && !flight.error) flight.error = status.error();
  if (--flight.left > 0) return;
  Batch* const batch = flight.batch;
  if (batch != nullptr) {
    if (flight.error) {
      batch->complete(std::move(*flight.error));
    } else {
      batch->complete();
    }
    worker().schedule(batch->waiter);
    completed_ = true;
  }
  if (BatchWatcher* const watcher = cluster_->options().watcher) [[unlikely]] {
    watcher->ended(cluster_->client(), worker(), flight.until - cluster_->options().timeout, batch);
  }
  flight.batch = nullptr;
  flight.error.reset();
  --flights_;
  free_.push_back(&flight);
}

Flight& LinkedEndpoint::take_flight() {
  ++flights_;
  if (free_.empty()) {
    all_.push_back(std::make_unique<Flight>());
    return *all_.back();
  }
  Flight& flight = *free_.back();
  free_.pop_back();
  return flight;
}

}  // namespace pando::fabric::remote
