// What a compute node knows of free far memory: lists of free blocks by class, and the queue of
// retired blocks that wait for their epoch. Bookkeeping only: no verbs, no waiting.
//
// Not thread-safe: the Allocator's mutex guards both. Counted in the budget, but for the few words
// that say where memory lies that was never used.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "pool/layout.h"
#include "pool/memory/block.h"
#include "pool/memory/budget.h"

namespace pando::pool {

// How many free blocks of a class a compute node lists for itself: at most 64, and at most a
// chunk's worth, so that large blocks are not hoarded.
inline constexpr std::size_t kListLimit = 64;
constexpr std::size_t list_limit(std::size_t size_class) {
  return std::clamp<std::size_t>(kChunkBytes / class_bytes(size_class), 2, kListLimit);
}

// Free blocks of one class that lie side by side and share an incarnation, 0 where `count` blocks
// have never been used. Most are of one block.
struct FreeRun {
  Block block;
  std::uint32_t count = 1;
};

class FreeBlocks {
 public:
  explicit FreeBlocks(Budget& budget);
  ~FreeBlocks();
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;

  // From the list, with the incarnation of the block's last life. `near`: on that memory node.
  std::optional<Block> take_used(BlockKind kind, std::size_t size_class,
                                 std::optional<fabric::NodeId> near = {});
  // From memory never used: incarnation 0.
  std::optional<Block> take_fresh(BlockKind kind, std::size_t size_class,
                                  std::optional<fabric::NodeId> near = {});
  // False: the list is full.
  bool put(const Block& block);
  // Of blocks that are asked for by memory node, one that the full list has more of gives way. What
  // has no place, if anything.
  std::optional<Block> put_rather(const Block& block);
  // Memory never used, to cut blocks from. False: there is some of the class already on that memory
  // node, or on any where nobody asks for a certain one.
  bool put_fresh(const FreeRun& run);
  // Though there is some.
  void add_fresh(const FreeRun& run);
  // Takes out up to half a list and up to `limit` blocks, all on one memory node. REQUIRES: the
  // list is not empty.
  std::vector<FreeRun> take_surplus(BlockKind kind, std::size_t size_class, std::size_t limit);
  // Takes out up to `limit` blocks on one memory node, or memory never used: a run of it, then the
  // block before that. Empty: nothing is left.
  std::vector<FreeRun> take_all(BlockKind kind, std::size_t size_class, std::size_t limit);

  // For the ledger. What there is of a class, memory never used first.
  std::vector<FreeRun> held(BlockKind kind, std::size_t size_class) const;
  // Whether a class has changed since this was last asked. Retired blocks are not here, but they
  // change it as well: touch().
  bool take_change(BlockKind kind, std::size_t size_class) {
    return std::exchange(of(kind, size_class).changed, false);
  }
  void touch(BlockKind kind, std::size_t size_class) { of(kind, size_class).changed = true; }

  // One coroutine at a time fetches memory for a class; the others wait for what it brings.
  bool start_refill(BlockKind kind, std::size_t size_class) {
    return !std::exchange(of(kind, size_class).refilling, true);
  }
  void end_refill(BlockKind kind, std::size_t size_class) {
    of(kind, size_class).refilling = false;
  }

 private:
  struct Class {
    std::unique_ptr<Block[]> list;  // list_limit() of them, made when first needed
    std::vector<FreeRun> fresh;
    std::uint16_t count = 0;
    bool refilling = false;
    bool changed = false;
  };
  Class& of(BlockKind kind, std::size_t size_class) {
    return classes_[static_cast<std::size_t>(kind)][size_class];
  }
  std::vector<FreeRun> take_from_list(Class& from, std::size_t limit);

  Budget& budget_;
  std::uint64_t counted_ = 0;
  std::array<std::array<Class, kSizeClasses>, kBlockKinds> classes_;
};

class RetiredQueue {
 public:
  explicit RetiredQueue(Budget& budget) : budget_(budget) {}
  ~RetiredQueue();
  RetiredQueue(const RetiredQueue&) = delete;
  RetiredQueue& operator=(const RetiredQueue&) = delete;

  // REQUIRES: stamp >= that of every block here.
  void push(const Block& block, std::uint64_t stamp);
  // A block that is safe already.
  void push_safe(const Block& block);
  // The oldest one; nullptr where there is none.
  const Block* front() const {
    return first_ == nullptr ? nullptr : &first_->blocks[first_->begin];
  }
  // Of the front. 0 is always safe. REQUIRES: front().
  std::uint64_t front_stamp() const { return first_->stamp; }
  void pop_front();

  std::size_t size() const { return size_; }
  std::uint64_t bytes() const { return bytes_; }  // of far memory
  // Calls use(block, stamp) for each block, the oldest first, until it answers false.
  template <class Use>
  void for_each(Use use) const {
    for (const Segment* s = first_; s != nullptr; s = s->next) {
      for (std::uint32_t i = s->begin; i < s->end; ++i) {
        if (!use(s->blocks[i], s->stamp)) return;
      }
    }
  }
  // More than `blocks` blocks, or `bytes` of far memory, have a stamp of at most `stamp`.
  bool exceeds(std::uint64_t stamp, std::size_t blocks, std::uint64_t bytes) const;

 private:
  struct Segment {  // blocks of one stamp, 1 KiB in all
    std::uint64_t stamp = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::uint64_t bytes = 0;
    Segment* next = nullptr;
    std::array<Block, 62> blocks;
  };
  Segment* make(std::uint64_t stamp, Segment* next);
  void add(Segment& segment, const Block& block);

  Budget& budget_;
  Segment* first_ = nullptr;  // owned, as are those after it; none is empty
  Segment* last_ = nullptr;
  std::size_t size_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace pando::pool
