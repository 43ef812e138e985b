// Sherman: splitting a full leaf, and bringing one in order whose splitter died.
//
// Entries stay in their lines (node.h); those of the upper half are cleared in the left leaf after
// its header has made them unreachable there.
#include <algorithm>

#include "index/common/node_write.h"
#include "index/sherman/sherman.h"

namespace pando::index::sherman {

// The live entries of a locked leaf by whole key, ascending. An item that cannot be read belongs to
// an entry that went right: left out.
template <class K>
Task<Result<std::vector<typename Sherman<K>::KeyAt>>> Sherman<K>::keys_of(Operation& op,
                                                                          Leaf<K> leaf) {
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

template <class K>
Task<Status> Sherman<K>::split(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                               const NewEntry& entry) {
  constexpr std::size_t kNew = ~std::size_t{0};
  NodeLocks& locks = tree_.locks();
  Result<std::vector<KeyAt>> sorted = co_await keys_of(op, leaf);
  if (!sorted) co_return fail(sorted.error());
  std::vector<KeyAt>& all = *sorted;
  const auto at = std::ranges::upper_bound(all, entry.key, {},
                                           [](const KeyAt& each) { return View(each.key); });
  const auto place = static_cast<std::size_t>(at - all.begin());
  all.insert(at, {Owned(entry.key), kNew});
  const std::size_t middle = split_point(all.size(), place, !leaf.has(kHasHigh));
  const Owned separator = K::separator(all[middle - 1].key, all[middle].key);

  Result<Cell> cell = co_await tree_.make_cell(op, separator);
  Result<pool::Block> block = cell ? co_await tree_.node().allocator().allocate(
                                         op, pool::BlockKind::kNode, options_.leaf.bytes)
                                   : Result<pool::Block>(fail(cell.error()));
  if (!block) {
    if (cell) co_await tree_.drop_cell(op, *cell, false);
    Status released = co_await locks.unlock(op, lock);
    co_return released ? fail(block.error()) : released;
  }
  const NodeRef right_ref(block->address, block->incarnation);
  const fabric::Buffer buffer = op.buffer(options_.leaf.bytes);
  Leaf<K> right = leaf_at(buffer.data());
  right.initialize(tree_.index_id(), 0, block->incarnation, *cell);
  if (!mutated(Mutant::kLostSibling)) right.set_sibling(leaf.sibling());
  if (leaf.has(kHasHigh)) right.set_high(leaf.high());
  for (std::size_t i = middle; i < all.size(); ++i) {
    if (all[i].slot == kNew) {
      set(right, i - middle, entry);
    } else {
      right.copy(i - middle, leaf, all[i].slot);
    }
  }
  fabric::Batch first(op.cost());
  write_new(first, right_ref, Node<K>(right));
  if (Status written = co_await op.submit(first); !written) co_return written;

  bool new_on_left = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].slot == kNew) {
      new_on_left = i < middle;
    } else if (i >= middle) {
      leaf.clear(all[i].slot);
    }
  }
  if (new_on_left) set(leaf, leaf.free_slot(), entry);
  leaf.set_high(*cell);
  leaf.set_sibling(right_ref);
  fabric::Batch second(op.cost());
  write_split(second, ref, Node<K>(leaf));
  Status written = co_await locks.write_and_unlock(op, second, lock);
  if (!written) co_return written;
  tree_.count_split();
  // The key is in. Should posting fail, the next one to step right will see to it.
  co_await tree_.post(op, 0, separator, *cell, right_ref);
  co_return Status{};
}

template <class K>
Task<Status> Sherman<K>::purge(Operation& op, Node<K> node) {
  Leaf<K> leaf = leaf_at(node.bytes());
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

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
