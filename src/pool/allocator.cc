#include "pool/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/mutants.h"
#include "pool/allocator_state.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/pause.h"
#include "pool/recycler.h"
#include "pool/shared_stack.h"

namespace pando::pool {
namespace {

using base::Mutant;
using base::mutated;
using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::NodeId;

constexpr std::size_t kLargerClasses = 4;  // tried for an item when memory is short

Address next_chunk_address(NodeId node) {
  return superblock_field(node, offsetof(Superblock, next_chunk_word));
}

std::uint64_t load_word(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Free chunks side by side, as many as asked for, within one word: of the shortest such row. Where
// there are none, kChunksPerWord.
std::size_t find_free(std::uint64_t word, std::size_t chunks) {
  std::size_t best = kChunksPerWord;
  std::size_t best_length = kChunksPerWord + 1;
  for (std::size_t i = 0; i < kChunksPerWord;) {
    std::size_t length = 0;
    while (i + length < kChunksPerWord && chunk_state(word, i + length) == ChunkState::kFree) {
      ++length;
    }
    if (length >= chunks && length < best_length) {
      best = i;
      best_length = length;
    }
    i += std::max<std::size_t>(1, length);
  }
  return best;
}

// Where the class has longer runs, too, the first chunk says so.
std::uint64_t with_run_taken(std::uint64_t word, std::size_t at, std::size_t chunks,
                             std::size_t size_class) {
  if (mutated(Mutant::kGivenTwice)) return word;
  for (std::size_t i = 0; i < chunks; ++i) {
    word = with_chunk_state(word, at + i, ChunkState::kPlain);
  }
  if (chunks == chunks_for_run(size_class)) return word;
  return with_chunk_state(word, at, ChunkState::kShort);
}

// Notes that a run is short. Where that fails it is taken for a long one that is never whole, and
// not recycled.
Task<void> note_short(Operation& op, Address start) {
  const std::uint64_t size = op.node().fabric().node_size(start.node());
  const std::size_t chunk = (start.offset() - first_chunk_of(start.node(), size)) / kChunkBytes;
  const Address at = chunk_state_address(start.node(), chunk);
  for (std::uint64_t guess = 0;;) {
    Batch batch(op.cost());
    batch.compare_swap(at, guess, with_chunk_state(guess, chunk, ChunkState::kShort));
    if (!co_await op.submit(batch) || batch[0].succeeded()) co_return;
    guess = batch[0].previous;
  }
}

// Moves a memory node's chunk word. Nowhere: there is no room for that many chunks.
Task<Result<Address>> take_chunks(Operation& op, NodeId node, std::uint64_t size,
                                  std::uint64_t& chunk_word, std::size_t chunks) {
  const std::uint64_t bytes = chunks * kChunkBytes;
  while (bytes <= size && chunk_word <= size - bytes) {
    Batch batch(op.cost());
    batch.compare_swap(next_chunk_address(node), chunk_word, chunk_word + bytes);
    if (Status taken = co_await op.submit(batch); !taken) co_return fail(taken.error());
    if (batch[0].succeeded()) {
      co_return Address(node, std::exchange(chunk_word, chunk_word + bytes));
    }
    chunk_word = batch[0].previous;
    op.count_retry();
  }
  co_return Address();
}

}  // namespace

// ---- Interface ----

Allocator::Allocator(ComputeNode& node) : state_(std::make_unique<State>(node)) {}
Allocator::~Allocator() = default;

Task<Result<Block>> Allocator::allocate(Operation& op, BlockKind kind, std::size_t bytes) {
  if (bytes == 0 || bytes > class_bytes(kSizeClasses - 1)) {
    co_return fail(ErrorCode::kInvalidArgument,
                   fmt::format("a block of {} bytes: between 1 and {} can be had", bytes,
                               class_bytes(kSizeClasses - 1)));
  }
  const std::size_t size_class = block_class(kind, bytes);
  Result<Block> block = fail(ErrorCode::kOutOfMemory);
  if (const auto at_hand = state_->take(kind, size_class)) {
    block = *at_hand;
  } else {
    block = co_await state_->refill(op, kind, size_class);
  }
  if (block) state_->allocated.fetch_add(1, std::memory_order_relaxed);
  co_return block;
}

std::uint64_t Allocator::allocated() const {
  return state_->allocated.load(std::memory_order_relaxed);
}
std::uint64_t Allocator::freed() const { return state_->freed.load(std::memory_order_relaxed); }
std::uint64_t Allocator::waiting() const { return state_->waiting(); }
std::uint64_t Allocator::inherited() const {
  return state_->inherited_blocks.load(std::memory_order_relaxed);
}

std::shared_ptr<const std::uint64_t> Allocator::left_behind() const { return state_->left_behind; }

Task<void> Allocator::fetch_for_all(Session& session) { return state_->fetcher.serve(session); }
void Allocator::stop_fetching() { state_->fetcher.stop(); }

void Allocator::begin_incarnations_at(std::uint32_t last) { state_->before_first = last; }

// ---- Taking ----

std::optional<Block> Allocator::State::take(BlockKind kind, std::size_t size_class) {
  const std::scoped_lock lock(mutex);
  std::optional<Block> block = free.take_used(kind, size_class);
  if (!block && retired.front() != nullptr) {
    drain(nullptr, nullptr);
    block = free.take_used(kind, size_class);
  }
  if (!block) block = free.take_fresh(kind, size_class);
  if (!block) return std::nullopt;
  if (block->incarnation == 0) block->incarnation = before_first;
  ++block->incarnation;
  return block;
}

namespace {

class RefillGuard {
 public:
  RefillGuard(std::mutex& mutex, FreeBlocks& free, BlockKind kind, std::size_t size_class)
      : mutex_(mutex), free_(free), kind_(kind), size_class_(size_class) {}
  RefillGuard(const RefillGuard&) = delete;
  RefillGuard& operator=(const RefillGuard&) = delete;
  ~RefillGuard() {
    const std::scoped_lock lock(mutex_);
    free_.end_refill(kind_, size_class_);
  }

