// Sherman: splitting a full leaf.
//
// Entries stay in their lines (node.h); those of the upper half are cleared in the left leaf after
// its header has made them unreachable there.
#include <algorithm>

#include "index/common/node_write.h"
#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
Task<Status> Sherman<K>::split(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                               const NewEntry& entry, bool& published) {
  constexpr std::size_t kNew = ~std::size_t{0};
  NodeLocks& locks = tree().locks();
  Result<std::vector<KeyAt>> sorted = co_await keys_of(op, leaf);
  if (!sorted) co_return fail(sorted.error());
  std::vector<KeyAt>& all = *sorted;
  const auto at = std::ranges::upper_bound(all, entry.key, {},
                                           [](const KeyAt& each) { return View(each.key); });
  const auto place = static_cast<std::size_t>(at - all.begin());
  all.insert(at, {Owned(entry.key), kNew});
  const std::size_t middle = split_point(all.size(), place, !leaf.has(kHasHigh));
  const Owned separator = K::separator(all[middle - 1].key, all[middle].key);

  Result<Cell> cell = co_await tree().make_cell(op, separator);
  Result<pool::Block> block =
      cell ? co_await tree().allocate(op, 0) : Result<pool::Block>(fail(cell.error()));
  if (!block) {
    if (cell) co_await tree().drop_cell(op, *cell, false);
    Status released = co_await locks.unlock(op, lock);
    co_return released ? fail(block.error()) : released;
  }
  const NodeRef right_ref(block->address, block->incarnation);
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  Leaf<K> right = leaf_at(buffer.data());
  initialize_leaf(right, block->incarnation, *cell);
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
  if (Status written = co_await op.submit(first); !written) {
    tree().node().allocator().release(*block);
    co_await tree().drop_cell(op, *cell, false);
    co_return written;
  }
  published = true;

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
  tree().write_split(second, ref, Node<K>(leaf), lock);
  Status written = co_await locks.write_and_unlock(op, second, lock);
  if (!written) co_return written;
  tree().count_split();
  // The key is in. Should posting fail, the next one to step right will see to it.
  co_await tree().post(op, 0, separator, *cell, right_ref);
  co_return Status{};
}

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
