// The Allocator's other half: blocks come back.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/recycler.h"
#include "pool/memory/shared_stack.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using fabric::Batch;
using fabric::Buffer;

// Retired blocks kept here at most, 16 bytes each: a sixteenth of a small budget, and enough for
// tens of milliseconds of updates in a usual one.
std::size_t retired_limit_of(const Budget& budget) {
  return std::clamp<std::size_t>(budget.limit() / 64 / sizeof(Block), 512, 65'536);
}

// Safe blocks kept for this compute node's own use while it allocates, by far memory: a small part
// of the pool, since others cannot have it.
std::uint64_t keep_limit_of(const fabric::Fabric& fabric) {
  std::uint64_t pool_bytes = 0;
  for (std::size_t i = 0; i < fabric.memory_node_count(); ++i) {
    pool_bytes += fabric.memory_node_size(static_cast<fabric::NodeId>(i));
  }
  return std::clamp<std::uint64_t>(pool_bytes / 64, kChunkBytes, 16 << 20);
}

constexpr task::Duration kReclaimWait = std::chrono::milliseconds(1);

}  // namespace

Allocator::State::State(ComputeNode& compute_node)
    : node(compute_node),
      retired_limit(retired_limit_of(node.budget())),
      keep_limit(keep_limit_of(node.fabric())),
      free(node.budget()),
      retired(node.budget()),
      ledger(node.budget()) {}

Allocator::State::~State() {
  node.budget().give_back(BudgetUse::kFreeLists, stashes.size() * sizeof(Stash));
}

// ---- Retiring ----

void Allocator::retire(const Block& block) {
  state_->freed.fetch_add(1, std::memory_order_relaxed);
  if (State::used_up(block)) return;
  bool kick = false;
  {
    const base::MutexLock lock(state_->mutex);
    // The stamp is read under the lock, so that stamps only grow along the queue.
    state_->retired.push(block, state_->node.epochs().current());
    state_->free.touch(block.kind, block.size_class);
    kick = state_->retired.size() >= State::kKickBlocks ||
           state_->retired.bytes() >= State::kKickBytes;
  }
  if (kick) state_->node.kick();
}

void Allocator::release(const Block& block) {
  if (description(block.kind).births) return retire(block);  // or its next birth might be the same
  state_->freed.fetch_add(1, std::memory_order_relaxed);
  state_->put_back(block);
}

void Allocator::State::put_back(const Block& block) {
  if (used_up(block)) return;
  const base::MutexLock lock(mutex);
  if (!free.put(block)) retired.push_safe(block);
  free.touch(block.kind, block.size_class);
}

std::uint64_t Allocator::State::waiting() {
  const base::MutexLock lock(mutex);
  std::uint64_t count = retired.size();
  for (const Stash& stash : stashes) count += stash.count;
  return count;
}

bool Allocator::may_reuse(fabric::Address at) const {
  const base::MutexLock lock(state_->mutex);
  const auto has = [at](const Block& first, std::uint32_t count) {
    return at.node() == first.address.node() && at.offset() >= first.address.offset() &&
           at.offset() - first.address.offset() < count * first.bytes();
  };
  for (std::size_t i = 0; i < kClasses; ++i) {
    for (const FreeRun& run : state_->free.held(kind_at(i), size_class_at(i))) {
      if (has(run.block, run.count)) return true;
    }
  }
  bool found = false;
  state_->retired.for_each([&](const Block& block, std::uint64_t stamp) {
    found = state_->safe(stamp) && has(block, 1);
    return !found;
  });
  return found;
}

std::vector<FreeRun> Allocator::held() const {
  const base::MutexLock lock(state_->mutex);
  std::vector<FreeRun> all;
  for (std::size_t i = 0; i < kClasses; ++i) {
    const auto runs = state_->free.held(kind_at(i), size_class_at(i));
    all.insert(all.end(), runs.begin(), runs.end());
  }
  state_->retired.for_each([&](const Block& block, std::uint64_t /*stamp*/) {
    all.push_back({.block = block});
    return true;
  });
  for (const State::Stash& stash : state_->stashes) all.push_back({.block = stash.block});
  return all;
}

