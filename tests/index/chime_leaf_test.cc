// Chime's leaves: where things lie, what a leaf holds, and what it notices.
#include "support/chime_leaf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "index/chime/layout.h"
#include "support/scale.h"

namespace pando::index::chime {
namespace {

using base::Random;
using testing::bitmap_in;
using testing::chime_geometry;
using testing::insert_into;
using testing::kBitmapAt;
using testing::key_at_home;
using testing::kMovesAt;
using testing::kStampAt;
using testing::kStateAt;
using testing::LeafImage;
using testing::Shapes;
using testing::slot_version;
using testing::state_in;

using Sizes = std::initializer_list<std::size_t>;

void flip(std::byte* slot, std::size_t at, unsigned bits) {
  slot[at] ^= static_cast<std::byte>(bits);
}
void flip_bitmap(std::byte* slot, std::size_t distance) {
  flip(slot, kBitmapAt + distance / 8, 1u << distance % 8);
}

// --- Where things lie ---

template <class Each>
void for_each_shape(Each each) {
  for (std::size_t span = kMinSpan; span <= kMaxSpan; ++span) {
    for (std::size_t n = kMinNeighbourhood; n <= std::min(kMaxNeighbourhood, span); ++n) {
      if (span % n == 0) each(span, n);
    }
  }
}

TEST(ChimeGeometry, OfTheDefaults) {
  LeafGeometry geometry;
  geometry.arrange(IntKeys::kHeaderLines);
  EXPECT_EQ(geometry.span, 64);
  EXPECT_EQ(geometry.neighbourhood, 8);
  EXPECT_EQ(geometry.replicas(), 8);
  EXPECT_EQ(geometry.slot_bytes, 21);
  EXPECT_EQ(geometry.key_at, 5);
  EXPECT_EQ(geometry.bytes, 1600);
  // A header line, then three slots a line: a replica, eight entries, and so on.
  EXPECT_EQ(geometry.replica[0], 64);
  EXPECT_EQ(geometry.entry[0], 64 + 21);
  EXPECT_EQ(geometry.entry[1], 64 + 42);
  EXPECT_EQ(geometry.entry[2], 128);
  EXPECT_EQ(geometry.entry[7], 192 + 42);
  EXPECT_EQ(geometry.replica[1], 256);
  EXPECT_EQ(geometry.entry[8], 256 + 21);
  EXPECT_EQ(geometry.replica[7], 64 + 7 * 192);
  EXPECT_EQ(geometry.entry[63], 1600 - 64 + 42);
  geometry.arrange(ByteKeys::kHeaderLines);
  EXPECT_EQ(geometry.bytes, 1664);
  EXPECT_EQ(geometry.replica[0], 128);
  EXPECT_EQ(geometry.entry[63], 1664 - 64 + 42);
}

TEST(ChimeGeometry, NoSlotCrossesALine) {
  for_each_shape([](std::size_t span, std::size_t n) {
    for (std::size_t value_bytes = 8; value_bytes <= kMaxInlineValue; ++value_bytes) {
      for (const std::size_t header_lines : {IntKeys::kHeaderLines, ByteKeys::kHeaderLines}) {
        const LeafGeometry geometry = chime_geometry(span, n, value_bytes, header_lines);
        std::size_t end = header_lines * kLineBytes;
        bool good = geometry.bytes % kLineBytes == 0;
        const auto next = [&](std::size_t at) {
          good &= at >= end;
          good &= at / kLineBytes == (at + geometry.slot_bytes - 1) / kLineBytes;
          end = at + geometry.slot_bytes;
        };
        for (std::size_t i = 0; i < span; ++i) {
          if (i % n == 0) next(geometry.replica[i / n]);
          next(geometry.entry[i]);
        }
        good &= end <= geometry.bytes && geometry.bytes - end < kLineBytes;
        // What a slot and a replica must hold.
        good &= geometry.slot_bytes >= geometry.key_at + 8 + value_bytes;
        good &= geometry.key_at >= kBitmapAt + (n + 7) / 8 && geometry.slot_bytes >= 16;
        ASSERT_TRUE(good) << "span " << span << ", neighbourhood " << n << ", values of "
                          << value_bytes << " bytes, " << header_lines << " header lines";
      }
    }
  });
}

TEST(ChimeGeometry, APointReadIsThreeLinesLong) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  for (std::size_t home = 0; home < geometry.span; ++home) {
    std::size_t sum = 0;
    geometry.for_each_part(home, geometry.neighbourhood,
                           [&](std::size_t, std::size_t bytes) { sum += bytes; });
    EXPECT_LE(sum, 192) << "home " << home;
  }
}

TEST(ChimeGeometry, PartsHoldTheEntriesAndAReplica) {
  Random random(1);
  for_each_shape([&](std::size_t span, std::size_t n) {
    for (const std::size_t value_bytes : {std::size_t{8}, std::size_t{13}, kMaxInlineValue}) {
      const LeafGeometry geometry = chime_geometry(span, n, value_bytes);
      for (std::size_t home = 0; home < span; ++home) {
        for (const std::size_t count : {n, std::min(span, n + random.below(span)), span}) {
          std::array<std::pair<std::size_t, std::size_t>, 2> parts{};  // begin and end
          std::size_t parts_count = 0;
          geometry.for_each_part(home, count, [&](std::size_t offset, std::size_t bytes) {
            if (parts_count < 2) parts[parts_count] = {offset, offset + bytes};
            ++parts_count;
          });
          const auto inside = [&](std::size_t at) {
            return std::ranges::any_of(parts, [&](const auto& part) {
              return part.first <= at && at + geometry.slot_bytes <= part.second;
            });
          };
          bool good = parts_count == (home + count > span ? 2 : 1);
          for (std::size_t d = 0; d < count; ++d) {
            good &= inside(geometry.entry[(home + d) % span]);
          }
          good &= geometry.replica_for(home) < geometry.replicas();
          good &= inside(geometry.replica[geometry.replica_for(home)]);
          good &= parts[0].second <= geometry.bytes && parts[1].second <= geometry.bytes;
          good &= parts[0].first >= kLineBytes;
          // No byte twice.
          good &= parts_count < 2 || parts[1].second <= parts[0].first;
          ASSERT_TRUE(good) << "span " << span << ", neighbourhood " << n << ", home " << home
                            << ", count " << count;
        }
      }
    }
  });
}

TEST(ChimeGeometry, HomesAreEvenAndWithin) {
  for (const std::size_t span : Sizes{8, 64, 256}) {
    const LeafGeometry geometry = chime_geometry(span, 8);
    std::vector<std::size_t> count(span, 0);
    for (std::uint64_t key = 0; key < 1000 * span; ++key) {
      const std::size_t home = geometry.home_of(key);
      ASSERT_LT(home, span);
      ++count[home];
    }
    EXPECT_GT(*std::ranges::min_element(count), 800);
    EXPECT_LT(*std::ranges::max_element(count), 1200);
  }
}

TEST(ChimeGeometry, DistancesGoAroundTheEnd) {
  const LeafGeometry geometry = chime_geometry(24, 8);
  for (std::size_t from = 0; from < 24; ++from) {
    for (std::size_t d = 0; d < 24; ++d) {
      EXPECT_EQ(geometry.wrapped(from + d), (from + d) % 24);
      EXPECT_EQ(geometry.distance(from, geometry.wrapped(from + d)), d);
    }
  }
}

TEST(ChimeGeometry, EveryEntryHasItsVacancyBit) {
  for_each_shape([](std::size_t span, std::size_t n) {
    const LeafGeometry geometry = chime_geometry(span, n);
    const std::size_t bits = geometry.vacancy_bits();
    ASSERT_LE(bits, kVacancyBits);
    ASSERT_LE((std::uint64_t{1} << bits) - 1, NodeLock::kNoteMask);
    std::size_t next = 0;  // the first entry that no bit has covered so far
    for (std::size_t bit = 0; bit < bits; ++bit) {
      ASSERT_EQ(geometry.vacancy_first(bit), next) << "span " << span << ", bit " << bit;
      const std::size_t covered = geometry.vacancy_last(bit) + 1 - next;
      ASSERT_GE(covered, span / bits) << "span " << span << ", bit " << bit;
      ASSERT_LE(covered, (span + bits - 1) / bits) << "span " << span << ", bit " << bit;
      for (; next <= geometry.vacancy_last(bit); ++next) {
        ASSERT_EQ(geometry.vacancy_bit(next), bit) << "span " << span << ", entry " << next;
      }
    }
    ASSERT_EQ(next, span);
  });
}

// --- What a leaf holds ---

// A leaf with about so many random keys; each has its number as its value.
using Model = std::map<std::uint64_t, std::string>;

Model fill(Leaf<IntKeys> leaf, std::size_t keys, Random& random) {
  Model model;
  for (std::size_t i = 0; i < keys; ++i) {
    const std::uint64_t key = random.next();
    const std::string value = std::to_string(i);
    if (insert_into(leaf, key, value)) model[key] = value;
  }
  return model;
}

// The keys, each once and where it can be found.
Model contents(Leaf<IntKeys> leaf) {
  Model model;
  for (std::size_t i = 0; i < leaf.capacity(); ++i) {
    if (leaf.empty(i)) continue;
    EXPECT_EQ(leaf.find(leaf.home_of(i), leaf.key_word(i)), i) << "stands twice, or too far";
    EXPECT_TRUE(model.emplace(leaf.key_word(i), leaf.value(i)).second) << "stands twice";
  }
  return model;
}

TEST(ChimeLeaf, IsEmptyAndAgreesWhenNew) {
  for_each_shape([](std::size_t span, std::size_t n) {
    const LeafGeometry geometry = chime_geometry(span, n);
    LeafImage image(geometry);
    const Leaf<IntKeys> leaf = image.view();
    EXPECT_EQ(leaf.capacity(), span);
    EXPECT_EQ(leaf.live(), 0);
    EXPECT_TRUE(leaf.agrees());
    EXPECT_EQ(leaf.vacancy(), (std::uint64_t{1} << geometry.vacancy_bits()) - 1);
    for (std::size_t home = 0; home < span; ++home) {
      EXPECT_TRUE(leaf.neighbourhood_agrees(home, slot_version(leaf)));
      EXPECT_FALSE(
          leaf.neighbourhood_agrees(home, static_cast<std::uint16_t>(slot_version(leaf) + 1)));
      EXPECT_EQ(leaf.free_place(home), home);
      EXPECT_EQ(leaf.find(home, 0), span) << "an empty slot is no key of 0";
    }
  });
}

TEST(ChimeLeaf, KeepsValuesOfEveryLength) {
  for (std::size_t value_bytes = 8; value_bytes <= kMaxInlineValue; ++value_bytes) {
    for (const std::size_t n : Sizes{8, 16}) {
      const LeafGeometry geometry = chime_geometry(16, n, value_bytes);
      for (const char fill : {'\0', '\xff', 'x'}) {
        LeafImage image(geometry);
        Leaf<IntKeys> leaf = image.view();
        const LeafImage fresh = image;
        for (std::size_t length = 0; length <= value_bytes; ++length) {
          const std::size_t i = length % 16;
          const std::uint64_t word = ~std::uint64_t{0} - length;
          const std::string value(length, fill);
          leaf.set_value(i, word, value);
          ASSERT_EQ(leaf.value(i), value) << length << " of " << value_bytes;
          ASSERT_EQ(leaf.key_word(i), word);
          ASSERT_FALSE(leaf.empty(i));
          ASSERT_FALSE(leaf.is_item(i));
          ASSERT_EQ(leaf.version(i), slot_version(leaf));
        }
        // And nothing else: not the neighbours, not the homes.
        for (std::size_t i = 0; i < 16; ++i) {
          for (const std::size_t at : {kMovesAt, kStampAt, kBitmapAt}) {
            ASSERT_EQ(image.slot(i)[at], std::byte{0});
          }
          std::memcpy(image.slot(i), LeafImage(fresh).slot(i), geometry.slot_bytes);
        }
        ASSERT_TRUE(image == fresh);
      }
    }
  }
}

TEST(ChimeLeaf, KeepsItems) {
  for (const std::size_t value_bytes : Sizes{8, 9, 50}) {
    const LeafGeometry geometry = chime_geometry(16, 8, value_bytes);
    LeafImage image(geometry);
    Leaf<IntKeys> leaf = image.view();
    const auto item = pool::ItemPointer::from_raw(0xfedc'ba98'7654'3210);
    leaf.set_value(5, 1, std::string(value_bytes, '\xff'));
    leaf.set_item(5, 2, item);
    EXPECT_TRUE(leaf.is_item(5));
    EXPECT_FALSE(leaf.empty(5));
    EXPECT_EQ(leaf.item(5), item);
    EXPECT_EQ(leaf.key_word(5), 2);
    leaf.copy(6, leaf, 5);
    EXPECT_TRUE(leaf.same_entry(5, 6));
    leaf.set_item(6, 2, pool::ItemPointer::from_raw(64));
    EXPECT_FALSE(leaf.same_entry(5, 6)) << "two byte-string keys with one hash";
    leaf.set_value(6, 2, "v");
    EXPECT_EQ(leaf.value(6), "v");
    EXPECT_FALSE(leaf.is_item(6));
  }
}

// The picture in layout.h.
TEST(ChimeLeaf, SlotsLookAsDrawn) {
  for (const std::size_t n : Sizes{8, 16}) {
    const LeafGeometry geometry = chime_geometry(32, n);
    LeafImage image(geometry);
    Leaf<IntKeys> leaf = image.view();
    leaf.set_version(0x1234'5678);
    const std::uint64_t key = key_at_home(geometry, 30, 0);
    const std::uint64_t another = key_at_home(geometry, 30, 1);
    ASSERT_EQ(insert_into(leaf, key, "12345678")->slot, 30);
    ASSERT_EQ(insert_into(leaf, another, "123")->slot, 31);
    const std::size_t key_at = n == 8 ? 5 : 6;
    EXPECT_EQ(state_in(image.slot(29)), 0x1678) << "empty";
    EXPECT_EQ(state_in(image.slot(30)), 0x1678 | 2u << 14) << "a value of v bytes";
    EXPECT_EQ(state_in(image.slot(31)), 0x1678 | 3u << 14) << "a shorter one";
    EXPECT_EQ(bitmap_in(geometry, image.slot(30)), 0b11);
    EXPECT_EQ(bitmap_in(geometry, image.slot(31)), 0);
    EXPECT_EQ(load<std::uint64_t>(image.slot(31) + key_at), another);
    EXPECT_EQ(std::memcmp(image.slot(30) + key_at + 8, "12345678", 8), 0);
    EXPECT_EQ(std::memcmp(image.slot(31) + key_at + 8, "123\0\0\0\0\3", 8), 0);
    // Around the end, and the count of moves.
    leaf.move(30, 1);
    EXPECT_EQ(state_in(image.slot(30)), 0x1678);
    EXPECT_EQ(bitmap_in(geometry, image.slot(30)), 0b1010);
    for (const auto& [slot, at] : {std::pair{30, kMovesAt}, {31, kStampAt}, {1, kStampAt}}) {
      EXPECT_EQ(image.slot(static_cast<std::size_t>(slot))[at], std::byte{1});
    }
    leaf.set_item(31, another, pool::ItemPointer::from_raw(64));
    EXPECT_EQ(state_in(image.slot(31)), 0x1678 | 1u << 14) << "an item";
    EXPECT_TRUE(leaf.agrees());
  }
}

// Whatever comes, goes, moves or is overwritten.
TEST(ChimeLeaf, AgreesThroughoutItsLife) {
  for (const auto& [span, n] : Shapes{{8, 8}, {16, 4}, {64, 8}, {64, 16}, {250, 10}}) {
    const LeafGeometry geometry = chime_geometry(span, n, 11);
    for (std::uint64_t seed = 0; seed < testing::scaled(20, 2); ++seed) {
      SCOPED_TRACE(::testing::Message() << span << "/" << n << ", seed " << seed);
      Random random(seed);
      LeafImage image(geometry);
      Leaf<IntKeys> leaf = image.view();
      Model model = fill(leaf, geometry.span / 2, random);
      for (int step = 0; step < 200; ++step) {
        const std::size_t i = random.below(geometry.span);
        if (leaf.empty(i)) {
          // A key that may stand here.
          std::uint64_t key = 0;
          do {
            key = random.next();
          } while (geometry.distance(geometry.home_of(key), i) >= geometry.neighbourhood);
          model[key] = std::to_string(step);
          leaf.set_value(i, key, model[key]);
          leaf.enter(i);
        } else {
          const std::uint64_t key = leaf.key_word(i);
          const std::size_t to =
              geometry.wrapped(leaf.home_of(i) + random.below(geometry.neighbourhood));
          switch (random.below(4)) {
            case 0:
              leaf.clear(i);
              model.erase(key);
              break;
            case 1:
              model[key] = std::string(random.below(12), 'u');
              leaf.set_value(i, key, model[key]);
              break;
            default:
              if (leaf.empty(to)) leaf.move(i, to);
          }
        }
        if (random.below(20) == 0) leaf.set_version(static_cast<std::uint32_t>(random.next()));
        ASSERT_TRUE(leaf.agrees()) << "step " << step;
        for (std::size_t home = 0; home < geometry.span; ++home) {
          ASSERT_TRUE(leaf.neighbourhood_agrees(home, slot_version(leaf))) << "home " << home;
        }
      }
      EXPECT_EQ(contents(leaf), model);
      EXPECT_EQ(leaf.live(), model.size());
    }
  }
}

// A key that leaves without a trace, and enters elsewhere: what clear() and move() consist of.
TEST(ChimeLeaf, HomesAreToldByEnterAndLeave) {
  const LeafGeometry geometry = chime_geometry(16, 4);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  leaf.set_value(3, key_at_home(geometry, 1), "v");
  EXPECT_FALSE(leaf.agrees()) << "its home was not told";
  leaf.enter(3);
  EXPECT_TRUE(leaf.agrees());
  EXPECT_EQ(bitmap_in(geometry, image.slot(1)), 0b100);
  leaf.leave(3);
  EXPECT_FALSE(leaf.agrees());
  leaf.enter(3);
  leaf.clear(3);
  EXPECT_TRUE(leaf.agrees());
  EXPECT_EQ(bitmap_in(geometry, image.slot(1)), 0);
}

TEST(ChimeLeaf, FindsOneAfterTheOther) {
  // Byte-string keys with one hash, of different items.
  const LeafGeometry geometry = chime_geometry(16, 8, 8, ByteKeys::kHeaderLines);
  LeafImage<ByteKeys> image(geometry);
  Leaf<ByteKeys> leaf = image.view();
  const std::uint64_t word = key_at_home(geometry, 13);
  for (const std::size_t i : Sizes{14, 0, 4}) {
    leaf.set_item(i, word, pool::ItemPointer::from_raw(64 + i));
    leaf.enter(i);
  }
  EXPECT_TRUE(leaf.agrees());
  EXPECT_EQ(leaf.find(13, word), 14);
  EXPECT_EQ(leaf.find(13, word, 1), 14);
  EXPECT_EQ(leaf.find(13, word, 2), 0);
  EXPECT_EQ(leaf.find(13, word, 4), 4);
  EXPECT_EQ(leaf.find(13, word, 8), leaf.capacity());
  EXPECT_EQ(leaf.find(13, word + 1), leaf.capacity());
  // They are not one key that stands three times.
  leaf.rebuild();
  EXPECT_EQ(leaf.live(), 3);
  EXPECT_TRUE(leaf.agrees());
  leaf.copy(15, leaf, 0);  // this is
  leaf.rebuild();
  EXPECT_EQ(leaf.live(), 3);
  EXPECT_TRUE(leaf.agrees());
}

TEST(ChimeLeaf, VacancyIsWhereSomethingIsFree) {
  for (const std::size_t span : Sizes{8, 24, 25, 64, 256}) {
    Random random(span);
    const LeafGeometry geometry = chime_geometry(span, span == 25 ? 5 : 8);
    for (int step = 0; step < 100; ++step) {
      LeafImage image(geometry);
      std::uint32_t expected = 0;
      for (std::size_t i = 0; i < span; ++i) {
        if (random.below(8) != 0) {
          image.view().set_value(i, random.next(), "v");
        } else {
          expected |= 1u << geometry.vacancy_bit(i);
        }
      }
      ASSERT_EQ(image.view().vacancy(), expected) << "span " << span;
    }
  }
}

TEST(ChimeLeaf, LooksHalfEmptyWhereItIs) {
  for (const std::size_t span : Sizes{8, 24, 48, 64, 256}) {
    Random random(span);
    const LeafGeometry geometry = chime_geometry(span, 8);
    double bits = 0;
    constexpr int kLeaves = 1000;
    for (int i = 0; i < kLeaves; ++i) {
      LeafImage image(geometry);
      for (std::size_t slot = 0; slot < span; ++slot) {
        if (random.below(2) == 0) image.view().set_value(slot, random.next(), "v");
      }
      bits += std::popcount(image.view().vacancy());
    }
    int least = 0;
    while (!geometry.looks_half_empty((1u << least) - 1)) ++least;
    EXPECT_NEAR(least, bits / kLeaves, 1.1) << "span " << span;
  }
}

// --- Metadata ---

template <class K>
void expect_replicas_like_header(Leaf<K> leaf) {
  for (std::size_t r = 0; r < leaf.geometry().replicas(); ++r) {
    EXPECT_EQ(leaf.replica_version(r), slot_version(leaf));
    EXPECT_EQ(leaf.replica_dead(r), leaf.has(kDead));
    EXPECT_EQ(leaf.replica_has_next(r), leaf.has(kHasHigh));
    EXPECT_EQ(leaf.replica_birth(r), leaf.birth() & NodeRef::kBirthMask);
    if (!leaf.geometry().fences) {
      EXPECT_EQ(leaf.replica_sibling(r), leaf.sibling());
    } else if (leaf.has(kHasHigh)) {
      if constexpr (K::kType == KeyType::kInteger) {
        EXPECT_EQ(leaf.replica_fence(r), K::short_key(leaf.high()));
      }
    }
  }
}

TEST(ChimeLeaf, ReplicasFollowTheHeader) {
  for (const bool fences : {false, true}) {
    for (const std::size_t n : Sizes{2, 8, 16}) {
      LeafGeometry geometry = chime_geometry(64, n);
      geometry.fences = fences;
      Random random(n);
      LeafImage image(geometry);
      Leaf<IntKeys> leaf = image.view();
      const Model model = fill(leaf, 20, random);
      expect_replicas_like_header(leaf);
      leaf.set_sibling(NodeRef(Address(513, 0x1234'5678'9a40), 0x3a'bc'de));
      leaf.set_high(IntKeys::cell(0xfedc'ba98'7654'3210));
      for (const std::uint32_t version : {78u, 0x3fffu, 0x4000u, 0x8000u, 0xffff'ffffu}) {
        leaf.set_version(version);
        EXPECT_EQ(leaf.Node<IntKeys>::version(), version);
        expect_replicas_like_header(leaf);
        EXPECT_TRUE(leaf.agrees());
        EXPECT_EQ(contents(leaf), model);
      }
      leaf.set_flag(kHasHigh, false);
      leaf.set_version(79);
      expect_replicas_like_header(leaf);
    }
  }
}

TEST(ChimeLeaf, ADeadLeafHasNoEntries) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  Random random(1);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  fill(leaf, 50, random);
  leaf.set_sibling(NodeRef(Address(1, 0x1000), 5));
  leaf.set_high(IntKeys::cell(10));
  leaf.set_flag(kDead, true);
  leaf.set_node_version(0, 80);
  leaf.clear_entries();
  EXPECT_EQ(leaf.live(), 0);
  EXPECT_FALSE(leaf.agrees());
  expect_replicas_like_header(leaf);
  for (std::size_t r = 0; r < geometry.replicas(); ++r) EXPECT_TRUE(leaf.replica_dead(r));
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(leaf.version(i), 80);
    EXPECT_EQ(bitmap_in(geometry, image.slot(i)), 0);
  }
  EXPECT_EQ(leaf.sibling(), NodeRef(Address(1, 0x1000), 5));
}

TEST(ChimeLeaf, ByteKeysHaveTwoHeaderLines) {
  const LeafGeometry geometry = chime_geometry(64, 8, 8, ByteKeys::kHeaderLines);
  LeafImage<ByteKeys> image(geometry);
  Leaf<ByteKeys> leaf = image.view();
  leaf.set_low(ByteKeys::cell("lower"));
  leaf.set_high(ByteKeys::cell("upper"));
  leaf.set_version(90);
  EXPECT_TRUE(leaf.agrees());
  expect_replicas_like_header(leaf);
  EXPECT_EQ(ByteKeys::short_key(leaf.low()), "lower") << "entries or replicas lie on it";
  leaf.set_node_version(1, 89);
  EXPECT_FALSE(leaf.agrees());
  leaf.set_flag(kDead, true);
  leaf.clear_entries();
  EXPECT_EQ(ByteKeys::short_key(leaf.low()), "lower");
}

// --- What a leaf notices ---

// Damages each slot in turn, and checks who notices: the leaf, and the neighbourhoods that
// `concerns` names; no other.
template <class Damage, class Concerns>
void expect_noticed(Damage damage, Concerns concerns) {
  for (const auto& [span, n] : Shapes{{16, 4}, {64, 8}, {64, 16}}) {
    const LeafGeometry geometry = chime_geometry(span, n);
    Random random(9);
    LeafImage image(geometry);
    fill(image.view(), geometry.span * 3 / 4, random);
    std::size_t noticed = 0;
    for (std::size_t i = 0; i < geometry.span; ++i) {
      LeafImage damaged = image;
      if (!damage(damaged, i)) continue;
      ++noticed;
      EXPECT_FALSE(damaged.view().agrees()) << span << "/" << n << ", entry " << i;
      for (std::size_t home = 0; home < geometry.span; ++home) {
        EXPECT_NE(damaged.view().neighbourhood_agrees(home, slot_version(image.view())),
                  concerns(image.view(), home, i))
            << span << "/" << n << ", entry " << i << ", home " << home;
      }
    }
    EXPECT_GT(noticed, 5);
  }
}

bool within(Leaf<IntKeys> leaf, std::size_t home, std::size_t i) {
  return leaf.geometry().distance(home, i) < leaf.geometry().neighbourhood;
}

TEST(ChimeLeaf, NoticesASlotOfAnotherVersion) {
  for (const unsigned bit : {0u, 7u}) {
    expect_noticed(
        [&](LeafImage<>& image, std::size_t i) {
          flip(image.slot(i), kStateAt, 1u << bit);
          return true;
        },
        within);
  }
}

TEST(ChimeLeaf, NoticesABitWithoutKey) {
  expect_noticed(
      [](LeafImage<>& image, std::size_t i) {
        const LeafGeometry& geometry = image.view().geometry();
        for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
          if ((bitmap_in(geometry, image.slot(i)) >> d & 1) != 0) continue;
          flip_bitmap(image.slot(i), d);
          return true;
        }
        return false;
      },
      [](Leaf<IntKeys>, std::size_t home, std::size_t i) { return home == i; });
}

TEST(ChimeLeaf, NoticesAKeyWithoutBit) {
  expect_noticed(
      [](LeafImage<>& image, std::size_t i) {
        const LeafGeometry& geometry = image.view().geometry();
        const unsigned bitmap = bitmap_in(geometry, image.slot(i));
        if (bitmap == 0) return false;
        flip_bitmap(image.slot(i), static_cast<std::size_t>(std::bit_width(bitmap)) - 1);
        return true;
      },
      [](Leaf<IntKeys>, std::size_t home, std::size_t i) { return home == i; });
}

TEST(ChimeLeaf, NoticesAKeyThatVanished) {
  expect_noticed(
      [](LeafImage<>& image, std::size_t i) {
        if (image.view().empty(i)) return false;
        flip(image.slot(i), kStateAt + 1,
             static_cast<unsigned>(state_in(image.slot(i)) >> 14) << 6);
        return true;
      },
      [](Leaf<IntKeys> leaf, std::size_t home, std::size_t i) { return leaf.home_of(i) == home; });
}

TEST(ChimeLeaf, NoticesAStampOfAnotherMove) {
  for (const unsigned bit : {0u, 7u}) {
    expect_noticed(
        [&](LeafImage<>& image, std::size_t i) {
          flip(image.slot(i), kStampAt, 1u << bit);
          return !image.view().empty(i);
        },
        [](Leaf<IntKeys> leaf, std::size_t home, std::size_t i) {
          return leaf.home_of(i) == home;
        });
    expect_noticed(
        [&](LeafImage<>& image, std::size_t i) {
          flip(image.slot(i), kMovesAt, 1u << bit);
          return bitmap_in(image.view().geometry(), image.slot(i)) != 0;
        },
        [](Leaf<IntKeys>, std::size_t home, std::size_t i) { return home == i; });
  }
}

TEST(ChimeLeaf, NoticesAKeyTooFarFromItsHome) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  leaf.set_value(18, key_at_home(geometry, 10), "v");
  EXPECT_FALSE(leaf.agrees());
  // No neighbourhood has to do with it.
  for (std::size_t home = 0; home < 64; ++home) {
    EXPECT_TRUE(leaf.neighbourhood_agrees(home, slot_version(leaf)));
  }
}

TEST(ChimeLeaf, NoticesReplicasOfAnotherVersionOrDead) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  for (std::size_t r = 0; r < geometry.replicas(); ++r) {
    LeafImage image(geometry);
    flip(image.replica(r), 0, 1);
    EXPECT_FALSE(image.view().agrees());
    EXPECT_NE(image.view().replica_version(r), slot_version(image.view()));
    LeafImage dead(geometry);
    store(dead.replica(r), static_cast<std::uint16_t>(load<std::uint16_t>(dead.replica(r)) |
                                                      Leaf<IntKeys>::kReplicaDead));
    EXPECT_TRUE(dead.view().replica_dead(r));
    EXPECT_FALSE(dead.view().agrees());
  }
}

TEST(ChimeLeaf, NoticesAHeaderOfAnotherVersion) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  LeafImage image(geometry);
  image.view().set_node_version(0, LeafImage<>::kIncarnation + 1);
  EXPECT_FALSE(image.view().agrees());
}

