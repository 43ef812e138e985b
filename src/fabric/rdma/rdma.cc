#include "fabric/rdma/rdma.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "fabric/rdma/arena.h"
#include "fabric/rdma/link.h"
#include "fabric/tcp/cluster.h"
#include "fabric/tcp/endpoint.h"

namespace pando::fabric::rdma {
namespace {

using tcp::Cluster;

// What the endpoints of a client share.
struct Shared {
  RdmaOptions options;
  Caps caps;
  std::shared_ptr<Cluster> cluster;
  std::shared_ptr<Device> device;
  Way way;
};

class RdmaEndpoint final : public tcp::LinkedEndpoint {
 public:
  RdmaEndpoint(std::shared_ptr<const Shared> shared, task::Worker& worker)
      : LinkedEndpoint(shared->cluster, worker, shared->caps,
                       {.fabric = "rdma",
                        .verb_bytes = shared->device->max_message(),
                        .message_bytes = std::numeric_limits<std::size_t>::max(),
                        .verbs = kMaxPart}),
        shared_(std::move(shared)),
        arena_(shared_->device) {}
  ~RdmaEndpoint() override {
    LinkedEndpoint::abandon();
    close_links();
    free_buffers();
  }
  RdmaEndpoint(const RdmaEndpoint&) = delete;
  RdmaEndpoint& operator=(const RdmaEndpoint&) = delete;

 private:
  std::unique_ptr<tcp::Link> make_link(NodeId node, tcp::Link::Owner& owner) override {
    return std::make_unique<Link>(cluster(), node, owner, *shared_->device, shared_->way, arena_);
  }
  std::byte* allocate_registered(std::size_t bytes) override { return arena_.allocate(bytes); }
  void free_registered(std::byte* /*memory*/, std::size_t /*bytes*/) override {}

  std::optional<Error> unfit(const Batch& batch) const override {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Verb& verb = batch[i];
      if (verb.length == 0 || is_atomic(verb.kind)) continue;
      if (verb.kind == VerbKind::kWrite && verb.length <= kInlineBytes) continue;
      if (arena_.key_of(verb.local, verb.length)) continue;
      if (arena_.problem()) return arena_.problem();
      return Error(ErrorCode::kInvalidArgument, "a READ or WRITE beside its endpoint's buffers");
    }
    return std::nullopt;
  }

  std::shared_ptr<const Shared> shared_;
  Arena arena_;
};

class RdmaFabric final : public Fabric {
 public:
  explicit RdmaFabric(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}

  const Caps& caps() const override { return shared_->caps; }
  ClientId client() const override { return shared_->cluster->client(); }
  std::size_t node_count() const override { return shared_->cluster->sizes().size(); }
  std::uint64_t node_size(NodeId node) const override {
    return node < node_count() ? shared_->cluster->sizes()[node] : 0;
  }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<RdmaEndpoint>(shared_, worker);
  }
  Status fence(ClientId client) override { return shared_->cluster->fence(client); }
  Result<std::unique_ptr<Fabric>> attach() override { return open_rdma(shared_->options); }

 private:
  std::shared_ptr<const Shared> shared_;
};

// Looks at every node's door: what can be had there, and which device of ours leads there.
Status look_at_doors(Shared& shared) {
  for (std::size_t i = 0; i < shared.options.nodes.size(); ++i) {
    Cluster::Node& node = shared.cluster->node(static_cast<NodeId>(i));
    Result<wire::Door> door = [&] {
      const std::scoped_lock lock(node.mutex);
      return node.control->enter(shared.options.timeout);
    }();
    if (!door) return fail(door.error());
    if (door->knows_mtu == 0 && shared.options.mtu != kMtus.back()) {
      return fail(ErrorCode::kIncompatible,
                  fmt::format("mtu: memory node {} is of a version that cannot choose it: bring it "
                              "up to date",
                              i));
    }
    shared.caps.line_atomic = shared.caps.line_atomic && door->line_atomic != 0;
    shared.caps.masked_cas = shared.caps.masked_cas && door->masked_cas != 0;
    auto device = Device::towards(make_address(door->address, door->port), shared.options.device,
                                  shared.options.timeout);
    if (!device) return fail(device.error());
    if (shared.device != nullptr && shared.device->context() != (*device)->context()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("memory node {} is reached by device {}, others by {}; a pool uses "
                              "one device",
                              i, (*device)->name(), shared.device->name()));
    }
    if (shared.device == nullptr) shared.device = std::move(*device);
  }
  shared.caps.masked_cas = shared.caps.masked_cas && shared.device->masked_cas();
  return {};
}

}  // namespace

Result<std::unique_ptr<Fabric>> open_rdma(const RdmaOptions& options) {
  // Before anyone is asked: a machine without RDMA.
  if (auto channel = make_channel(); !channel) return fail(channel.error());
  Result<std::shared_ptr<Cluster>> cluster = Cluster::open(options, wire::Purpose::kRdma,
                                                           {.line_atomic = true,
                                                            .write_in_order = false,
                                                            .masked_cas =
                                                                options.native_masked_cas,
                                                            .completes_inline = false,
                                                            .inline_limit = kInlineBytes});
  if (!cluster) return fail(cluster.error());
  auto shared = std::make_shared<Shared>(
      Shared{.options = options, .caps = (*cluster)->caps(), .cluster = *cluster, .device = {}, .way = {}});
  if (Status looked = look_at_doors(*shared); !looked) return fail(looked.error());
  shared->way = {
      .device = options.device, .mtu = options.mtu, .masked_cas = shared->caps.masked_cas};
  return std::make_unique<RdmaFabric>(std::move(shared));
}

}  // namespace pando::fabric::rdma
