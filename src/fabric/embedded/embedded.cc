#include "fabric/embedded/embedded.h"

#include <fmt/format.h>

#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/machine_memory.h"
#include "base/mutex.h"
#include "base/parse.h"
#include "fabric/line_memory.h"
#include "fabric/local_endpoint.h"
#include "fabric/mapping.h"

namespace pando::fabric {
namespace {

constexpr std::uint64_t kPage = 4096;

class Node {
 public:
  Node(std::uint64_t bytes, const EmbeddedOptions& options)
      : memory_mapping_(bytes, options.huge_pages),
        onchip_mapping_(options.onchip_bytes, false),
        sequences_(std::make_unique<LineMemory::Sequence[]>(LineMemory::kSequences)) {}

  int problem() const {
    return memory_mapping_.problem() != 0 ? memory_mapping_.problem() : onchip_mapping_.problem();
  }
  LineMemory main_lines() const { return {memory_mapping_.data(), sequences_.get()}; }
  LineMemory onchip_lines() const { return {onchip_mapping_.data(), sequences_.get()}; }

 private:
  Mapping memory_mapping_;
  Mapping onchip_mapping_;
  std::unique_ptr<LineMemory::Sequence[]> sequences_;
};

// The memory nodes, shared by all clients.
class Nodes {
 public:
  static Result<std::shared_ptr<Nodes>> make(const EmbeddedOptions& options);

  const Caps& caps() const { return caps_; }
  std::span<const std::uint64_t> sizes() const { return sizes_; }
  const LineMemory& part_of(Address address) const { return parts_[address.part()]; }

  ClientId join() {
    const base::MutexLock lock(mutex_);
    present_.insert(++last_client_);
    return last_client_;
  }
  void leave(ClientId client) {
    const base::MutexLock lock(mutex_);
    present_.erase(client);
  }
  ClientId last_client() {
    const base::MutexLock lock(mutex_);
    return last_client_;
  }
  bool present(ClientId client) {
    const base::MutexLock lock(mutex_);
    return present_.contains(client);
  }

 private:
  Caps caps_;
  std::vector<Node> nodes_;
  std::vector<LineMemory> parts_;  // by Address::part()
  std::vector<std::uint64_t> sizes_;

  base::Mutex mutex_;
  ClientId last_client_ PANDO_GUARDED_BY(mutex_) = 0;
  std::set<ClientId> present_ PANDO_GUARDED_BY(mutex_);
};

Status check(const EmbeddedOptions& options) {
  if (options.nodes == 0 || options.nodes > EmbeddedOptions::kMaxNodes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("nodes: {} is not between 1 and {}", options.nodes,
                            EmbeddedOptions::kMaxNodes));
  }
  const std::uint64_t node_bytes = options.bytes / options.nodes;
  if (node_bytes < EmbeddedOptions::kMinNodeBytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("size: {} is too small for nodes={}: each needs {} at least",
                            base::format_size(options.bytes), options.nodes,
                            base::format_size(EmbeddedOptions::kMinNodeBytes)));
  }
  if (node_bytes > Address::kOnChip) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("size: {} is too large: a node has {} at most",
                            base::format_size(options.bytes), base::format_size(Address::kOnChip)));
  }
  if (options.onchip_bytes % kLineBytes != 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("onchip: {} is not a multiple of {} bytes",
                                                         options.onchip_bytes, kLineBytes));
  }
  return base::check_fits("size", options.bytes, base::machine_memory());
}

Result<std::shared_ptr<Nodes>> Nodes::make(const EmbeddedOptions& options) {
  if (Status valid = check(options); !valid) return fail(valid.error());
  auto made = std::make_shared<Nodes>();
  made->caps_ = {.line_atomic = true,
                 .masked_cas = options.native_masked_cas,
                 .completes_inline = true,
                 .onchip_bytes = options.onchip_bytes};
  const std::uint64_t node_bytes = options.bytes / options.nodes / kPage * kPage;
  made->nodes_.reserve(options.nodes);
  for (std::uint32_t i = 0; i < options.nodes; ++i) {
    const Node& node = made->nodes_.emplace_back(node_bytes, options);
    made->parts_.push_back(node.main_lines());
    made->parts_.push_back(node.onchip_lines());
    if (const int problem = node.problem(); problem != 0) {
      return fail(ErrorCode::kOutOfMemory,
                  fmt::format("cannot map {} for memory node {}: {}", base::format_size(node_bytes),
                              i, std::generic_category().message(problem)));
    }
  }
  made->sizes_.assign(options.nodes, node_bytes);
  return made;
}

// One endpoint's sight of them.
class View {
 public:
  explicit View(std::shared_ptr<Nodes> nodes) : nodes_(std::move(nodes)) {}
  const Caps& caps() const { return nodes_->caps(); }
  std::span<const std::uint64_t> sizes() const { return nodes_->sizes(); }
  const LineMemory& part_of(Address address) const { return nodes_->part_of(address); }
  Status usable(const Batch& /*batch*/) const { return {}; }
  Task<Status> fence(task::Worker& /*worker*/, ClientId client) {
    if (client == 0 || client > nodes_->last_client()) {
      co_return fail(ErrorCode::kInvalidArgument,
                     fmt::format("there is no client {}: the last that came in is {}", client,
                                 nodes_->last_client()));
    }
    if (!nodes_->present(client)) co_return Status{};
    co_return fail(
        ErrorCode::kBusy,
        fmt::format("client {} still has the memory nodes open in this process", client));
  }

 private:
  std::shared_ptr<Nodes> nodes_;
};

// ---- Fabric ----

class EmbeddedFabric final : public Fabric {
 public:
  explicit EmbeddedFabric(std::shared_ptr<Nodes> nodes)
      : nodes_(std::move(nodes)), client_(nodes_->join()) {}
  ~EmbeddedFabric() override { nodes_->leave(client_); }
  EmbeddedFabric(const EmbeddedFabric&) = delete;
  EmbeddedFabric& operator=(const EmbeddedFabric&) = delete;

  const Caps& caps() const override { return nodes_->caps(); }
  ClientId client() const override { return client_; }
  std::size_t memory_node_count() const override { return nodes_->sizes().size(); }
  std::uint64_t memory_node_size(NodeId node) const override {
    return node < memory_node_count() ? nodes_->sizes()[node] : 0;
  }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<LocalEndpoint<View>>(View(nodes_), worker);
  }
  Result<std::unique_ptr<Fabric>> attach() override {
    return std::make_unique<EmbeddedFabric>(nodes_);
  }

 private:
  std::shared_ptr<Nodes> nodes_;
  ClientId client_;
};

}  // namespace

Result<std::unique_ptr<Fabric>> open_embedded(const EmbeddedOptions& options) {
  auto nodes = Nodes::make(options);
  if (!nodes) return fail(nodes.error());
  return std::make_unique<EmbeddedFabric>(std::move(*nodes));
}

}  // namespace pando::fabric
