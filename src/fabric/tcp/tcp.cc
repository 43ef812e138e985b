#include "fabric/tcp/tcp.h"

#include <limits>
#include <utility>

#include "fabric/remote/cluster.h"
#include "fabric/remote/endpoint.h"
#include "fabric/tcp/stream_link.h"

namespace pando::fabric::tcp {
namespace {

using remote::Cluster;

// A READ or WRITE must fit a message, with what stands around it.
constexpr std::uint32_t kMaxLength = wire::kMaxBytes - 1024;

class TcpEndpoint final : public remote::LinkedEndpoint {
 public:
  TcpEndpoint(const std::shared_ptr<Cluster>& cluster, task::Worker& worker)
      : LinkedEndpoint(cluster, worker, cluster->caps(),
                       {.fabric = "tcp",
                        .verb_bytes = kMaxLength,
                        .message_bytes = wire::kMaxBytes,
                        .verbs = std::numeric_limits<std::uint32_t>::max()}) {}
  ~TcpEndpoint() override { LinkedEndpoint::abandon(); }
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

 private:
  std::unique_ptr<remote::Link> make_link(NodeId node, remote::Link::Owner& owner) override {
    return std::make_unique<StreamLink>(cluster(), node, owner);
  }
};

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  const Caps& caps() const override { return cluster_->caps(); }
  ClientId client() const override { return cluster_->client(); }
  std::size_t memory_node_count() const override { return cluster_->sizes().size(); }
  std::uint64_t memory_node_size(NodeId node) const override {
    const std::span<const std::uint64_t> sizes = cluster_->sizes();
    return node < sizes.size() ? sizes[node] : 0;
  }
  bool may_grow() const override { return cluster_->options().registry.has_value(); }
  Status look_for_memory_nodes() override { return cluster_->look(); }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<TcpEndpoint>(cluster_, worker);
  }
  Status stay(bool stays) override { return cluster_->stay(stays); }
  task::Clock& clock() override { return cluster_->options().network->clock(); }
  Result<std::unique_ptr<Fabric>> attach() override { return open_tcp(cluster_->options()); }

 private:
  std::shared_ptr<Cluster> cluster_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> open_tcp(const remote::Options& options) {
  Result<std::shared_ptr<Cluster>> cluster = Cluster::open(options, wire::Purpose::kVerbs,
                                                           {.line_atomic = true,
                                                            .masked_cas = options.native_masked_cas,
                                                            .completes_inline = false,
                                                            .inline_limit = 4096});
  if (!cluster) return fail(cluster.error());
  return std::make_unique<TcpFabric>(std::move(*cluster));
}

}  // namespace pando::fabric::tcp
