// Blocks: what the pool allocates. Size classes, kinds and what describes them, incarnations.
//
// Invariants
//  1. Memory is type-stable by kind and size class while anyone may remember it: a block of some
//     kind is reused as a block of the same kind and size class, until its whole chunk is free and
//     every compute node has forgotten all that it knew (recycler.h). So a stale pointer to a node
//     always leads to a node, and never into the middle of somebody's value.
//  2. A lock word outlives the block's user: it is zero when the chunk is born and from then on
//     changed by lock and unlock alone, never initialised. Whoever locks a dead or reused node by a
//     stale pointer disturbs nobody: it finds out and unlocks. Nor does it where its verbs come
//     late (rule 9 of fabric/verbs.h), whatever the block is by then. A CAS that locks it swaps
//     only where nobody has the lock, or one who is gone; others then wait, until the word is taken
//     back (abandoned_locks.h). What takes it back compares with that very word. The WRITE that
//     unlocks compares nothing, but finds its own word: while its client lives nobody else changes
//     that, and what its client posts later comes later. A chunk is not recycled before all of that
//     has come (recycler.h).
//  3. Incarnations only grow, as long as the chunk is not recycled: allocate() hands out one that
//     is larger than any the block has had; retire() and release() take the largest that its user
//     has written (a node's version counts on from its incarnation). A reader tells lines of an
//     earlier life by that.
//  4. A fresh block's bytes are zero; a reused one's are whatever its last users left.
//  5. A free block reads as its last user left it, but for what its description lets the pool write
//     there; so whoever still comes by an old pointer finds out.
//  6. The block's first line, or all of it where it is smaller, tells how far its incarnations have
//     got. Before anything in far memory leads to a block, its user has written its incarnation
//     there, at incarnation_at, and what comes to stand there later is no less. So does the pool
//     where it keeps something in an item's block. See ledger.h.
//  7. Blocks are aligned to their size up to a line; those of 16 and 32 bytes share lines.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fabric/verbs.h"

namespace pando::pool {

// ---- Kinds ----

// What the pool must know of blocks whose bytes are an index's own. An index uses the description
// that fits, or adds one: a row of kDescriptions, and nothing else.
struct BlockDescription {
  std::string_view name;
  // Where in the first line the incarnation stands: the low 32 bits of the word there; of
  // births 40.
  std::size_t incarnation_at = 0;
  // Incarnations are births: see below.
  bool births = false;
  // Where the lock word is, if there is one.
  std::optional<std::size_t> lock_word_at = {};
  // What the pool may write into a free block: bytes from here on, or from the middle on where the
  // block is smaller than twice that ...
  std::size_t writable_from = 0;
  // ... but the last eight of each line, which it leaves zero or alone ...
  bool keeps_line_ends = false;
  // ... or only so many bytes that it has behind those of the user.
  std::size_t spare = 0;
  std::size_t smallest = fabric::kLineBytes;  // that are allocated
  // Where memory is short, a larger block will do: readers go by the block's size, not by their
  // own.
  bool larger_will_do = false;
};

enum class BlockKind : std::uint8_t {
  kNode,       // of a tree: a lock word, and a version at the end of each line
  kItem,       // immutable; may be overwritten as soon as it is free
  kNotedNode,  // a node whose lock word keeps a note while it is free (index/common/node_locks.h)
  kPage,  // of a ledger (ledger.h). They stay, in chunks of their own, and keep none from reuse
  kBorn,  // begins with its birth, and is told from what was there before by nothing else
};
inline constexpr std::size_t kBlockKinds = 5;

inline constexpr std::array<BlockDescription, kBlockKinds> kDescriptions = {{
    {.name = "node",
     .incarnation_at = fabric::kLineBytes - 8,
     .lock_word_at = 0,
     .writable_from = fabric::kLineBytes,
     .keeps_line_ends = true,
     .smallest = 2 * fabric::kLineBytes},
    {.name = "item", .incarnation_at = 8, .larger_will_do = true},
    {.name = "noted node",
     .incarnation_at = fabric::kLineBytes - 8,
     .lock_word_at = 0,
     .spare = fabric::kLineBytes,
     .smallest = 2 * fabric::kLineBytes},
    {.name = "page", .incarnation_at = 8},
    {.name = "born", .births = true, .writable_from = 16, .smallest = 16},
}};
constexpr const BlockDescription& description(BlockKind kind) {
  return kDescriptions[static_cast<std::size_t>(kind)];
}

// ---- Size classes ----

// Classes: 16, 32, 64, 128, 192, 256, then four to each doubling: 320, 384, 448, 512, 640, …,
// 1.25 MiB.
inline constexpr std::size_t kSizeClasses = 55;
inline constexpr std::size_t kSmallClasses = 2;  // below a line

constexpr std::size_t class_bytes(std::size_t size_class) {
  if (size_class < kSmallClasses) return std::size_t{16} << size_class;
  size_class -= kSmallClasses;
  if (size_class < 4) return 64 * (size_class + 1);
  const std::size_t doubling = (size_class - 4) / 4;
  const std::size_t quarter = (size_class - 4) % 4 + 1;
  return (std::size_t{256} << doubling) + quarter * (std::size_t{64} << doubling);
}

// The smallest class that holds `bytes`. REQUIRES: 0 < bytes <= class_bytes(kSizeClasses - 1).
constexpr std::size_t class_of(std::size_t bytes) {
  assert(bytes > 0 && bytes <= class_bytes(kSizeClasses - 1));
  if (bytes <= 32) return bytes <= 16 ? 0 : 1;
  if (bytes <= 256) return kSmallClasses + (bytes + 63) / 64 - 1;
  const auto doubling = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 9;
  const std::size_t base = std::size_t{256} << doubling;
  const std::size_t step = std::size_t{64} << doubling;
  return kSmallClasses + 4 + doubling * 4 + (bytes - base + step - 1) / step - 1;
}
static_assert(class_bytes(kSizeClasses - 1) == (1 << 20) + (256 << 10));

// The class of a block for `bytes` of its user's.
constexpr std::size_t block_class(BlockKind kind, std::size_t bytes) {
  const BlockDescription& described = description(kind);
  return class_of(std::max(bytes + described.spare, described.smallest));
}

// To what blocks of a class are aligned: offsets in far memory are counted in these.
constexpr std::uint64_t class_alignment(std::size_t size_class) {
  return std::min<std::uint64_t>(class_bytes(size_class), fabric::kLineBytes);
}

// Kinds and size classes in one row.
inline constexpr std::size_t kClasses = kBlockKinds * kSizeClasses;
constexpr std::size_t class_index(BlockKind kind, std::size_t size_class) {
  return static_cast<std::size_t>(kind) * kSizeClasses + size_class;
}
constexpr BlockKind kind_at(std::size_t index) {
  return static_cast<BlockKind>(index / kSizeClasses);
}
constexpr std::size_t size_class_at(std::size_t index) { return index % kSizeClasses; }

// ---- Blocks ----

struct Block {
  fabric::Address address;
  std::uint32_t incarnation = 0;
  BlockKind kind = BlockKind::kNode;
  std::uint8_t size_class = 0;

