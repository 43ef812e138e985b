// LeafTree's members. Included where an index instantiates them for its leaves, nowhere else.
#pragma once

#include <fmt/format.h>

#include <algorithm>

#include "index/common/leaf_tree.h"
#include "index/common/node_write.h"

namespace pando::index {

template <class K, class L>
LeafTree<K, L>::LeafTree(pool::ComputeNode& node, const pool::IndexRecord& record,
                         const Options& options)
    : options_(options), tree_(node, record, options.tree, *this) {}

template <class K, class L>
void LeafTree<K, L>::initialize_leaf(L leaf, std::uint32_t incarnation, const Cell& low) const {
  leaf.initialize(tree_.index_id(), 0, incarnation, low);
}

template <class K, class L>
Task<Status> LeafTree<K, L>::create(Operation& op) {
  Result<pool::Block> block = co_await tree_.allocate(op, 0);
  if (!block) co_return fail(block.error());
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  L leaf = leaf_at(buffer.data());
  initialize_leaf(leaf, block->incarnation, K::cell(K::lowest()));
  const NodeRef ref(block->address, block->incarnation);
  fabric::Batch batch(op.cost());
  write_new(batch, ref, Node<K>(leaf));
  if (Status written = co_await op.submit(batch); !written) co_return written;
  co_return co_await tree_.set_first_root(op, ref);
}

template <class K, class L>
IndexStats LeafTree<K, L>::stats() const {
  const BLinkCounts& counts = tree_.counts();
  IndexStats stats;
  stats.counts = {
      {"splits", counts.splits.load()},
      {"merges", counts.merges.load()},
      {"root_growths", counts.root_growths.load()},
      {"cache_hits", counts.cache_hits.load()},
      {"cache_misses", counts.cache_misses.load()},
      {"misled_by_cache", counts.misled.load()},
      {"repairs", counts.repairs.load()},
      {"helped", counts.helped.load()},
      {"lock_takeovers", tree_.locks().takeovers()},
      {"lock_handovers", tree_.locks().handed_over()},
  };
  stats.compute.parts = {{"node cache", tree_.cache_bytes()},
                         {"lock table", tree_.locks().bytes()}};
  add_stats(stats);
  for (const auto& [part, bytes] : stats.compute.parts) stats.compute.bytes += bytes;
  return stats;
}

// --- Entries ---

template <class K, class L>
std::string LeafTree<K, L>::item_key(View key) {
  if constexpr (K::kType == KeyType::kInteger) {
    std::string bytes(sizeof(key), '\0');
    for (std::size_t i = 0; i < sizeof(key); ++i) {
      bytes[i] = static_cast<char>(key >> (8 * (sizeof(key) - 1 - i)));
    }
    return bytes;
  } else {
    return std::string(key);
  }
}

template <class K, class L>
void LeafTree<K, L>::set(L leaf, std::size_t slot, const NewEntry& entry) {
  if (entry.item) {
    leaf.set_item(slot, entry.word, entry.item->item.pointer);
  } else {
    leaf.set_value(slot, entry.word, entry.value);
  }
}

template <class K, class L>
Task<Status> LeafTree<K, L>::finish_multi_get(Operation& op, const Unfinished& unfinished,
                                              std::span<const Key> keys,
                                              std::span<std::optional<std::string>> values) {
  Result<std::vector<FetchedItem>> items = co_await fetch_items(op, unfinished.items);
  if (!items) co_return fail(items.error());
  for (std::size_t i = 0; i < items->size(); ++i) {
    const auto& view = (*items)[i].view;
    const std::size_t key = unfinished.items_of[i];
    if (view && view->key == item_key(K::view(keys[key]))) values[key] = std::string(view->value);
  }
  for (const std::size_t i : unfinished.alone) {
    Result<std::string> value = co_await this->get(op, keys[i]);
    if (!value && value.error().code() != ErrorCode::kNotFound) co_return fail(value.error());
    if (value) {
      values[i] = std::move(*value);
    } else {
      values[i].reset();
    }
  }
  co_return Status{};
}

template <class K, class L>
Task<Status> LeafTree<K, L>::write_and_retire(Operation& op, fabric::Batch& batch, NodeLock& lock,
                                              pool::ItemPointer had, const FetchedItem& known) {
  fabric::Buffer header;
  if (had && !known.view) {
    header = op.buffer(sizeof(pool::ItemHeader));  // to learn its incarnation on the way
    batch.read(had.address(), header.data(), sizeof(pool::ItemHeader));
  }
  Status status = co_await tree_.locks().write_and_unlock(op, batch, lock);
  if (!status || !had || mutated(Mutant::kUpdateKeepsOld)) co_return status;
  const std::uint32_t incarnation =
      header ? reinterpret_cast<const pool::ItemHeader*>(header.data())->incarnation
             : known.view->incarnation;
  tree_.node().allocator().retire(pool::item_block(had, incarnation));
  co_return status;
}

template <class K, class L>
Task<Result<std::optional<PreparedItem>>> LeafTree<K, L>::prepare(Operation& op, View key,
                                                                  std::string_view value) {
  using Answer = std::optional<PreparedItem>;
  if (K::kType == KeyType::kInteger && value.size() <= options_.leaf.value_bytes) {
    co_return Answer(std::nullopt);
  }
  Result<PreparedItem> item = co_await prepare_item(op, item_key(key), value);
  if (!item) co_return fail(item.error());
  co_return Answer(std::move(*item));
}

template <class K, class L>
Task<Result<std::vector<typename LeafTree<K, L>::KeyAt>>> LeafTree<K, L>::keys_of(Operation& op,
                                                                                  L leaf) {
  std::vector<KeyAt> keys;
  if constexpr (K::kType == KeyType::kInteger) {
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      if (!leaf.empty(slot)) keys.push_back({leaf.key_word(slot), slot});
    }
  } else {
    std::vector<pool::ItemPointer> pointers;
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      if (leaf.empty(slot)) continue;
      pointers.push_back(leaf.item(slot));
      slots.push_back(slot);
    }
    Result<std::vector<std::optional<std::string>>> found = co_await fetch_keys(op, pointers);
    if (!found) co_return fail(found.error());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      std::optional<std::string>& key = (*found)[i];
      if (key && key_word(*key) == leaf.key_word(slots[i])) {
        keys.push_back({std::move(*key), slots[i]});
      }
    }
  }
  std::ranges::sort(keys, {}, &KeyAt::key);
  co_return std::move(keys);
}

