#include "pool/memory/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/recycler.h"
#include "pool/memory/shared_stack.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using base::Mutant;
using base::mutated;
using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::NodeId;

constexpr std::size_t kLargerClasses = 4;  // tried when memory is short

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
  const std::uint64_t size = op.compute_node().fabric().memory_node_size(start.node());
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

namespace {

// The first after `last` that is no less than the epoch; 0: there was none. An operation may have
// pinned a few epochs less than who last had the block; what seems to be later by more is long
// past.
std::uint32_t next_birth(std::uint32_t last, std::uint64_t epoch) {
  const std::uint32_t now = birth_mark(epoch);
  const auto ahead = static_cast<std::int32_t>(last - now);
  const bool few = ahead >= 0 && ahead <= 2 * static_cast<std::int32_t>(Epochs::kGrace);
  return last != 0 && few ? last + 2 : now;
}

}  // namespace

Task<Result<Block>> Allocator::allocate(Operation& op, BlockKind kind, std::size_t bytes,
                                        std::optional<NodeId> near) {
  if (bytes == 0 || bytes > class_bytes(kSizeClasses - 1)) {
    co_return fail(ErrorCode::kInvalidArgument,
                   fmt::format("a block of {} bytes: between 1 and {} can be had", bytes,
                               class_bytes(kSizeClasses - 1)));
  }
  assert(!near || description(kind).births);
  const std::size_t size_class = block_class(kind, bytes);
  Result<Block> block = fail(ErrorCode::kOutOfMemory);
  if (const auto at_hand = state_->take(kind, size_class, near)) {
    block = *at_hand;
  } else {
    block = co_await state_->refill(op, kind, size_class, near);
  }
  if (!block) co_return block;
  if (description(kind).births) block->incarnation = next_birth(block->incarnation, op.epoch());
  state_->allocated.fetch_add(1, std::memory_order_relaxed);
  co_return block;
}

std::uint64_t Allocator::allocated() const {
  return state_->allocated.load(std::memory_order_relaxed);
}
std::uint64_t Allocator::freed() const { return state_->freed.load(std::memory_order_relaxed); }
std::uint64_t Allocator::waiting() const { return state_->waiting(); }
std::uint64_t Allocator::recovered() const {
  return state_->recovered_blocks.load(std::memory_order_relaxed);
}

std::shared_ptr<const std::uint64_t> Allocator::left_behind() const { return state_->left_behind; }

Task<void> Allocator::fetch_for_all(Session& session) { return state_->fetcher.serve(session); }
void Allocator::stop_fetching() { state_->fetcher.stop(); }

void Allocator::begin_incarnations_at(std::uint32_t last) {
  assert(allocated() == 0);
  const base::MutexLock lock(state_->mutex);
  state_->before_first = last;
}

// ---- Taking ----

std::optional<Block> Allocator::State::take(BlockKind kind, std::size_t size_class, Near near) {
  const base::MutexLock lock(mutex);
  std::optional<Block> block = free.take_used(kind, size_class, near);
  if (!block && retired.front() != nullptr) {
    drain(nullptr, nullptr, near);
    block = free.take_used(kind, size_class, near);
  }
  if (!block) block = free.take_fresh(kind, size_class, near);
  if (!block || description(kind).births) return block;
  if (block->incarnation == 0) block->incarnation = before_first;
  ++block->incarnation;
  return block;
}

class Allocator::State::RefillGuard {
 public:
  RefillGuard(State& state, BlockKind kind, std::size_t size_class)
      : state_(state), kind_(kind), size_class_(size_class) {}
  RefillGuard(const RefillGuard&) = delete;
  RefillGuard& operator=(const RefillGuard&) = delete;
  ~RefillGuard() {
    const base::MutexLock lock(state_.mutex);
    state_.free.end_refill(kind_, size_class_);
  }

 private:
  State& state_;
  BlockKind kind_;
  std::size_t size_class_;
};

Task<Result<Block>> Allocator::State::refill(Operation& op, BlockKind kind, std::size_t size_class,
                                             Near near) {
  const auto start = [&] {
    const base::MutexLock lock(mutex);
    return free.start_refill(kind, size_class);
  };
  for (Pause pause(op); !start();) {
    if (Status waited = co_await pause.wait("memory to be fetched"); !waited) {
      co_return fail(waited.error());
    }
    if (auto block = take(kind, size_class, near)) co_return *block;
  }
  const RefillGuard guard(*this, kind, size_class);

  auto block = co_await fetcher.fetch(op, kind, size_class, near);
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

// On one memory node. Nothing: it has no room.
Task<Result<std::optional<Block>>> Allocator::State::attempt_near(Operation& op, BlockKind kind,
                                                                  std::size_t size_class,
                                                                  NodeId near) {
  {
    const base::MutexLock lock(mutex);
    const auto full = full_until.find({near, chunks_for_one(size_class)});
    if (full != full_until.end() && op.worker().now() < full->second) co_return std::nullopt;
  }
  // As in attempt(): what is retired first, then new memory.
  bool help = retired_bytes() >= kChunkBytes;
  for (;;) {
    if (auto block = take(kind, size_class, near)) co_return block;
    auto fetched = co_await fetch(op, kind, size_class, !help, near);
    if (!fetched) co_return fail(fetched.error());
    if (*fetched) {
      auto block = take(kind, size_class, near);
      if (block) co_return block;
      break;  // others have taken it
    }
    if (!help) break;
    help = false;
    static_cast<void>(co_await node.membership().beat(op));
  }
  const base::MutexLock lock(mutex);
  full_until[{near, chunks_for_one(size_class)}] = op.worker().now() + kFullFor;
  co_return std::nullopt;
}

// Everywhere once, without waiting. Nothing: there is no memory now. Errors of take_behind() and
// beat() mean only that surplus was not given away or the epoch not moved: who needs either sees.
Task<Result<std::optional<Block>>> Allocator::State::attempt(Operation& op, BlockKind kind,
                                                             std::size_t size_class, Near near) {
  if (near) {
    auto block = co_await attempt_near(op, kind, size_class, *near);
    if (!block || *block) co_return block;
  }
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
  if (!description(kind).larger_will_do || !node.recycler().exhausted(op.worker().now())) {
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
                                           bool new_runs, Near near) {
  std::vector<NodeId> ids = node.memory_nodes().in_use();
  if (near) std::erase_if(ids, [&](NodeId id) { return id != *near; });
  if (ids.empty()) co_return false;
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
    const base::MutexLock lock(mutex);
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
      const std::uint64_t size = node.fabric().memory_node_size(ids[at]);
      auto start = co_await take_chunks(op, ids[at], size, chunk_words[at], chunks);
      if (!start) co_return fail(start.error());
      if (!*start) continue;
      if (chunks != full) co_await note_short(op, *start);
      accept_run(*start, kind, size_class, chunks);
      const base::MutexLock lock(mutex);
      if (nodes > 1) next_node = (at + 1) % nodes;
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
    const std::uint64_t size = node.fabric().memory_node_size(id);
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
  unlisted.store(true, std::memory_order_relaxed);
  node.wake();
  const base::MutexLock lock(mutex);
  for (const FreeRun& run : runs) {
    const bool fresh = run.block.incarnation == 0;
    if (fresh && free.put_fresh(run)) continue;
    if (fresh && description(run.block.kind).births) {
      free.add_fresh(run);
      continue;
    }
    Block block = run.block;
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (const auto left_over = free.put_rather(block)) retired.push_safe(*left_over);
      free.touch(block.kind, block.size_class);
      block.address = block.address + block.bytes();
    }
  }
}

}  // namespace pando::pool