 private:
  std::mutex& mutex_;
  FreeBlocks& free_;
  BlockKind kind_;
  std::size_t size_class_;
};

}  // namespace

Task<Result<Block>> Allocator::State::refill(Operation& op, BlockKind kind,
                                             std::size_t size_class) {
  const auto start = [&] {
    const std::scoped_lock lock(mutex);
    return free.start_refill(kind, size_class);
  };
  for (Pause pause(op); !start();) {
    if (Status waited = co_await pause.wait("memory to be fetched"); !waited) {
      co_return fail(waited.error());
    }
    if (auto block = take(kind, size_class)) co_return *block;
  }
  const RefillGuard guard(mutex, free, kind, size_class);

  auto block = co_await fetcher.fetch(op, kind, size_class);
  if (!block) co_return fail(block.error());
  if (*block) co_return **block;
  node.kick();
  co_return fail(ErrorCode::kOutOfMemory,
                 fmt::format("{} memory nodes have no room for a block of {} bytes",
                             node.memory_nodes().in_use().size(), class_bytes(size_class)));
}

// The queue's safe blocks may be stuck behind one whose list is full, which is then given away.
Task<std::optional<Block>> Allocator::State::take_behind(Operation& op, BlockKind kind,
                                                         std::size_t size_class) {
  for (;;) {
    if (auto block = take(kind, size_class)) co_return block;
    const std::vector<FreeRun> runs = surplus(0, 0);
    if (runs.empty() || !co_await push(op, runs)) co_return std::nullopt;
  }
}

// Everywhere once, without waiting. Nothing: there is no memory now. Errors of take_behind() and
// beat() mean only that surplus was not given away or the epoch not moved: who needs either sees.
Task<Result<std::optional<Block>>> Allocator::State::attempt(Operation& op, BlockKind kind,
                                                             std::size_t size_class) {
  // Before memory grows while retired blocks wait, the epoch is helped on: the housekeeper may be
  // late. So memory stays bounded even without one.
  bool help = retired_bytes() >= kChunkBytes;
  for (;;) {
    if (auto block = co_await take_behind(op, kind, size_class)) co_return block;
    auto fetched = co_await fetch(op, kind, size_class, !help);
    if (!fetched) co_return fail(fetched.error());
    // Where others have taken all of what was fetched, there may be more.
    if (*fetched) {
      if (auto block = take(kind, size_class)) co_return block;
    } else if (help) {
      help = false;
      static_cast<void>(co_await node.membership().beat(op));
    } else {
      break;
    }
  }
  if (kind != BlockKind::kItem || !node.recycler().exhausted(op.worker().now())) {
    co_return std::nullopt;
  }
  const std::size_t end = std::min(size_class + 1 + kLargerClasses, kSizeClasses);
  for (std::size_t larger = size_class + 1; larger < end; ++larger) {
    if (auto block = take(kind, larger)) co_return block;
    auto fetched = co_await fetch(op, kind, larger, false);
    if (!fetched) co_return fail(fetched.error());
    if (!*fetched) continue;
    if (auto block = take(kind, larger)) co_return block;
  }
  co_return std::nullopt;
}

// ---- From far memory ----

Task<Result<bool>> Allocator::State::fetch(Operation& op, BlockKind kind, std::size_t size_class,
                                           bool new_runs) {
  const std::vector<NodeId> ids = node.memory_nodes().in_use();
  const std::size_t nodes = ids.size();
  Buffer buffer = op.buffer(nodes * 16);
  Batch batch(op.cost());
  for (std::size_t i = 0; i < nodes; ++i) {
    batch.read(stack_address(ids[i], kind, size_class), buffer.data() + i * 8, 8);
    batch.read(next_chunk_address(ids[i]), buffer.data() + (nodes + i) * 8, 8);
  }
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  std::vector<std::uint64_t> words(2 * nodes);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = load_word(buffer.data() + i * 8);

  std::size_t first = 0;
  {
    const std::scoped_lock lock(mutex);
    first = next_node;
  }
  const std::span all(words);
  auto shared = co_await fetch_shared(op, kind, size_class, ids, first, all.first(nodes));
  if (!shared || *shared || !new_runs) co_return shared;
  co_return co_await fetch_run(op, kind, size_class, ids, first, all.last(nodes));
}

Task<Result<bool>> Allocator::State::fetch_shared(Operation& op, BlockKind kind,
                                                  std::size_t size_class,
                                                  std::span<const NodeId> ids, std::size_t first,
                                                  std::span<const std::uint64_t> stack_words) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t at = (first + i) % ids.size();
    if (stack_empty(stack_words[at])) continue;
    auto runs = co_await pop_magazine(op, ids[at], kind, size_class, stack_words[at]);
    if (!runs) co_return fail(runs.error());
    if (runs->empty()) continue;
    accept(*runs);
    co_return true;
  }
  co_return false;
}

