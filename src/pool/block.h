// Blocks: what the pool allocates. Size classes, kinds, incarnations.
//
// Invariants
//  1. Memory is type-stable by kind and size class while anyone may remember it: a block of kNode
//     memory is reused as a node of the same size class, until its whole chunk is free and every
//     compute node has forgotten all that it knew (recycler.h). So a stale pointer to a node always
//     leads to a node, whose first word is a lock word, and never into the middle of somebody's
//     value.
//  2. The first word of a kNode block is its lock word. It outlives the node: it is zero when the
//     chunk is born and from then on changed by lock and unlock alone (the note of a kNotedNode
//     also when it comes to be), never initialised. Whoever locks a dead or reused node by a stale
//     pointer disturbs nobody: it finds out and unlocks. Nor does it where its verbs come late
//     (rule 9 of fabric/verbs.h), whatever the block is by then. A CAS that locks it swaps only
//     where nobody has the lock, or one who is gone; others then wait, until the word is taken back
//     (abandoned_locks.h). What takes it back compares with that very word. The WRITE that unlocks
//     compares nothing, but finds its own word: while its client lives nobody else changes that,
//     and what its client posts later comes later. A chunk is not recycled before all of that has
//     come (recycler.h).
//  3. Incarnations only grow, as long as the chunk is not recycled: allocate() hands out one that
//  is larger than any the block has had;
//     retire() and release() take the largest that its user has written (a node's version counts
//     on from its incarnation). A reader tells lines of an earlier life by that.
//  4. A fresh block's bytes are zero; a reused one's are whatever its last users left.
//  5. A free node reads as its last user left it, so that whoever still comes by an old pointer
//     finds out: the pool writes to a free kNode block only behind its first line and before each
//     line's last eight bytes, to a free kNotedNode block only in its last line (which its user
//     therefore leaves alone).
//  6. The first line tells how far a block's incarnations have got. Before anything in far memory
//     leads to a block, its user has written its incarnation there, at incarnation_offset(), and
//     what comes to stand there later is no less. So does the pool where it keeps something in an
//     item's block. See ledger.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "fabric/verbs.h"

namespace pando::pool {

enum class BlockKind : std::uint8_t {
  kNode,
  kItem,
  kNotedNode,  // a node whose lock word keeps a note while it is free (index/common/node_locks.h)
  kPage,       // of a ledger (ledger.h): an item in all but name. They stay, in chunks of their own
};
inline constexpr std::size_t kBlockKinds = 4;
constexpr bool is_node(BlockKind kind) {
  return kind == BlockKind::kNode || kind == BlockKind::kNotedNode;
}
// Behind a kNotedNode's own bytes, for the pool.
inline constexpr std::size_t kNotedNodeSpare = fabric::kLineBytes;

// Classes: 64, 128, 192, 256, then four to each doubling: 320, 384, 448, 512, 640, …, 1.25 MiB.
inline constexpr std::size_t kSizeClasses = 53;

constexpr std::size_t class_bytes(std::size_t size_class) {
  if (size_class < 4) return 64 * (size_class + 1);
  const std::size_t doubling = (size_class - 4) / 4;
  const std::size_t quarter = (size_class - 4) % 4 + 1;
  return (std::size_t{256} << doubling) + quarter * (std::size_t{64} << doubling);
}

// The smallest class that holds `bytes`. REQUIRES: 0 < bytes <= class_bytes(kSizeClasses - 1).
constexpr std::size_t class_of(std::size_t bytes) {
  if (bytes <= 256) return (bytes + 63) / 64 - 1;
  const auto doubling = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 9;
  const std::size_t base = std::size_t{256} << doubling;
  const std::size_t step = std::size_t{64} << doubling;
  return 4 + doubling * 4 + (bytes - base + step - 1) / step - 1;
}

static_assert(class_bytes(3) == 256 && class_bytes(4) == 320 && class_bytes(7) == 512);
static_assert(class_of(1) == 0 && class_of(256) == 3 && class_of(257) == 4 && class_of(512) == 7);
// The class of a block for `bytes` of its user's: nodes of one line have no room for what the pool
// keeps in them while they are free, and are made of two.
constexpr std::size_t block_class(BlockKind kind, std::size_t bytes) {
  if (kind == BlockKind::kNotedNode) bytes += kNotedNodeSpare;
  const std::size_t size_class = class_of(bytes);
  return !is_node(kind) || size_class > 0 ? size_class : 1;
}

static_assert(class_of(513) == 8 && class_bytes(8) == 640 && class_of(1024) == 11);
static_assert(class_bytes(kSizeClasses - 1) == (1 << 20) + (256 << 10));

// Kinds and size classes in one row.
inline constexpr std::size_t kClasses = kBlockKinds * kSizeClasses;
constexpr std::size_t class_index(BlockKind kind, std::size_t size_class) {
  return static_cast<std::size_t>(kind) * kSizeClasses + size_class;
}
constexpr BlockKind kind_at(std::size_t index) {
  return static_cast<BlockKind>(index / kSizeClasses);
}
constexpr std::size_t size_class_at(std::size_t index) { return index % kSizeClasses; }

// Where in the first line, 4 bytes: an item's incarnation, a node's version.
constexpr std::size_t incarnation_offset(BlockKind kind) {
  return is_node(kind) ? fabric::kLineBytes - 8 : 8;
}

struct Block {
  fabric::Address address;
  std::uint32_t incarnation = 0;
  BlockKind kind = BlockKind::kNode;
  std::uint8_t size_class = 0;

  std::size_t bytes() const { return class_bytes(size_class); }
};

}  // namespace pando::pool