template <class K, class L>
Task<Status> LeafTree<K, L>::split(Operation& op, const NodeRef& ref, L leaf, NodeLock& lock,
                                   const NewEntry& entry, bool& published) {
  NodeLocks& locks = tree_.locks();
  Result<std::vector<KeyAt>> sorted = co_await keys_of(op, leaf);
  if (!sorted) co_return fail(sorted.error());
  std::vector<KeyAt>& all = *sorted;
  const auto at = std::ranges::upper_bound(all, entry.key, {},
                                           [](const KeyAt& each) { return View(each.key); });
  const auto added = static_cast<std::size_t>(at - all.begin());
  all.insert(at, {Owned(entry.key), kNewEntry});
  const Result<std::size_t> middle = split_at(leaf, all, added);
  if (!middle) co_return fail(middle.error());
  const Owned separator = K::separator(all[*middle - 1].key, all[*middle].key);

  Result<Cell> cell = co_await tree_.make_cell(op, separator);
  Result<pool::Block> block =
      cell ? co_await tree_.allocate(op, 0) : Result<pool::Block>(fail(cell.error()));
  if (!block) {
    if (cell) co_await tree_.drop_cell(op, *cell, false);
    Status released = co_await locks.unlock(op, lock);
    co_return released ? fail(block.error()) : released;
  }
  const NodeRef right_ref(block->address, block->incarnation);
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  L right = leaf_at(buffer.data());
  initialize_leaf(right, block->incarnation, *cell);
  if (!mutated(Mutant::kLostSibling)) right.set_sibling(leaf.sibling());
  if (leaf.has(kHasHigh)) right.set_high(leaf.high());
  divide(leaf, right, all, *middle, entry);
  this->set_version(right, block->incarnation);
  fabric::Batch first(op.cost());
  write_new(first, right_ref, Node<K>(right));
  if (this->lock_word() == LockWord::kNoted) {
    locks.add_note(first, right_ref.address, this->note(right));
  }
  if (Status written = co_await op.submit(first); !written) {
    tree_.node().allocator().release(*block);
    co_await tree_.drop_cell(op, *cell, false);
    co_return written;
  }
  published = true;

  leaf.set_high(*cell);
  leaf.set_sibling(right_ref);
  fabric::Batch second(op.cost());
  tree_.write_split(second, ref, Node<K>(leaf), lock);
  Status written = co_await locks.write_and_unlock(op, second, lock);
  if (!written) co_return written;
  tree_.count_split();
  // The key is in. Should posting fail, the next one to step right will see to it.
  co_await tree_.post(op, 0, separator, *cell, right_ref);
  co_return Status{};
}

