// BLink: the inner nodes of a B-link tree in far memory. Routing through the compute-side cache
// (router.h), separators that propagate, roots that grow, nodes that merge, half-done work of the
// dead that is finished. The leaves belong to the index that uses it (Leaves): sherman's
// sorted-by-nobody arrays, chime's hopscotch tables.
//
// Invariants (Lehman and Yao, with merging)
//  1. The nodes of a level partition the keys: each covers [low, high), its sibling starts at high.
//     A node's low never changes; high falls by a split and rises when it absorbs its sibling.
//  2. Every node is reachable from the first of its level by siblings; entries in the level above
//     are shortcuts. A missing entry costs a step to the right; it is added by whoever notices.
//  3. An entry leads to the node whose low is the entry's separator, or to a node that has died
//     since; then its left neighbour is absorbing still, and whoever locks that takes the entry
//     out. Dead nodes stay unreused until their entry is gone and the epoch has passed.
//  4. The first node of a level never dies, so a root once read remains a valid place to start.
//  5. Locks: a splitter holds one lock at a time (the node, then the parent). A merger holds the
//     parent's, then tries for the two children; so while a parent is locked, no two of its
//     children become one. No one waits for a lock while holding another.
//
// Round trips with inner nodes cached: reading a node 1, locking it 1, writing back and
// unlocking 1. Split: allocate 0, write right 1, write left and unlock 1, post separator 3 (lock
// the parent, see that the right node still lives, write and unlock). A split of an inner node
// takes 1 more, to see that the node lives at which it is cut.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fabric/verbs.h"
#include "index/blink/cached_node.h"
#include "index/blink/node.h"
#include "index/blink/node_cache.h"
#include "index/blink/router.h"
#include "index/common/node_locks.h"
#include "pool/catalogue/catalogue.h"
#include "pool/compute_node.h"
#include "pool/memory/fresh_block.h"
#include "pool/memory/item.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::index {

// What the tree must know of its leaves. Images are private copies, changed in place.
template <class K>
class Leaves {
 public:
  virtual ~Leaves() = default;
  virtual std::size_t leaf_bytes() const = 0;

  // How a leaf behind its header tells that it is of one piece: like every other node, unless said
  // otherwise (node.h).
  // Lock-free readers may believe this image, whose header they believe.
  virtual bool intact(Node<K> leaf) const { return leaf.versions_agree(); }
  // No writer left it in the middle of a change.
  virtual bool complete(Node<K> leaf) const { return leaf.versions_same(); }
  // Makes this the version of the whole leaf, as its header says it is.
  virtual void set_version(Node<K> leaf, std::uint32_t version) const {
    leaf.set_versions(version);
  }
  // No version that was ever written to the leaf is greater.
  virtual std::uint32_t newest_version(Node<K> leaf) const { return leaf.newest_version(); }
  // Whether readers look at parts of a leaf without its header: then death must reach every part.
  // clear_entries() leaves none in an image, whose parts then say what its header does.
  virtual bool read_in_parts() const { return false; }
  virtual void clear_entries(Node<K>) const {}
  // Whether leaves have noted lock words (node_locks.h), and what note fits this leaf.
  virtual LockWord lock_word() const { return LockWord::kPlain; }
  virtual std::uint32_t note(Node<K>) const { return 0; }

  // Adds the live entries of `right` to `left`. False, and `left` untouched, where they had better
  // stay apart (worth_absorbing).
  virtual bool absorb(Node<K> left, Node<K> right) = 0;
  // After a takeover, before the leaf is brought in order: of a split that its writer did not
  // finish, the new entry must not come to be once readers may have seen that it is not there. May
  // lock the new sibling, which nobody can have come to yet.
  virtual Task<Status> undo_insert(Operation& /*op*/, Node<K> /*leaf*/) { co_return Status{}; }
  // After a takeover: clears entries that lie beyond the leaf's high fence. May READ.
  virtual Task<Status> purge(Operation& op, Node<K> leaf) = 0;
};

// A node found for a key, with what was noticed on the way.
template <class K>
struct Found {
  NodeRef node;
  // A sibling that had to be reached by a step to the right though the parent was fresh: its
  // separator is missing above.
  std::optional<NodeRef> unposted;
  typename K::Cell unposted_cell{};
};

struct BLinkOptions {
  std::size_t inner_bytes = 1024;
  bool cache = true;
  LockOptions locks;
};

