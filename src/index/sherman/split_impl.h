// Sherman: how a full leaf is split.
//
// Entries stay in their lines (node.h); those of the upper half are cleared in the left leaf after
// its header has made them unreachable there.
#pragma once

#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
void Sherman<K>::divide(Leaf<K> left, Leaf<K> right, const std::vector<KeyAt>& keys,
                        std::size_t middle, const NewEntry& entry) const {
  bool new_on_left = true;
  for (std::size_t i = middle; i < keys.size(); ++i) {
    if (keys[i].slot == kNewEntry) {
      new_on_left = false;
      set(right, i - middle, entry);
    } else {
      right.copy(i - middle, left, keys[i].slot);
      left.clear(keys[i].slot);
    }
  }
  if (new_on_left) set(left, left.free_slot(), entry);
}

}  // namespace pando::index::sherman