template <class K, class L>
Task<Status> LeafTree<K, L>::purge(Operation& op, Node<K> node) {
  L leaf = leaf_at(node.bytes());
  if (!leaf.has(kHasHigh)) co_return Status{};
  Result<Owned> high = co_await tree_.whole_key(op, leaf.high());
  if (!high) co_return fail(high.error());
  Result<std::vector<KeyAt>> keys = co_await keys_of(op, leaf);
  if (!keys) co_return fail(keys.error());
  std::vector<bool> keep(leaf.capacity(), false);
  for (const KeyAt& each : *keys) keep[each.slot] = each.key < *high;
  for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
    if (!leaf.empty(slot) && !keep[slot]) leaf.clear(slot);
  }
  co_return Status{};
}

// The last leaf is where ascending keys arrive, and mostly has a full neighbour.
template <class K, class L>
bool LeafTree<K, L>::worth_merging(L leaf) const {
  if (!options_.merge || !leaf.has(kHasHigh)) return false;
  const std::size_t live = leaf.live();
  const std::size_t stride = std::max<std::size_t>(1, leaf.capacity() / 16);
  return live <= leaf.capacity() / 2 && live % stride == 0;
}

// --- Scan ---

// Appends the leaf's entries with key >= from and below its high fence, ascending.
template <class K, class L>
Task<Status> LeafTree<K, L>::collect(Operation& op, L leaf, View from, std::vector<ScanItem>& out) {
  // Items up to this size are read whole with their keys; of larger ones the keys first.
  constexpr std::size_t kSmallItem = 8 << 10;
  const auto first = static_cast<std::ptrdiff_t>(out.size());
  if constexpr (K::kType == KeyType::kInteger) {
    const bool bounded = leaf.has(kHasHigh);
    const std::uint64_t high = K::short_key(leaf.high());
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      const std::uint64_t key = leaf.key_word(slot);
      if (leaf.empty(slot) || key < from || (bounded && key >= high)) continue;
      if (leaf.is_item(slot)) {
        out.push_back({key, {}, leaf.item(slot)});
      } else {
        out.push_back({key, std::string(leaf.value(slot)), {}});
      }
    }
  } else {
    std::vector<pool::ItemPointer> small, large;
    std::vector<std::uint64_t> small_words, large_words;
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      if (leaf.empty(slot) || !leaf.item(slot).plausible()) continue;
      const bool is_small = leaf.item(slot).bytes() <= kSmallItem;
      (is_small ? small : large).push_back(leaf.item(slot));
      (is_small ? small_words : large_words).push_back(leaf.key_word(slot));
    }
    // An item that is not the entry's is left out.
    Result<std::vector<FetchedItem>> items = co_await fetch_items(op, small);
    if (!items) co_return fail(items.error());
    for (std::size_t i = 0; i < small.size(); ++i) {
      const auto& view = (*items)[i].view;
      if (view && view->key >= from && key_word(view->key) == small_words[i]) {
        out.push_back({Owned(view->key), std::string(view->value), {}});
      }
    }
    Result<std::vector<std::optional<std::string>>> keys = co_await fetch_keys(op, large);
    if (!keys) co_return fail(keys.error());
    for (std::size_t i = 0; i < large.size(); ++i) {
      std::optional<std::string>& key = (*keys)[i];
      if (key && *key >= from && key_word(*key) == large_words[i]) {
        out.push_back({std::move(*key), {}, large[i]});
      }
    }
    if (leaf.has(kHasHigh)) {
      Result<Owned> high = co_await tree_.whole_key(op, leaf.high());
      if (!high) co_return fail(high.error());
      out.erase(std::remove_if(out.begin() + first, out.end(),
                               [&](const ScanItem& item) { return item.key >= *high; }),
                out.end());
    }
  }
  std::sort(out.begin() + first, out.end(),
            [](const ScanItem& a, const ScanItem& b) { return a.key < b.key; });
  if (mutated(Mutant::kScanTwice)) co_return Status{};
  // A key that was erased and put again while the leaf was read may stand in two of its lines.
  out.erase(std::unique(out.begin() + first, out.end(),
                        [](const ScanItem& a, const ScanItem& b) { return a.key == b.key; }),
            out.end());
  co_return Status{};
}