struct BLinkCounts {
  std::atomic<std::uint64_t> splits{0};
  std::atomic<std::uint64_t> merges{0};
  std::atomic<std::uint64_t> root_growths{0};
  std::atomic<std::uint64_t> cache_misses{0};
  std::atomic<std::uint64_t> misled{0};   // by an outdated cache entry
  std::atomic<std::uint64_t> repairs{0};  // of nodes whose writer died
  std::atomic<std::uint64_t> helped{0};   // separators posted, dead entries removed, for others
};

template <class K>
class BLink final : public Router<K> {
 public:
  using View = typename K::View;
  using Owned = typename K::Owned;
  using Cell = typename K::Cell;
  using CacheNode = CachedNode<K>;
  using typename Router<K>::Extent;

  BLink(pool::ComputeNode& compute_node, const pool::IndexRecord& record,
        const BLinkOptions& options, Leaves<K>& leaves);

  // Publishes the first leaf as the root of an empty tree.
  Task<Status> set_first_root(Operation& op, const NodeRef& leaf);

  // --- Finding nodes ---

  // Router, by the inner nodes that the cache holds.
  bool known_route(View key, Route<K>& route) override;
  Task<Result<Route<K>>> find_route(Operation& op, View key) override;
  void misled(const Route<K>& route) override;
  std::optional<NodeRef> next_leaf(const Route<K>& route, View key) const override;
  bool next_route(const Route<K>& route, Route<K>& next) const override;
  std::optional<Extent> extent(const Route<K>& route) const override;
  std::optional<View> long_fence(const Route<K>& route, const Cell& high) const override;

  // Reads the node of `level` that covers `key` into `into`, believed (node.h), following siblings.
  Task<Result<Found<K>>> read(Operation& op, View key, std::uint8_t level, std::byte* into);
  // The same with the node locked, and repaired where its last writer died.
  Task<Result<Found<K>>> lock(Operation& op, View key, std::uint8_t level, std::byte* into,
                              NodeLock& lock);
  // Whether a READ through `ref` may be believed: of a whole node, or of its header alone.
  Verdict judge(Node<K> node, std::uint8_t level, const NodeRef& ref) const;

  // --- Keys ---

  // The whole key of a cell: one round trip where it is long. Corrupt: its item holds it no more,
  // retired since the cell was read, unless a lock kept it. No other error passes by looking again.
  Task<Result<Owned>> whole_key(Operation& op, Cell cell);
  static bool outdated(const Error& error) { return error.code() == ErrorCode::kCorrupt; }
  // A cell for a new separator; a long one gets an item.
  struct NewCell {
    Cell cell;
    pool::FreshBlock item;  // of a long key
  };
  Task<Result<NewCell>> make_cell(Operation& op, View key);
  // Retires the item of a long key that nothing leads to any more.
  Task<Status> drop_cell(Operation& op, const Cell& cell);
  // key < node's high fence. `route`, where given, may save fetching it.
  Task<Result<bool>> reaches(Operation& op, Node<K> node, View key, const Route<K>* route);

  // --- Structure ---

  // Adds {separator → right} to the level above `level`; splits and grows as needed. Idempotent.
  Task<Status> post(Operation& op, std::uint8_t level, View separator, Cell cell, NodeRef right);
  Task<Status> post_found(Operation& op, std::uint8_t level, const Found<K>& found);
  // Tries to make the node of `level` that covers `key` one with a neighbour. Gives up silently.
  Task<Status> merge(Operation& op, std::uint8_t level, View key);
  // Brings a node whose writer died in order and writes it back. REQUIRES: its lock is held.
  Task<Status> repair(Operation& op, NodeRef ref, Node<K> node, NodeLock& lock);
  // Writes back the left node of a split (node_write.h), as the next version.
  void write_split(fabric::Batch& batch, const NodeRef& ref, Node<K> node, NodeLock& lock);
  // Allocates and retires nodes of a level.
  Task<Result<pool::FreshBlock>> allocate(Operation& op, std::uint8_t level);
  void retire(const NodeRef& ref, std::uint8_t level, std::uint32_t version);

  // --- Whole tree ---

  struct Root {
    NodeRef ref;
    std::uint8_t level = 0;
  };
  Task<Result<Root>> root(Operation& op);
  Task<Result<Root>> read_root(Operation& op);
  // The entries of an inner node image, ascending, whole, without what lies beyond its fence.
  // nullopt: a long separator could not be read (the image is outdated). With the node locked that
  // is the mark of an entry that went right in a split its writer did not finish: drop_unreadable.
  Task<Result<std::optional<std::vector<InnerEntry<K>>>>> entries(Operation& op, InnerNode<K> node,
                                                                  bool drop_unreadable = false);

