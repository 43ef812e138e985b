// LeafTree's members. Included where an index instantiates them for its leaves, nowhere else.
#pragma once

#include <algorithm>

#include "index/blink/leaf_tree.h"
#include "index/blink/leaf_tree_check_impl.h"
#include "index/blink/leaf_tree_destroy_impl.h"
#include "index/blink/leaf_tree_read_impl.h"
#include "index/blink/leaf_tree_scan_impl.h"
#include "index/blink/node_write.h"

namespace pando::index {

template <class K, class L>
LeafTree<K, L>::LeafTree(pool::ComputeNode& compute_node, const pool::IndexRecord& record,
                         const Options& options, Router<K>* router)
    : options_(options),
      tree_(compute_node, record, options.tree, *this),
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
  tree_.compute_node().allocator().retire(pool::item_block(had, incarnation));
  co_return status;
}

template <class K, class L>
Task<Result<typename LeafTree<K, L>::NewEntry>> LeafTree<K, L>::prepare(Operation& op, View key,
                                                                        std::string_view value,
                                                                        NodeLock& lock) {
  NewEntry entry{key, key_word(key), value, std::nullopt};
  if (K::kType == KeyType::kInteger && value.size() <= options_.leaf.value_bytes) co_return entry;
  Result<PreparedItem> item = co_await prepare_item(op, item_key(key), value);
  if (!item) co_return fail(item.error());
  lock.carry(item->block->address, item->buffer.data(), item->bytes);
  entry.item = std::move(*item);
  co_return entry;
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

}  // namespace pando::index