// The values that are still out of line, of the first `limit` items, in one round trip.
template <class K, class L>
Task<Status> LeafTree<K, L>::fetch_values(Operation& op, std::vector<ScanItem>& items,
                                          std::size_t limit) {
  if (items.size() > limit) items.resize(limit);
  std::vector<pool::ItemPointer> pointers;
  std::vector<ScanItem*> wanting;
  for (ScanItem& item : items) {
    if (!item.pointer) continue;
    pointers.push_back(item.pointer);
    wanting.push_back(&item);
  }
  Result<std::vector<FetchedItem>> fetched = co_await fetch_items(op, pointers);
  if (!fetched) co_return fail(fetched.error());
  for (std::size_t i = 0; i < wanting.size(); ++i) {
    const auto& view = (*fetched)[i].view;
    if (!view) co_return fail(ErrorCode::kCorrupt, "an entry's item is not there");
    wanting[i]->value = std::string(view->value);
  }
  co_return Status{};
}

template <class K, class L>
Task<Status> LeafTree<K, L>::scan(Operation& op, Key from, std::size_t limit,
                                  std::vector<Entry>& out) {
  constexpr std::size_t kLeavesAtOnce = 32;
  const std::size_t bytes = leaf_bytes();
  // Leaves are between half and all full, and the first begins before the cursor.
  const std::size_t usual = std::max<std::size_t>(1, leaf_at(nullptr).capacity() * 5 / 8);
  Owned cursor(K::view(from));
  const std::size_t already = out.size();
  while (out.size() - already < limit) {
    const std::size_t missing = limit - (out.size() - already);
    const std::size_t want =
        options_.parallel_scan ? std::min(kLeavesAtOnce, (missing + usual - 1) / usual + 1) : 1;
    std::vector<fabric::Buffer> buffers;
    std::vector<NodeRef> refs;
    Route<K> route;
    bool first_is_good = false;
    if (tree_.route_cached(cursor, 0, route)) {
      fabric::Batch batch(op.cost());
      // The route's first child covers the cursor; the others follow it, as far as the cache knows.
      Route<K> next = tree_.same_route(route);
      do {
        refs.push_back(next.node);
        buffers.push_back(op.buffer(bytes));
        batch.read(next.node.address, buffers.back().data(), bytes);
      } while (buffers.size() < want && tree_.advance(next));
      if (Status read = co_await op.submit(batch); !read) co_return read;
      first_is_good = tree_.believable(route, cursor, 0, buffers[0].data());
      if (!first_is_good) {
        op.count_retry();
        tree_.misled(route);
      }
    }
    if (!first_is_good) {
      buffers.clear();
      refs.clear();
      buffers.push_back(op.buffer(bytes));
      Result<Found<K>> found = co_await tree_.read(op, cursor, 0, buffers[0].data());
      if (!found) co_return fail(found.error());
      refs.push_back(found->node);
    }

    std::vector<ScanItem> items;
    bool last = false;
    for (std::size_t i = 0; i < buffers.size() && items.size() < missing; ++i) {
      L leaf = leaf_at(buffers[i].data());
      if (i > 0) {
        const L before = leaf_at(buffers[i - 1].data());
        const bool continues = tree_.judge(leaf, 0, refs[i]) == Verdict::kGood &&
                               before.has(kHasHigh) && leaf.low() == before.high();
        if (!continues && !mutated(Mutant::kScanWithGaps)) break;
      }
      if (Status done = co_await collect(op, leaf, cursor, items); !done) co_return done;
      last = !leaf.has(kHasHigh);
      if (last) break;
      Result<Owned> high = co_await tree_.whole_key(op, leaf.high());
      if (!high) co_return fail(high.error());
      cursor = std::move(*high);
    }
    if (Status done = co_await fetch_values(op, items, missing); !done) co_return done;
    for (ScanItem& item : items) {
      Entry& entry = out.emplace_back();
      entry.key = OwnedKey(std::move(item.key));
      entry.value = std::move(item.value);
    }
    if (last) break;
    if (op.expired()) co_return fail(ErrorCode::kTimeout, "scanning");
  }
  co_return Status{};
}

