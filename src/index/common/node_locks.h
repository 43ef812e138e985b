// NodeLocks: locking nodes in far memory. A remote lock word behind a local queue.
//
// A lock word is 0, or {owner id:32, sequence:32}: it names its owner from the moment the CAS swaps
// it in. A noted word is {owner id:32, unfinished:1, sequence:7, note:24}, taken by masked CAS:
// the note belongs to the index, stays when the lock is freed, and reaches the next holder with the
// round trip that locks. It is a hint: a word that outlives its node (pool/memory/block.h) may
// carry the note of a former life. It needs the local queue, which keeps two coroutines of one
// compute node from wanting it at once: their words hardly differ. The word stands in the node's
// first eight bytes, or, where the option says so and the memory nodes have it, in a hashed table
// of words in on-chip memory; then several nodes share a word, and whoever needs several locks asks
// with try_lock and backs out.
//
// Locking costs one round trip together with reading the node (CAS, then READ, in one batch);
// writing back and unlocking cost one together (add_unlock appends to the batch that writes). Each
// of the two combinations can be switched off.
//
// A lock whose owner is gone (pool/membership/membership.h) is taken over, by CAS from the dead
// owner's word; one that a coroutine of a living compute node abandoned is freed by its housekeeper
// (pool/membership/abandoned_locks.h). Either way the node may be in the middle of a change. The
// content of a node that is always read whole tells. Of one that is not, the unfinished bit does:
// it stays set until a holder has said repaired(), through any number of holders who were after
// something else.
//
// Lock words are changed by atomics and by WRITEs, which rule 7 of fabric/verbs.h does not make
// atomic against each other: an atomic's store may undo a WRITE that landed since its load. It
// never does here, because no atomic stores to a word that someone else may still WRITE to. Only
// the holder WRITEs, once, to unlock. Who locks, or leaves a note (add_note), compares with "no
// owner"; who takes over compares with an owner that has been shut out; the housekeeper compares
// with a word of its own compute node, whose WRITE has taken effect or never will (rule 9). Against
// a holder who may WRITE all these compares fail, and store nothing.
//
// So the note of a new node is not left while its word is held: a store to the note's bits alone
// would also put back the owner's, of a lock that was freed meanwhile. Nothing is lost with it. A
// holder by an old pointer writes the note that it knows when it unlocks.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>

#include "fabric/verbs.h"
#include "index/common/local_locks.h"
#include "pool/compute_node.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::index {

using pool::Operation;

struct LockOptions {
  bool local_table = true;        // queue locally before the remote lock
  std::uint32_t handovers = 16;   // hand the remote lock over locally, this many times in a row
  bool lock_with_read = true;     // lock and READ in one batch
  bool unlock_with_write = true;  // WRITE and unlock in one batch
  bool on_chip = false;           // lock words in the memory nodes' on-chip memory
};

enum class LockWord : std::uint8_t { kPlain, kNoted };

// Parts of a node, to be read into their places in an image of it.
class NodeParts {
 public:
  static NodeParts whole(std::size_t bytes) {
    NodeParts parts;
    parts.add(0, bytes);
    return parts;
  }
  void add(std::size_t offset, std::size_t bytes) {  // REQUIRES: at most three
    assert(count_ < parts_.size());
    parts_[count_++] = {offset, bytes};
  }
  bool empty() const { return count_ == 0; }
  void read(fabric::Batch& batch, fabric::Address node, std::byte* image) const {
    for (std::size_t i = 0; i < count_; ++i) {
      batch.read(node + parts_[i].offset, image + parts_[i].offset, parts_[i].bytes);
    }
  }

 private:
  struct Part {
    std::size_t offset;
    std::size_t bytes;
  };
  std::array<Part, 3> parts_;
  std::size_t count_ = 0;
};

// What is locked, and what is read with it.
struct LockTarget {
  fabric::Address node;
  std::byte* image;
  NodeParts parts;
  LockWord word = LockWord::kPlain;
};

class NodeLocks;

// A lock wanted or held. Lives in the coroutine that uses it.
class NodeLock {
 public:
  explicit NodeLock(NodeLocks& locks) : locks_(locks) {}
  // Wanted or held still (the coroutine was destroyed in the middle): given up.
  ~NodeLock();
  NodeLock(const NodeLock&) = delete;
  NodeLock& operator=(const NodeLock&) = delete;

