// The bytes of a chime leaf. docs/formats/chime.md draws them.
//
// A leaf is a hopscotch table. Behind the header that all nodes share (index/blink/node.h) come
// slots of equal size, none across the end of a line: one with a replica of the leaf's metadata
// before every `neighbourhood` entries. An entry's slot, with b = 1 byte for neighbourhoods of up
// to 8 entries, else 2:
//
//     0           2        3        4          4+b       12+b      12+b+v
//     | ver. tag  | moves  | stamp  | bitmap   | key     | value   |
//
//   version, tag   14 bits of the node version; 2 bits: empty, an item, a value of v bytes,
//                  a shorter one, whose length is its last byte
//   moves, bitmap  of the keys whose home this slot is: how often one of them has moved; where they
//                  stand, bit i for the entry i places further (around the end of the leaf)
//   stamp, key, value   of the key that stands here: `moves` of its home
//
// A key stands in one of the `neighbourhood` entries from its home on; the home is a hash of the
// key. A reader takes the slots of one neighbourhood and one replica at different moments, in any
// order. It believes them if (three levels)
//   1. all have the replica's version, and the replica is alive and of the reference's birth;
//   2. (each slot lies in one line, which the fabric never tears: no version of its own needed;)
//   3. the keys of this home stand exactly where the home's bitmap says, with the home's `moves`.
// Splits and merges change the version of every slot and replica. A key that moves for another to
// come in changes its home's `moves`, and the stamps of all keys of that home. Hence within one
// version and one count of moves no key of the home moves: a key that was there throughout was seen
// where it stood, and one that was not seen was not there at some moment of the READ. Bitmaps
// alone, as in the paper, do not prove that: see docs/protocols/chime.md.
//
// Versions and counts are compared for equality, and wrap: a READ would have to last for exactly a
// multiple of 2^14 splits and merges of one leaf, or of 2^8 moves of one home's keys, to be fooled.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/random.h"
#include "index/blink/node.h"
#include "index/common/node_locks.h"
#include "pool/memory/item.h"

namespace pando::index::chime {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::size_t kMinSpan = 8;
inline constexpr std::size_t kMaxSpan = 256;
inline constexpr std::size_t kMinNeighbourhood = 2;
inline constexpr std::size_t kMaxNeighbourhood = 16;
inline constexpr std::size_t kVacancyBits = 24;  // of the lock word's note
static_assert((1u << kVacancyBits) - 1 == NodeLock::kNoteMask);
// A slot must fit a line.
inline constexpr std::size_t kMaxInlineValue = kLineBytes - 8 - 6;

// Where things lie. arrange() after the choices.
struct LeafGeometry {
  std::size_t span = 64;
  std::size_t neighbourhood = 8;
  std::size_t value_bytes = 8;
  bool fences = false;   // replicas hold the high fence, not the sibling; integer keys only
  bool ordered = false;  // consecutive keys have consecutive homes

  std::size_t homes = 0;      // entries that are homes, if ordered: a prime number of them
  unsigned stretch_bits = 0;  // if ordered: keys that differ in these bits only lie in a row

  std::size_t bytes = 0;
  std::size_t slot_bytes = 0;
  std::size_t key_at = 0;                            // in a slot
  std::size_t half_empty_bits = 0;                   // of the vacancy map
  std::array<std::uint16_t, kMaxSpan> entry = {};    // offset of each entry's slot in the leaf
  std::array<std::uint16_t, kMaxSpan> replica = {};  // and of each replica's

