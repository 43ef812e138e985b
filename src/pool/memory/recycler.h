// Recycler: chunks whose blocks are all free become memory for any kind and size of block again.
//
// Blocks are type-stable (block.h), because compute nodes remember nodes of far memory between
// operations and come back to them, locking, long after they were freed. So a chunk keeps its kind
// and size class until an allocation finds no memory at all. Then one compute node, by a lock that
// is taken over when its holder is gone, recycles the chunks that are free from end to end:
//
//   calling       All are asked to give what they hold free to the shared stacks. Who does not in
//                 time holds a few chunks back.
//   taking        The stacks' chains are taken off them, by way of a seal: see below.
//   counting      The chains are walked. Where every block of a run of chunks is there, its chunks'
//                 states say so: turning.
//   forgetting    All are asked to forget: see below. Who does not in time has it all put back.
//   turning       From here on it is done to the end, by whoever is left. What the chains have
//                 outside turning chunks goes back to the stacks, magazine by magazine.
//   zeroing       Each turning chunk is zeroed and is free, by one change of its state.
//   putting back  Instead of the last three, where nothing is whole or somebody does not forget:
//                 no chunk is turning, and the chains go back to their stacks as they are.
//
// Each phase stands in far memory with who is at it ({owner, edition, phase} in the tables), and
// can be begun anew by another. The housekeeper does it bit by bit, between its other duties.
//
// Forgetting. A compute node answers the call once
//   1. its caches have been emptied, and every operation of its own that began before has ended;
//   2. no lock word of its own may be left anywhere by an operation that is gone
//      (abandoned_locks.h), and no verb of its own has an outcome that is still open;
//   3. its ledger lists nothing but what it holds, a predecessor's has been recovered.
// The chunks are turned when all living compute nodes have answered and no ledger of the dead is
// left to be recovered, all seen by one look. Why nothing leads into a turning chunk then:
//   - The chains' blocks were free before the call, so none was part of an index, and no operation
//     that was under way held one but by what a cache remembered (epochs.h). They are in nobody's
//     hands from when they were taken. So neither an index nor an operation that reads it from its
//     root comes to lead to one any more: nodes that are cached after the call do not.
//   - What was cached before is gone (1), all of it, not only what leads into these chunks: a dead
//     node that waits to be reused elsewhere still names its former neighbour, which may be there.
//     A root that is remembered needs no forgetting: it lives as long as its index is open.
//     Hotspots name no place, but count on versions that start anew with a chunk.
//   - An operation that was led here by an old pointer has ended (1), and what it left behind, a
//     lock word or a verb that comes late, has been taken back or come (2).
//   - A ledger that is behind lists blocks that have been used since; what tells is their first
//     line, which will be zero. So ledgers must be true first (3). The dead can do nothing, as they
//     have been shut out; those who die later had answered.
//   - Who comes after the call remembers nothing. That slots keep the answer of the last who had
//     them is therefore right, and what its ledger lists is as true as when it answered.
//   - A popper or pusher of a stack that was held up finds that the tag has moved.
//
// Taking a chain. {tag, P} becomes {tag + 1, sealed P}; the superblock's taken word P; then the
// stack {tag + 2, nothing}. Whoever comes after one who died in the middle knows by the seal
// whether the chain is still on the stack. Meanwhile pushers wait, poppers look elsewhere. Putting
// back goes the other way: the stack is sealed, what is on it by now is linked to the chain, the
// taken word becomes 0, the seal is taken off.
//
// What is lost when the recycler dies: a magazine that was on its way back to its stack.
//
// Thread-safe where not said otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fabric/verbs.h"
#include "pool/layout.h"
#include "pool/membership/membership.h"
#include "pool/memory/epochs.h"
#include "pool/memory/free_blocks.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

class Recycler {
 public:
  explicit Recycler(ComputeNode& node) : node_(node) {}
  Recycler(const Recycler&) = delete;
  Recycler& operator=(const Recycler&) = delete;

  // With no operation under way on this session: has memory recycled, and waits until there is some
  // or it is clear that there is none. True: try again, since there is some, or since it is clear
  // only now. At once false where nothing has been freed here since the last time that nothing was
  // found, and that was not long ago.
  Task<bool> recycle(Session& session, task::TimePoint until);
  // There is nothing to recycle, as far as is known: one may be wasteful with what there is.
  bool exhausted(task::TimePoint now);
  // The housekeeper is to begin when it can.
  void request();

  // ---- The housekeeper's
  // It is there to do the work, from now on or no more: then what is under way is put back.
  void serve(bool serves) { serving_.store(serves); }
  // Answers calls, and goes on with what is under way. What fails now is tried again next time.
  Task<Status> look(Operation& op);
  // It would like to look again soon.
  bool active() const { return busy_; }

  // It is at it: others wait for it.
  bool holds() const { return mine_; }

