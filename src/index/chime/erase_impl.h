// Chime: erase, and leaves that become one.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "index/chime/chime.h"

namespace pando::index::chime {

template <class K>
Task<Status> Chime<K>::erase(Operation& op, Key key) {
  const Wanted wanted = want(K::view(key));
  const Unverified<Leaf<K>> image = new_image(op);
  NodeLock lock(tree().locks());
  Result<Seen> seen = co_await this->lock(op, wanted, Purpose::kErase, image, lock);
  if (!seen) co_return fail(seen.error());
  Leaf<K> leaf = seen->leaf;
  Result<std::optional<Match>> match = co_await find_in(op, wanted, *seen);
  if (!match) co_return fail(match.error());
  if (!*match) {
    Status status = co_await tree().locks().unlock(op, lock);
    co_return status ? fail(ErrorCode::kNotFound) : status;
  }
  const std::size_t slot = (*match)->slot;
  const pool::ItemPointer had = item_of(leaf, slot);
  leaf.clear(slot);
  fabric::Batch batch(op.cost());
  write_entries(batch, seen->ref, leaf, wanted.home, slot);
  lock.set_note(lock.note() | std::uint32_t{1} << options_.leaf.vacancy_bit(slot));
  const bool airy = options_.leaf.looks_half_empty(lock.note());
  Status status = co_await write_and_retire(op, batch, lock, had, (*match)->item);
  if (!status) co_return status;
  // The key is gone, whatever becomes of the tidying. How empty the leaf is takes a READ of it:
  // done where the vacancy map looks like it, and then for one entry in eight, or where there is no
  // key near by.
  const bool last = !leaf.replica_has_next(options_.leaf.replica_for(wanted.home));
  if (options_.merge && airy && !last) {
    bool lonely = true;
    for (std::size_t d = 0; d < options_.leaf.neighbourhood && lonely; ++d) {
      lonely = leaf.empty(options_.leaf.wrapped(wanted.home + d));
    }
    if (lonely || slot % 8 == 0) {
      Result<bool> merge = co_await emptied(op, seen->ref, image);
      if (merge && *merge) co_await tree().merge(op, 0, wanted.key);
    }
  }
  if (seen->found && seen->found->unposted) co_await tree().post_found(op, 0, *seen->found);
  co_return Status{};
}

// Whether the leaf is worth merging, as far as one can tell without its lock.
template <class K>
Task<Result<bool>> Chime<K>::emptied(Operation& op, const NodeRef& ref,
                                     const Unverified<Leaf<K>>& image) {
  fabric::Batch batch(op.cost());
  batch.read(ref.address, image.bytes(), options_.leaf.bytes);
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  const auto leaf = image.believe([&](Leaf<K> seen) { return tree().judge(seen, 0, ref); });
  co_return leaf && leaf->has(kHasHigh) && leaf->live() <= leaf->capacity() / 2;
}

// Keys of the left leaf stay where they are: were they to move, a merger that dies while the leaf
// is written could lose one. Those of the right leaf take what is free in their neighbourhoods;
// where it is taken by another of them, that one may go elsewhere (a matching, by augmenting
// paths).
template <class K>
bool Chime<K>::absorb(Node<K> left_node, Node<K> right_node) {
  constexpr std::size_t kNone = ~std::size_t{0};
  const LeafGeometry& geometry = options_.leaf;
  Leaf<K> left = leaf_at(left_node.bytes());
  const Leaf<K> right = leaf_at(right_node.bytes());
  if (!worth_absorbing(left.live(), right.live(), left.capacity())) return false;
  std::array<std::size_t, kMaxSpan> taken_by;  // by place in the left leaf: place in the right one
  taken_by.fill(kNone);
  std::array<bool, kMaxSpan> tried = {};
  const auto find_place = [&](auto& self, std::size_t from) -> bool {
    const std::size_t home = right.home_of(from);
    for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
      const std::size_t place = geometry.wrapped(home + d);
      if (tried[place] || !left.empty(place)) continue;
      tried[place] = true;
      if (taken_by[place] != kNone && !self(self, taken_by[place])) continue;
      taken_by[place] = from;
      return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < right.capacity(); ++i) {
    if (right.empty(i)) continue;
    tried.fill(false);
    if (!find_place(find_place, i)) return false;
  }
  for (std::size_t place = 0; place < left.capacity(); ++place) {
    if (taken_by[place] == kNone) continue;
    left.copy(place, right, taken_by[place]);
    left.enter(place);
  }
  return true;
}

}  // namespace pando::index::chime