  // REQUIRES: span a multiple of neighbourhood, all within the limits above.
  void arrange(std::size_t header_lines) {
    assert(span <= kMaxSpan && neighbourhood > 0 && span % neighbourhood == 0);
    const auto is_prime = [](std::size_t n) {
      for (std::size_t d = 2; d * d <= n; ++d) {
        if (n % d == 0) return false;
      }
      return true;
    };
    for (homes = span; !is_prime(homes);) --homes;
    stretch_bits = static_cast<unsigned>(std::bit_width(span - 1)) + 3;
    key_at = neighbourhood <= 8 ? 5 : 6;
    slot_bytes = key_at + 8 + value_bytes;
    const std::size_t per_line = kLineBytes / slot_bytes;
    std::size_t slot = 0;
    const auto next = [&] {
      const std::size_t line = header_lines + slot / per_line;
      const std::size_t at = line * kLineBytes + slot % per_line * slot_bytes;
      ++slot;
      bytes = (line + 1) * kLineBytes;
      return static_cast<std::uint16_t>(at);
    };
    for (std::size_t i = 0; i < span; ++i) {
      if (i % neighbourhood == 0) replica[i / neighbourhood] = next();
      entry[i] = next();
    }
    double expected = 0;  // of a half-empty leaf
    for (std::size_t bit = 0; bit < vacancy_bits(); ++bit) {
      const std::size_t covered = vacancy_last(bit) - vacancy_first(bit) + 1;
      expected += 1 - 1.0 / static_cast<double>(std::size_t{1} << covered);
    }
    half_empty_bits = static_cast<std::size_t>(expected);
  }
  std::size_t replicas() const { return span / neighbourhood; }
  // `to` - `from`, around the end.
  std::size_t distance(std::size_t from, std::size_t to) const {
    return to >= from ? to - from : to + span - from;
  }
  std::size_t wrapped(std::size_t i) const { return i < span ? i : i - span; }
  // A hash of the key. Ordered: in stretches of several leaves' width a key's home is the one after
  // its predecessor's, and where a stretch begins is a hash. Keys in even steps then have even
  // steps between their homes, unless the step is a multiple of a prime number.
  std::size_t home_of(std::uint64_t key_word) const {
    if (ordered) {
      const auto begin = static_cast<std::uint32_t>(base::mix64(key_word >> stretch_bits) >> 33);
      const auto place = static_cast<std::uint32_t>(key_word & ((1u << stretch_bits) - 1));
      return (begin + place) % static_cast<std::uint32_t>(homes);
    }
    return ((base::mix64(key_word) >> 32) * span) >> 32;
  }
  // The replica that parts() of a neighbourhood brings along.
  std::size_t replica_for(std::size_t home) const {
    return (home + neighbourhood - 1) / neighbourhood % replicas();
  }
  // The bytes of `count` entries from `first` on, around the end. Of a neighbourhood or more, they
  // hold replica_for(first).
  template <class Each>
  void for_each_part(std::size_t first, std::size_t count, Each each) const {
    const auto part = [&](std::size_t from, std::size_t last) {
      const std::size_t begin =
          from % neighbourhood == 0 ? replica[from / neighbourhood] : entry[from];
      each(begin, entry[last] + slot_bytes - begin);
    };
    const std::size_t end = first + std::min(count, span);
    part(first, std::min(end, span) - 1);
    if (end > span) part(0, end - span - 1);
  }

  // The vacancy map: each of its bits covers one or several entries, as evenly as can be. A bit of
  // 0 says that all of them are taken, 1 that one may be free.
  std::size_t vacancy_bits() const { return std::min(kVacancyBits, span); }
  std::size_t vacancy_bit(std::size_t i) const { return i * vacancy_bits() / span; }
  std::size_t vacancy_first(std::size_t bit) const {
    return (bit * span + vacancy_bits() - 1) / vacancy_bits();
  }
  std::size_t vacancy_last(std::size_t bit) const { return vacancy_first(bit + 1) - 1; }
  // Whether so many bits are 1 as in a leaf of which every other entry is taken, by chance.
  bool looks_half_empty(std::uint32_t vacancy) const {
    return static_cast<std::size_t>(std::popcount(vacancy)) >= half_empty_bits;
  }
};

enum class Tag : std::uint8_t { kEmpty, kItem, kFull, kShort };

template <class K>
class Leaf : public Node<K> {
 public:
  using Geometry = LeafGeometry;
  static constexpr std::uint16_t kVersionMask = (1u << 14) - 1;
  static constexpr std::uint16_t kReplicaDead = 1u << 14;
  static constexpr std::uint16_t kReplicaHasNext = 1u << 15;

