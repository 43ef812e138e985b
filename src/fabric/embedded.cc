#include "fabric/embedded.h"

#include <fmt/format.h>

#include <mutex>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "fabric/line_memory.h"
#include "fabric/mapping.h"

namespace pando::fabric {
namespace {

constexpr std::uint64_t kPage = 4096;
// Of a batch. A READ of 1 KiB gains nothing before most of its lines are asked for.
constexpr std::size_t kPrefetchedLines = 32;

class Node {
 public:
  Node(std::uint64_t bytes, const EmbeddedOptions& options)
      : memory_mapping_(bytes, options.huge_pages),
        onchip_mapping_(options.onchip_bytes, false),
        sequences_(std::make_unique<LineMemory::Sequence[]>(LineMemory::kSequences)),
        memory_(memory_mapping_.data(), sequences_.get()),
        onchip_(onchip_mapping_.data(), sequences_.get()) {}

  int problem() const {
    return memory_mapping_.problem() != 0 ? memory_mapping_.problem() : onchip_mapping_.problem();
  }
  const LineMemory& part_of(std::uint64_t offset) const {
    return offset < Address::kOnChip ? memory_ : onchip_;
  }

 private:
  Mapping memory_mapping_;
  Mapping onchip_mapping_;
  std::unique_ptr<LineMemory::Sequence[]> sequences_;
  LineMemory memory_;
  LineMemory onchip_;
};

constexpr std::uint64_t offset_in_part(Address address) {
  return address.offset() & (Address::kOnChip - 1);
}

// The memory nodes, shared by all clients.
class Nodes {
 public:
  static Result<std::shared_ptr<Nodes>> make(const EmbeddedOptions& options);

  const Caps& caps() const { return caps_; }
  std::span<const std::uint64_t> sizes() const { return sizes_; }
  const LineMemory& part_of(Address address) const {
    return nodes_[address.node()].part_of(address.offset());
  }

  ClientId join() {
    const std::scoped_lock lock(mutex_);
    present_.insert(++last_client_);
    return last_client_;
  }
  void leave(ClientId client) {
    const std::scoped_lock lock(mutex_);
    present_.erase(client);
  }
  bool present(ClientId client) {
    const std::scoped_lock lock(mutex_);
    return present_.contains(client);
  }

 private:
  Caps caps_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> sizes_;

  std::mutex mutex_;
  ClientId last_client_ = 0;
  std::set<ClientId> present_;
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
  return {};
}

Result<std::shared_ptr<Nodes>> Nodes::make(const EmbeddedOptions& options) {
  if (Status valid = check(options); !valid) return fail(valid.error());
  auto made = std::make_shared<Nodes>();
  made->caps_ = {.line_atomic = true,
                 .write_in_order = false,
                 .masked_cas = options.native_masked_cas,
                 .completes_inline = true,
                 .onchip_bytes = options.onchip_bytes};
  const std::uint64_t node_bytes = options.bytes / options.nodes / kPage * kPage;
  made->nodes_.reserve(options.nodes);
  for (std::uint32_t i = 0; i < options.nodes; ++i) {
    if (const int problem = made->nodes_.emplace_back(node_bytes, options).problem();
        problem != 0) {
      return fail(ErrorCode::kOutOfMemory,
                  fmt::format("cannot map {} for memory node {}: {}", base::format_size(node_bytes),
                              i, std::generic_category().message(problem)));
    }
  }
  made->sizes_.assign(options.nodes, node_bytes);
  return made;
}

// ---- Endpoint
// ------------------------------------------------------------------------------------

class EmbeddedEndpoint final : public Endpoint {
 public:
  EmbeddedEndpoint(std::shared_ptr<Nodes> nodes, task::Worker& worker)
      : Endpoint(nodes->caps(), worker), nodes_(std::move(nodes)) {}

