// Chime: splitting a leaf in which no key can hop, and bringing one in order whose writer died.
//
// The split key is the median of the keys that would have to hop: those in the new key's
// neighbourhood, and the new key itself. So each half gets about half of them, and the new key
// finds a free entry in its neighbourhood in whichever half it belongs to. Keys keep their places:
// the right leaf is a table of the same shape. docs/protocols/chime.md has the proof.
#include <algorithm>

#include "index/chime/chime.h"
#include "index/common/node_write.h"

namespace pando::index::chime {

template <class K>
Task<Status> Chime<K>::split(Operation& op, const Wanted& wanted, const NodeRef& ref, Leaf<K> leaf,
                             NodeLock& lock, const NewEntry& entry, bool& published) {
  constexpr std::size_t kNew = ~std::size_t{0};
  NodeLocks& locks = tree().locks();
  Result<std::vector<KeyAt>> sorted = co_await keys_of(op, leaf);
  if (!sorted) co_return fail(sorted.error());
  std::vector<KeyAt>& all = *sorted;
  entries_at_splits_.fetch_add(all.size(), std::memory_order_relaxed);
  const auto at = std::ranges::upper_bound(all, entry.key, {},
                                           [](const KeyAt& each) { return View(each.key); });
  const bool ascending = at == all.end() && !leaf.has(kHasHigh);
  const auto place_of_new = static_cast<std::size_t>(at - all.begin());
  all.insert(at, {Owned(entry.key), kNew});
  std::size_t middle =
      all.size() - 1;  // keys that come in ascending order leave full leaves behind
  if (!ascending) {
    std::vector<std::size_t> near;  // places in `all` of the keys that would have to hop
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t slot = all[i].slot;
      if (slot == kNew || options_.leaf.distance(wanted.home, slot) < options_.leaf.neighbourhood) {
        near.push_back(i);
      }
    }
    middle = near[near.size() / 2];
    if (options_.leaf.ordered && near.size() > 1) {
      // They are neighbours in order, too. Any cut between them makes room.
      middle =
          std::clamp(split_point(all.size(), place_of_new, false), near.front() + 1, near.back());
    }
  }
  std::size_t in_the_way = 0;  // entries near by that go where the new key goes, or are unreadable
  for (std::size_t d = 0; d < options_.leaf.neighbourhood; ++d) {
    const std::size_t slot = options_.leaf.wrapped(wanted.home + d);
    const auto its_place = std::ranges::find(all, slot, &KeyAt::slot);
    const auto index = static_cast<std::size_t>(its_place - all.begin());
    if (its_place == all.end() || (index < middle) == (place_of_new < middle)) ++in_the_way;
  }
  if (middle == 0 || in_the_way == options_.leaf.neighbourhood) {
    co_return fail(ErrorCode::kCorrupt, "items of a full leaf are unreadable");
  }
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
  const fabric::Buffer buffer = op.buffer(options_.leaf.bytes);
  Leaf<K> right = leaf_at(buffer.data());
  initialize_leaf(right, block->incarnation, *cell);
  if (!mutated(Mutant::kLostSibling)) right.set_sibling(leaf.sibling());
  if (leaf.has(kHasHigh)) right.set_high(leaf.high());
  bool new_on_left = true;
  for (std::size_t i = middle; i < all.size(); ++i) {
    if (all[i].slot == kNew) {
      new_on_left = false;
    } else {
      right.copy(all[i].slot, leaf, all[i].slot);
      right.enter(all[i].slot);
      leaf.clear(all[i].slot);
    }
  }
  Leaf<K> its_leaf = new_on_left ? leaf : right;
  const std::size_t place = its_leaf.free_place(wanted.home);
  set(its_leaf, place, entry);
  its_leaf.enter(place);
  right.set_version(block->incarnation);
  fabric::Batch first(op.cost());
  write_new(first, right_ref, Node<K>(right));
  locks.add_note(first, right_ref.address, right.vacancy());
  if (Status written = co_await op.submit(first); !written) {
    tree().node().allocator().release(*block);
    co_await tree().drop_cell(op, *cell, false);
    co_return written;
  }
  published = true;

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

// A writer that died may have left a key in two places, or bitmaps that do not fit.
template <class K>
Task<Status> Chime<K>::purge(Operation& op, Node<K> node) {
  Leaf<K> leaf = leaf_at(node.bytes());
  leaf.rebuild();
  co_return co_await Base::purge(op, node);
}

// Of the members, those defined in this file.
template class Chime<IntKeys>;
template class Chime<ByteKeys>;

}  // namespace pando::index::chime
