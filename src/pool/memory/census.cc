#include "pool/memory/census.h"

#include <fmt/format.h>

#include <algorithm>

#include "pool/compute_node.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/memory/ledger.h"
#include "pool/memory/shared_stack.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::NodeId;

struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t block = 0;  // bytes of each block
};

Piece piece_of(const FreeRun& run) {
  const std::uint64_t begin = run.block.address.raw();
  return {begin, begin + run.count * run.block.bytes(), run.block.bytes()};
}

Task<Status> add_stacks(Operation& op, NodeId node, Census& census, std::vector<Piece>& pieces) {
  for (std::size_t i = 0; i < kClasses; ++i) {
    const BlockKind kind = kind_at(i);
    const std::size_t size_class = size_class_at(i);
    auto top = co_await read_word(op, stack_address(node, kind, size_class));
    if (!top) co_return fail(top.error());
    auto taken =
        co_await read_word(op, superblock_field(node, offsetof(Superblock, taken_words) + i * 8));
    if (!taken) co_return fail(taken.error());
    if (stack_sealed(*top) || *taken != 0) {
      census.unfinished.push_back(
          fmt::format("memory node {}: stack {} is sealed, or was taken "
                      "and not put back",
                      node, i));
    }
    for (std::uint64_t word = *top; !stack_empty(word);) {
      auto magazine = co_await read_magazine(op, node, kind, size_class, word);
      if (!magazine) co_return fail(magazine.error());
      for (const FreeRun& run : magazine->runs) pieces.push_back(piece_of(run));
      word = magazine->next;
      if (pieces.size() > (std::size_t{1} << 20)) {
        co_return fail(ErrorCode::kCorrupt, "a stack of free blocks does not end");
      }
    }
  }
  co_return Status{};
}

Task<Status> add_chunks(Operation& op, NodeId node, Census& census, std::vector<Piece>& pieces) {
  const std::uint64_t size = op.compute_node().fabric().memory_node_size(node);
  const std::uint64_t first = first_chunk_of(node, size);
  for (std::size_t chunk = 0; chunk < (size - first) / kChunkBytes; ++chunk) {
    if (chunk % kChunksPerWord != 0) continue;
    const auto word = co_await read_word(op, chunk_state_address(node, chunk));
    if (!word) co_return fail(word.error());
    for (std::size_t i = chunk; i < chunk + kChunksPerWord; ++i) {
      if (chunk_state(*word, i) == ChunkState::kTurning) {
        census.unfinished.push_back(fmt::format("memory node {}: chunk {} is turning", node, i));
      }
      if (chunk_state(*word, i) != ChunkState::kFree) continue;
      const std::uint64_t begin = Address(node, first + i * kChunkBytes).raw();
      pieces.push_back({begin, begin + kChunkBytes, kChunkBytes});
    }
  }
  co_return Status{};
}

Task<Status> add_ledgers(Operation& op, Census& census, std::vector<Piece>& pieces) {
  for (std::size_t slot = 0; slot < kMaxComputeNodes; ++slot) {
    auto page = co_await read_word(op, member_address(slot) + offsetof(MemberSlot, ledger_word));
    while (page && *page != 0) {
      pieces.push_back({*page, *page + sizeof(LedgerPage), sizeof(LedgerPage)});
      census.ledgers += sizeof(LedgerPage);
      page = co_await read_word(op, Address::from_raw(*page) + offsetof(LedgerPage, next));
    }
    if (!page) co_return fail(page.error());
  }
  co_return Status{};
}

// Goes through the pieces of one memory node, which are in order.
void look(std::span<const Piece> pieces, std::uint64_t begin, std::uint64_t end, Census& census) {
  std::uint64_t at = begin;
  std::uint64_t block = 0;  // of the piece that ends at `at`
  const auto gap_to = [&](std::uint64_t next) {
    const std::uint64_t to_chunk = kChunkBytes - (at - begin) % kChunkBytes;
    // The rest of a chunk where no other block fits is no loss, be there blocks in use before it.
    const std::uint64_t rest = block != 0 && to_chunk <= next - at ? to_chunk % block : 0;
    census.other += next - at - rest;
  };
  for (const Piece& piece : pieces) {
    if (piece.begin < at) {
      census.twice.push_back(fmt::format("memory node {}, offset {:#x}: free twice",
                                         Address::from_raw(piece.begin).node(),
                                         Address::from_raw(piece.begin).offset()));
    } else if (piece.begin > at) {
      gap_to(piece.begin);
    }
    at = std::max(at, piece.end);
    block = piece.block;
  }
  if (end > at) gap_to(end);
}

}  // namespace

Task<Result<Census>> take_census(Operation& op, std::span<const Allocator* const> living) {
  Census census;
  std::vector<Piece> pieces;
  for (const Allocator* allocator : living) {
    for (const FreeRun& run : allocator->held()) pieces.push_back(piece_of(run));
  }
  const auto recycler = co_await read_word(op, tables_field(offsetof(PoolTables, recycler_word)));
  if (!recycler) co_return fail(recycler.error());
  if (*recycler >> 32 != 0) co_return fail(ErrorCode::kBusy, "memory is being recycled");
  std::vector<NodeId> nodes = op.compute_node().memory_nodes().all();
  std::ranges::sort(nodes);  // as the pieces are; those that were added are in the order they came
  for (const NodeId node : nodes) {
    Status added = co_await add_chunks(op, node, census, pieces);
    if (added) added = co_await add_stacks(op, node, census, pieces);
    if (!added) co_return fail(added.error());
  }
  for (const Piece& piece : pieces) census.free += piece.end - piece.begin;
  if (Status added = co_await add_ledgers(op, census, pieces); !added) {
    co_return fail(added.error());
  }
  std::ranges::sort(pieces, {}, &Piece::begin);
  auto first = pieces.begin();
  for (const NodeId node : nodes) {
    auto begin = co_await read_word(op, superblock_field(node, offsetof(Superblock, first_chunk)));
    auto end =
        co_await read_word(op, superblock_field(node, offsetof(Superblock, next_chunk_word)));
    if (!begin || !end) co_return fail((begin ? end : begin).error());
    census.reserved += *end - *begin;
    auto last = first;
    while (last != pieces.end() && Address::from_raw(last->begin).node() == node) ++last;
    look({first, last}, Address(node, *begin).raw(), Address(node, *end).raw(), census);
    first = last;
  }
  co_return census;
}

}  // namespace pando::pool