  bool poll() override {
    if (first_ == nullptr) return false;
    // Waiters run later, so nothing is queued meanwhile.
    for (Batch* batch = std::exchange(first_, nullptr); batch != nullptr;) {
      Batch* const next = batch->next;
      execute(*batch);
      worker().schedule(batch->waiter);
      batch = next;
    }
    last_ = nullptr;
    return true;
  }
  bool pending() const override { return first_ != nullptr; }
  void abandon() override { first_ = last_ = nullptr; }

 private:
  bool post(Batch& batch) override {
    if (auto error = misplaced(batch, nodes_->sizes())) [[unlikely]] {
      batch.refuse(std::move(*error));
      return true;
    }
    // With a batch queued there is a task to overlap with, whatever the worker says.
    if (!worker().crowded() && first_ == nullptr) {
      execute(batch);
      return true;
    }
    prefetch(batch);
    enqueue(batch);
    return false;
  }

  void enqueue(Batch& batch) {
    batch.next = nullptr;
    if (first_ == nullptr) {
      first_ = &batch;
    } else {
      last_->next = &batch;
    }
    last_ = &batch;
  }

  void prefetch(const Batch& batch) const {
    std::size_t lines = 0;
    for (std::size_t i = 0; i < batch.size() && lines < kPrefetchedLines; ++i) {
      const Verb& verb = batch[i];
      if (verb.kind == VerbKind::kWrite) continue;  // stores wait for nobody
      const std::size_t length = verb.kind == VerbKind::kRead ? verb.length : 8;
      lines += nodes_->part_of(verb.target)
                   .prefetch(offset_in_part(verb.target), length, kPrefetchedLines - lines);
    }
  }

  void execute(Batch& batch) const {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Verb& verb = batch[i];
      execute(verb, nodes_->part_of(verb.target), offset_in_part(verb.target));
      verb.outcome = Outcome::kExecuted;
    }
    batch.complete();
  }

  static void execute(Verb& verb, const LineMemory& memory, std::uint64_t offset) {
    switch (verb.kind) {
      case VerbKind::kRead:
        memory.read(offset, verb.local, verb.length);
        break;
      case VerbKind::kWrite:
        memory.write(offset, verb.local, verb.length);
        break;
      case VerbKind::kCompareSwap:
        verb.previous = memory.compare_swap(offset, verb.compare, verb.swap);
        break;
      case VerbKind::kMaskedCompareSwap:
        verb.previous = verb.emulated
                            ? memory.compare_swap(offset, verb.guess, verb.swapped(verb.guess))
                            : memory.compare_swap(offset, verb.compare, verb.swap,
                                                  verb.compare_mask, verb.swap_mask);
        break;
      case VerbKind::kFetchAdd:
        verb.previous = memory.fetch_add(offset, verb.swap);
        break;
    }
  }

  std::shared_ptr<Nodes> nodes_;
  Batch* first_ = nullptr;  // queued batches, the oldest first
  Batch* last_ = nullptr;
};

// ---- Fabric
// --------------------------------------------------------------------------------------

class EmbeddedFabric final : public Fabric {
 public:
  explicit EmbeddedFabric(std::shared_ptr<Nodes> nodes)
      : nodes_(std::move(nodes)), client_(nodes_->join()) {}
  ~EmbeddedFabric() override { nodes_->leave(client_); }
  EmbeddedFabric(const EmbeddedFabric&) = delete;
  EmbeddedFabric& operator=(const EmbeddedFabric&) = delete;

  const Caps& caps() const override { return nodes_->caps(); }
  ClientId client() const override { return client_; }
  std::size_t node_count() const override { return nodes_->sizes().size(); }
  std::uint64_t node_size(NodeId node) const override {
    return node < node_count() ? nodes_->sizes()[node] : 0;
  }
  Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) override {
    return std::make_unique<EmbeddedEndpoint>(nodes_, worker);
  }
  Status fence(ClientId client) override {
    if (!nodes_->present(client)) return {};
    return fail(ErrorCode::kBusy,
                fmt::format("client {} still has the memory nodes open in this process", client));
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
