// Chime leaves for tests: images of them, keys by their homes, and what chime's operations do to a
// leaf: the change, and the WRITEs that bring it to far memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "index/chime/hopscotch.h"
#include "index/chime/layout.h"

namespace pando::testing {

struct Shape {
  std::size_t span;
  std::size_t neighbourhood;
};
using Shapes = std::initializer_list<Shape>;

inline index::chime::LeafGeometry chime_geometry(std::size_t span, std::size_t neighbourhood,
                                                 std::size_t value_bytes = 8,
                                                 std::size_t header_lines = 1) {
  index::chime::LeafGeometry geometry;
  geometry.span = span;
  geometry.neighbourhood = neighbourhood;
  geometry.value_bytes = value_bytes;
  geometry.arrange(header_lines);
  return geometry;
}

// A leaf as chime makes a new one. The geometry must outlive it.
template <class K = index::IntKeys>
class LeafImage {
 public:
  static constexpr std::uint32_t kIncarnation = 77;

  explicit LeafImage(const index::chime::LeafGeometry& geometry)
      : geometry_(&geometry), bytes_(geometry.bytes) {
    view().initialize(3, 0, kIncarnation, K::cell(K::lowest()));
    view().clear_entries();
  }
  index::chime::Leaf<K> view() { return {bytes_.data(), *geometry_}; }
  std::vector<std::byte>& bytes() { return bytes_; }
  // An entry's slot, or a replica's, as bytes.
  std::byte* slot(std::size_t i) { return bytes_.data() + geometry_->entry[i]; }
  std::byte* replica(std::size_t r) { return bytes_.data() + geometry_->replica[r]; }
  friend bool operator==(const LeafImage& a, const LeafImage& b) { return a.bytes_ == b.bytes_; }

 private:
  const index::chime::LeafGeometry* geometry_;
  std::vector<std::byte> bytes_;
};

// A slot's fields, where layout.h says that they are.
inline constexpr std::size_t kStateAt = 0;  // 14 bits of version, 2 of tag
inline constexpr std::size_t kMovesAt = 2;
inline constexpr std::size_t kStampAt = 3;
inline constexpr std::size_t kBitmapAt = 4;

inline std::uint16_t state_in(const std::byte* slot) {
  return index::load<std::uint16_t>(slot + kStateAt);
}
inline unsigned bitmap_in(const index::chime::LeafGeometry& geometry, const std::byte* slot) {
  return geometry.neighbourhood <= 8 ? index::load<std::uint8_t>(slot + kBitmapAt)
                                     : index::load<std::uint16_t>(slot + kBitmapAt);
}

// What slots of this leaf should have as their version.
template <class K>
std::uint16_t slot_version(const index::chime::Leaf<K>& leaf) {
  return static_cast<std::uint16_t>(leaf.index::template Node<K>::version() &
                                    index::chime::Leaf<K>::kVersionMask);
}

// A key with the given home: another one for every `number`.
inline std::uint64_t key_at_home(const index::chime::LeafGeometry& geometry, std::size_t home,
                                 std::size_t number = 0) {
  for (std::uint64_t key = 1;; ++key) {
    if (geometry.home_of(key) == home && number-- == 0) return key;
  }
}

// A WRITE: what of the image it brings to far memory, cut into pieces that lie in one line each.
// Pieces of one WRITE land in any order, WRITEs of a batch one after the other.
struct Piece {
  std::size_t offset;
  std::size_t bytes;
};
using Write = std::vector<Piece>;

inline Write write_of(std::size_t offset, std::size_t bytes) {
  Write write;
  for (const std::size_t end = offset + bytes; offset < end;) {
    const std::size_t line_end = (offset / fabric::kLineBytes + 1) * fabric::kLineBytes;
    write.push_back({offset, std::min(line_end, end) - offset});
    offset = line_end;
  }
  return write;
}

// Of the entries from `first` to `last`, around the end: one WRITE, or two.
inline void add_entries(std::vector<Write>& writes, const index::chime::LeafGeometry& geometry,
                        std::size_t first, std::size_t last) {
  const auto add = [&](std::size_t from, std::size_t to) {
    const std::size_t begin = geometry.entry[from];
    writes.push_back(write_of(begin, geometry.entry[to] + geometry.slot_bytes - begin));
  };
  if (first <= last) {
    add(first, last);
  } else {
    add(first, geometry.span - 1);
    add(0, last);
  }
}

// An insert of a key that is not there, as long as it needs no split.
struct Insertion {
  std::size_t slot = 0;
  std::vector<std::size_t> moved_to;
  std::vector<Write> writes;
};
template <class K>
std::optional<Insertion> insert_into(index::chime::Leaf<K> leaf, std::uint64_t word,
                                     std::string_view value) {
  const index::chime::LeafGeometry& geometry = leaf.geometry();
  const std::size_t home = geometry.home_of(word);
  Insertion done;
  done.slot = leaf.free_place(home);
  if (done.slot == leaf.capacity()) {
    done.slot = make_room(leaf, home, geometry.span, done.moved_to);
  }
  if (done.slot == leaf.capacity()) return std::nullopt;
  leaf.set_value(done.slot, word, value);
  leaf.enter(done.slot);
  std::size_t last = done.slot;
  if (!done.moved_to.empty()) {
    for (const std::size_t each : done.moved_to) add_entries(done.writes, geometry, each, each);
    add_entries(done.writes, geometry, done.slot, done.slot);
    const std::size_t farthest = geometry.distance(home, done.moved_to.front());
    last = geometry.wrapped(home + std::min(farthest + geometry.neighbourhood, geometry.span) - 1);
  }
  add_entries(done.writes, geometry, home, last);
  return done;
}

// The split key of a leaf that has no room for one more: the median of that key and of those in its
// neighbourhood. Keys from it on go right.
inline std::uint64_t split_key(index::chime::Leaf<index::IntKeys> leaf, std::uint64_t key) {
  const index::chime::LeafGeometry& geometry = leaf.geometry();
  std::vector<std::uint64_t> near = {key};
  for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
    near.push_back(leaf.key_word(geometry.wrapped(geometry.home_of(key) + d)));
  }
  std::ranges::sort(near);
  return near[near.size() / 2];
}

}  // namespace pando::testing
