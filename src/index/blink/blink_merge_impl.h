// BLink, the part that makes the tree shrink, and that finishes what the dead left.
//
// Two neighbours L and R under one parent P become one, L:
//   1. lock P; try for L and R; see that they are neighbours and fit together
//   2. R's header: flag leaving
//   3. L's lines with R's entries, then L's header: R's high fence, flag absorbing     (commit)
//   4. R's header: dead
//   5. P's line without R's entry; then L's header: R's sibling, flag off; all unlocked
// Where leaves are read in parts (replicas of the header in L's lines), 3 leaves in them what L's
// header said before, so that nobody takes L for R's successor before R is dead; 5 writes them
// anew. Between 3 and 4 both cover R's range, with the same entries: both are locked, so neither
// changes. A merger that dies leaves flags for whoever locks a node next. On absorbing,
// remove_absorbed() does 4 and P's part of 5, and repair() the rest: so while P names a dead R, L
// says that it is absorbing. On leaving, end_departure() looks whether L covers R by now: then R
// dies, else it stays. Entries in L beyond its fence (3 begun, not committed) are purged. Who only
// reads goes around the dead R by its left, and finishes the merge where that takes no waiting
// (IfLocked); inner nodes with a flag are not cached, so that it will be known to someone who
// passes.
#pragma once

#include <algorithm>
#include <cstring>

#include "index/blink/blink.h"
#include "index/blink/node_write.h"