  // `geometry` must outlive the view.
  Leaf(std::byte* bytes, const LeafGeometry& geometry)
      : Node<K>(bytes, geometry.bytes), geometry_(&geometry) {}

  const LeafGeometry& geometry() const { return *geometry_; }
  std::size_t capacity() const { return geometry_->span; }

  // --- Entries ---

  Tag tag(std::size_t i) const { return static_cast<Tag>(state(i) >> 14); }
  bool empty(std::size_t i) const { return tag(i) == Tag::kEmpty; }
  bool is_item(std::size_t i) const { return tag(i) == Tag::kItem; }
  std::uint64_t key_word(std::size_t i) const {
    return load<std::uint64_t>(slot(i) + geometry_->key_at);
  }
  std::uint16_t version(std::size_t i) const { return state(i) & kVersionMask; }
  std::size_t home_of(std::size_t i) const { return geometry_->home_of(key_word(i)); }
  // REQUIRES: is_item(i).
  pool::ItemPointer item(std::size_t i) const {
    assert(is_item(i));
    return pool::ItemPointer::from_raw(load<std::uint64_t>(value_at(i)));
  }
  // REQUIRES: neither empty nor an item.
  std::string_view value(std::size_t i) const {
    assert(!empty(i) && !is_item(i));
    const std::size_t size = geometry_->value_bytes;
    const std::size_t length =
        tag(i) == Tag::kFull
            ? size
            : std::min<std::size_t>(load<std::uint8_t>(value_at(i) + size - 1), size - 1);
    return {reinterpret_cast<const char*>(value_at(i)), length};
  }
  std::size_t live() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < capacity(); ++i) count += empty(i) ? 0u : 1u;
    return count;
  }
  bool same_entry(std::size_t a, std::size_t b) const {
    return key_word(a) == key_word(b) && (!is_item(a) || !is_item(b) || item(a) == item(b));
  }

  // Overwrite what stands in a slot; its home is told by enter() and leave().
  void set_item(std::size_t i, std::uint64_t word, pool::ItemPointer item) {
    store(slot(i) + geometry_->key_at, word);
    std::memset(value_at(i), 0, geometry_->value_bytes);
    store(value_at(i), item.raw());
    set_tag(i, Tag::kItem);
  }
  // REQUIRES: value.size() <= inline_value.
  void set_value(std::size_t i, std::uint64_t word, std::string_view value) {
    const std::size_t size = geometry_->value_bytes;
    assert(value.size() <= size);
    store(slot(i) + geometry_->key_at, word);
    std::memset(value_at(i), 0, size);
    std::ranges::copy(std::as_bytes(std::span(value)), value_at(i));
    if (value.size() < size) {
      store(value_at(i) + size - 1, static_cast<std::uint8_t>(value.size()));
    }
    set_tag(i, value.size() == size ? Tag::kFull : Tag::kShort);
  }
  // REQUIRES: same geometry; may be the same leaf.
  void copy(std::size_t i, const Leaf& from, std::size_t j) {
    assert(from.geometry_ == geometry_);
    std::memmove(slot(i) + geometry_->key_at, from.slot(j) + geometry_->key_at,
                 8 + geometry_->value_bytes);
    set_tag(i, from.tag(j));
  }
  // Tells the home of the key that has come to stand in slot i.
  void enter(std::size_t i) {
    const std::size_t home = home_of(i);
    set_bitmap(home, bitmap(home) | bit(home, i));
    set_stamp(i, moves(home));
  }
  void leave(std::size_t i) {
    const std::size_t home = home_of(i);
    set_bitmap(home, bitmap(home) & ~bit(home, i));
  }
  void clear(std::size_t i) {
    leave(i);
    set_tag(i, Tag::kEmpty);
  }
  // Moves a key to another, empty place of its neighbourhood. REQUIRES: all of the home's
  // neighbourhood is in the image.
  void move(std::size_t from, std::size_t to) {
    const std::size_t home = home_of(from);
    copy(to, *this, from);
    clear(from);
    set_moves(home, static_cast<std::uint8_t>(moves(home) + 1));
    set_bitmap(home, bitmap(home) | bit(home, to));
    for (std::size_t d = 0; d < geometry_->neighbourhood; ++d) {
      if ((bitmap(home) >> d & 1) != 0) set_stamp(geometry_->wrapped(home + d), moves(home));
    }
  }

  // --- Neighbourhoods ---

  // Whether the neighbourhood is of one version, and its keys stand where the home says.
  bool neighbourhood_agrees(std::size_t home, std::uint16_t expected) const {
    bool same = true;
    unsigned seen = 0;
    for (std::size_t d = 0; d < geometry_->neighbourhood; ++d) {
      const std::size_t i = geometry_->wrapped(home + d);
      same &= version(i) == expected;
      if (empty(i) || home_of(i) != home) continue;
      seen |= 1u << d;
      same &= stamp(i) == moves(home);
    }
    if (mutated(Mutant::kNoVersionCheck)) same = true;
    return same && (seen == bitmap(home) || mutated(Mutant::kNoBitmapCheck));
  }
  // The place of the key word in the neighbourhood, `after` places from its home or more; where
  // there is none, capacity().
  std::size_t find(std::size_t home, std::uint64_t word, std::size_t after = 0) const {
    for (std::size_t d = after; d < geometry_->neighbourhood; ++d) {
      const std::size_t i = geometry_->wrapped(home + d);
      if (key_word(i) == word && !empty(i)) return i;
    }
    return capacity();
  }
  std::size_t free_place(std::size_t home) const {
    for (std::size_t d = 0; d < geometry_->neighbourhood; ++d) {
      const std::size_t i = geometry_->wrapped(home + d);
      if (empty(i)) return i;
    }
    return capacity();
  }

  // The same of several homes at once, whose neighbourhoods are among the entries that were read.
  bool agrees(const std::bitset<kMaxSpan>& read, const std::bitset<kMaxSpan>& homes,
              std::uint16_t expected) const {
    std::array<std::uint16_t, kMaxSpan> seen = {};
    bool same = true;
    for (std::size_t i = 0; i < capacity(); ++i) {
      if (!read[i]) continue;
      same &= version(i) == expected;
      if (empty(i)) continue;
      const std::size_t home = home_of(i);
      if (!homes[home]) continue;
      const std::size_t d = geometry_->distance(home, i);
      if (d >= geometry_->neighbourhood) return false;
      seen[home] = static_cast<std::uint16_t>(seen[home] | 1u << d);
      same &= stamp(i) == moves(home);
    }
    if (mutated(Mutant::kNoVersionCheck)) same = true;
    if (mutated(Mutant::kNoBitmapCheck)) return same;
    for (std::size_t i = 0; i < capacity(); ++i) same &= !homes[i] || seen[i] == bitmap(i);
    return same;
  }

  // --- The whole leaf ---

  // Every line belongs to this version of the leaf, every key stands where its home says.
  bool agrees() const {
    const auto expected = static_cast<std::uint16_t>(Node<K>::version() & kVersionMask);
    bool same = true;
    for (std::size_t i = 1; i < K::kHeaderLines; ++i) {
      same &= this->node_version(i) == Node<K>::version();
    }
    for (std::size_t r = 0; r < geometry_->replicas(); ++r) {
      same &= (replica_state(r) & (kVersionMask | kReplicaDead)) == expected;
    }
    std::array<std::uint16_t, kMaxSpan> seen = {};
    for (std::size_t i = 0; i < capacity(); ++i) {
      same &= version(i) == expected;
      if (empty(i)) continue;
      const std::size_t home = home_of(i);
      const std::size_t d = geometry_->distance(home, i);
      if (d >= geometry_->neighbourhood) return false;
      seen[home] = static_cast<std::uint16_t>(seen[home] | 1u << d);
      same &= stamp(i) == moves(home);
    }
    if (mutated(Mutant::kNoVersionCheck)) same = true;
    if (mutated(Mutant::kNoBitmapCheck)) return same;
    for (std::size_t i = 0; i < capacity(); ++i) same &= seen[i] == bitmap(i);
    return same;
  }
  // After a writer died: bitmaps and stamps by where the keys stand. Of a key that stands twice, or
  // where it cannot be found, one place remains, or none.
  void rebuild() {
    for (std::size_t i = 0; i < capacity(); ++i) {
      set_bitmap(i, 0);
      set_moves(i, 0);
    }
    for (std::size_t i = 0; i < capacity(); ++i) {
      if (empty(i)) continue;
      const std::size_t home = home_of(i);
      bool keep = geometry_->distance(home, i) < geometry_->neighbourhood;
      for (std::size_t d = 0; d < geometry_->neighbourhood && keep; ++d) {
        const std::size_t j = geometry_->wrapped(home + d);
        keep = (bitmap(home) >> d & 1) == 0 || !same_entry(i, j);
      }
      if (keep) {
        enter(i);
      } else {
        set_tag(i, Tag::kEmpty);
      }
    }
  }
  // After a writer died, of a leaf whose header was written and some of whose slots were not:
  // whether it was being split, and `right` is what was split off. A replica that was not written
  // tells how far the leaf reached before: as far as `right` does. (Where all were written, no part
  // of the leaf reads as it was before.) One who repairs is further ahead (newest_version()): where
  // he died as well, he has seen to what readers saw, and entries that are missing here may have
  // gone to `right`.
  bool was_being_split(const Leaf& right) const {
    if (!this->has(kHasHigh) || this->high() != right.low()) return false;
    for (std::size_t r = 0; r < geometry_->replicas(); ++r) {
      if (replica_version(r) != version_before()) continue;
      if (geometry_->fences) {
        return replica_has_next(r) == right.has(kHasHigh) &&
               (!right.has(kHasHigh) || replica_fence(r) == right.fence_word());
      }
      return replica_sibling(r) == right.sibling();
    }
    return false;
  }
  // Whether readers of this leaf saw that the entry of `right` was not there: their part of the
  // leaf reads as before the split, which moved every other entry of `right` from here.
  bool seen_without(const Leaf& right, std::size_t slot) const {
    const std::size_t home = right.home_of(slot);
    for (std::size_t d = 0; d < geometry_->neighbourhood; ++d) {
      const std::size_t i = geometry_->wrapped(home + d);
      if (version(i) != version_before()) return false;
      const bool same = !empty(i) && key_word(i) == right.key_word(slot) &&
                        (!is_item(i) || !right.is_item(slot) || item(i) == right.item(slot));
      if (same) return false;
    }
    return true;
  }
  // Before the split whose header was written.
  std::uint16_t version_before() const {
    return static_cast<std::uint16_t>((header_version() - 1) & kVersionMask);
  }
  // The header's version and metadata, everywhere.
  void set_version(std::uint32_t version) {
    for (std::size_t i = 0; i < K::kHeaderLines; ++i) this->set_node_version(i, version);
    const auto low = static_cast<std::uint16_t>(version & kVersionMask);
    for (std::size_t i = 0; i < capacity(); ++i) {
      store(slot(i), static_cast<std::uint16_t>((state(i) & ~kVersionMask) | low));
    }
    const auto flags = static_cast<std::uint16_t>((this->has(kDead) ? kReplicaDead : 0u) |
                                                  (this->has(kHasHigh) ? kReplicaHasNext : 0u));
    for (std::size_t r = 0; r < geometry_->replicas(); ++r) {
      std::byte* at = this->bytes() + geometry_->replica[r];
      store(at, static_cast<std::uint16_t>(low | flags));
      store(at + 2, this->sibling().high());
      store(at + 4, this->birth());
      store(at + 8, geometry_->fences ? fence_word() : this->sibling().word());
    }
  }
  // A dead leaf has no entries. REQUIRES: the header is in place.
  void clear_entries() {
    std::memset(this->line(K::kHeaderLines), 0, this->size() - K::kHeaderLines * kLineBytes);
    set_version(Node<K>::version());
  }
  std::uint32_t vacancy() const {
    std::uint32_t map = 0;
    for (std::size_t i = 0; i < capacity(); ++i) {
      if (empty(i)) map |= std::uint32_t{1} << geometry_->vacancy_bit(i);
    }
    return map;
  }

  // --- Replicas ---

  std::uint16_t replica_version(std::size_t r) const { return replica_state(r) & kVersionMask; }
  bool replica_dead(std::size_t r) const { return (replica_state(r) & kReplicaDead) != 0; }
  bool replica_has_next(std::size_t r) const { return (replica_state(r) & kReplicaHasNext) != 0; }
  std::uint32_t replica_birth(std::size_t r) const {
    return load<std::uint32_t>(replica_at(r) + 4) & NodeRef::kBirthMask;
  }
  bool replica_agrees(std::size_t r) const {  // on how far the leaf reaches
    return geometry_->fences ? replica_fence(r) == fence_word()
                             : replica_sibling(r) == this->sibling();
  }
  // REQUIRES: replicas hold siblings.
  NodeRef replica_sibling(std::size_t r) const {
    assert(!geometry_->fences);
    return NodeRef::decode(load<std::uint64_t>(replica_at(r) + 8),
                           load<std::uint16_t>(replica_at(r) + 2));
  }
  // REQUIRES: replicas hold fences.
  std::uint64_t replica_fence(std::size_t r) const {
    assert(geometry_->fences);
    return load<std::uint64_t>(replica_at(r) + 8);
  }

 private:
  std::uint16_t header_version() const {
    return static_cast<std::uint16_t>(Node<K>::version() & kVersionMask);
  }
  std::byte* slot(std::size_t i) const { return this->bytes() + geometry_->entry[i]; }
  std::byte* value_at(std::size_t i) const { return slot(i) + geometry_->key_at + 8; }
  std::byte* replica_at(std::size_t r) const { return this->bytes() + geometry_->replica[r]; }
  std::uint16_t replica_state(std::size_t r) const { return load<std::uint16_t>(replica_at(r)); }
  std::uint16_t state(std::size_t i) const { return load<std::uint16_t>(slot(i)); }
  std::uint8_t moves(std::size_t i) const { return load<std::uint8_t>(slot(i) + 2); }
  std::uint8_t stamp(std::size_t i) const { return load<std::uint8_t>(slot(i) + 3); }
  unsigned bitmap(std::size_t i) const {
    return geometry_->key_at == 5 ? load<std::uint8_t>(slot(i) + 4)
                                  : load<std::uint16_t>(slot(i) + 4);
  }
  unsigned bit(std::size_t home, std::size_t i) const { return 1u << geometry_->distance(home, i); }
  void set_tag(std::size_t i, Tag tag) {
    store(slot(i),
          static_cast<std::uint16_t>((state(i) & kVersionMask) | static_cast<unsigned>(tag) << 14));
  }
  void set_moves(std::size_t i, std::uint8_t moves) { store(slot(i) + 2, moves); }
  void set_stamp(std::size_t i, std::uint8_t stamp) { store(slot(i) + 3, stamp); }
  void set_bitmap(std::size_t i, unsigned bitmap) {
    if (geometry_->key_at == 5) {
      store(slot(i) + 4, static_cast<std::uint8_t>(bitmap));
    } else {
      store(slot(i) + 4, static_cast<std::uint16_t>(bitmap));
    }
  }
  std::uint64_t fence_word() const {
    if constexpr (K::kType == KeyType::kInteger) {
      return K::short_key(this->high());
    } else {
      return 0;
    }
  }

  const LeafGeometry* geometry_;
};

}  // namespace pando::index::chime
