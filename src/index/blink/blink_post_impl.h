// BLink, the part that makes the tree grow: separators, splits of inner nodes, roots.
#pragma once

#include <algorithm>

#include "index/blink/blink.h"
#include "index/blink/node_write.h"
#include "index/common/items.h"

namespace pando::index {

template <class K>
Task<Result<pool::FreshBlock>> BLink<K>::allocate(Operation& op, std::uint8_t level) {
  const Result<pool::Block> block =
      co_await compute_node_.allocator().allocate(op, block_kind(level), node_bytes(level));
  if (!block) co_return fail(block.error());
  co_return pool::FreshBlock(compute_node_.allocator(), *block);
}

template <class K>
void BLink<K>::retire(const NodeRef& ref, std::uint8_t level, std::uint32_t version) {
  const pool::BlockKind kind = block_kind(level);
  compute_node_.allocator().retire(
      {ref.address, version, kind,
       static_cast<std::uint8_t>(pool::block_class(kind, node_bytes(level)))});
}

template <class K>
void BLink<K>::set_version(Node<K> node, std::uint32_t version) const {
  if (node.level() == 0) {
    leaves_.set_version(node, version);
  } else {
    node.set_versions(version);
  }
}

template <class K>
void BLink<K>::write_split(fabric::Batch& batch, const NodeRef& ref, Node<K> node, NodeLock& lock) {
  set_version(node, node.version() + 1);
  if (node.level() == 0) lock.set_note(leaves_.note(node));
  index::write_split(batch, ref, node);
}

template <class K>
Task<Result<bool>> BLink<K>::alive(Operation& op, const NodeRef& ref, std::uint8_t level) {
  const fabric::Buffer buffer = op.buffer(kLineBytes);
  fabric::Batch batch(op.cost());
  batch.read(ref.address, buffer.data(), kLineBytes);
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  const Verdict verdict = judge(Node<K>(buffer.data(), kLineBytes), level, ref);
  co_return verdict == Verdict::kGood || verdict == Verdict::kTorn;
}

template <class K>
Task<Status> BLink<K>::post_found(Operation& op, std::uint8_t level, const Found<K>& found) {
  if (!found.unposted) co_return Status{};
  counts_.helped.fetch_add(1, std::memory_order_relaxed);
  Result<Owned> separator = co_await whole_key(op, found.unposted_cell);
  if (!separator) co_return Status{};  // merged meanwhile
  co_return co_await post(op, level, *separator, found.unposted_cell, *found.unposted);
}

template <class K>
Task<Status> BLink<K>::post(Operation& op, std::uint8_t level, View separator, Cell cell,
                            NodeRef right) {
  const auto above = static_cast<std::uint8_t>(level + 1);
  if (above > kMaxLevel) co_return fail(ErrorCode::kCorrupt, "the index has too many levels");
  const fabric::Buffer buffer = op.buffer(options_.inner_bytes);
  for (;;) {
    NodeLock lock(locks_);
    Result<Found<K>> found = co_await this->lock(op, separator, above, buffer.data(), lock);
    if (!found) {
      if (found.error().code() != ErrorCode::kNotFound) co_return fail(found.error());
      Status grown = co_await grow_root(op, level, cell, right);
      if (!grown) co_return grown;
      continue;  // by us or by someone else: look again
    }
    InnerNode<K> node(buffer.data(), options_.inner_bytes);
    // Only now that the parent is locked can the right node not be merged away under our hands.
    Result<bool> lives = co_await alive(op, right, level);
    if (!lives) co_return fail(lives.error());
    if (!*lives) co_return co_await locks_.unlock(op, lock);
    Status posted =
        co_await insert_entry(op, found->node, node, lock, {Owned(separator), cell, right});
    if (!posted) co_return posted;
    co_return co_await post_found(op, above, *found);
  }
}

// Writes one entry into a locked node and unlocks it; splits the node where it is full.
template <class K>
Task<Status> BLink<K>::insert_entry(Operation& op, NodeRef ref, InnerNode<K> node, NodeLock& lock,
                                    InnerEntry<K> entry) {
  auto sorted = co_await entries(op, node);
  if (!sorted) co_return fail(sorted.error());
  if (!*sorted) co_return fail(ErrorCode::kCorrupt, "a separator of a locked node is unreadable");
  std::size_t place = node.capacity();
  NodeRef replaced;
  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    if (node.empty(slot)) {
      place = std::min(place, slot);
    } else if (node.child(slot) == entry.child) {
      co_return co_await locks_.unlock(op, lock);  // posted already
    }
  }
  const auto same = std::ranges::find(**sorted, entry.key, &InnerEntry<K>::key);
  if (same != (*sorted)->end()) {
    // The entry of a node that died before a new one was split off at the same separator.
    replaced = same->child;
    for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
      if (!node.empty(slot) && node.child(slot) == replaced) place = slot;
    }
    same->cell = entry.cell;
    same->child = entry.child;
  }
  if (place == node.capacity()) {
    co_return co_await split_inner(op, ref, node, lock, std::move(entry));
  }
  node.set(place, entry.cell, entry.child);
  fabric::Batch batch(op.cost());
  write_line(batch, ref, Node<K>(node), InnerNode<K>::line_of(place));
  Status written = co_await locks_.write_and_unlock(op, batch, lock);
  cache_.erase(ref);
  if (written && replaced) written = co_await retire_node(op, replaced, node.level() - 1);
  co_return written;
}