// --- The whole tree, level by level along the siblings: to check it, to free it ---

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
    Node<K> node(buffer.data(), bytes);
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
      Result<bool> gone = co_await tree_.node().membership().gone(op, owner);
      if (!gone) co_return fail(gone.error());
      if (!*gone) co_return corrupt_node(ref, level, "locked");
    }
    if (node.has(kAbsorbing)) co_return corrupt_node(ref, level, "in the middle of a merge");
    Result<Owned> low = co_await tree_.whole_key(op, node.low());
    if (!low) co_return corrupt_node(ref, level, "low fence unreadable");
    if (*low != expected_low)
      co_return corrupt_node(ref, level, "low fence is not where its left ends");
    std::optional<Owned> high;
    if (node.has(kHasHigh)) {
      Result<Owned> whole = co_await tree_.whole_key(op, node.high());
      if (!whole) co_return corrupt_node(ref, level, "high fence unreadable");
      if (!(*low < *whole)) co_return corrupt_node(ref, level, "fences out of order");
      high = std::move(*whole);
    }
    if (high.has_value() != static_cast<bool>(node.sibling())) {
      co_return corrupt_node(ref, level, "high fence and sibling disagree");
    }
    if (level == 0) {
      Status leaf = co_await check_leaf(op, leaf_at(buffer.data()), *low, high);
      if (!leaf) co_return corrupt_node(ref, level, leaf.error().detail());
    } else {
      auto entries = co_await tree_.entries(op, InnerNode<K>(buffer.data(), bytes));
      if (!entries) co_return fail(entries.error());
      if (!*entries) co_return corrupt_node(ref, level, "a separator is unreadable");
      if ((*entries)->empty() || (*entries)->front().key != *low) {
        co_return corrupt_node(ref, level, "does not start with an entry for its low fence");
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

template <class K, class L>
Task<Status> LeafTree<K, L>::check_leaf(Operation& op, L leaf, const Owned& low,
                                        const std::optional<Owned>& high) {
  Result<std::vector<KeyAt>> keys = co_await keys_of(op, leaf);
  if (!keys) co_return fail(keys.error());
  if (keys->size() != leaf.live()) co_return fail(ErrorCode::kCorrupt, "an entry is unreadable");
  if (Status fine = check_entries(leaf); !fine) co_return fine;
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

template <class K, class L>
Task<Status> LeafTree<K, L>::check(Operation& op) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  NodeRef first = root->ref;
  std::optional<Level> above;
  for (std::uint8_t level = root->level;; --level) {
    Result<Level> here = co_await walk_level(op, first, level);
    if (!here) co_return fail(here.error());
    if (!above && here->nodes.size() != 1) {
      co_return corrupt_node(first, level, "the root has a sibling");
    }
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

// Leaves and items first would leave entries that lead to freed nodes; nobody looks any more.
template <class K, class L>
Task<Status> LeafTree<K, L>::destroy(Operation& op) {
  Result<typename BLink<K>::Root> root = co_await tree_.read_root(op);
  if (!root) co_return fail(root.error());
  NodeRef first = root->ref;
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
      if (tree_.judge(node, level, ref) == Verdict::kStale) {
        co_return corrupt_node(ref, level, "not a node of the index");
      }
      if (level > 0 && !next_first) {
        auto entries = co_await tree_.entries(op, InnerNode<K>(buffer.data(), bytes));
        if (!entries) co_return fail(entries.error());
        if (!*entries || (*entries)->empty()) co_return corrupt_node(ref, level, "has no entries");
        next_first = (*entries)->front().child;
      }
      if (level == 0) {
        L leaf = leaf_at(buffer.data());
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
      tree_.retire(ref, level, tree_.newest_version(node, level));
      ref = node.sibling();
    }
    if (level == 0) co_return Status{};
    first = next_first;
  }
}

}  // namespace pando::index
