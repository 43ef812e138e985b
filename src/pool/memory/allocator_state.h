// Inside the Allocator: what allocator.cc (taking blocks), collector.cc (getting them back) and
// recovery.cc (the ledger) share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "pool/compute_node.h"
#include "pool/memory/allocator.h"
#include "pool/memory/fetcher.h"
#include "pool/memory/free_blocks.h"
#include "pool/memory/ledger.h"

namespace pando::pool {

// Runs of chunks. Most classes cut one chunk with little waste; the others take the shortest run
// that wastes an eighth at most, or one block's worth where a memory node has no more: a short run,
// which the state of its first chunk tells.
constexpr std::size_t chunks_for_one(std::size_t size_class) {
  return (class_bytes(size_class) + kChunkBytes - 1) / kChunkBytes;
}
constexpr std::size_t blocks_in(std::size_t chunks, std::size_t size_class) {
  return chunks * kChunkBytes / class_bytes(size_class);
}
constexpr std::size_t chunks_for_run(std::size_t size_class) {
  for (std::size_t chunks = chunks_for_one(size_class); chunks <= 8; ++chunks) {
    const std::size_t used = blocks_in(chunks, size_class) * class_bytes(size_class);
    if ((chunks * kChunkBytes - used) * 8 <= chunks * kChunkBytes) return chunks;
  }
  return chunks_for_one(size_class);
}
// How many chunks before the one that a block begins in its run begins; `within`: where in its
// chunk the block begins. No two blocks of a run begin at the same place of their chunks.
constexpr std::size_t chunks_before(std::size_t size_class, std::uint64_t within) {
  for (std::size_t i = 0; i < blocks_in(chunks_for_run(size_class), size_class); ++i) {
    const std::uint64_t at = i * class_bytes(size_class);
    if (at % kChunkBytes == within) return at / kChunkBytes;
  }
  return 0;
}

struct Allocator::State {
  // Blocks in the queue and their far bytes from which on the housekeeper is kicked.
  static constexpr std::size_t kKickBlocks = 256;
  static constexpr std::uint64_t kKickBytes = 1 << 20;
  // Incarnations from here on are not reused: a node's version counts on from it and must not wrap.
  static constexpr std::uint32_t kLastIncarnation = 0xf000'0000;
  static bool used_up(const Block& block) {
    return !description(block.kind).births && block.incarnation >= kLastIncarnation;
  }
  // A memory node that had no room for a block near another is not asked again for so long.
  static constexpr task::Duration kFullFor = std::chrono::milliseconds(10);

  // Retired blocks that were written to far memory, to be read back when they are safe.
  struct Stash {
    Block block;
    std::uint64_t stamp;  // of the youngest in it
    std::uint32_t count;
    std::uint32_t checksum;
  };
  static constexpr std::size_t kStashBlocks = 256;
  static constexpr std::size_t kStashBytes = kStashBlocks * sizeof(Block);

  explicit State(ComputeNode& compute_node);
  ~State();

  // ---- Taking (allocator.cc)
  using Near = std::optional<fabric::NodeId>;
  class RefillGuard;
  // With the incarnation of its last life where it has births (0: it had none), else the next.
  std::optional<Block> take(BlockKind kind, std::size_t size_class, Near near = {});
  Task<Result<Block>> refill(Operation& op, BlockKind kind, std::size_t size_class, Near near = {});
  Task<std::optional<Block>> take_behind(Operation& op, BlockKind kind, std::size_t size_class);
  Task<Result<std::optional<Block>>> attempt(Operation& op, BlockKind kind, std::size_t size_class,
                                             Near near);
  Task<Result<std::optional<Block>>> attempt_near(Operation& op, BlockKind kind,
                                                  std::size_t size_class, fabric::NodeId near);
  Task<Result<bool>> fetch(Operation& op, BlockKind kind, std::size_t size_class, bool new_runs,
                           Near near = {});
  Task<Result<bool>> fetch_shared(Operation& op, BlockKind kind, std::size_t size_class,
                                  std::span<const fabric::NodeId> ids, std::size_t first,
                                  std::span<const std::uint64_t> stack_words);
  Task<Result<bool>> fetch_run(Operation& op, BlockKind kind, std::size_t size_class,
                               std::span<const fabric::NodeId> ids, std::size_t first,
                               std::span<std::uint64_t> chunk_words);
  Task<Result<bool>> fetch_recycled(Operation& op, BlockKind kind, std::size_t size_class,
                                    std::span<const fabric::NodeId> ids, std::size_t first,
                                    std::size_t chunks);
  void accept_run(fabric::Address start, BlockKind kind, std::size_t size_class,
                  std::size_t chunks);
  void accept(std::span<const FreeRun> runs);