namespace pando::index {

template <class K>
Task<Status> BLink<K>::retire_node(Operation& op, const NodeRef& ref, std::uint8_t level) {
  const fabric::Buffer buffer = op.buffer(kLineBytes);
  fabric::Batch batch(op.cost());
  batch.read(ref.address, buffer.data(), kLineBytes);
  if (Status read = co_await op.submit(batch); !read) co_return read;
  const Node<K> node(buffer.data(), kLineBytes);
  if (judge(node, level, ref) == Verdict::kDead) retire(ref, level, node.version());
  co_return Status{};
}

template <class K>
Task<Status> BLink<K>::merge(Operation& op, std::uint8_t level, View key) {
  const auto above = static_cast<std::uint8_t>(level + 1);
  const fabric::Buffer buffer = op.buffer(options_.inner_bytes);
  NodeLock lock(locks_);
  Result<Found<K>> found = co_await this->lock(op, key, above, buffer.data(), lock);
  if (!found) {
    co_return found.error().code() == ErrorCode::kNotFound ? Status{} : fail(found.error());
  }
  InnerNode<K> parent(buffer.data(), options_.inner_bytes);
  auto sorted = co_await entries(op, parent);
  if (!sorted) co_return fail(sorted.error());
  if (!*sorted) co_return fail(ErrorCode::kCorrupt, "a separator of a locked node is unreadable");
  const std::vector<InnerEntry<K>>& children = **sorted;
  const auto after = std::ranges::upper_bound(children, key, {}, &InnerEntry<K>::key);
  const auto at = static_cast<std::size_t>(after - children.begin());  // of the next one
  bool merged = false;
  if (at > 0 && at < children.size()) {
    Status done = co_await merge_children(op, found->node, parent, lock, level, children[at - 1],
                                          children[at], merged);
    if (!done) co_return done;
  }
  if (!merged && at > 1) {
    Status done = co_await merge_children(op, found->node, parent, lock, level, children[at - 2],
                                          children[at - 1], merged);
    if (!done) co_return done;
  }
  const std::size_t left_over = children.size() - (merged ? 1 : 0);
  if (merged) {
    cache_.erase(found->node);
    counts_.merges.fetch_add(1, std::memory_order_relaxed);
  } else {
    Status unlocked = co_await locks_.unlock(op, lock);
    if (!unlocked) co_return unlocked;
  }
  if (left_over <= parent.capacity() / 4) co_return co_await merge(op, above, key);
  co_return Status{};
}

// Step 1, of the children. False: they are as they were, and no lock of theirs is held.
template <class K>
Task<Result<bool>> BLink<K>::lock_children(Operation& op, Merger& merger) {
  Result<bool> got = co_await locks_.try_lock(
      op, merger.left_lock, lock_target(merger.left_ref, merger.level, merger.left.bytes()));
  if (!got || !*got) co_return got;
  got = co_await locks_.try_lock(op, merger.right_lock,
                                 lock_target(merger.right_ref, merger.level, merger.right.bytes()));
  if (!got || *got) co_return got;
  if (Status done = co_await locks_.unlock(op, merger.left_lock); !done) {
    co_return fail(done.error());
  }
  co_return false;
}

// The end of step 1: whether the right one is to be absorbed, has died already and has to be
// unlinked only, or stays. Where it is absorbed, the left image has its entries now.
template <class K>
typename BLink<K>::Merging BLink<K>::choose_merging(Merger& merger) {
  Node<K>& left = merger.left;
  Node<K>& right = merger.right;
  if (judge(left, merger.level, merger.left_ref) != Verdict::kGood || !complete(left)) {
    return Merging::kNone;
  }
  const Verdict right_is = judge(right, merger.level, merger.right_ref);
  if (right_is == Verdict::kDead) return Merging::kUnlink;
  const bool neighbours = right_is == Verdict::kGood && complete(right) &&
                          left.sibling() == merger.right_ref && left.has(kHasHigh) &&
                          left.high() == right.low();
  if (!neighbours) return Merging::kNone;
  const bool absorbed = merger.level == 0 ? leaves_.absorb(left, right)
                                          : absorb_inner(InnerNode<K>(left.bytes(), left.size()),
                                                         InnerNode<K>(right.bytes(), right.size()));
  return absorbed ? Merging::kAbsorb : Merging::kNone;
}

// Steps 2 to 4: right is leaving, left covers its range, right is dead.
template <class K>
Task<Status> BLink<K>::absorb_right(Operation& op, Merger& merger) {
  Node<K>& left = merger.left;
  Node<K>& right = merger.right;
  // Should we die after the commit, whoever takes the right node over must know that it has none.
  if (!mutated(Mutant::kNoLeaving)) right.set_flag(kLeaving, true);
  right.bump_entry_version(0);  // tells this departure from an earlier one
  fabric::Batch leave(op.cost());
  write_header(leave, merger.right_ref, right);
  if (Status done = co_await op.submit(leave); !done) co_return done;

  const std::uint32_t version = left.version() + 1;
  set_version(left, version);
  if (!mutated(Mutant::kNoFloor)) left.set_floor(version);
  left.set_flag(kAbsorbing, true);
  if (right.has(kHasHigh)) {
    left.set_high(right.high());
  } else {
    left.set_flag(kHasHigh, false);
  }
  fabric::Batch commit(op.cost());
  write_lines(commit, merger.left_ref, left);
  write_header(commit, merger.left_ref, left);
  if (Status done = co_await op.submit(commit); !done) co_return done;

  if (Status done = co_await mark_dead(op, merger.right_ref, right); !done) co_return done;
  left.set_sibling(right.sibling());
  left.set_flag(kAbsorbing, false);
  merger.left_lock.repaired();
  merger.right_lock.repaired();
  if (merger.level == 0) merger.left_lock.set_note(leaves_.note(left));
  co_return Status{};
}

// Step 5: the parent forgets the right one, and all are unlocked.
template <class K>
Task<Status> BLink<K>::unlink_right(Operation& op, NodeRef parent_ref, InnerNode<K> parent,
                                    NodeLock& parent_lock, Merger& merger, Merging merging) {
  const bool absorbed = merging == Merging::kAbsorb;

  fabric::Batch before(op.cost());
  fabric::Batch finish(op.cost());
  // Only what goes to one memory node is done in its order: the flag must not be gone before the
  // entry, should one of two memory nodes be.
  const bool one_memory_node = parent_ref.address.node() == merger.left_ref.address.node();
  fabric::Batch& forget = one_memory_node || !absorbed ? finish : before;
  for (std::size_t slot = 0; slot < parent.capacity(); ++slot) {
    if (parent.empty(slot) || parent.child(slot) != merger.right_ref) continue;
    parent.clear(slot);
    write_line(forget, parent_ref, Node<K>(parent), InnerNode<K>::line_of(slot));
  }
  if (!before.empty()) {
    if (Status done = co_await op.submit(before); !done) co_return done;
  }
  if (absorbed) {
    if (merger.level == 0 && leaves_.read_in_parts()) {
      set_version(merger.left, merger.left.version());
      write_lines(finish, merger.left_ref, merger.left);
    }
    write_header(finish, merger.left_ref, merger.left);
  }
  locks_.add_unlock(finish, merger.left_lock);
  locks_.add_unlock(finish, merger.right_lock);
  locks_.add_unlock(finish, parent_lock);
  if (Status done = co_await op.submit(finish); !done) co_return done;
  locks_.unlocked(merger.left_lock);
  locks_.unlocked(merger.right_lock);
  locks_.unlocked(parent_lock);
  co_return Status{};
}

// On success with `merged`, the parent is written back and unlocked; else it stays locked.
template <class K>
Task<Status> BLink<K>::merge_children(Operation& op, NodeRef parent_ref, InnerNode<K> parent,
                                      NodeLock& parent_lock, std::uint8_t level,
                                      const InnerEntry<K>& left_entry,
                                      const InnerEntry<K>& right_entry, bool& merged) {
  const std::size_t bytes = node_bytes(level);
  const fabric::Buffer left_buffer = op.buffer(bytes);
  const fabric::Buffer right_buffer = op.buffer(bytes);
  Merger merger{level,
                left_entry.child,
                right_entry.child,
                Node<K>(left_buffer.data(), bytes),
                Node<K>(right_buffer.data(), bytes),
                NodeLock(locks_),
                NodeLock(locks_)};
  Result<bool> locked = co_await lock_children(op, merger);
  if (!locked) co_return fail(locked.error());
  if (!*locked) co_return Status{};
  const Merging merging = choose_merging(merger);
  if (merging == Merging::kNone) {
    Status first = co_await locks_.unlock(op, merger.left_lock);
    Status second = co_await locks_.unlock(op, merger.right_lock);
    co_return first ? second : first;
  }
  if (merging == Merging::kAbsorb) {
    if (Status done = co_await absorb_right(op, merger); !done) co_return done;
  }
  Status done = co_await unlink_right(op, parent_ref, parent, parent_lock, merger, merging);
  if (!done) co_return done;
  merged = true;
  retire(merger.right_ref, level, merger.right.version());
  if (level == 0) co_return co_await drop_cell(op, merger.right.low());
  co_return Status{};
}

// The end of a node's life, but for its block.
template <class K>
Task<Status> BLink<K>::mark_dead(Operation& op, const NodeRef& ref, Node<K> node) {
  fabric::Batch batch(op.cost());
  const fabric::Buffer image = write_dead(op, batch, ref, node);
  co_return co_await op.submit(batch);
}

// `node`: its header, which becomes dead. Where readers look at parts, these are written before it:
// a node that is dead already is not looked after by anyone.
template <class K>
fabric::Buffer BLink<K>::write_dead(Operation& op, fabric::Batch& batch, const NodeRef& ref,
                                    Node<K> node) {
  node.set_flag(kLeaving, false);
  node.set_flag(kDead, true);
  node.set_node_version(0, node.version() + 1);
  fabric::Buffer image;
  if (node.level() == 0 && leaves_.read_in_parts()) {
    image = op.buffer(leaves_.leaf_bytes());
    std::memcpy(image.data(), node.bytes(), kLineBytes);
    Node<K> whole(image.data(), leaves_.leaf_bytes());
    leaves_.clear_entries(whole);
    constexpr std::size_t kHeader = K::kHeaderLines * kLineBytes;  // the rest of it stays
    batch.write(ref.address + kHeader, image.data() + kHeader, whole.size() - kHeader);
  }
  write_header(batch, ref, node);
  return image;
}

template <class K>
bool BLink<K>::absorb_inner(InnerNode<K> left, InnerNode<K> right) {
  std::size_t on_left = 0;
  std::size_t on_right = 0;
  for (std::size_t slot = 0; slot < left.capacity(); ++slot) {
    on_left += left.empty(slot) ? 0u : 1u;
    on_right += right.empty(slot) ? 0u : 1u;
  }
  if (!worth_absorbing(on_left, on_right, left.capacity())) return false;
  std::size_t place = 0;
  for (std::size_t slot = 0; slot < right.capacity(); ++slot) {
    if (right.empty(slot)) continue;
    while (!left.empty(place)) ++place;
    left.set(place, right.cell(slot), right.child(slot));
  }
  return true;
}

// What becomes of a node whose merger died: the flag leaving tells that its left neighbour was
// about to cover its range. Nobody merges a node with that flag, so the answer holds until it is
// written, if it is still the same departure (the header's entry version). REQUIRES: no lock is
// held, as finding the neighbour may have to wait for some.
template <class K>
Task<Result<bool>> BLink<K>::end_departure(Operation& op, const NodeRef& ref, std::uint8_t level,
                                           Cell low, std::uint32_t departure, IfLocked if_locked) {
  Result<bool> gone = co_await absorbed(op, ref, level, low);
  if (!gone) co_return fail(gone.error());
  const fabric::Buffer buffer = op.buffer(node_bytes(level));
  NodeLock lock(locks_);
  Result<bool> got = co_await lock_node(op, ref, level, buffer.data(), lock, if_locked);
  if (!got || !*got) co_return got;
  Node<K> node(buffer.data(), node_bytes(level));
  const Verdict verdict = judge(node, level, ref);
  fabric::Batch write(op.cost());
  fabric::Buffer image;
  const bool decided_by_someone = verdict == Verdict::kStale || verdict == Verdict::kDead ||
                                  !node.has(kLeaving) ||
                                  node.entry_version(0) != departure;  // or leaving once more
  if (!decided_by_someone) {
    counts_.repairs.fetch_add(1, std::memory_order_relaxed);
    if (*gone) {
      image = write_dead(op, write, ref, node);
    } else {
      node.set_flag(kLeaving, false);
      write_header(write, ref, node);
    }
  }
  Status done = co_await locks_.write_and_unlock(op, write, lock);
  if (!done) co_return fail(done.error());
  co_return true;
}

// Whether the left neighbour of a node that is leaving covers its range: the merger died after the
// commit. (If it did and has been split since, at the very same key, its repairer has marked the
// node dead before, so the node is looked at last.)
template <class K>
Task<Result<bool>> BLink<K>::absorbed(Operation& op, const NodeRef& ref, std::uint8_t level,
                                      Cell low_cell) {
  Result<Owned> low = co_await whole_key(op, low_cell);
  if (!low) co_return fail(low.error());
  const fabric::Buffer buffer = op.buffer(kLineBytes);
  Owned from = *low;  // lower where a dead node is in the way
  for (;;) {
    if (op.expired()) co_return fail(ErrorCode::kTimeout, "finding the left neighbour of a node");
    Result<Route<K>> left = co_await this->route(op, from, level, true);
    if (!left) co_return fail(left.error());
    NodeRef at = left->node;
    while (at) {
      fabric::Batch batch(op.cost());
      batch.read(at.address, buffer.data(), kLineBytes);
      if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
      const Node<K> header(buffer.data(), kLineBytes);
      const Verdict verdict = judge(header, level, at);
      if (verdict == Verdict::kDead && at == left->node && left->parent && left->fresh) {
        from = Owned(left->parent->key(left->slot));
      }
      if (verdict != Verdict::kGood) break;
      if (!header.has(kHasHigh)) co_return true;
      Result<Owned> high = co_await whole_key(op, header.high());
      if (!high && !outdated(high.error())) co_return fail(high.error());
      if (!high) break;
      if (*low < *high) co_return true;
      if (*low == *high) {
        Result<bool> lives = co_await alive(op, ref, level);
        if (!lives) co_return fail(lives.error());
        co_return !*lives;
      }
      at = header.sibling();
    }
    misled(*left);
    op.count_retry();
    co_await op.worker().yield();
  }
}

// Of a node that its dead merger left absorbing: the right node dies, and its entry in the level
// above goes. Gives the lock back, as no one waits for one while holding another; the flag stays,
// so that whoever comes next will know. REQUIRES: the lock of `left` is held.
template <class K>
Task<Result<bool>> BLink<K>::remove_absorbed(Operation& op, Node<K> left, NodeLock& lock,
                                             IfLocked if_locked) {
  const NodeRef right_ref = left.sibling();
  const std::uint8_t level = left.level();
  const fabric::Buffer buffer = op.buffer(K::kHeaderLines * kLineBytes);
  const Node<K> right(buffer.data(), kLineBytes);
  Result<bool> dead = co_await mark_right_dead(op, right_ref, left, right);
  if (!dead) co_return dead;
  if (Status done = co_await locks_.unlock(op, lock); !done) co_return fail(done.error());
  if (!*dead) co_return true;
  co_return co_await unlink(op, level, right.low(), right_ref, if_locked);
}

// Reads the header of an absorbing node's right one, and marks that dead where it is not yet.
// False: it is another node by now. `right` has room for all lines of a header.
template <class K>
Task<Result<bool>> BLink<K>::mark_right_dead(Operation& op, const NodeRef& ref, Node<K> left,
                                             Node<K> right) {
  fabric::Batch read(op.cost());
  read.read(ref.address, right.bytes(), K::kHeaderLines * kLineBytes);
  if (Status done = co_await op.submit(read); !done) co_return fail(done.error());
  const Verdict verdict = judge(right, left.level(), ref);
  if (verdict == Verdict::kStale) co_return false;
  if (verdict != Verdict::kDead) {
    if (Status done = co_await mark_dead(op, ref, right); !done) co_return fail(done.error());
  }
  co_return true;
}

// Takes the entry of a dead node out of the level above. The block is left to itself: its left
// neighbour still has it as its sibling. The parent's first entry stays: without it the parent
// would not know where its own range leads. REQUIRES: no lock is held.
template <class K>
Task<Result<bool>> BLink<K>::unlink(Operation& op, std::uint8_t level, Cell low,
                                    const NodeRef& dead, IfLocked if_locked) {
  const auto above = static_cast<std::uint8_t>(level + 1);
  Result<Owned> separator = co_await whole_key(op, low);
  if (!separator) {  // corrupt: someone else has finished the merge, and the item is gone
    if (separator.error().code() == ErrorCode::kCorrupt) co_return true;
    co_return fail(separator.error());
  }
  const fabric::Buffer buffer = op.buffer(options_.inner_bytes);
  NodeLock lock(locks_);
  NodeRef parent;
  if (if_locked == IfLocked::kGiveUp) {
    Result<NodeRef> got = co_await lock_without_waiting(op, *separator, above, buffer.data(), lock);
    if (!got) co_return fail(got.error());
    if (!*got) co_return false;
    parent = *got;
  } else {
    Result<Found<K>> found = co_await this->lock(op, *separator, above, buffer.data(), lock);
    if (!found) co_return fail(found.error());
    parent = found->node;
  }
  InnerNode<K> node(buffer.data(), options_.inner_bytes);
  fabric::Batch batch(op.cost());
  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    if (node.empty(slot) || node.child(slot) != dead || node.cell(slot) == node.low()) continue;
    node.clear(slot);
    write_line(batch, parent, Node<K>(node), InnerNode<K>::line_of(slot));
    cache_.erase(parent);
    counts_.helped.fetch_add(1, std::memory_order_relaxed);
  }
  Status done = co_await locks_.write_and_unlock(op, batch, lock);
  if (!done) co_return fail(done.error());
  co_return true;
}

