#include "pool/memory/free_blocks.h"

#include <cassert>
#include <utility>

namespace pando::pool {

// ---- FreeBlocks ----

FreeBlocks::FreeBlocks(Budget& budget) : budget_(budget), counted_(sizeof(FreeBlocks)) {
  budget_.take(BudgetUse::kFreeLists, counted_);
}

FreeBlocks::~FreeBlocks() { budget_.give_back(BudgetUse::kFreeLists, counted_); }

std::optional<Block> FreeBlocks::take_used(BlockKind kind, std::size_t size_class,
                                           std::optional<fabric::NodeId> near) {
  Class& from = of(kind, size_class);
  for (std::size_t i = from.count; i-- > 0;) {
    if (near && from.list[i].address.node() != *near) continue;
    from.changed = true;
    return std::exchange(from.list[i], from.list[--from.count]);
  }
  return std::nullopt;
}

std::optional<Block> FreeBlocks::take_fresh(BlockKind kind, std::size_t size_class,
                                            std::optional<fabric::NodeId> near) {
  Class& from = of(kind, size_class);
  for (auto run = from.fresh.begin(); run != from.fresh.end(); ++run) {
    if (near && run->block.address.node() != *near) continue;
    const Block block = run->block;
    run->block.address = run->block.address + block.bytes();
    if (--run->count == 0) from.fresh.erase(run);
    from.changed = true;
    return block;
  }
  return std::nullopt;
}

bool FreeBlocks::put(const Block& block) {
  Class& to = of(block.kind, block.size_class);
  const std::size_t limit = list_limit(block.size_class);
  if (to.count == limit) return false;
  if (to.list == nullptr) {
    to.list = std::make_unique<Block[]>(limit);
    counted_ += limit * sizeof(Block);
    budget_.take(BudgetUse::kFreeLists, limit * sizeof(Block));
  }
  to.list[to.count++] = block;
  to.changed = true;
  return true;
}

std::optional<Block> FreeBlocks::put_rather(const Block& block) {
  if (put(block)) return std::nullopt;
  Class& to = of(block.kind, block.size_class);
  if (!description(block.kind).births) return block;
  const auto here = [&](fabric::NodeId node) {
    return std::count_if(to.list.get(), to.list.get() + to.count,
                         [&](const Block& each) { return each.address.node() == node; });
  };
  const auto own = here(block.address.node());
  for (std::size_t i = 0; i < to.count; ++i) {
    const fabric::NodeId node = to.list[i].address.node();
    if (node == block.address.node() || here(node) <= own) continue;
    to.changed = true;
    return std::exchange(to.list[i], block);
  }
  return block;
}

bool FreeBlocks::put_fresh(const FreeRun& run) {
  const Class& to = of(run.block.kind, run.block.size_class);
  const bool by_node = description(run.block.kind).births;
  for (const FreeRun& other : to.fresh) {
    if (!by_node || other.block.address.node() == run.block.address.node()) return false;
  }
  add_fresh(run);
  return true;
}

void FreeBlocks::add_fresh(const FreeRun& run) {
  Class& to = of(run.block.kind, run.block.size_class);
  to.fresh.push_back(run);
  to.changed = true;
}

std::vector<FreeRun> FreeBlocks::take_surplus(BlockKind kind, std::size_t size_class,
                                              std::size_t limit) {
  assert(of(kind, size_class).count > 0);
  return take_from_list(of(kind, size_class), std::min(limit, list_limit(size_class) / 2));
}

std::vector<FreeRun> FreeBlocks::take_all(BlockKind kind, std::size_t size_class,
                                          std::size_t limit) {
  Class& from = of(kind, size_class);
  if (from.count > 0) return take_from_list(from, limit);
  if (from.fresh.empty()) return {};
  // One block to write the magazine into, the rest as a run.
  FreeRun rest = from.fresh.back();
  from.fresh.pop_back();
  from.changed = true;
  FreeRun container = rest;
  container.count = 1;
  if (--rest.count == 0) return {container};
  rest.block.address = rest.block.address + rest.block.bytes();
  return {rest, container};
}

std::vector<FreeRun> FreeBlocks::held(BlockKind kind, std::size_t size_class) const {
  const Class& from = classes_[static_cast<std::size_t>(kind)][size_class];
  std::vector<FreeRun> runs = from.fresh;
  for (std::size_t i = 0; i < from.count; ++i) runs.push_back({.block = from.list[i]});
  return runs;
}

std::vector<FreeRun> FreeBlocks::take_from_list(Class& from, std::size_t limit) {
  from.changed = true;
  std::vector<FreeRun> taken;
  const fabric::NodeId node = from.list[from.count - 1].address.node();
  for (std::size_t i = from.count; i-- > 0 && taken.size() < limit;) {
    if (from.list[i].address.node() != node) continue;
    taken.push_back({.block = from.list[i]});
    from.list[i] = from.list[--from.count];
  }
  return taken;
}

// ---- RetiredQueue ----

RetiredQueue::~RetiredQueue() {
  while (first_ != nullptr) pop_front();
}

void RetiredQueue::push(const Block& block, std::uint64_t stamp) {
  assert(last_ == nullptr || last_->stamp <= stamp);
  if (last_ == nullptr || last_->stamp != stamp || last_->end == last_->blocks.size()) {
    Segment* const segment = make(stamp, nullptr);
    (last_ != nullptr ? last_->next : first_) = segment;
    last_ = segment;
  }
  add(*last_, block);
}

void RetiredQueue::push_safe(const Block& block) {
  if (first_ == nullptr || first_->stamp != 0 || first_->end == first_->blocks.size()) {
    first_ = make(0, first_);
    if (last_ == nullptr) last_ = first_;
  }
  add(*first_, block);
}

void RetiredQueue::pop_front() {
  const std::size_t bytes = first_->blocks[first_->begin].bytes();
  --size_;
  bytes_ -= bytes;
  first_->bytes -= bytes;
  if (++first_->begin != first_->end) return;
  Segment* const emptied = std::exchange(first_, first_->next);
  if (first_ == nullptr) last_ = nullptr;
  delete emptied;
  budget_.give_back(BudgetUse::kFreeLists, sizeof(Segment));
}

bool RetiredQueue::exceeds(std::uint64_t stamp, std::size_t blocks, std::uint64_t bytes) const {
  std::size_t found_blocks = 0;
  std::uint64_t found_bytes = 0;
  for (const Segment* s = first_; s != nullptr && s->stamp <= stamp; s = s->next) {
    found_blocks += s->end - s->begin;
    found_bytes += s->bytes;
    if (found_blocks > blocks || found_bytes > bytes) return true;
  }
  return false;
}

RetiredQueue::Segment* RetiredQueue::make(std::uint64_t stamp, Segment* next) {
  budget_.take(BudgetUse::kFreeLists, sizeof(Segment));
  auto* const segment = new Segment;
  segment->stamp = stamp;
  segment->next = next;
  return segment;
}

void RetiredQueue::add(Segment& segment, const Block& block) {
  segment.blocks[segment.end++] = block;
  ++size_;
  bytes_ += block.bytes();
  segment.bytes += block.bytes();
}

}  // namespace pando::pool
