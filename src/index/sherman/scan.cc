// Sherman: scan. The leaves that the cache names for the range are read in one batch; each is used
// as long as it continues where the one before it ends.
#include <algorithm>

#include "index/sherman/sherman.h"

namespace pando::index::sherman {

namespace {

constexpr std::size_t kLeavesAtOnce = 32;
// Items up to this size are read whole with their keys; of larger ones the keys first.
constexpr std::size_t kSmallItem = 8 << 10;

}  // namespace

// Appends the leaf's entries with key >= from and below its high fence, ascending.
template <class K>
Task<Status> Sherman<K>::collect(Operation& op, Leaf<K> leaf, View from,
                                 std::vector<ScanItem>& out) {
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
    // An item that is not the entry's (see find_in) is left out.
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
template <class K>
Task<Status> Sherman<K>::fetch_values(Operation& op, std::vector<ScanItem>& items,
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

template <class K>
Task<Status> Sherman<K>::scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) {
  const std::size_t bytes = options_.leaf.bytes;
  const std::size_t usual = std::max<std::size_t>(1, leaf_at(nullptr).capacity() / 2);
  Owned cursor(K::view(from));
  const std::size_t already = out.size();
  while (out.size() - already < limit) {
    const std::size_t missing = limit - (out.size() - already);
    const std::size_t want =
        options_.parallel_scan ? std::min(kLeavesAtOnce, missing / usual + 2) : 1;
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
      Leaf<K> leaf = leaf_at(buffers[i].data());
      if (i > 0) {
        const Leaf<K> before = leaf_at(buffers[i - 1].data());
        const bool continues = leaf.judge(tree_.index_id(), 0, refs[i]) == Verdict::kGood &&
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

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
