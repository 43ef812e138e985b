// Hopscotch: keys that move so that another finds room near its home.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "index/chime/layout.h"

namespace pando::index::chime {

// Frees a place in the neighbourhood of `home`, in an image of a locked leaf that has the `known`
// entries from `home` on. Looks for the nearest free entry beyond the neighbourhood, and as long as
// it is too far, moves the farthest key into it that may stand there.
//
// Where that is possible, returns the place that became free and appends the slots that keys moved
// to, in the order in which they must be written: each before the slot that its key comes from is
// overwritten, so that no key is missing at any moment. Else returns capacity(), with the image
// unchanged.
//
// A moved key's home, and all that its other keys stand in, lie between `home` and a neighbourhood
// beyond the free entry: `known` must reach that far for a free entry to be considered.
template <class K>
std::size_t make_room(Leaf<K> leaf, std::size_t home, std::size_t known,
                      std::vector<std::size_t>& moved_to) {
  const LeafGeometry& geometry = leaf.geometry();
  const std::size_t reach = geometry.neighbourhood;
  const auto at = [&](std::size_t distance) { return geometry.wrapped(home + distance); };
  const std::size_t limit =
      known >= geometry.span ? geometry.span : known - std::min(known, reach - 1);
  std::size_t free_distance = reach;
  while (free_distance < limit && !leaf.empty(at(free_distance))) ++free_distance;
  if (free_distance >= limit) return leaf.capacity();

  struct Move {
    std::size_t from;
    std::size_t to;
  };
  std::vector<Move> moves;
  while (free_distance >= reach) {
    const std::size_t to = at(free_distance);
    std::size_t from_distance = free_distance - (reach - 1);
    while (from_distance < free_distance &&
           geometry.distance(leaf.home_of(at(from_distance)), to) >= reach) {
      ++from_distance;
    }
    if (from_distance == free_distance) return leaf.capacity();
    moves.push_back({at(from_distance), to});
    free_distance = from_distance;
  }
  for (const Move& move : moves) {
    leaf.move(move.from, move.to);
    moved_to.push_back(move.to);
  }
  return at(free_distance);
}

}  // namespace pando::index::chime
