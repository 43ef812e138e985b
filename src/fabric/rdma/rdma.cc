#include "fabric/rdma/rdma.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "base/mutex.h"
#include "fabric/rdma/arena.h"
#include "fabric/rdma/link.h"
#include "fabric/rdma/mlx5.h"
#include "fabric/remote/cluster.h"
#include "fabric/remote/endpoint.h"

namespace pando::fabric::rdma {
namespace {

using remote::Cluster;

// What the nodes offer, and which device of ours leads there. Thread-safe.
class Offers {
 public:
  explicit Offers(const RdmaOptions& options)
      : options_(options), masked_cas_(options.native_masked_cas) {}

  // Until it is fixed, what can be had is what all have. Later ones must have it, too.
  Status look(NodeId id, wire::ControlLink& link);
  // REQUIRES: there is one at least.
  std::shared_ptr<Device> fix(Caps& caps);

 private:
  Status take(NodeId id, const wire::RdmaOffer& offer, const Device& device) PANDO_REQUIRES(mutex_);

  const RdmaOptions options_;
  base::Mutex mutex_;
  bool fixed_ PANDO_GUARDED_BY(mutex_) = false;
  bool line_atomic_ PANDO_GUARDED_BY(mutex_) = true;
  bool masked_cas_ PANDO_GUARDED_BY(mutex_);
  std::shared_ptr<Device> device_ PANDO_GUARDED_BY(mutex_);
};

Status Offers::look(NodeId id, wire::ControlLink& link) {
  const Result<wire::RdmaOffer> offer = link.ask_for_rdma(options_.timeout);
  if (!offer) return fail(offer.error());
  auto device =
      Device::towards(make_address(offer->address, offer->port), options_.device, options_.timeout);
  if (!device) return fail(device.error());
  const base::MutexLock lock(mutex_);
  if (Status taken = take(id, *offer, **device); !taken) return taken;
  if (device_ == nullptr) device_ = std::move(*device);
  return {};
}

Status Offers::take(NodeId id, const wire::RdmaOffer& offer, const Device& device) {
  if (offer.knows_mtu == 0 && options_.mtu != kMtus.back()) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("mtu: memory node {} is of a version that cannot choose it: bring it "
                            "up to date",
                            id));
  }
  if (device_ != nullptr && device_->context() != device.context()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("memory node {} is reached by device {}, others by {}; a pool uses one "
                            "device",
                            id, device.name(), device_->name()));
  }
  const bool line_atomic = line_atomic_ && offer.line_atomic != 0;
  const bool masked_cas = masked_cas_ && offer.masked_cas != 0 && device.masked_cas();
  if (fixed_ && (line_atomic != line_atomic_ || masked_cas != masked_cas_)) {
    return fail(
        ErrorCode::kIncompatible,
        fmt::format("memory node {} has a card that cannot do what those of the others do: "
                    "{}; clients that are opened anew can use it",
                    id,
                    line_atomic != line_atomic_ ? "keep lines whole" : "masked compare-and-swap"));
  }
  line_atomic_ = line_atomic;
  masked_cas_ = masked_cas;
  return {};
}

std::shared_ptr<Device> Offers::fix(Caps& caps) {
  const base::MutexLock lock(mutex_);
  assert(device_ != nullptr);
  fixed_ = true;
  masked_cas_ = masked_cas_ && makes_masked_queues(*device_);
  caps.line_atomic = line_atomic_;
  caps.masked_cas = masked_cas_;
  return device_;
}

// What the endpoints of a client share.
struct Shared {
  RdmaOptions options;
  Caps caps;
  std::shared_ptr<Cluster> cluster;
  std::shared_ptr<Device> device;
  LinkOptions link_options;
};

class RdmaEndpoint final : public remote::LinkedEndpoint {
 public:
  RdmaEndpoint(std::shared_ptr<const Shared> shared, task::Worker& worker)
      : LinkedEndpoint(shared->cluster, worker, shared->caps,
                       {.fabric = "rdma",
                        .verb_bytes = shared->device->max_message(),
                        .message_bytes = std::numeric_limits<std::size_t>::max(),
                        .verbs = kMaxNodeBatch}),
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
  std::unique_ptr<remote::Link> make_link(NodeId node, remote::Link::Owner& owner) override {
    return std::make_unique<Link>(cluster(), node, owner, *shared_->device, shared_->link_options,
                                  arena_);
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
  std::size_t memory_node_count() const override { return shared_->cluster->sizes().size(); }
  std::uint64_t memory_node_size(NodeId node) const override {
    const std::span<const std::uint64_t> sizes = shared_->cluster->sizes();
    return node < sizes.size() ? sizes[node] : 0;
  }
  bool may_grow() const override { return shared_->options.registry.has_value(); }
  Status look_for_memory_nodes() override { return shared_->cluster->look(); }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<RdmaEndpoint>(shared_, worker);
  }
  Status stay(bool stays) override { return shared_->cluster->stay(stays); }
  Result<std::unique_ptr<Fabric>> attach() override { return open_rdma(shared_->options); }

 private:
  std::shared_ptr<const Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> open_rdma(const RdmaOptions& options) {
  // Before anyone is asked: a machine without RDMA.
  if (auto channel = make_channel(); !channel) return fail(channel.error());
  const auto offers = std::make_shared<Offers>(options);
  Result<std::shared_ptr<Cluster>> cluster = Cluster::open(
      options, wire::Purpose::kRdma, {.completes_inline = false, .inline_limit = kInlineBytes},
      [offers](NodeId id, wire::ControlLink& link) { return offers->look(id, link); });
  if (!cluster) return fail(cluster.error());
  auto shared = std::make_shared<Shared>(
      Shared{.options = options, .caps = (*cluster)->caps(), .cluster = *cluster});
  shared->device = offers->fix(shared->caps);
  shared->link_options = {.device = options.device,
                          .mtu = options.mtu,
                          .line_atomic = shared->caps.line_atomic,
                          .masked_cas = shared->caps.masked_cas};
  return std::make_unique<RdmaFabric>(std::move(shared));
}

}  // namespace pando::fabric::rdma
