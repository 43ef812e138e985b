// LeafTree's members that scan.
#pragma once

#include <algorithm>

#include "index/blink/leaf_tree.h"

namespace pando::index {

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
  if (pointers.empty()) co_return Status{};
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
    Ahead& ahead = leaves.emplace_back(at->node, new_image(op));
    more = plan(ahead, *at, cursor, forecast) && leaves.size() < most;
    ahead.whole = !ahead.part || !read_part(batch, *ahead.part, ahead.image.bytes());
    if (ahead.whole) batch.read(ahead.ref.address, ahead.image.bytes(), leaf_bytes());
    more = more && router_.next_route(*at, next);
    at = &next;
  }
  co_return co_await op.submit(batch);
}

template <class K, class L>
Verdict LeafTree<K, L>::believe(Ahead& ahead) const {
  const auto leaf = ahead.image.believe([&](L seen) {
    return ahead.whole ? tree_.judge(seen, 0, ahead.ref)
                       : slots_of_part(*ahead.part, seen, ahead.slots);
  });
  if (!leaf) return leaf.error();
  ahead.leaf.emplace(*leaf);
  return Verdict::kGood;
}

template <class K, class L>
Verdict LeafTree<K, L>::believe_first(Ahead& first, const Route<K>& route, View cursor) const {
  if (!first.whole) return believe(first);
  const auto leaf = first.image.believe([&](L seen) { return judge_whole(route, cursor, seen); });
  if (!leaf) return leaf.error();
  first.leaf.emplace(*leaf);
  return Verdict::kGood;
}

template <class K, class L>
void LeafTree<K, L>::believe_anyway(Ahead& ahead) const {
  ahead.leaf.emplace(ahead.image.believed());
}

// Whether the leaf begins where the one before it ends. REQUIRES: both are believed.
template <class K, class L>
bool LeafTree<K, L>::continues(const Ahead& before, const Ahead& ahead) const {
  const L& left = *before.leaf;
  const L& right = *ahead.leaf;
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
  const L leaf = *ahead.leaf;
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

// The next leaves from the cursor on, the first of them believed: those that the router names, or
// the one that the tree finds.
template <class K, class L>
Task<Status> LeafTree<K, L>::read_leaves(Operation& op, View cursor, std::size_t missing,
                                         std::vector<Ahead>& leaves) {
  Route<K> route;
  if (router_.known_route(cursor, route)) {
    if (Status read = co_await read_ahead(op, route, cursor, missing, leaves); !read) {
      co_return read;
    }
    const Verdict verdict = believe_first(leaves.front(), route, cursor);
    if (verdict == Verdict::kGood) co_return Status{};
    not_believed(op, route, verdict);
    leaves.clear();
  }
  Ahead& whole = leaves.emplace_back(NodeRef{}, new_image(op));
  Result<Found<K>> found = co_await tree_.read(op, cursor, 0, whole.image.bytes());
  if (!found) co_return fail(found.error());
  whole.ref = found->node;
  believe_anyway(whole);
  co_return Status{};
}

// Of leaves that were read in one batch: those that follow one another, until there are enough
// keys.
template <class K, class L>
Task<Status> LeafTree<K, L>::take_leaves(Operation& op, std::vector<Ahead>& leaves,
                                         std::size_t missing, std::optional<Owned>& cursor,
                                         std::vector<ScanItem>& items) {
  for (std::size_t i = 0; cursor && i < leaves.size() && items.size() < missing; ++i) {
    if (i > 0) {
      const bool follows =
          believe(leaves[i]) == Verdict::kGood && continues(leaves[i - 1], leaves[i]);
      if (!follows) {
        if (!mutated(Mutant::kScanWithGaps)) break;
        believe_anyway(leaves[i]);
      }
    }
    if (Status done = co_await take(op, leaves[i], cursor, items); !done) co_return done;
  }
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
    std::vector<ScanItem> items;
    Status done = co_await read_leaves(op, *cursor, missing, leaves);
    if (done) done = co_await take_leaves(op, leaves, missing, cursor, items);
    if (done) done = co_await fetch_values(op, items, missing);
    if (!done) co_return done;
    for (ScanItem& item : items) {
      Entry& entry = out.emplace_back();
      entry.key = OwnedKey(std::move(item.key));
      entry.value = std::move(item.value);
    }
    if (cursor && op.expired()) co_return fail(ErrorCode::kTimeout, "scanning");
  }
  co_return Status{};
}

}  // namespace pando::index