std::uint64_t Allocator::State::retired_bytes() {
  const base::MutexLock lock(mutex);
  return retired.bytes();
}

bool Allocator::State::safe(std::uint64_t stamp) const {
  if (base::mutated(base::Mutant::kNoEpochs)) return true;
  return stamp == 0 || node.epochs().safe(stamp);
}

// ---- Safe blocks: to the lists, and what is too much to far memory ----

// Moves safe blocks to their lists. True: it stopped at a block whose list is full.
// `near`: those on that memory node rather than others.
bool Allocator::State::drain(BlockKind* full_kind, std::size_t* full_class, Near near) {
  while (const Block* block = retired.front()) {
    if (!safe(retired.front_stamp())) return false;
    if (near && block->address.node() == *near) {
      const Block rather = *block;
      retired.pop_front();
      const auto left_over = free.put_rather(rather);
      if (left_over) retired.push_safe(*left_over);
      if (left_over && left_over->address.node() == *near) return true;
      continue;
    }
    if (!free.put(*block)) {
      if (full_kind != nullptr) *full_kind = block->kind;
      if (full_class != nullptr) *full_class = block->size_class;
      return true;
    }
    retired.pop_front();
  }
  return false;
}

// A magazine's worth that this compute node does not need. Empty: nothing safe is left over.
std::vector<FreeRun> Allocator::State::surplus(std::size_t keep_blocks, std::uint64_t keep_bytes) {
  const base::MutexLock lock(mutex);
  BlockKind kind{};
  std::size_t size_class = 0;
  if (!drain(&kind, &size_class)) return {};
  const std::uint64_t current = node.epochs().current();
  const std::uint64_t safe_stamp = current < Epochs::kGrace ? 0 : current - Epochs::kGrace;
  if (!retired.exceeds(safe_stamp, keep_blocks, keep_bytes)) return {};
  return free.take_surplus(kind, size_class, magazine_limit(kind, size_class));
}

Task<Status> Allocator::State::spill(Operation& op, std::size_t keep_blocks,
                                     std::uint64_t keep_bytes) {
  for (;;) {
    const std::vector<FreeRun> runs = surplus(keep_blocks, keep_bytes);
    if (runs.empty()) co_return Status{};
    if (Status pushed = co_await push(op, runs); !pushed) co_return pushed;
  }
}

void Allocator::State::requeue(std::span<const FreeRun> runs) {
  const base::MutexLock lock(mutex);
  for (const FreeRun& run : runs) {
    if (run.count > 1 && free.put_fresh(run)) continue;
    if (run.count > 1 && description(run.block.kind).births) {
      free.add_fresh(run);
      continue;
    }
    Block block = run.block;
    free.touch(block.kind, block.size_class);
    for (std::uint32_t i = 0; i < run.count; ++i) {
      retired.push_safe(block);
      block.address = block.address + block.bytes();
    }
  }
}

Task<Status> Allocator::collect(Operation& op) {
  Status tidied = co_await state_->tidy(op);
  // Whatever of these cannot be done now is done later.
  Status recovered = co_await state_->recover_from_the_dead(op);
  co_await state_->keep_ledger(op);
  co_return tidied ? recovered : tidied;
}

Task<void> Allocator::update_ledger(Operation& op) { return state_->keep_ledger(op); }

Task<Status> Allocator::State::tidy(Operation& op) {
  std::uint64_t seen =
      allocated.load(std::memory_order_relaxed) + freed.load(std::memory_order_relaxed);
  {
    const base::MutexLock lock(mutex);
    seen -= std::exchange(last_seen, seen);
  }
  const bool idle = seen == 0;
  const std::size_t keep_blocks = idle ? 0 : retired_limit / 2;
  const std::uint64_t keep_bytes = idle ? 0 : keep_limit;
  if (Status read = co_await unstash(op); !read) co_return read;
  Status spilled = co_await spill(op, keep_blocks, keep_bytes);
  // Busy: the recycler has the stack, for a moment; or it died, and is being seen to.
  if (!spilled && spilled.error().code() != ErrorCode::kBusy) co_return spilled;
  co_return co_await stash(op);
}

