#include "fabric/tcp/tcp.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "fabric/tcp/cluster.h"
#include "fabric/tcp/link.h"

namespace pando::fabric::tcp {
namespace {

// A READ or WRITE must fit a message, with what stands around it.
constexpr std::uint32_t kMaxLength = wire::kMaxBytes - 1024;

class TcpEndpoint final : public Endpoint, private Link::Owner {
 public:
  TcpEndpoint(std::shared_ptr<Cluster> cluster, task::Worker& worker)
      : Endpoint(cluster->caps(), worker), cluster_(std::move(cluster)) {}
  // Verbs that nobody waits for any more must have happened, or be sure not to.
  ~TcpEndpoint() override { TcpEndpoint::abandon(); }
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

  bool poll() override {
    if (flights_ == 0) return false;
    completed_ = false;
    const task::TimePoint now = worker().now();
    for (const auto& link : links_) {
      if (link != nullptr) link->poll(now);
    }
    return completed_;
  }
  bool pending() const override { return flights_ > 0; }

  bool add_descriptors(std::vector<pollfd>& to) const override {
    for (const auto& link : links_) {
      if (link == nullptr || link->idle()) continue;
      if (link->descriptor() < 0) return false;  // about to connect
      const auto events = static_cast<short>(POLLIN | (link->wants_to_send() ? POLLOUT : 0));
      to.push_back({.fd = link->descriptor(), .events = events, .revents = 0});
    }
    return true;
  }

  void abandon() override {
    for (const auto& flight : all_) flight->batch = nullptr;
    for (const auto& link : links_) {
      if (link != nullptr) link->drop_waiting();
    }
    const task::TimePoint until = worker().now() + cluster_->options().timeout;
    while (flights_ > 0 && worker().now() < until) {
      std::vector<pollfd> waiting;
      add_descriptors(waiting);
      ::poll(waiting.data(), waiting.size(), 1);
      poll();
    }
    for (const auto& link : links_) {
      if (link != nullptr && !link->idle()) link->break_off(Error(ErrorCode::kUnavailable));
    }
  }

 private:
  bool post(Batch& batch) override {
    if (auto error = misplaced(batch, cluster_->sizes())) [[unlikely]] {
      batch.refuse(std::move(*error));
      return true;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!is_atomic(batch[i].kind) && batch[i].length > kMaxLength) [[unlikely]] {
        batch.refuse(Error(ErrorCode::kInvalidArgument,
                           fmt::format("a READ or WRITE of {} bytes; tcp moves {} at most",
                                       batch[i].length, kMaxLength)));
        return true;
      }
    }
    const task::TimePoint now = worker().now();
    Flight& flight = take_flight();
    flight.batch = &batch;
    flight.until = now + cluster_->options().timeout;
    cut(batch, flight);
    flight.parts = parts_.size();
    // Posting may end a part at once, so the number of all must be known before.
    for (auto& [node, part] : parts_) link_to(node).post(std::move(part), now);
    parts_.clear();
    return false;
  }

  // Into one part a node, or several where a message would be too long.
  void cut(const Batch& batch, Flight& flight) {
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
      const bool full = at != open.end() && (at->second.request + request > wire::kMaxBytes ||
                                             at->second.answer + answer > wire::kMaxBytes);
      if (at == open.end() || full) {
        const Open fresh{parts_.size()};
        parts_.emplace_back(node, Part{&flight, {}});
        if (full) {
          at->second = fresh;
        } else {
          open.emplace_back(node, fresh);
          at = open.end() - 1;
        }
      }
      at->second.request += request;
      at->second.answer += answer;
      parts_[at->second.place].second.verbs.push_back(static_cast<std::uint32_t>(i));
    }
  }

  Link& link_to(NodeId node) {
    if (node >= links_.size()) links_.resize(cluster_->sizes().size());
    if (links_[node] == nullptr) {
      Link::Owner& owner = *this;
      links_[node] = std::make_unique<Link>(*cluster_, node, owner);
    }
    return *links_[node];
  }

  void ended(Part part, const Status& status) override {
    Flight& flight = *part.flight;
    if (!status && !flight.error) flight.error = status.error();
    if (--flight.parts > 0) return;
    if (Batch* const batch = flight.batch) {
      if (flight.error) {
        batch->complete(std::move(*flight.error));
      } else {
        batch->complete();
      }
      worker().schedule(batch->waiter);
      completed_ = true;
    }
    flight.batch = nullptr;
    flight.error.reset();
    --flights_;
    free_.push_back(&flight);
  }

  Flight& take_flight() {
    ++flights_;
    if (free_.empty()) {
      all_.push_back(std::make_unique<Flight>());
      return *all_.back();
    }
    Flight& flight = *free_.back();
    free_.pop_back();
    return flight;
  }

  std::shared_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Link>> links_;  // by node
  std::size_t flights_ = 0;
  bool completed_ = false;
  std::vector<std::unique_ptr<Flight>> all_;
  std::vector<Flight*> free_;
  std::vector<std::pair<NodeId, Part>> parts_;  // of the batch that is being posted
};

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  const Caps& caps() const override { return cluster_->caps(); }
  ClientId client() const override { return cluster_->client(); }
  std::size_t node_count() const override { return cluster_->sizes().size(); }
  std::uint64_t node_size(NodeId node) const override {
    const std::span<const std::uint64_t> sizes = cluster_->sizes();
    return node < sizes.size() ? sizes[node] : 0;
  }
  bool may_grow() const override { return cluster_->options().registry.has_value(); }
  Status look_for_nodes() override { return cluster_->look(); }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<TcpEndpoint>(cluster_, worker);
  }
  Status fence(ClientId client) override { return cluster_->fence(client); }
  Result<std::unique_ptr<Fabric>> attach() override { return open_tcp(cluster_->options()); }

 private:
  std::shared_ptr<Cluster> cluster_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> open_tcp(const TcpOptions& options) {
  Result<std::shared_ptr<Cluster>> cluster = Cluster::open(options);
  if (!cluster) return fail(cluster.error());
  return std::make_unique<TcpFabric>(std::move(*cluster));
}

}  // namespace pando::fabric::tcp