  // How often this compute node has recycled, and how many chunks.
  std::uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }
  std::uint64_t chunks() const { return chunks_.load(std::memory_order_relaxed); }

 private:
  enum class Phase : std::uint8_t {
    kIdle,
    kCalling,
    kTaking,
    kCounting,
    kForgetting,
    kPuttingBack,
    kTurning,
    kZeroing
  };
  enum class Call : std::uint8_t { kGiveBack = 1, kForget = 2 };
  // recycler_word
  struct Holder {
    OwnerId owner = 0;
    std::uint32_t edition = 0;  // 24 bits
    Phase phase = Phase::kIdle;

    static Holder from_word(std::uint64_t word);
    std::uint64_t word() const;
  };
  // How much of a run is free, by its first chunk.
  struct Count {
    std::uint32_t blocks = 0;
    std::uint16_t of_class = 0;  // class_index()
    bool mixed = false;          // nothing that makes sense
  };
  // Where a walk through all chains has got to.
  struct Cursor {
    std::size_t node = 0;
    std::size_t of_class = 0;
    std::uint64_t place = 0;  // of the next magazine; 0: the class is still to be begun
    bool loaded = false;      // of the node: words below
    std::vector<std::uint64_t> taken;
    std::vector<std::uint64_t> states;
  };
  struct Rest {  // of a magazine: to be given to its stack once the taken word is `next`
    std::vector<FreeRun> runs;
    std::uint64_t next = 0;
  };

  // ---- Answering
  Task<void> answer(Operation& op, const PoolView& view);
  Task<bool> has_forgotten(Operation& op, std::uint64_t number);
  void observe(const PoolView& view);

  // ---- Recycling
  Task<Status> begin(Operation& op, const PoolView& view);
  Task<Status> step(Operation& op, const PoolView& view);
  Task<Status> advance(Operation& op, Phase phase);
  void enter();
  void ended();
  Task<Status> raise(Operation& op, Call what, const PoolView& view);
  Task<Status> call(Operation& op, const PoolView& view);
  Task<Status> take_chains(Operation& op);
  Task<Status> take_chains(Operation& op, fabric::NodeId node);
  Task<Status> count(Operation& op);
  void count_runs(fabric::NodeId node, std::span<const FreeRun> runs);
  Task<Status> choose(Operation& op, fabric::NodeId node);
  Task<Status> await_forgetting(Operation& op, const PoolView& view);
  Task<Status> put_back(Operation& op);
  Task<Status> unmark(Operation& op, fabric::NodeId node);
  Task<Status> put_back(Operation& op, fabric::NodeId node, std::size_t of_class);
  Task<Status> link(Operation& op, fabric::NodeId node, std::size_t of_class, std::uint64_t from,
                    std::uint64_t chain);
  Task<Status> turn(Operation& op);
  Task<Status> turn_magazine(Operation& op, fabric::NodeId node);
  Task<Status> zero(Operation& op);
  Task<Status> zero_chunk(Operation& op, fabric::NodeId node, std::size_t chunk);
  Task<Status> set_states(Operation& op, fabric::NodeId node, std::span<const std::size_t> chunks,
                          ChunkState from, ChunkState to);
  Task<Status> load(Operation& op, fabric::NodeId node);
  std::size_t chunks_on(fabric::NodeId node) const;
  std::uint64_t chunk_at(fabric::NodeId node, std::size_t chunk) const;
  std::size_t chunk_of(fabric::Address address) const;

  ComputeNode& node_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> requested_{false};
  std::atomic<bool> running_{false};
  std::atomic<bool> others_{false};         // another one is at it
  std::atomic<std::uint64_t> progress_{0};  // there is memory that was not there before
  std::atomic<std::uint64_t> ends_{0};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> chunks_{0};

  base::Mutex mutex_;                                      // of what follows
  bool in_vain_ PANDO_GUARDED_BY(mutex_) = false;          // the last one found nothing
  std::uint64_t freed_then_ PANDO_GUARDED_BY(mutex_) = 0;  // Allocator::freed(), when it began
  task::TimePoint ended_at_ PANDO_GUARDED_BY(mutex_){};
  task::Duration lasted_ PANDO_GUARDED_BY(mutex_){};

  // The housekeeper's alone.
  bool busy_ = false;
  std::uint64_t answered_ = 0;
  std::uint64_t forgotten_ = 0;  // the call for which the caches have been emptied
  Epochs::Moment stamp_ = 0;     // after that
  std::uint64_t seen_word_ = 0;
  Holder holder_;          // while it is this compute node
  bool mine_ = false;      // it is
  bool doubtful_ = false;  // the word in far memory may be another
  bool taken_over_ = false;
  Phase entered_ = Phase::kIdle;
  task::TimePoint since_{};  // when the phase was entered
  task::TimePoint began_{};
  std::uint64_t freed_at_start_ = 0;
  std::uint64_t call_ = 0;
  Cursor cursor_;
  std::vector<Count> counts_;                // of the cursor's memory node
  std::size_t chosen_ = 0;                   // chunks
  bool nothing_whole_ = false;               // by the last count
  std::uint64_t given_up_ = 0;               // the word of this one's last round
  std::vector<fabric::Address> short_runs_;  // of those, first chunks
  Rest rest_;
  std::uint64_t zeroed_ = 0;  // bytes of the chunk that is being zeroed
  std::uint64_t zeros_in_a_batch_ = kChunkBytes;
  std::vector<fabric::NodeId> nodes_;
};

}  // namespace pando::pool