// Where to split, `wanted` or thereabouts: not at a child that is dead or leaving. A node's first
// entry could not be taken out, and the item of its low fence would go when leaves merge across it.
// Under the lock of the parent no child begins to leave; `added` was looked at before.
template <class K>
Task<Result<std::size_t>> BLink<K>::cut_near(Operation& op, const std::vector<InnerEntry<K>>& all,
                                             std::size_t wanted, NodeRef added,
                                             std::uint8_t level) {
  const fabric::Buffer buffer = op.buffer(kLineBytes);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t at = (wanted + i) % all.size();
    if (at == 0) continue;
    if (all[at].child == added) co_return at;
    fabric::Batch batch(op.cost());
    batch.read(all[at].child.address, buffer.data(), kLineBytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const Node<K> child(buffer.data(), kLineBytes);
    const Verdict verdict = judge(child, static_cast<std::uint8_t>(level - 1), all[at].child);
    if (verdict == Verdict::kGood && !child.has(kLeaving)) co_return at;
  }
  co_return fail(ErrorCode::kCorrupt, "a full inner node has no child that lives");
}

template <class K>
Task<Status> BLink<K>::split_inner(Operation& op, NodeRef ref, InnerNode<K> node, NodeLock& lock,
                                   InnerEntry<K> entry) {
  auto sorted = co_await entries(op, node);
  if (!sorted) co_return fail(sorted.error());
  std::vector<InnerEntry<K>>& all = **sorted;
  const auto at = std::ranges::upper_bound(all, entry.key, {}, &InnerEntry<K>::key);
  const auto place = static_cast<std::size_t>(at - all.begin());
  const NodeRef added = entry.child;
  all.insert(at, std::move(entry));
  Result<std::size_t> cut = co_await cut_near(
      op, all, split_point(all.size(), place, !node.has(kHasHigh)), added, node.level());
  if (!cut) co_return fail(cut.error());
  const std::size_t middle = *cut;

  Result<pool::FreshBlock> made = co_await allocate(op, node.level());
  if (!made) {
    Status released = co_await locks_.unlock(op, lock);
    co_return released ? fail(made.error()) : released;
  }
  pool::FreshBlock& block = *made;
  const NodeRef right_ref(block->address, block->incarnation);
  const fabric::Buffer buffer = op.buffer(options_.inner_bytes);
  InnerNode<K> right(buffer.data(), options_.inner_bytes);
  right.initialize(index_id(), node.level(), block->incarnation, all[middle].cell);
  for (std::size_t i = middle; i < all.size(); ++i) {
    right.set(i - middle, all[i].cell, all[i].child);
  }
  right.set_sibling(node.sibling());
  if (node.has(kHasHigh)) right.set_high(node.high());
  fabric::Batch batch(op.cost());
  write_new(batch, right_ref, Node<K>(right));
  if (Status written = co_await op.submit(batch); !written) co_return written;
  block.publish();

  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    if (node.empty(slot)) continue;
    const auto moved =
        std::find_if(all.begin() + static_cast<std::ptrdiff_t>(middle), all.end(),
                     [&](const InnerEntry<K>& other) { return other.child == node.child(slot); });
    if (moved != all.end()) node.clear(slot);
  }
  for (std::size_t i = 0; i < middle; ++i) {
    if (all[i].child != added) continue;
    std::size_t free_slot = 0;
    while (!node.empty(free_slot)) ++free_slot;
    node.set(free_slot, all[i].cell, all[i].child);
  }
  node.set_sibling(right_ref);
  node.set_high(all[middle].cell);
  fabric::Batch left(op.cost());
  write_split(left, ref, Node<K>(node), lock);
  Status written = co_await locks_.write_and_unlock(op, left, lock);
  cache_.erase(ref);
  if (!written) co_return written;
  counts_.splits.fetch_add(1, std::memory_order_relaxed);
  co_return co_await post(op, node.level(), all[middle].key, all[middle].cell, right_ref);
}