  std::size_t node_bytes(std::uint8_t level) const {
    return level == 0 ? leaves_.leaf_bytes() : options_.inner_bytes;
  }
  LockTarget lock_target(const NodeRef& ref, std::uint8_t level, std::byte* into) const {
    return {ref.address, into, NodeParts::whole(node_bytes(level)),
            level == 0 ? leaves_.lock_word() : LockWord::kPlain};
  }
  std::uint32_t newest_version(Node<K> node, std::uint8_t level) const {
    return level == 0 ? leaves_.newest_version(node) : node.newest_version();
  }
  const pool::IndexRecord& record() const { return record_; }
  std::uint32_t index_id() const { return record_.index_id; }
  std::uint64_t seed() const { return record_.seed; }
  pool::ComputeNode& compute_node() const { return compute_node_; }
  NodeLocks& locks() { return locks_; }
  const NodeLocks& locks() const { return locks_; }
  const BLinkOptions& options() const { return options_; }
  const BLinkCounts& counts() const { return counts_; }
  void count_split() { counts_.splits.fetch_add(1, std::memory_order_relaxed); }
  std::size_t cache_bytes() const { return cache_.bytes(); }

 private:
  // A torn read is read again at once, for so long; then one sees to whoever left the node so.
  static constexpr int kTornRetries = 64;
  // Restarts before even the root is read anew.
  static constexpr int kRestartsBeforeRoot = 3;

  enum class LoadOutcome : std::uint8_t { kLoaded, kDead, kStale };
  struct Loaded {
    LoadOutcome outcome = LoadOutcome::kStale;
    NodeHandle<K> node;
  };

  // Where the cache knows every node on the way to the one of `level`.
  bool route_cached(View key, std::uint8_t level, Route<K>& route);
  // To the node of `level` that covers `key` (strict: all keys just below it), as far as the level
  // above knows. kNotFound: the tree has no such level.
  Task<Result<Route<K>>> route(Operation& op, View key, std::uint8_t level, bool strict = false);

  static constexpr std::uint64_t root_check(std::uint64_t word) {
    return (word * 0x9e3779b97f4a7c15u) >> 32;
  }
  bool cached_root(Root& root) const;
  void remember_root(const Root& root);
  void forget_root();

  Task<Result<Loaded>> load(Operation& op, const NodeRef& ref, std::uint8_t level);
  Task<Result<std::optional<NodeHandle<K>>>> decode(Operation& op, const NodeRef& ref,
                                                    InnerNode<K> node);
  // A walk from the root down to a level.
  struct Descent {
    View key;
    bool strict;
    int restarts;
    std::uint8_t root_level;
    std::uint8_t level;  // of route.node
    Route<K> route = {};
    NodeRef left = {};  // where a step to the right came from; none where an entry named the node
  };
  Task<Result<Root>> root_above(Operation& op, std::uint8_t level, bool anew);
  Task<Result<bool>> step_down(Operation& op, Descent& descent);
  void to_sibling(Descent& descent, const CacheNode& node);
  Task<Result<bool>> pass_dead(Operation& op, Descent& descent, LoadOutcome outcome);

  // A search for the node of a key, to read it or to lock it.
  struct Search {
    View key;
    std::uint8_t level;
    std::byte* into;
    NodeLock* lock;  // none: to read
    Route<K> route = {};
    Found<K> found = {};
    bool route_knows = true;           // until a step to the right leaves the parent's knowledge
    std::optional<Owned> around = {};  // the separator of a dead node that its parent still names
    NodeRef removed = {};              // the last node that remove_absorbed() took out
    int torn = 0;
    int restarts = 0;
  };
  enum class Step : std::uint8_t { kAgain, kRestart };
  Task<Result<Found<K>>> find(Operation& op, View key, std::uint8_t level, std::byte* into,
                              NodeLock* lock);
  Task<Status> route_search(Operation& op, Search& search);
  bool left_unfinished(const Search& search, Node<K> node, Verdict verdict) const;
  Task<Result<bool>> finish_for_others(Operation& op, Search& search, Node<K> node,
                                       Verdict verdict);
  Task<Result<Step>> step_right(Operation& op, Search& search, Node<K> node, Verdict verdict);
  Task<Result<Step>> lost_fence(Operation& op, Search& search, Verdict verdict, Error error);
  Task<Result<Step>> await_writer(Operation& op, Search& search);
  Task<Result<Step>> turn_back(Operation& op, Search& search, Verdict verdict);
  Task<Status> fetch(Operation& op, const NodeRef& ref, std::uint8_t level, std::byte* into,
                     NodeLock* lock);
  Task<Status> let_go(Operation& op, NodeLock* lock);
  bool complete(Node<K> node) const;
  void set_version(Node<K> node, std::uint32_t version) const;
  pool::BlockKind block_kind(std::uint8_t level) const {
    return level == 0 && leaves_.lock_word() == LockWord::kNoted ? pool::BlockKind::kNotedNode
                                                                 : pool::BlockKind::kNode;
  }
  // Who sees to what the dead left waits for locks, or does what it can without: then these say
  // false where someone has a lock who is not known to be dead.
  enum class IfLocked : std::uint8_t { kWait, kGiveUp };
  Task<Result<bool>> lock_node(Operation& op, const NodeRef& ref, std::uint8_t level,
                               std::byte* into, NodeLock& lock, IfLocked if_locked);
  Task<Result<bool>> finish_abandoned(Operation& op, const NodeRef& ref, std::uint8_t level,
                                      IfLocked if_locked = IfLocked::kWait);