Task<Result<bool>> Allocator::give_back_all(Operation& op) {
  // A predecessor's ledger is not left behind in a slot that looks free.
  if (!state_->own_slot_recovered) {
    if (Status recovered = co_await state_->recover_own_slot(op); !recovered)
      co_return fail(recovered.error());
  }
  if (Status taken = co_await state_->take_struck(op); !taken) co_return fail(taken.error());
  if (Status given = co_await give_back_free(op); !given) co_return fail(given.error());
  const bool all = state_->waiting() == 0 || base::mutated(base::Mutant::kClosedLedger);
  const Status listed =
      all ? co_await state_->close_ledger(op) : co_await state_->finish_ledger(op);
  if (!listed) co_return fail(listed.error());
  co_return all;
}

Task<Status> Allocator::give_back_free(Operation& op) {
  if (Status spilled = co_await state_->spill(op, 0, 0); !spilled) co_return spilled;
  for (std::size_t i = 0; i < kClasses; ++i) {
    const BlockKind kind = kind_at(i);
    const std::size_t size_class = size_class_at(i);
    if (size_class < block_class(kind, 1)) continue;
    if (Status given = co_await state_->give_back(op, kind, size_class); !given) {
      co_return fail(given.error());
    }
  }
  co_return Status{};
}

Task<void> Allocator::give(Operation& op, std::vector<FreeRun> runs) {
  return state_->give(op, std::move(runs));
}

Task<Status> Allocator::State::give_back(Operation& op, BlockKind kind, std::size_t size_class) {
  const std::size_t limit = magazine_limit(kind, size_class);
  for (;;) {
    std::vector<FreeRun> runs;
    {
      const base::MutexLock lock(mutex);
      runs = free.take_all(kind, size_class, limit);
    }
    if (runs.empty()) co_return Status{};
    if (Status pushed = co_await push(op, runs); !pushed) co_return pushed;
  }
}

// ---- Unsafe blocks: too many to keep here ----

Task<Status> Allocator::State::stash(Operation& op) {
  for (;;) {
    {
      const base::MutexLock lock(mutex);
      if (retired.size() <= retired_limit + kStashBlocks) co_return Status{};
    }
    // From the class's own memory, without waiting for epochs: they are what does not move.
    const std::size_t size_class = class_of(kStashBytes);
    std::optional<Block> block = take(BlockKind::kItem, size_class);
    if (!block) {
      auto refilled = co_await refill(op, BlockKind::kItem, size_class);
      // No room: then they stay here, counted. An error elsewhere will be seen by who needs to.
      if (!refilled) co_return Status{};
      block = *refilled;
    }
    Buffer buffer = op.buffer(kStashBytes);
    Stash record{.block = *block, .stamp = 0, .count = 0, .checksum = 0};
    {
      const base::MutexLock lock(mutex);
      for (; record.count < kStashBlocks && retired.front() != nullptr; ++record.count) {
        std::memcpy(buffer.data() + record.count * sizeof(Block), retired.front(), sizeof(Block));
        record.stamp = std::max(record.stamp, retired.front_stamp());
        retired.pop_front();
      }
    }
    const std::size_t bytes = record.count * sizeof(Block);
    record.checksum = static_cast<std::uint32_t>(XXH3_64bits(buffer.data(), bytes));
    Batch batch(op.cost());
    batch.write(block->address, buffer.data(), bytes);
    const Status written = co_await op.submit(batch);
    const base::MutexLock lock(mutex);
    if (!written) {  // they stay here, and so does what was to hold them
      const std::uint64_t now = node.epochs().current();
      for (std::size_t i = 0; i < record.count; ++i) {
        Block each;
        std::memcpy(&each, buffer.data() + i * sizeof(Block), sizeof(Block));
        retired.push(each, now);
      }
      retired.push(record.block, now);
      co_return written;
    }
    stashes.push_back(record);
    node.budget().take(BudgetUse::kFreeLists, sizeof(Stash));
  }
}

