// Shared stacks: free blocks that any compute node may draw from, in far memory.
//
// Each memory node has one stack a kind and size class, of magazines. A magazine is a free block
// that lists other free blocks of its class on its memory node, and points to the next magazine. It
// is a row of words w, where the block's description allows them (block.h): from the first byte on
// in an item; in a node 7 to each line but the first; in a noted node the last line. Places are
// offsets, counted in lines, or in blocks where those are smaller:
//   w[0]      {entries:22, place of the next magazine:42}, 0 is none
//   w[1]      {checksum:32, incarnation of this block:32}
//   w[2 + 2i] {blocks in the run, less one:22, place of the run's first block:42}
//   w[3 + 2i] {0:32, incarnation:32}
// Blocks that have births need no incarnations listed, as the next one follows from the epoch:
//   w[0]      {1:4, entries:18, place of the next magazine:42}
//   w[1 + i]  {1 where it has been used:4, blocks in the run, less one:18, place of the first:42}
// so that their words have their highest three bits zero: an index may rely on it to tell them from
// its own. A block of 16 bytes has room for the first alone, which then counts the blocks behind it
// that were never used.
//
// The stack's word is {tag:22, sealed:1, place:41}, and every change of it raises the tag. So a
// compare-and-swap of what was read succeeds only if the stack has not changed since, and a
// popper's view of the next magazine holds, though the block may have been popped, used and pushed
// meanwhile. (Or changed exactly 2^22 times: at a few million atomics a second on one word, a
// popper that sleeps for a second between its READ and its CAS, and wakes on the one tag in four
// million.)
//
// A sealed stack is the recycler's (recycler.h), for a moment: nobody else pushes or pops.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pool/memory/free_blocks.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

// How many blocks a magazine takes, its own included; or that one and a run of blocks never used,
// which lies directly behind it.
std::size_t magazine_limit(BlockKind kind, std::size_t size_class);

fabric::Address stack_address(fabric::NodeId node, BlockKind kind, std::size_t size_class);

// A stack's word.
inline constexpr std::uint64_t kStackSealed = std::uint64_t{1} << 41;
constexpr std::uint64_t stack_place(std::uint64_t word) { return word & (kStackSealed - 1); }
constexpr bool stack_sealed(std::uint64_t word) { return (word & kStackSealed) != 0; }
// There is nothing to pop.
constexpr bool stack_empty(std::uint64_t word) {
  return stack_sealed(word) || stack_place(word) == 0;
}
// What becomes of `word` when its stack comes to lead to the magazine at `place`.
constexpr std::uint64_t next_stack_word(std::uint64_t word, std::uint64_t place, bool sealed) {
  return ((word >> 42) + 1) << 42 | (sealed ? kStackSealed : 0) | place;
}

// Pushes `runs` as one magazine, written into the last of them, which must be of one block; before
// that, zeroes the words of the ledger that `strike` names. kIndeterminate: they may be there, so
// they are nobody's, and the ledger is struck. kBusy: the stack has been sealed for a while.
// REQUIRES: one kind, class and memory node; 1 to magazine_limit() runs, or two as said there.
Task<Status> push_magazine(Operation& op, std::span<const FreeRun> runs,
                           std::span<const fabric::Address> strike = {});

struct Magazine {
  std::vector<FreeRun> runs;  // itself included, the run of several blocks (if any) first
  std::uint64_t next = 0;     // as a stack's word: the magazine below
  fabric::Address link;       // where that stands
  std::uint64_t link_word = 0;
};
// The link's word, leading to the magazine at `place` instead.
constexpr std::uint64_t with_next(std::uint64_t link_word, std::uint64_t place) {
  return (link_word >> 42) << 42 | place;
}
// The magazine that `word`, a stack's, leads to, for a look at all of them. kCorrupt: there is
// none. REQUIRES: the stack does not change meanwhile, and is not empty.
Task<Result<Magazine>> read_magazine(Operation& op, fabric::NodeId node, BlockKind kind,
                                     std::size_t size_class, std::uint64_t word);

// What the topmost magazine holds, itself included, the run of several blocks (if any) first; empty
// where the stack is. `word` is the stack's word as last seen. kIndeterminate: the magazine may be
// off the stack, and is lost then.
Task<Result<std::vector<FreeRun>>> pop_magazine(Operation& op, fabric::NodeId node, BlockKind kind,
                                                std::size_t size_class, std::uint64_t word);

}  // namespace pando::pool
