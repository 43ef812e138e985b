// Chime: how a leaf is split in which no key can hop, and bringing one in order whose writer died.
//
// The split key is the median of the keys that would have to hop: those in the new key's
// neighbourhood, and the new key itself. So each half gets about half of them, and the new key
// finds a free entry in its neighbourhood in whichever half it belongs to. Keys keep their places:
// the right leaf is a table of the same shape. docs/protocols/chime.md has the proof.
#pragma once

#include <algorithm>

#include "index/chime/chime.h"
#include "pool/pause.h"

namespace pando::index::chime {

template <class K>
Result<std::size_t> Chime<K>::split_at(const Leaf<K>& leaf, const std::vector<KeyAt>& keys,
                                       std::size_t added) {
  const LeafGeometry& geometry = options_.leaf;
  const std::size_t home = geometry.home_of(key_word(keys[added].key));
  entries_at_splits_.fetch_add(keys.size() - 1, std::memory_order_relaxed);
  std::size_t middle = added;  // keys that come in ascending order leave full leaves behind
  if (added + 1 < keys.size() || leaf.has(kHasHigh)) {
    std::vector<std::size_t> near;  // places in `keys` of those that would have to hop
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t slot = keys[i].slot;
      if (slot == kNewEntry || geometry.distance(home, slot) < geometry.neighbourhood) {
        near.push_back(i);
      }
    }
    middle = near[near.size() / 2];
    if (options_.leaf.ordered && near.size() > 1) {
      // They are neighbours in order, too. Any cut between them makes room.
      middle = std::clamp(split_point(keys.size(), added, false), near.front() + 1, near.back());
    }
  }
  std::size_t in_the_way = 0;  // entries near by that go where the new key goes, or are unreadable
  for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
    const auto at = std::ranges::find(keys, geometry.wrapped(home + d), &KeyAt::slot);
    const auto place = static_cast<std::size_t>(at - keys.begin());
    if (at == keys.end() || (place < middle) == (added < middle)) ++in_the_way;
  }
  if (middle == 0 || in_the_way == geometry.neighbourhood) {
    return fail(ErrorCode::kCorrupt, "items of a full leaf are unreadable");
  }
  return middle;
}

template <class K>
void Chime<K>::divide(Leaf<K> left, Leaf<K> right, const std::vector<KeyAt>& keys,
                      std::size_t middle, const NewEntry& entry) const {
  bool new_on_left = true;
  for (std::size_t i = middle; i < keys.size(); ++i) {
    if (keys[i].slot == kNewEntry) {
      new_on_left = false;
    } else {
      right.copy(keys[i].slot, left, keys[i].slot);
      right.enter(keys[i].slot);
      left.clear(keys[i].slot);
    }
  }
  Leaf<K> its_leaf = new_on_left ? left : right;
  const std::size_t place = its_leaf.free_place(options_.leaf.home_of(entry.word));
  set(its_leaf, place, entry);
  its_leaf.enter(place);
}

// A split's header comes before its entries. Where its writer died in between, readers of parts of
// the leaf read what was there before, and may have seen that the new key is missing. It is taken
// out of the right leaf before that can be found, or it would come to be long after its writer was
// shut out.
template <class K>
Task<Status> Chime<K>::undo_insert(Operation& op, Node<K> node) {
  const Leaf<K> left = leaf_at(node.bytes());
  if (left.agrees() || !left.has(kHasHigh)) co_return Status{};
  const NodeRef ref = left.sibling();
  const fabric::Buffer buffer = op.buffer(this->leaf_bytes());
  const Leaf<K> right = leaf_at(buffer.data());
  NodeLock lock(tree().locks());
  // Nobody wants it but who comes by an old pointer to its block, and leaves again.
  for (pool::Pause pause(op); !lock.held();) {
    const auto got =
        co_await tree().locks().try_lock(op, lock, tree().lock_target(ref, 0, buffer.data()));
    if (!got) co_return fail(got.error());
    if (*got) break;
    if (Status waited = co_await pause.wait("the lock of a leaf"); !waited) co_return waited;
  }
  const Verdict verdict = right.judge_header(tree().index_id(), 0, ref);
  std::vector<std::size_t> unseen;
  if (verdict == Verdict::kGood && left.was_being_split(right)) {
    for (std::size_t slot = 0; slot < right.capacity(); ++slot) {
      if (!right.empty(slot) && left.seen_without(right, slot)) unseen.push_back(slot);
    }
  }
  if (unseen.empty()) co_return co_await tree().locks().unlock(op, lock);
  co_return co_await take_out(op, ref, right, lock, unseen);
}

// Takes entries out of a locked leaf that nobody can have come to, and unlocks it.
template <class K>
Task<Status> Chime<K>::take_out(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                                const std::vector<std::size_t>& slots) {
  std::vector<pool::ItemPointer> items;
  for (const std::size_t slot : slots) {
    if (leaf.is_item(slot)) items.push_back(leaf.item(slot));
    leaf.clear(slot);
  }
  Result<std::vector<pool::Block>> blocks = co_await item_blocks(op, items);
  if (!blocks) co_return fail(blocks.error());
  if (Status done = co_await tree().repair(op, ref, leaf, lock); !done) co_return done;
  for (const pool::Block& block : *blocks) tree().compute_node().allocator().retire(block);
  co_return co_await tree().locks().unlock(op, lock);
}

// A writer that died may have left a key in two places, or bitmaps that do not fit.
template <class K>
Task<Status> Chime<K>::purge(Operation& op, Node<K> node) {
  Leaf<K> leaf = leaf_at(node.bytes());
  leaf.rebuild();
  co_return co_await Base::purge(op, node);
}

}  // namespace pando::index::chime