// --- Bringing a leaf in order ---

// Whatever bitmaps, counts and stamps say, what counts is where the keys stand.
TEST(ChimeLeaf, IsRebuiltFromItsKeys) {
  for (const auto& [span, n] : Shapes{{8, 8}, {16, 4}, {64, 2}, {64, 8}, {64, 16}, {255, 5}}) {
    const LeafGeometry geometry = chime_geometry(span, n);
    for (std::uint64_t seed = 0; seed < testing::scaled(60, 5); ++seed) {
      SCOPED_TRACE(::testing::Message() << span << "/" << n << ", seed " << seed);
      Random random(seed);
      LeafImage image(geometry);
      Leaf<IntKeys> leaf = image.view();
      const Model model = fill(leaf, 1 + random.below(geometry.span), random);
      for (std::size_t i = 0; i < geometry.span; ++i) {
        if (!leaf.empty(i) && random.below(4) == 0) {  // copies, where its hops may have left them
          for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
            const std::size_t to = geometry.wrapped(leaf.home_of(i) + d);
            if (leaf.empty(to) && random.below(2) == 0) leaf.copy(to, leaf, i);
          }
        } else if (leaf.empty(i) && random.below(4) == 0) {  // and where it cannot be found
          const std::uint64_t key = random.next();
          if (!within(leaf, geometry.home_of(key), i)) leaf.set_value(i, key, "lost");
        }
        const bool bytes = random.below(2) == 0;
        for (const std::size_t at : {kMovesAt, kStampAt, kBitmapAt, geometry.key_at - 1}) {
          if (bytes) image.slot(i)[at] = static_cast<std::byte>(random.next());
        }
      }
      leaf.rebuild();
      ASSERT_TRUE(leaf.agrees());
      ASSERT_EQ(contents(leaf), model);
      for (std::size_t home = 0; home < geometry.span; ++home) {
        ASSERT_TRUE(leaf.neighbourhood_agrees(home, slot_version(leaf)));
      }
      const LeafImage once = image;
      leaf.rebuild();
      ASSERT_TRUE(image == once);
    }
  }
}

TEST(ChimeLeaf, RebuildingLeavesVersionsAlone) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  Random random(1);
  LeafImage image(geometry);
  fill(image.view(), 40, random);
  flip(image.slot(17), kStateAt, 1);
  image.view().rebuild();
  EXPECT_FALSE(image.view().agrees());
  image.view().set_version(LeafImage<>::kIncarnation + 1);
  EXPECT_TRUE(image.view().agrees());
}

}  // namespace
}  // namespace pando::index::chime