// lock(), where it takes neither waiting nor repairing. None: it does.
template <class K>
Task<Result<NodeRef>> BLink<K>::lock_without_waiting(Operation& op, View key, std::uint8_t level,
                                                     std::byte* into, NodeLock& lock) {
  Result<Route<K>> route = co_await this->route(op, key, level);
  if (!route) co_return fail(route.error());
  Result<bool> got = co_await lock_node(op, route->node, level, into, lock, IfLocked::kGiveUp);
  if (!got) co_return fail(got.error());
  if (!*got) co_return NodeRef{};
  const Node<K> node(into, node_bytes(level));
  if (judge(node, level, route->node) == Verdict::kGood && complete(node)) {
    Result<bool> covers = co_await reaches(op, node, key, &*route);
    if (!covers) co_return fail(covers.error());
    if (*covers) co_return route->node;
  }
  misled(*route);
  if (Status done = co_await locks_.unlock(op, lock); !done) co_return fail(done.error());
  co_return NodeRef{};
}

template <class K>
Task<Status> BLink<K>::repair(Operation& op, NodeRef ref, Node<K> node, NodeLock& lock) {
  counts_.repairs.fetch_add(1, std::memory_order_relaxed);
  lock.repaired();  // once this is written; should it fail, the lock is abandoned, which says so
  if (node.has(kDead) || mutated(Mutant::kNoRepair)) co_return Status{};
  const std::uint32_t newest = newest_version(node, node.level());
  if (node.level() == 0 && !node.has(kAbsorbing)) {
    if (Status undone = co_await leaves_.undo_insert(op, node); !undone) co_return undone;
  }
  if (node.has(kAbsorbing)) {
    const fabric::Buffer buffer = op.buffer(K::kHeaderLines * kLineBytes);
    const Node<K> right(buffer.data(), kLineBytes);
    Result<bool> dead = co_await mark_right_dead(op, node.sibling(), node, right);
    if (!dead) co_return fail(dead.error());
    node.set_sibling(right.sibling());
    node.set_flag(kAbsorbing, false);
  }
  // What lies beyond the fence goes, as at the end of a split.
  if (node.level() == 0) {
    if (Status done = co_await leaves_.purge(op, node); !done) co_return done;
  } else {
    InnerNode<K> inner(node.bytes(), node.size());
    auto kept = co_await entries(op, inner, true);
    if (!kept) co_return fail(kept.error());
    for (std::size_t slot = 0; slot < inner.capacity(); ++slot) {
      if (inner.empty(slot)) continue;
      if (std::ranges::find(**kept, inner.child(slot), &InnerEntry<K>::child) == (*kept)->end()) {
        inner.clear(slot);
      }
    }
  }
  node.set_node_version(0, newest);  // write_split adds one
  fabric::Batch write(op.cost());
  write_split(write, ref, node, lock);
  co_return co_await op.submit(write);
}

}  // namespace pando::index