// The blocks of the oldest stash, and its own; nothing where it is not to be had yet. On an error
// it stays where it is.
Task<Result<std::vector<FreeRun>>> Allocator::State::read_stash(Operation& op, bool unsafe_too) {
  Stash record{};
  {
    const base::MutexLock lock(mutex);
    if (stashes.empty() || !(unsafe_too || safe(stashes.front().stamp))) {
      co_return std::vector<FreeRun>{};
    }
    record = stashes.front();
    stashes.pop_front();
    node.budget().give_back(BudgetUse::kFreeLists, sizeof(Stash));
  }
  const std::size_t bytes = record.count * sizeof(Block);
  Buffer buffer = op.buffer(bytes);
  Batch batch(op.cost());
  batch.read(record.block.address, buffer.data(), bytes);
  if (Status read = co_await op.submit(batch); !read) {
    const base::MutexLock lock(mutex);
    stashes.push_front(record);
    node.budget().take(BudgetUse::kFreeLists, sizeof(Stash));
    co_return fail(read.error());
  }
  if (static_cast<std::uint32_t>(XXH3_64bits(buffer.data(), bytes)) != record.checksum) {
    co_return fail(ErrorCode::kCorrupt,
                   fmt::format("memory node {}, offset {:#x}: not the retired blocks that were "
                               "written there",
                               record.block.address.node(), record.block.address.offset()));
  }
  std::vector<FreeRun> runs(record.count);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::memcpy(&runs[i].block, buffer.data() + i * sizeof(Block), sizeof(Block));
  }
  runs.push_back({.block = record.block});
  co_return runs;
}

Task<Status> Allocator::State::unstash(Operation& op) {
  for (;;) {
    const auto runs = co_await read_stash(op, false);
    if (!runs) co_return fail(runs.error());
    if (runs->empty()) co_return Status{};
    requeue(*runs);
    // So that the queue does not grow by more than one stash.
    if (Status spilled = co_await spill(op, 0, 0); !spilled) {
      co_return spilled.error().code() == ErrorCode::kBusy ? Status{} : spilled;
    }
  }
}

// At a close, whatever the budget: a ledger lists them, a stash that nobody knows of does not.
Task<Status> Allocator::State::recall_stashes(Operation& op) {
  for (;;) {
    const auto runs = co_await read_stash(op, true);
    if (!runs) co_return fail(runs.error());
    if (runs->empty()) co_return Status{};
    const std::uint64_t now = node.epochs().current();  // later than they were retired
    const base::MutexLock lock(mutex);
    for (const FreeRun& run : *runs) retired.push(run.block, now);
  }
}

// ---- After kOutOfMemory ----

Task<bool> Allocator::reclaimed(Session& session, task::TimePoint until, bool again) {
  if (state_->waiting() > 0) {
    const bool safe = co_await state_->all_safe(session, until);
    if (!safe || !again) co_return safe;
  }
  co_return co_await state_->node.recycler().recycle(session, until);
}

// What is retired by now. False: it is late.
Task<bool> Allocator::State::all_safe(Session& session, task::TimePoint until) {
  const std::uint64_t target = node.epochs().current() + Epochs::kGrace;
  node.membership().want(target);
  for (;;) {
    const std::uint64_t before = node.epochs().current();
    if (before >= target) co_return true;
    if (session.worker().now() >= until) co_return false;
    {
      Operation op(session);  // anew each time: it must not hold the epoch
      if (!co_await node.membership().beat(op)) co_return false;
    }
    if (node.epochs().current() == before) co_await session.worker().sleep_for(kReclaimWait);
  }
}

}  // namespace pando::pool
