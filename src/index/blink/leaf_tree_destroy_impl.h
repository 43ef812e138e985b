// LeafTree's members that free a whole tree.
//
// From the leaves up, each level from the left: so what is still to be freed can be found from the
// root. How far it has got stands in far memory, in two words of the catalogue's entry that share a
// line: {the next node's reference, {0:39, absorbed:1, level + 1:8, reference's high part:16}}. It
// is moved past a node before the node is freed: who goes on after a failure or a death never frees
// one twice.
#pragma once

#include <array>
#include <chrono>

#include "index/blink/leaf_tree.h"
#include "index/blink/leaf_tree_check_impl.h"

namespace pando::index {

template <class K, class L>
Task<Result<typename LeafTree<K, L>::Remains>> LeafTree<K, L>::read_remains(Operation& op) {
  const fabric::Buffer buffer = op.buffer(2 * sizeof(std::uint64_t));
  fabric::Batch batch(op.cost());
  batch.read(tree_.record().index_word(kRemainsWord), buffer.data(), buffer.size());
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  const auto word = load<std::uint64_t>(buffer.data());
  const auto rest = load<std::uint64_t>(buffer.data() + 8);
  if (rest == 0) co_return co_await first_remains(op, 0);
  Remains remains;
  remains.next = NodeRef::decode(word, static_cast<std::uint16_t>(rest));
  remains.level = static_cast<std::uint8_t>((rest >> 16 & 0xff) - 1);
  remains.absorbed = (rest >> 24 & 1) != 0;
  co_return remains;
}

template <class K, class L>
Task<Status> LeafTree<K, L>::write_remains(Operation& op, const Remains& remains) {
  const std::uint64_t rest = std::uint64_t{remains.absorbed} << 24 |
                             (std::uint64_t{remains.level} + 1) << 16 | remains.next.high();
  const std::array<std::uint64_t, 2> words = {remains.next.word(), rest};
  fabric::Batch batch(op.cost());
  batch.write(tree_.record().index_word(kRemainsWord),
              reinterpret_cast<const std::byte*>(words.data()), sizeof(words));
  co_return co_await op.submit(batch);
}

// The first node of a level; none above the root.
template <class K, class L>
Task<Result<typename LeafTree<K, L>::Remains>> LeafTree<K, L>::first_remains(Operation& op,
                                                                             std::uint8_t level) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  if (level > root->level) co_return Remains{};
  Remains remains{root->ref, level, false};
  for (std::uint8_t at = root->level; at > level; --at) {
    const std::size_t bytes = tree_.node_bytes(at);
    const fabric::Buffer buffer = op.buffer(bytes);
    fabric::Batch batch(op.cost());
    batch.read(remains.next.address, buffer.data(), bytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    if (tree_.judge(Node<K>(buffer.data(), bytes), at, remains.next) == Verdict::kStale) {
      co_return corrupt_node(remains.next, at, "not a node of the index");
    }
    // By its cell: items of other separators have gone with their leaves.
    const InnerNode<K> node(buffer.data(), bytes);
    std::size_t slot = 0;
    while (slot < node.capacity() &&
           (node.empty(slot) || node.cell(slot) != K::cell(K::lowest()))) {
      ++slot;
    }
    if (slot == node.capacity()) co_return corrupt_node(remains.next, at, "has no first entry");
    remains.next = node.child(slot);
  }
  co_return remains;
}

// The items that belong to a leaf alone. `doubled`: its entries stand in its left neighbour as
// well.
template <class K, class L>
Task<Result<std::vector<pool::Block>>> LeafTree<K, L>::items_to_free(Operation& op, L leaf,
                                                                     bool doubled) {
  std::vector<pool::ItemPointer> items;
  if (!doubled) {
    // What a half-done split left twice is freed once.
    if (Status purged = co_await purge(op, leaf); !purged) co_return fail(purged.error());
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      if (!leaf.empty(slot) && leaf.is_item(slot)) items.push_back(leaf.item(slot));
    }
  }
  if (K::is_long(leaf.low())) items.push_back(K::item(leaf.low()));
  co_return co_await item_blocks(op, items);
}

// Frees the next node with what belongs to it alone, and moves on.
template <class K, class L>
Task<Status> LeafTree<K, L>::destroy_next(Operation& op, Remains& remains) {
  const NodeRef ref = remains.next;
  const std::uint8_t level = remains.level;
  const std::size_t bytes = tree_.node_bytes(level);
  const fabric::Buffer buffer = op.buffer(bytes);
  fabric::Batch batch(op.cost());
  batch.read(ref.address, buffer.data(), bytes);
  if (Status read = co_await op.submit(batch); !read) co_return read;
  const Node<K> node(buffer.data(), bytes);
  if (tree_.judge(node, level, ref) == Verdict::kStale) {
    co_return corrupt_node(ref, level, "not a node of the index");
  }
  Remains after{node.sibling(), level, false};
  std::vector<pool::Block> blocks;
  if (level == 0) {
    after.absorbed = node.has(kAbsorbing);
    const bool doubled = remains.absorbed || node.has(kDead);
    Result<std::vector<pool::Block>> items =
        co_await items_to_free(op, leaf_at(buffer.data()), doubled);
    if (!items) co_return fail(items.error());
    blocks = std::move(*items);
  }
  const std::uint32_t version = tree_.newest_version(node, level);
  if (!after.next) {
    Result<Remains> above = co_await first_remains(op, static_cast<std::uint8_t>(level + 1));
    if (!above) co_return fail(above.error());
    after = *above;
  }
  // Of the root, the last, nothing remains: what comes next is that the name goes.
  if (Status written = co_await write_remains(op, after.next ? after : Remains{ref, 0xfe, false});
      !written) {
    co_return written;
  }
  for (const pool::Block& block : blocks) tree_.compute_node().allocator().retire(block);
  tree_.retire(ref, level, version);
  remains = after;
  co_return Status{};
}

// An operation for each node: the epoch moves on, so that what is freed can be used, by this
// compute node and others. Where a memory node does not answer, it is tried again until the
// deadline, counted from the last success.
template <class K, class L>
Task<Status> LeafTree<K, L>::destroy(pool::Session& session) {
  std::optional<Remains> remains;
  std::optional<task::TimePoint> deadline;
  for (;;) {
    Operation op(session);
    Status done;
    if (!remains) {
      Result<Remains> found = co_await read_remains(op);
      if (found) {
        remains = *found;
      } else {
        done = fail(found.error());
      }
    } else {
      if (!remains->next || remains->level == 0xfe) co_return Status{};
      done = co_await destroy_next(op, *remains);
    }
    if (done) deadline.reset();
    if (done) continue;
    const bool transient = done.error().code() == ErrorCode::kUnavailable ||
                           done.error().code() == ErrorCode::kIndeterminate;
    if (!deadline) deadline = op.deadline();
    if (!transient || session.worker().now() >= *deadline) co_return done;
    co_await session.worker().sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace pando::index
