// Allocator: far memory for this compute node's indexes.
//
// Memory nodes hand out chunks of kChunkBytes by a word that the taker moves with CAS; a run of
// chunks is cut into blocks of one kind and size class here, so that most allocations cost no round
// trip. Retired blocks wait for their epoch (epochs.h), then come to the local free list of their
// class; what this compute node has beyond its keep goes to stacks in far memory for every compute
// node to draw from (shared_stack.h). A block is taken from: the local list, the blocks that have
// become safe, the current run, the shared stack, a new run, a run of recycled chunks — so memory
// is reused before it grows, and round trips are made only when a run is used up. Where all that
// has nothing, chunks that are free from end to end can be recycled: recycler.h, by reclaimed().
// Ledgers' pages, which stay, have chunks of their own (BlockKind::kPage), so that they keep none
// from it.
//
// Local memory stays bounded when an epoch does not move (a peer's operation is stuck): retired
// blocks beyond a limit are written to far memory, in blocks of their own, with a local note of
// their stamp.
//
// What a crash costs. The blocks that a compute node holds free (its lists, at most a chunk a class
// in use; its queue; the rests of its runs) are listed in far memory (ledger.h), and given back
// when it has been declared dead, by a survivor or by the next one in its slot. Lost are
//  - what it had in hand that the ledger did not list yet: runs and magazines that were taken, and
//    blocks that were retired, since its housekeeper last wrote. It is woken by every run and
//    magazine, so mostly a round trip ago, and a beat (10 ms) ago where there are many. At worst,
//    as right after its start, a run and a list for each class in use (of kinds that are asked for
//    by memory node, a run on each);
//  - what its operations had allocated and not made reachable, or unlinked and not yet retired;
//  - the class whose page was being written;
//  - retired blocks beyond the ledger's room (some 4000), and those written to far memory; at a
//    clean close those beyond 129,000, or, where the pool is full and a peer's operation stuck,
//    those beyond the pages that it has had since its start (Ledger::kFirstPages);
//  - if who gives them back dies as well, the class that it was at.
// Lost though the compute node lives on: a run or magazine whose CAS had an unknown outcome. A task
// that is dropped loses no memory that it was fetching (fetcher.h), nor a block that nothing leads
// to yet (fresh_block.h); but the one that its last WRITE was about to link, or to unlink.
// They are never handed out twice.
//
// Thread-safe. Nothing here blocks a thread; allocate() may cost round trips.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "pool/memory/block.h"
#include "pool/memory/free_blocks.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class Allocator {
 public:
  explicit Allocator(ComputeNode& node);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // kOutOfMemory, naming what was asked for, when no memory node has room; nothing is taken then.
  // The incarnation is new to the block and not zero. Where memory is short and none can be
  // recycled, the block may be of a larger class if its description allows it. `near`: on that
  // memory node, where it has room; else on any. REQUIRES: not near, or of a kind that has births.
  //
  // It does not wait: the caller may hold a lock, and its own pin keeps retired blocks from
  // becoming safe. End the operation, co_await reclaimed(), and try again with another.
  Task<Result<Block>> allocate(Operation& op, BlockKind kind, std::size_t bytes,
                               std::optional<fabric::NodeId> near = {});
  // The block is unreachable from far memory from now on, but others may still be reading it.
  void retire(const Block& block);
  // The block was never reachable by others: free at once; one that has births, with its epoch.
  void release(const Block& block);

  // After kOutOfMemory, with no operation under way on this session: waits until what had been
  // retired is safe; and where there was nothing, or that was tried before (`again`), until memory
  // has been recycled (recycler.h). False: it is of no use to try again, or it is late (a peer's
  // operation was stuck).
  Task<bool> reclaimed(Session& session, task::TimePoint until, bool again = false);

  // Blocks, since start. What the allocator takes for its own lists does not count.
  std::uint64_t allocated() const;
  std::uint64_t freed() const;      // retired or released
  std::uint64_t waiting() const;    // retired blocks here that wait for their epoch or for use
  std::uint64_t recovered() const;  // blocks of the dead that this compute node has given back
  // For checks: every block that this compute node knows to be free or retired, but those that it
  // has written to far memory.
  std::vector<FreeRun> held() const;
  // For checks: bytes of retired blocks that it has closed with though no page lists them. Outlives
  // the allocator.
  std::shared_ptr<const std::uint64_t> left_behind() const;
  // For checks: whether the memory there is in a block that this compute node may use again now.
  bool may_reuse(fabric::Address at) const;
  // For checks: blocks that were never used begin with an incarnation behind this one, so that what
  // is counted in fewer bits (births, versions) wraps around soon. REQUIRES: none was allocated.
  void begin_incarnations_at(std::uint32_t last);

  // At the start, before anything is allocated: a slot without a ledger gets the first pages of
  // one. Where they cannot be had now, the housekeeper tries again.
  Task<void> take_first_pages(Operation& op);
  // The housekeeper's: lists what is held free in this compute node's ledger, where it has changed.
  // What cannot be written now is written later.
  Task<void> update_ledger(Operation& op);
  // The housekeeper's: moves what is safe to the free lists, spills surplus to far memory, gives
  // away what the dead held free, and lists.
  Task<Status> collect(Operation& op);
  // At a clean close: gives every free block of this compute node to the shared stacks. False: some
  // are retired and may still be read by others; the ledger lists them, for who recovers it.
  // kOutOfMemory: there is no room to list them yet; they, too, are free soon.
  Task<Result<bool>> give_back_all(Operation& op);

  // ---- The recycler's
  // The same in the middle of its life: what operations free or fetch meanwhile stays.
  Task<Status> give_back_free(Operation& op);
  // Writes the ledger until it lists nothing that is not held now. False: that cannot be done yet.
  Task<bool> bring_ledger_up_to_date(Operation& op);
  // Blocks of one kind, class and memory node that are nobody else's, to the shared stack.
  Task<void> give(Operation& op, std::vector<FreeRun> runs);

  // The housekeeper's: fetches memory for all until stop_fetching() (fetcher.h).
  Task<void> fetch_for_all(Session& session);
  void stop_fetching();

 private:
  friend class Fetcher;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pando::pool