Task<Result<bool>> Allocator::State::fetch_run(Operation& op, BlockKind kind,
                                               std::size_t size_class, std::span<const NodeId> ids,
                                               std::size_t first,
                                               std::span<std::uint64_t> chunk_words) {
  const std::size_t nodes = ids.size();
  // A full run on any node before a short one on the first; chunks that were never handed out
  // before recycled ones, which cost a look.
  const std::size_t full = chunks_for_run(size_class);
  for (const std::size_t chunks : {full, chunks_for_one(size_class)}) {
    for (std::size_t i = 0; i < nodes; ++i) {
      const std::size_t at = (first + i) % nodes;
      const std::uint64_t size = node.fabric().node_size(ids[at]);
      auto start = co_await take_chunks(op, ids[at], size, chunk_words[at], chunks);
      if (!start) co_return fail(start.error());
      if (!*start) continue;
      if (chunks != full) co_await note_short(op, *start);
      accept_run(*start, kind, size_class, chunks);
      const std::scoped_lock lock(mutex);
      next_node = (at + 1) % nodes;
      co_return true;
    }
    auto recycled = co_await fetch_recycled(op, kind, size_class, ids, first, chunks);
    if (!recycled || *recycled) co_return recycled;
    if (chunks == chunks_for_one(size_class)) break;
  }
  co_return false;
}

Task<Result<bool>> Allocator::State::fetch_recycled(Operation& op, BlockKind kind,
                                                    std::size_t size_class,
                                                    std::span<const NodeId> ids, std::size_t first,
                                                    std::size_t chunks) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const NodeId id = ids[(first + i) % ids.size()];
    const std::uint64_t size = node.fabric().node_size(id);
    Buffer buffer = op.buffer(chunk_state_words(size) * 8);
    Batch look(op.cost());
    look.read(chunk_state_address(id, 0), buffer.data(), buffer.size());
    if (Status read = co_await op.submit(look); !read) co_return fail(read.error());
    for (std::size_t w = 0; w < chunk_state_words(size); ++w) {
      std::uint64_t word = load_word(buffer.data() + w * 8);
      for (;;) {
        const std::size_t at = find_free(word, chunks);
        if (at == kChunksPerWord) break;
        Batch batch(op.cost());
        batch.compare_swap(chunk_state_address(id, w * kChunksPerWord), word,
                           with_run_taken(word, at, chunks, size_class));
        if (Status taken = co_await op.submit(batch); !taken) co_return fail(taken.error());
        if (batch[0].succeeded()) {
          const std::uint64_t chunk = w * kChunksPerWord + at;
          accept_run(Address(id, first_chunk_of(id, size) + chunk * kChunkBytes), kind, size_class,
                     chunks);
          co_return true;
        }
        word = batch[0].previous;
        op.count_retry();
      }
    }
  }
  co_return false;
}

void Allocator::State::accept_run(Address start, BlockKind kind, std::size_t size_class,
                                  std::size_t chunks) {
  const FreeRun run{.block = {.address = start,
                              .incarnation = 0,
                              .kind = kind,
                              .size_class = static_cast<std::uint8_t>(size_class)},
                    .count = static_cast<std::uint32_t>(blocks_in(chunks, size_class))};
  accept({&run, 1});
}

void Allocator::State::accept(std::span<const FreeRun> runs) {
  // Until the ledger lists them, they die with this compute node.
  untold.store(true, std::memory_order_relaxed);
  node.wake();
  const std::scoped_lock lock(mutex);
  for (const FreeRun& run : runs) {
    const bool fresh = run.block.incarnation == 0;
    if (fresh && free.put_fresh(run)) continue;
    Block block = run.block;
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (!free.put(block)) retired.push_safe(block);
      free.touch(block.kind, block.size_class);
      block.address = block.address + block.bytes();
    }
  }
}

}  // namespace pando::pool