// A new root over the old one and its right neighbour. Only the holder of the old root's lock may.
template <class K>
Task<Status> BLink<K>::grow_root(Operation& op, std::uint8_t level, Cell cell, NodeRef right) {
  Result<Root> old = co_await read_root(op);
  if (!old) co_return fail(old.error());
  if (old->level != level) co_return Status{};
  const fabric::Buffer buffer = op.buffer(std::max(node_bytes(level), options_.inner_bytes));
  NodeLock lock(locks_);
  if (Status got = co_await fetch(op, old->ref, level, buffer.data(), &lock); !got) co_return got;
  const Node<K> root_node(buffer.data(), node_bytes(level));
  if (lock.repair() || !complete(root_node)) {
    Status done = co_await repair(op, old->ref, root_node, lock);
    if (!done) co_return done;
  }
  Result<Root> now = co_await read_root(op);
  if (!now) co_return fail(now.error());
  if (now->level != level) co_return co_await locks_.unlock(op, lock);

  Result<pool::FreshBlock> made = co_await allocate(op, static_cast<std::uint8_t>(level + 1));
  if (!made) {
    Status released = co_await locks_.unlock(op, lock);
    co_return released ? fail(made.error()) : released;
  }
  pool::FreshBlock& block = *made;
  const Root root{NodeRef(block->address, block->incarnation),
                  static_cast<std::uint8_t>(level + 1)};
  InnerNode<K> node(buffer.data(), options_.inner_bytes);
  const Cell lowest = K::cell(K::lowest());
  node.initialize(index_id(), root.level, block->incarnation, lowest);
  node.set(0, lowest, old->ref);
  node.set(1, cell, right);
  fabric::Batch batch(op.cost());
  write_new(batch, root.ref, Node<K>(node));
  if (Status written = co_await op.submit(batch); !written) co_return written;

  block.publish();
  fabric::Batch swap(op.cost());
  swap.compare_swap(record_.root_word(), old->ref.address.raw() | level,
                    root.ref.address.raw() | root.level);
  if (Status swapped = co_await op.submit(swap); !swapped) {
    // Where nobody knows, the block may be the root.
    if (swap[0].outcome == fabric::Outcome::kNotExecuted) compute_node_.allocator().release(*block);
    co_return swapped;
  }
  if (swap[0].succeeded()) {
    counts_.root_growths.fetch_add(1, std::memory_order_relaxed);
    remember_root(root);
  } else {
    compute_node_.allocator().release(*block);
  }
  co_return co_await locks_.unlock(op, lock);
}

}  // namespace pando::index
