// LeafTree's members. Included where an index instantiates them for its leaves, nowhere else.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "index/blink/leaf_tree.h"
#include "index/blink/node_write.h"

namespace pando::index {

template <class K, class L>
LeafTree<K, L>::LeafTree(pool::ComputeNode& node, const pool::IndexRecord& record,
                         const Options& options, Router<K>* router)
    : options_(options),
      tree_(node, record, options.tree, *this),
      router_(router != nullptr ? *router : tree_),
      fill_(leaf_at(nullptr).capacity()) {}

template <class K, class L>
void LeafTree<K, L>::initialize_leaf(L leaf, std::uint32_t incarnation, const Cell& low) const {
  leaf.initialize(tree_.index_id(), 0, incarnation, low);
}

template <class K, class L>
Task<Status> LeafTree<K, L>::create(Operation& op) {
  Result<pool::FreshBlock> made = co_await tree_.allocate(op, 0);
  if (!made) co_return fail(made.error());
  pool::FreshBlock& block = *made;
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  L leaf = leaf_at(buffer.data());
  initialize_leaf(leaf, block->incarnation, K::cell(K::lowest()));
  const NodeRef ref(block->address, block->incarnation);
  fabric::Batch batch(op.cost());
  write_new(batch, ref, Node<K>(leaf));
  Status done = co_await op.submit(batch);
  if (done) done = co_await tree_.set_first_root(op, ref);
  // Nobody looks there before the index is published.
  if (done) block.publish();
  co_return done;
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

// --- Routes ---

template <class K, class L>
bool LeafTree<K, L>::covers(const Route<K>& route, View key, Node<K> leaf) const {
  if (!leaf.has(kHasHigh) || mutated(Mutant::kNoFenceCheck)) return true;
  const Cell high = leaf.high();
  if (!K::is_long(high)) return key < K::short_key(high);
  const std::optional<View> fence = router_.long_fence(route, high);
  return fence && key < *fence;
}

template <class K, class L>
bool LeafTree<K, L>::believable(const Route<K>& route, View key, std::byte* image) const {
  const Node<K> leaf(image, leaf_bytes());
  return tree_.judge(leaf, 0, route.node) == Verdict::kGood && covers(route, key, leaf);
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
    leaf.set_item(slot, entry.word, entry.item->pointer);
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
                                   NewEntry& entry) {
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

  Result<typename BLink<K>::NewCell> low = co_await tree_.make_cell(op, separator);
  Result<pool::FreshBlock> made =
      low ? co_await tree_.allocate(op, 0) : Result<pool::FreshBlock>(fail(low.error()));
  if (!made) {
    Status released = co_await locks.unlock(op, lock);
    co_return released ? fail(made.error()) : released;
  }
  const Cell& cell = low->cell;
  pool::FreshBlock& block = *made;
  const NodeRef right_ref(block->address, block->incarnation);
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  L right = leaf_at(buffer.data());
  initialize_leaf(right, block->incarnation, cell);
  if (!mutated(Mutant::kLostSibling)) right.set_sibling(leaf.sibling());
  if (leaf.has(kHasHigh)) right.set_high(leaf.high());
  divide(leaf, right, all, *middle, entry);
  this->set_version(right, block->incarnation);
  fabric::Batch first(op.cost());
  write_new(first, right_ref, Node<K>(right));
  if (this->lock_word() == LockWord::kNoted) {
    locks.add_note(first, right_ref.address, this->note(right));
  }
  if (Status written = co_await op.submit(first); !written) co_return written;
  low->item.publish();
  block.publish();
  entry.publish();

  leaf.set_high(cell);
  leaf.set_sibling(right_ref);
  fabric::Batch second(op.cost());
  tree_.write_split(second, ref, Node<K>(leaf), lock);
  Status written = co_await locks.write_and_unlock(op, second, lock);
  if (!written) co_return written;
  tree_.count_split();
  // The key is in. Should posting fail, the next one to step right will see to it.
  co_await tree_.post(op, 0, separator, cell, right_ref);
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

// REQUIRES: integer keys.
template <class K, class L>
void LeafTree<K, L>::collect_slot(L leaf, std::size_t slot, std::vector<ScanItem>& out) const {
  if constexpr (K::kType == KeyType::kInteger) {
    if (leaf.is_item(slot)) {
      out.push_back({leaf.key_word(slot), {}, leaf.item(slot)});
    } else {
      out.push_back({leaf.key_word(slot), std::string(leaf.value(slot)), {}});
    }
  }
}

// Of what came from `first` on: ascending, each key once.
template <class K, class L>
void LeafTree<K, L>::put_in_order(std::vector<ScanItem>& items, std::size_t first) {
  const auto begin = items.begin() + static_cast<std::ptrdiff_t>(first);
  std::sort(begin, items.end(), [](const ScanItem& a, const ScanItem& b) { return a.key < b.key; });
  if (mutated(Mutant::kScanTwice)) return;
  // A key that was erased and put again while the leaf was read may stand in two of its lines.
  items.erase(std::unique(begin, items.end(),
                          [](const ScanItem& a, const ScanItem& b) { return a.key == b.key; }),
              items.end());
}

// Appends the leaf's entries with key >= from and below its high fence, ascending.
template <class K, class L>
Task<Status> LeafTree<K, L>::collect(Operation& op, L leaf, View from, std::vector<ScanItem>& out) {
  // Items up to this size are read whole with their keys; of larger ones the keys first.
  constexpr std::size_t kSmallItem = 8 << 10;
  const std::size_t first = out.size();
  if constexpr (K::kType == KeyType::kInteger) {
    const bool bounded = leaf.has(kHasHigh);
    const std::uint64_t high = K::short_key(leaf.high());
    for (std::size_t slot = 0; slot < leaf.capacity(); ++slot) {
      const std::uint64_t key = leaf.key_word(slot);
      if (leaf.empty(slot) || key < from || (bounded && key >= high)) continue;
      collect_slot(leaf, slot, out);
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
      out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                               [&](const ScanItem& item) { return item.key >= *high; }),
                out.end());
    }
  }
  put_in_order(out, first);
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

// What is looked for in the route's leaf. False: it is the last that the scan is going to need.
template <class K, class L>
bool LeafTree<K, L>::plan(Ahead& ahead, const Route<K>& route, View cursor,
                          LeafForecast& forecast) const {
  if constexpr (K::kType == KeyType::kInteger) {
    const auto extent = router_.extent(route);
    if (!extent || extent->high <= cursor) return true;
    LeafPart part{route.node, extent->next, extent->low, extent->high, {}, {}};
    part.from = std::max(cursor, extent->low);
    const auto width = static_cast<double>(part.high - part.low);
    ahead.usual_width = extent->usual_width;
    const std::uint64_t rest = part.high - part.from;
    const double look =
        forecast.look(static_cast<double>(rest), fill_.density(width, ahead.usual_width));
    const bool some = look < static_cast<double>(rest);
    part.to = some ? part.from + static_cast<std::uint64_t>(look) : part.high;
    ahead.part = part;
    return !forecast.enough();
  } else {
    return true;
  }
}

// Reads the leaves that the router names from the route's on, as many as the scan is expected to
// need, in one round trip.
template <class K, class L>
Task<Status> LeafTree<K, L>::read_ahead(Operation& op, const Route<K>& route, View cursor,
                                        std::size_t missing, std::vector<Ahead>& leaves) {
  constexpr std::size_t kLeavesAtOnce = 32;
  std::size_t most = options_.parallel_scan ? kLeavesAtOnce : 1;
  if (K::kType == KeyType::kBytes) {
    // Leaves are between half and all full, and the first begins before the cursor.
    const std::size_t usual = std::max<std::size_t>(1, leaf_at(nullptr).capacity() * 5 / 8);
    most = std::min(most, (missing - 1) / usual + 2);
  }
  LeafForecast forecast(missing);
  fabric::Batch batch(op.cost());
  Route<K> next;
  const Route<K>* at = &route;
  for (bool more = true; more;) {
    Ahead& ahead = leaves.emplace_back();
    ahead.ref = at->node;
    ahead.image = op.buffer(leaf_bytes());
    more = plan(ahead, *at, cursor, forecast) && leaves.size() < most;
    ahead.whole = !ahead.part || !read_part(batch, *ahead.part, ahead.image.data());
    if (ahead.whole) batch.read(ahead.ref.address, ahead.image.data(), leaf_bytes());
    more = more && router_.next_route(*at, next);
    at = &next;
  }
  co_return co_await op.submit(batch);
}

template <class K, class L>
Verdict LeafTree<K, L>::judge(Ahead& ahead) const {
  const L leaf = leaf_at(ahead.image.data());
  return ahead.whole ? tree_.judge(leaf, 0, ahead.ref)
                     : slots_of_part(*ahead.part, leaf, ahead.slots);
}

// Whether the leaf begins where the one before it ends. REQUIRES: both are believed.
template <class K, class L>
bool LeafTree<K, L>::continues(const Ahead& before, const Ahead& ahead) const {
  const L left = leaf_at(before.image.data());
  const L right = leaf_at(ahead.image.data());
  if constexpr (K::kType == KeyType::kInteger) {
    const bool ends = before.whole ? left.has(kHasHigh) : before.part->to == before.part->high;
    const Cell end = before.whole ? left.high() : K::cell(before.part->high);
    return ends && (ahead.whole ? right.low() : K::cell(ahead.part->low)) == end;
  } else {
    return left.has(kHasHigh) && right.low() == left.high();
  }
}

// Appends the keys from the cursor on, which then moves to the end of what was looked at: none
// where no leaf follows. REQUIRES: the leaf is believed.
template <class K, class L>
Task<Status> LeafTree<K, L>::take(Operation& op, const Ahead& ahead, std::optional<Owned>& cursor,
                                  std::vector<ScanItem>& items) {
  L leaf = leaf_at(ahead.image.data());
  if constexpr (K::kType == KeyType::kInteger) {
    if (ahead.part) {
      const LeafPart& part = *ahead.part;
      const auto width = static_cast<double>(part.high - part.low);
      if (ahead.whole || part.all) {
        fill_.saw(leaf.live(), width, width, ahead.usual_width);
      } else {
        fill_.saw(ahead.slots.size(), static_cast<double>(part.to - part.from), width,
                  ahead.usual_width);
      }
    }
    if (!ahead.whole) {
      const std::size_t first = items.size();
      for (const std::size_t slot : ahead.slots) collect_slot(leaf, slot, items);
      put_in_order(items, first);
      cursor = ahead.part->to;
      co_return Status{};
    }
  }
  if (Status done = co_await collect(op, leaf, *cursor, items); !done) co_return done;
  if (!leaf.has(kHasHigh)) {
    cursor.reset();
    co_return Status{};
  }
  Result<Owned> high = co_await tree_.whole_key(op, leaf.high());
  if (!high) co_return fail(high.error());
  cursor = std::move(*high);
  co_return Status{};
}

template <class K, class L>
Task<Status> LeafTree<K, L>::scan(Operation& op, Key from, std::size_t limit,
                                  std::vector<Entry>& out) {
  std::optional<Owned> cursor(K::view(from));
  const std::size_t already = out.size();
  while (cursor && out.size() - already < limit) {
    const std::size_t missing = limit - (out.size() - already);
    std::vector<Ahead> leaves;
    Route<K> route;
    if (router_.known_route(*cursor, route)) {
      Status read = co_await read_ahead(op, route, *cursor, missing, leaves);
      if (!read) co_return read;
      Ahead& first = leaves.front();
      const Verdict verdict = !first.whole                                     ? judge(first)
                              : believable(route, *cursor, first.image.data()) ? Verdict::kGood
                                                                               : Verdict::kStale;
      if (verdict != Verdict::kGood) {
        op.count_retry();
        if (verdict != Verdict::kTorn) router_.misled(route);
        leaves.clear();
      }
    }
    if (leaves.empty()) {
      Ahead& whole = leaves.emplace_back();
      whole.image = op.buffer(leaf_bytes());
      Result<Found<K>> found = co_await tree_.read(op, *cursor, 0, whole.image.data());
      if (!found) co_return fail(found.error());
      whole.ref = found->node;
    }

    std::vector<ScanItem> items;
    for (std::size_t i = 0; cursor && i < leaves.size() && items.size() < missing; ++i) {
      if (i > 0) {
        const bool follows =
            judge(leaves[i]) == Verdict::kGood && continues(leaves[i - 1], leaves[i]);
        if (!follows && !mutated(Mutant::kScanWithGaps)) break;
      }
      if (Status done = co_await take(op, leaves[i], cursor, items); !done) co_return done;
    }
    if (Status done = co_await fetch_values(op, items, missing); !done) co_return done;
    for (ScanItem& item : items) {
      Entry& entry = out.emplace_back();
      entry.key = OwnedKey(std::move(item.key));
      entry.value = std::move(item.value);
    }
    if (cursor && op.expired()) co_return fail(ErrorCode::kTimeout, "scanning");
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

// --- Freeing it ---
// From the leaves up, each level from the left: so what is still to be freed can be found from the
// root. How far it has got stands in far memory, in two words of the catalogue's entry that share a
// line: {the next node's reference, {0:39, absorbed:1, level + 1:8, reference's high part:16}}. It
// is moved past a node before the node is freed: who goes on after a failure or a death never frees
// one twice.

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
  Node<K> node(buffer.data(), bytes);
  if (tree_.judge(node, level, ref) == Verdict::kStale) {
    co_return corrupt_node(ref, level, "not a node of the index");
  }
  Remains after{node.sibling(), level, false};
  std::vector<pool::Block> blocks;
  if (level == 0) {
    L leaf = leaf_at(buffer.data());
    std::vector<pool::ItemPointer> items;
    // What a half-done split or merge left twice is freed once.
    const bool doubled = remains.absorbed || leaf.has(kDead);
    after.absorbed = leaf.has(kAbsorbing);
    Status purged;
    if (!doubled) purged = co_await purge(op, leaf);
    if (!purged) co_return purged;
    for (std::size_t slot = 0; slot < leaf.capacity() && !doubled; ++slot) {
      if (!leaf.empty(slot) && leaf.is_item(slot)) items.push_back(leaf.item(slot));
    }
    if (K::is_long(leaf.low())) items.push_back(K::item(leaf.low()));
    Result<std::vector<pool::Block>> found = co_await item_blocks(op, items);
    if (!found) co_return fail(found.error());
    blocks = std::move(*found);
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
  for (const pool::Block& block : blocks) tree_.node().allocator().retire(block);
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