  Task<Status> grow_root(Operation& op, std::uint8_t level, Cell cell, NodeRef right);
  Task<Status> insert_entry(Operation& op, NodeRef ref, InnerNode<K> node, NodeLock& lock,
                            InnerEntry<K> entry);
  Task<Result<std::size_t>> cut_near(Operation& op, const std::vector<InnerEntry<K>>& all,
                                     std::size_t wanted, NodeRef added, std::uint8_t level);
  Task<Status> split_inner(Operation& op, NodeRef ref, InnerNode<K> node, NodeLock& lock,
                           InnerEntry<K> entry);
  Task<Result<bool>> alive(Operation& op, const NodeRef& ref, std::uint8_t level);
  Task<Result<bool>> absorbed(Operation& op, const NodeRef& ref, std::uint8_t level, Cell low);
  Task<Result<bool>> end_departure(Operation& op, const NodeRef& ref, std::uint8_t level, Cell low,
                                   std::uint32_t departure, IfLocked if_locked);
  Task<Result<bool>> remove_absorbed(Operation& op, Node<K> left, NodeLock& lock,
                                     IfLocked if_locked);
  Task<Result<bool>> mark_right_dead(Operation& op, const NodeRef& ref, Node<K> left,
                                     Node<K> right);
  Task<Result<bool>> unlink(Operation& op, std::uint8_t level, Cell low, const NodeRef& dead,
                            IfLocked if_locked);
  Task<Result<NodeRef>> lock_without_waiting(Operation& op, View key, std::uint8_t level,
                                             std::byte* into, NodeLock& lock);
  Task<Status> retire_node(Operation& op, const NodeRef& ref, std::uint8_t level);
  Task<Status> mark_dead(Operation& op, const NodeRef& ref, Node<K> node);
  fabric::Buffer write_dead(Operation& op, fabric::Batch& batch, const NodeRef& ref, Node<K> node);
  bool absorb_inner(InnerNode<K> left, InnerNode<K> right);
  // Two neighbours that are to become one.
  struct Merger {
    std::uint8_t level;
    NodeRef left_ref;
    NodeRef right_ref;
    Node<K> left;
    Node<K> right;
    NodeLock left_lock;
    NodeLock right_lock;
  };
  enum class Merging : std::uint8_t { kNone, kAbsorb, kUnlink };
  Task<Result<bool>> lock_children(Operation& op, Merger& merger);
  Merging choose_merging(Merger& merger);
  Task<Status> absorb_right(Operation& op, Merger& merger);
  Task<Status> unlink_right(Operation& op, NodeRef parent_ref, InnerNode<K> parent,
                            NodeLock& parent_lock, Merger& merger, Merging merging);
  Task<Status> merge_children(Operation& op, NodeRef parent_ref, InnerNode<K> parent,
                              NodeLock& parent_lock, std::uint8_t level, const InnerEntry<K>& left,
                              const InnerEntry<K>& right, bool& merged);

  pool::ComputeNode& compute_node_;
  const pool::IndexRecord record_;
  const BLinkOptions options_;
  Leaves<K>& leaves_;
  NodeLocks locks_;
  NodeCache<K> cache_;
  BLinkCounts counts_;
  // The root as last seen: reference word; {level, high part of the reference, check of the word}.
  std::atomic<std::uint64_t> root_word_{0};
  std::atomic<std::uint64_t> root_rest_{0};
};

extern template class BLink<IntKeys>;  // blink.cc
extern template class BLink<ByteKeys>;

}  // namespace pando::index
