// LeafTree's members that check a whole tree, level by level along the siblings.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "index/blink/leaf_tree.h"

namespace pando::index {

inline std::unexpected<Error> corrupt_node(const NodeRef& ref, std::uint8_t level,
                                           std::string_view what) {
  return fail(ErrorCode::kCorrupt, fmt::format("node {}:{:#x} at level {}: {}", ref.address.node(),
                                               ref.address.offset(), level, what));
}

// Fences join without gaps, versions agree, no living node holds a lock, entries are within their
// fences.
template <class K, class L>
Task<Result<typename LeafTree<K, L>::Level>> LeafTree<K, L>::walk_level(Operation& op,
                                                                        NodeRef first,
                                                                        std::uint8_t level) {
  Level walked{level, {}, {}};
  const std::size_t bytes = tree_.node_bytes(level);
  const fabric::Buffer buffer = op.buffer(bytes);
  Owned expected_low(K::lowest());
  for (NodeRef ref = first; ref;) {
    fabric::Batch batch(op.cost());
    batch.read(ref.address, buffer.data(), bytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const Node<K> node(buffer.data(), bytes);
    if (Status fine = co_await check_header(op, ref, node, level); !fine) {
      co_return fail(fine.error());
    }
    Result<Fences> fences = co_await check_fences(op, ref, node, expected_low);
    if (!fences) co_return fail(fences.error());
    Status content = level == 0 ? co_await check_leaf(op, leaf_at(buffer.data()), *fences)
                                : co_await check_inner(op, InnerNode<K>(buffer.data(), bytes),
                                                       *fences, walked.children);
    if (!content && (level == 0 || content.error().code() == ErrorCode::kCorrupt)) {
      co_return corrupt_node(ref, level, content.error().detail());
    }
    if (!content) co_return fail(content.error());
    walked.nodes.emplace_back(std::move(fences->low), ref);
    ref = node.sibling();
    if (fences->high) expected_low = std::move(*fences->high);
  }
  co_return std::move(walked);
}

template <class K, class L>
Task<Status> LeafTree<K, L>::check_header(Operation& op, const NodeRef& ref, Node<K> node,
                                          std::uint8_t level) {
  switch (tree_.judge(node, level, ref)) {
    case Verdict::kGood:
      break;
    case Verdict::kTorn:
      co_return corrupt_node(ref, level, "line versions disagree");
    case Verdict::kDead:
      co_return corrupt_node(ref, level, "dead, but reachable by its left neighbour");
    case Verdict::kStale:
      co_return corrupt_node(ref, level, "is not the node that its left neighbour means");
  }
  const auto owner = static_cast<pool::OwnerId>(node.lock_word() >> 32);
  if (owner != 0 && !tree_.locks().shares_words()) {
    // A dead owner's is taken over by the next who wants it.
    Result<bool> gone = co_await tree_.compute_node().membership().gone(op, owner);
    if (!gone) co_return fail(gone.error());
    if (!*gone) co_return corrupt_node(ref, level, "locked");
  }
  if (node.has(kAbsorbing)) co_return corrupt_node(ref, level, "in the middle of a merge");
  co_return Status{};
}

template <class K, class L>
Task<Result<typename LeafTree<K, L>::Fences>> LeafTree<K, L>::check_fences(
    Operation& op, const NodeRef& ref, Node<K> node, const Owned& expected_low) {
  const std::uint8_t level = node.level();
  Result<Owned> low = co_await tree_.whole_key(op, node.low());
  if (!low) co_return corrupt_node(ref, level, "low fence unreadable");
  if (*low != expected_low) {
    co_return corrupt_node(ref, level, "low fence is not where its left ends");
  }
  Fences fences{std::move(*low), {}};
  if (node.has(kHasHigh)) {
    Result<Owned> high = co_await tree_.whole_key(op, node.high());
    if (!high) co_return corrupt_node(ref, level, "high fence unreadable");
    if (!(fences.low < *high)) co_return corrupt_node(ref, level, "fences out of order");
    fences.high = std::move(*high);
  }
  if (fences.high.has_value() != static_cast<bool>(node.sibling())) {
    co_return corrupt_node(ref, level, "high fence and sibling disagree");
  }
  co_return std::move(fences);
}

// Appends the node's entries. Errors say what is wrong; the caller names the node.
template <class K, class L>
Task<Status> LeafTree<K, L>::check_inner(Operation& op, InnerNode<K> node, const Fences& fences,
                                         std::vector<std::pair<Owned, NodeRef>>& children) {
  auto entries = co_await tree_.entries(op, node);
  if (!entries) co_return fail(entries.error());
  if (!*entries) co_return fail(ErrorCode::kCorrupt, "a separator is unreadable");
  if ((*entries)->empty() || (*entries)->front().key != fences.low) {
    co_return fail(ErrorCode::kCorrupt, "does not start with an entry for its low fence");
  }
  for (const InnerEntry<K>& entry : **entries) children.emplace_back(entry.key, entry.child);
  co_return Status{};
}

template <class K, class L>
Task<Status> LeafTree<K, L>::check_leaf(Operation& op, L leaf, const Fences& fences) {
  Result<std::vector<KeyAt>> keys = co_await keys_of(op, leaf);
  if (!keys) co_return fail(keys.error());
  if (keys->size() != leaf.live()) co_return fail(ErrorCode::kCorrupt, "an entry is unreadable");
  if (Status fine = check_entries(leaf); !fine) co_return fine;
  for (std::size_t i = 0; i < keys->size(); ++i) {
    const Owned& key = (*keys)[i].key;
    if (key < fences.low || (fences.high && !(key < *fences.high))) {
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

template <class K, class L>
Task<Status> LeafTree<K, L>::check(Operation& op) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  NodeRef first = root->ref;
  std::optional<Level> above;
  for (std::uint8_t level = root->level;; --level) {
    Result<Level> here = co_await walk_level(op, first, level);
    if (!here) co_return fail(here.error());
    // A root with siblings is a growth that was not finished, and in order as missing entries are.
    if (above && above->children != here->nodes) {
      // Each entry must name a node of this level with that low fence; one missing is a split that
      // was not finished, which is in order where a client died or memory ran out.
      for (const auto& child : above->children) {
        if (std::ranges::find(here->nodes, child) == here->nodes.end()) {
          co_return corrupt_node(child.second, level, "named by an entry, but not in its level");
        }
      }
    }
    if (level == 0) co_return Status{};
    first = here->children.front().second;
    above = std::move(*here);
  }
}

}  // namespace pando::index
