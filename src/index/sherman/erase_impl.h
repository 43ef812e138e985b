// Sherman: erase, and leaves that become one.
#pragma once

#include "index/blink/node_write.h"
#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
Task<Status> Sherman<K>::erase(Operation& op, Key key) {
  const View wanted = K::view(key);
  const Unverified<Leaf<K>> image = new_image(op);
  NodeLock lock(tree().locks());
  Result<Found<K>> found = co_await tree().lock(op, wanted, 0, image.bytes(), lock);
  if (!found) co_return fail(found.error());
  Leaf<K> leaf = image.believed();
  Result<std::optional<Match>> match = co_await find_in(op, leaf, wanted);
  if (!match) co_return fail(match.error());
  if (!*match) {
    Status status = co_await tree().locks().unlock(op, lock);
    co_return status ? fail(ErrorCode::kNotFound) : status;
  }
  const std::size_t slot = (*match)->slot;
  const pool::ItemPointer had = item_of(leaf, slot);
  leaf.clear(slot);
  fabric::Batch batch(op.cost());
  write_line(batch, found->node, Node<K>(leaf), leaf.line_of(slot));
  Status status = co_await write_and_retire(op, batch, lock, had, (*match)->item);
  if (!status) co_return status;
  // The key is gone, whatever becomes of the tidying.
  if (worth_merging(leaf)) co_await tree().merge(op, 0, wanted);
  if (found->unposted) co_await tree().post_found(op, 0, *found);
  co_return Status{};
}

template <class K>
bool Sherman<K>::absorb(Node<K> left_node, Node<K> right_node) {
  Leaf<K> left = leaf_at(left_node.bytes());
  Leaf<K> right = leaf_at(right_node.bytes());
  if (!worth_absorbing(left.live(), right.live(), left.capacity())) return false;
  std::size_t place = 0;
  for (std::size_t slot = 0; slot < right.capacity(); ++slot) {
    if (right.empty(slot)) continue;
    while (!left.empty(place)) ++place;
    left.copy(place, right, slot);
  }
  return true;
}

}  // namespace pando::index::sherman