  std::size_t bytes() const { return class_bytes(size_class); }
};

// Births. Where a description asks for it, an incarnation is the epoch in which its life began, as
// far as its compute node knew: never less than what the allocating operation has pinned, and never
// more than the global epoch. The user writes it into the low 40 bits of the word at
// incarnation_at. What follows, with epochs.h:
//  - It grows from life to life: a block is reused three epochs after it was retired, at
//    the soonest, by an operation that pinned the last epoch but one at the least. So nobody need
//    remember the last one to find the next. (Blocks that were never reachable wait as long:
//    release(). So do those that the dead held, who may have begun a life of which only some lines
//    were written.)
//  - Whoever learned of a block in an operation that pinned c, and finds a birth of at
//    most c there, finds the life that it learned of, or an earlier one that others may not read
//    any more.
// A Block keeps the low 31 bits of a birth, with a last bit that is 1: which of two is later can be
// told as long as they are less than 2^30 epochs apart.
inline constexpr std::uint64_t kBirthMask = (std::uint64_t{1} << 40) - 1;
constexpr std::uint32_t birth_mark(std::uint64_t birth) {
  return static_cast<std::uint32_t>(birth << 1) | 1;
}
constexpr bool is_later(BlockKind kind, std::uint32_t incarnation, std::uint32_t than) {
  if (!description(kind).births) return incarnation > than;
  return static_cast<std::int32_t>(incarnation - than) > 0;
}
// The whole birth of a block that was allocated at about this epoch.
constexpr std::uint64_t birth(const Block& block, std::uint64_t epoch) {
  const auto ahead = static_cast<std::int32_t>(block.incarnation - birth_mark(epoch)) / 2;
  return epoch + static_cast<std::uint64_t>(static_cast<std::int64_t>(ahead));
}

// A block's address in 48 bits, {memory node:8, offset/16:40}: beside 16 bits of an index's own it
// fits into a word that one compare-and-swap changes.
class ShortAddress {
 public:
  static constexpr unsigned kBits = 48;

  constexpr ShortAddress() = default;
  static constexpr bool fits(fabric::Address address) {
    return address.node() < 256 && address.offset() >> 44 == 0 && address.offset() % 16 == 0;
  }
  // REQUIRES: fits(address).
  static constexpr ShortAddress of(fabric::Address address) {
    assert(fits(address));
    return from_bits((std::uint64_t{address.node()} << 40) | (address.offset() / 16));
  }
  // Of a word, its low bits.
  static constexpr ShortAddress from_bits(std::uint64_t word) {
    ShortAddress made;
    made.bits_ = word & ((std::uint64_t{1} << kBits) - 1);
    return made;
  }
  constexpr std::uint64_t bits() const { return bits_; }
  constexpr fabric::Address address() const {
    return {static_cast<fabric::NodeId>(bits_ >> 40),
            (bits_ & ((std::uint64_t{1} << 40) - 1)) * 16};
  }
  friend constexpr bool operator==(ShortAddress, ShortAddress) = default;

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace pando::pool