  bool held() const { return held_; }
  // The previous holder did not finish: the node must be repaired before anything else.
  bool repair() const { return repair_; }
  void repaired() { repair_ = false; }
  // Of a noted word. REQUIRES: held.
  static constexpr std::uint32_t kNoteMask = (1u << 24) - 1;
  std::uint32_t note() const {
    assert(held_);
    return static_cast<std::uint32_t>(word_) & kNoteMask;
  }
  void set_note(std::uint32_t note) {
    assert(held_);
    if (noted_) word_ = (word_ & ~std::uint64_t{kNoteMask}) | (note & kNoteMask);
  }
  // A WRITE that rides along with the round trip that locks: of something that nobody can reach
  // yet. `from` must live until the lock is held.
  void carry(fabric::Address to, const std::byte* from, std::size_t bytes) {
    carried_to_ = to;
    carried_from_ = from;
    carried_bytes_ = bytes;
  }

 private:
  friend class NodeLocks;
  NodeLocks& locks_;
  LocalLocks::Ticket ticket_;
  fabric::Address word_at_;
  std::uint64_t word_ = 0;
  std::uint64_t free_word_ = 0;  // what unlocking writes
  bool noted_ = false;
  bool queued_ = false;  // in the local queue, not resumed yet
  bool local_ = false;
  bool held_ = false;
  bool repair_ = false;
  bool hand_over_ = false;
  fabric::Address carried_to_;
  const std::byte* carried_from_ = nullptr;
  std::size_t carried_bytes_ = 0;
};

class NodeLocks {
 public:
  NodeLocks(pool::ComputeNode& compute_node, const LockOptions& options);
  ~NodeLocks();

  // Locks and reads. Waits until the op's deadline (kTimeout). On error the lock is not held.
  Task<Status> lock(Operation& op, NodeLock& lock, LockTarget target);
  // Without waiting. False: someone has it who is not known to be dead.
  Task<Result<bool>> try_lock(Operation& op, NodeLock& lock, LockTarget target);

  // Appends the unlocking to a batch that writes to the node, or decides to hand over. The batch
  // must complete, then call unlocked().
  void add_unlock(fabric::Batch& batch, NodeLock& lock);
  void unlocked(NodeLock& lock);
  // Writes nothing but the unlock (one round trip, none where handed over).
  Task<Status> unlock(Operation& op, NodeLock& lock);
  // Appends the note of a new node. Where someone holds the lock of its block by an old pointer,
  // the note stays as it is.
  void add_note(fabric::Batch& batch, fabric::Address node, std::uint32_t note) const;
  // Submits the batch of WRITEs with the unlock: in one round trip, or two where the option is off.
  Task<Status> write_and_unlock(Operation& op, fabric::Batch& batch, NodeLock& lock);

  const LockOptions& options() const { return options_; }
  bool shares_words() const { return options_.on_chip; }
  std::uint64_t takeovers() const { return takeovers_.load(std::memory_order_relaxed); }
  std::uint64_t handed_over() const { return handed_over_.load(std::memory_order_relaxed); }
  std::size_t bytes() const { return sizeof(*this); }

 private:
  friend class NodeLock;
  fabric::Address word_for(fabric::Address node) const;
  std::uint64_t new_word();
  static constexpr std::uint64_t kOwnerMask = ~std::uint64_t{0} << 32;
  static constexpr std::uint64_t kUnfinished = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kSequenceMask = std::uint64_t{127} << 24;
  static constexpr std::uint64_t kHolderMask = kOwnerMask | kSequenceMask;
  void start(NodeLock& lock, const LockTarget& target) const;
  Task<Result<bool>> attempt(Operation& op, NodeLock& lock, const LockTarget& target,
                             std::uint64_t expected, std::uint64_t& seen);
  Task<Result<bool>> attempt_noted(Operation& op, NodeLock& lock, const LockTarget& target,
                                   std::uint64_t expected, std::uint64_t& seen);
  Task<Status> after_swap(Operation& op, NodeLock& lock, const LockTarget& target, Status status,
                          const fabric::Verb& swap, bool swapped);
  Task<Result<bool>> owner_gone(Operation& op, std::uint64_t word);
  Task<Status> read(Operation& op, NodeLock& lock, const LockTarget& target);
  Task<Status> submit_with_unlock(Operation& op, fabric::Batch& batch, NodeLock& lock);
  static void add_carried(fabric::Batch& batch, const NodeLock& lock);
  static void set_free_word(NodeLock& lock);
  void let_go(NodeLock& lock);
  void abandon(NodeLock& lock);
  void hand_to_housekeeper(const NodeLock& lock);
  void withdraw(NodeLock& lock);

  pool::ComputeNode& compute_node_;
  const LockOptions options_;
  LocalLocks local_;
  std::atomic<std::uint64_t> takeovers_{0};
  std::atomic<std::uint64_t> handed_over_{0};
};

}  // namespace pando::index