  // ---- Getting back (collector.cc)
  bool safe(std::uint64_t stamp) const;
  bool drain(BlockKind* full_kind, std::size_t* full_class, Near near = {}) PANDO_REQUIRES(mutex);
  std::vector<FreeRun> surplus(std::size_t keep_blocks, std::uint64_t keep_bytes);
  Task<Status> spill(Operation& op, std::size_t keep_blocks, std::uint64_t keep_bytes);
  Task<Status> tidy(Operation& op);
  Task<Status> give_back(Operation& op, BlockKind kind, std::size_t size_class);
  Task<Status> stash(Operation& op);
  Task<Result<std::vector<FreeRun>>> read_stash(Operation& op, bool unsafe_too);
  Task<Status> unstash(Operation& op);
  Task<Status> recall_stashes(Operation& op);
  void requeue(std::span<const FreeRun> runs);
  void requeue_written(Operation& op, std::span<const FreeRun> runs);
  void put_back(const Block& block);  // at once, uncounted
  std::uint64_t waiting();
  Task<bool> all_safe(Session& session, task::TimePoint until);
  std::uint64_t retired_bytes();

  // ---- The ledger, and those of the dead (recovery.cc)
  struct Draft;
  class WritingGuard;
  Task<Status> push(Operation& op, std::span<const FreeRun> runs);
  Task<void> keep_ledger(Operation& op);
  std::vector<Draft> draft(std::size_t& lacking) PANDO_REQUIRES(mutex);
  Task<Result<std::size_t>> write_ledger(Operation& op);
  Task<Status> grow_ledger(Operation& op, std::size_t count);
  Task<Status> close_ledger(Operation& op);
  Task<Status> finish_ledger(Operation& op);
  std::size_t ledger_pages();
  Task<Status> recover_own_slot(Operation& op);
  Task<Status> recover_from_the_dead(Operation& op);
  Task<Status> recover(Operation& op, std::uint64_t head, bool own);
  Task<Status> recover_class(Operation& op, std::span<const FoundPage> pages);
  Task<Status> take_struck(Operation& op);
  Task<void> give(Operation& op, std::vector<FreeRun> runs);

  ComputeNode& node;
  Fetcher fetcher{*this};
  const std::size_t retired_limit;
  const std::uint64_t keep_limit;
  std::atomic<std::uint64_t> allocated{0};
  std::atomic<std::uint64_t> freed{0};
  std::atomic<std::uint64_t> recovered_blocks{0};
  // A run or magazine was taken that the ledger does not list, or pages were struck for one that
  // was given away.
  std::atomic<bool> unlisted{false};

  base::Mutex mutex;  // never held across an await
  FreeBlocks free PANDO_GUARDED_BY(mutex);
  RetiredQueue retired PANDO_GUARDED_BY(mutex);
  std::deque<Stash> stashes PANDO_GUARDED_BY(mutex);  // by stamp
  // Of those in use, where the next run is looked for first: load spreads.
  std::size_t next_node PANDO_GUARDED_BY(mutex) = 0;
  std::uint32_t before_first PANDO_GUARDED_BY(mutex) = 0;  // begin_incarnations_at()
  std::uint64_t last_seen PANDO_GUARDED_BY(mutex) = 0;  // allocated + freed, at the last collect()
  Ledger ledger PANDO_GUARDED_BY(mutex);
  // By memory node and chunks that were wanted.
  std::map<std::pair<fabric::NodeId, std::size_t>, task::TimePoint> full_until
      PANDO_GUARDED_BY(mutex);  // kFullFor

  // The housekeeper's alone.
  std::uint64_t unlisted_bytes = 0;  // what the last draft had no page for
  const std::shared_ptr<std::uint64_t> left_behind = std::make_shared<std::uint64_t>(0);
  std::size_t page_limit = Ledger::kUsualPages;
  std::uint64_t chain = 0;          // the first page of this compute node's slot
  bool chain_known = false;         // it was read
  bool own_slot_recovered = false;  // nothing of a predecessor's is listed there any more
  task::TimePoint next_own_recovery{};
  // Rows of pages that are being struck: once they are, nobody else knows of these blocks. Where it
  // is unknown whether they were, they are struck again before anything else is recovered.
  struct Struck {
    std::vector<fabric::Address> words;
    std::vector<Listed> rows;
  };
  std::vector<Struck> perhaps_struck;
  task::TimePoint next_growth{};
  std::optional<task::TimePoint> ledger_written;
  task::TimePoint next_recovery{};
};

}  // namespace pando::pool
