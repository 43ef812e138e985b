// Sherman: walking the whole tree, level by level along the siblings: to check it, to free it.
#include <fmt/format.h>

#include <algorithm>

#include "index/sherman/sherman.h"

namespace pando::index::sherman {

namespace {

std::string describe(const NodeRef& ref, std::uint8_t level) {
  return fmt::format("node {}:{:#x} at level {}", ref.address.node(), ref.address.offset(), level);
}

std::unexpected<Error> corrupt(const NodeRef& ref, std::uint8_t level, std::string_view what) {
  return fail(ErrorCode::kCorrupt, fmt::format("{}: {}", describe(ref, level), what));
}

}  // namespace

// Fences join without gaps, versions agree, no living node holds a lock, entries are within their
// fences.
template <class K>
Task<Result<typename Sherman<K>::Level>> Sherman<K>::walk_level(Operation& op, NodeRef first,
                                                                std::uint8_t level) {
  Level walked{level, {}, {}};
  const std::size_t bytes = tree_.node_bytes(level);
  const fabric::Buffer buffer = op.buffer(bytes);
  Owned expected_low(K::lowest());
  for (NodeRef ref = first; ref;) {
    fabric::Batch batch(op.cost());
    batch.read(ref.address, buffer.data(), bytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    Node<K> node(buffer.data(), bytes);
    switch (node.judge(tree_.index_id(), level, ref)) {
      case Verdict::kGood:
        break;
      case Verdict::kTorn:
        co_return corrupt(ref, level, "line versions disagree");
      case Verdict::kDead:
        co_return corrupt(ref, level, "dead, but reachable by its left neighbour");
      case Verdict::kStale:
        co_return corrupt(ref, level, "is not the node that its left neighbour means");
    }
    if (node.lock_word() != 0 && !tree_.locks().shares_words()) {
      // A dead owner's is taken over by the next who wants it.
      const auto owner = static_cast<pool::OwnerId>(node.lock_word() >> 32);
      Result<bool> gone = co_await tree_.node().membership().gone(op, owner);
      if (!gone) co_return fail(gone.error());
      if (!*gone) co_return corrupt(ref, level, "locked");
    }
    if (node.has(kAbsorbing)) co_return corrupt(ref, level, "in the middle of a merge");
    Result<Owned> low = co_await tree_.whole_key(op, node.low());
    if (!low) co_return corrupt(ref, level, "low fence unreadable");
    if (*low != expected_low) co_return corrupt(ref, level, "low fence is not where its left ends");
    std::optional<Owned> high;
    if (node.has(kHasHigh)) {
      Result<Owned> whole = co_await tree_.whole_key(op, node.high());
      if (!whole) co_return corrupt(ref, level, "high fence unreadable");
      if (!(*low < *whole)) co_return corrupt(ref, level, "fences out of order");
      high = std::move(*whole);
    }
    if (high.has_value() != static_cast<bool>(node.sibling())) {
      co_return corrupt(ref, level, "high fence and sibling disagree");
    }
    if (level == 0) {
      Status leaf = co_await check_leaf(op, leaf_at(buffer.data()), *low, high);
      if (!leaf) co_return corrupt(ref, level, leaf.error().detail());
    } else {
      auto entries = co_await tree_.entries(op, InnerNode<K>(buffer.data(), bytes));
      if (!entries) co_return fail(entries.error());
      if (!*entries) co_return corrupt(ref, level, "a separator is unreadable");
      if ((*entries)->empty() || (*entries)->front().key != *low) {
        co_return corrupt(ref, level, "does not start with an entry for its low fence");
      }
      for (const InnerEntry<K>& entry : **entries) {
        walked.children.emplace_back(entry.key, entry.child);
      }
    }
    walked.nodes.emplace_back(std::move(*low), ref);
    ref = node.sibling();
    if (high) expected_low = std::move(*high);
  }
  co_return std::move(walked);
}

template <class K>
Task<Status> Sherman<K>::check_leaf(Operation& op, Leaf<K> leaf, const Owned& low,
                                    const std::optional<Owned>& high) {
  Result<std::vector<KeyAt>> keys = co_await keys_of(op, leaf);
  if (!keys) co_return fail(keys.error());
  if (keys->size() != leaf.live()) co_return fail(ErrorCode::kCorrupt, "an entry is unreadable");
  for (std::size_t i = 0; i < keys->size(); ++i) {
    const Owned& key = (*keys)[i].key;
    if (key < low || (high && !(key < *high))) {
      co_return fail(ErrorCode::kCorrupt, "an entry lies outside its fences");
    }
    if (i > 0 && key == (*keys)[i - 1].key) {
      co_return fail(ErrorCode::kCorrupt, "a key stands twice");
    }
    const std::size_t slot = (*keys)[i].slot;
    if (!leaf.is_item(slot)) continue;
    Result<FetchedItem> item = co_await fetch_item(op, leaf.item(slot));
    if (!item) co_return fail(item.error());
    if (!item->view || item->view->key != item_key(key)) {
      co_return fail(ErrorCode::kCorrupt, "an item is damaged");
    }
  }
  co_return Status{};
}

template <class K>
Task<Status> Sherman<K>::check(Operation& op) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  NodeRef first = root->ref;
  std::optional<Level> above;
  for (std::uint8_t level = root->level;; --level) {
    Result<Level> here = co_await walk_level(op, first, level);
    if (!here) co_return fail(here.error());
    if (!above && here->nodes.size() != 1) {
      co_return corrupt(first, level, "the root has a sibling");
    }
    if (above && above->children != here->nodes) {
      // Each entry must name a node of this level with that low fence; one missing is a split that
      // was not finished, which is in order where a client died or memory ran out.
      for (const auto& child : above->children) {
        if (std::ranges::find(here->nodes, child) == here->nodes.end()) {
          co_return corrupt(child.second, level, "named by an entry, but not in its level");
        }
      }
    }
    if (level == 0) co_return Status{};
    first = here->children.front().second;
    above = std::move(*here);
  }
}

// Leaves and items first would leave entries that lead to freed nodes; nobody looks any more.
template <class K>
Task<Status> Sherman<K>::destroy(Operation& op) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  NodeRef first = root->ref;
  pool::Allocator& allocator = tree_.node().allocator();
  for (std::uint8_t level = root->level;; --level) {
    const std::size_t bytes = tree_.node_bytes(level);
    const fabric::Buffer buffer = op.buffer(bytes);
    NodeRef next_first;
    bool absorbed_by_left = false;
    for (NodeRef ref = first; ref;) {
      fabric::Batch batch(op.cost());
      batch.read(ref.address, buffer.data(), bytes);
      if (Status read = co_await op.submit(batch); !read) co_return read;
      Node<K> node(buffer.data(), bytes);
      if (node.judge(tree_.index_id(), level, ref) == Verdict::kStale) {
        co_return corrupt(ref, level, "not a node of the index");
      }
      if (level > 0 && !next_first) {
        auto entries = co_await tree_.entries(op, InnerNode<K>(buffer.data(), bytes));
        if (!entries) co_return fail(entries.error());
        if (!*entries || (*entries)->empty()) co_return corrupt(ref, level, "has no entries");
        next_first = (*entries)->front().child;
      }
      if (level == 0) {
        Leaf<K> leaf = leaf_at(buffer.data());
        std::vector<pool::ItemPointer> items;
        // What a half-done split or merge left twice is freed once.
        const bool doubled = absorbed_by_left || leaf.has(kDead);
        absorbed_by_left = leaf.has(kAbsorbing);
        Status purged;
        if (!doubled) purged = co_await purge(op, leaf);
        if (!purged) co_return purged;
        for (std::size_t slot = 0; slot < leaf.capacity() && !doubled; ++slot) {
          if (!leaf.empty(slot) && leaf.is_item(slot)) items.push_back(leaf.item(slot));
        }
        if (K::is_long(leaf.low())) items.push_back(K::item(leaf.low()));
        if (Status retired = co_await retire_items(op, items); !retired) co_return retired;
      }
      std::uint32_t version = node.version();
      for (std::size_t i = 0; i < node.lines(); ++i) {
        version = std::max(version, node.node_version(i));
      }
      allocator.retire({ref.address, version, pool::BlockKind::kNode,
                        static_cast<std::uint8_t>(pool::class_of(bytes))});
      ref = node.sibling();
    }
    if (level == 0) co_return Status{};
    first = next_first;
  }
}

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
