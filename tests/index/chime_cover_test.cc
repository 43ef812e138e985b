// What a scan reads of a leaf: that it holds all that the keys need, and is worth it; and that it
// is believed exactly if it fits together.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/random.h"
#include "index/chime/cover.h"
#include "support/chime_leaf.h"

namespace pando::index::chime {
namespace {

using base::Random;
using testing::chime_geometry;
using testing::insert_into;
using testing::LeafImage;
using testing::slot_version;

std::vector<LeafGeometry> geometries() {
  std::vector<LeafGeometry> all;
  for (const auto& [span, neighbourhood] : std::vector<std::pair<std::size_t, std::size_t>>{
           {8, 2}, {8, 8}, {9, 3}, {16, 4}, {64, 2}, {64, 8}, {64, 16}, {255, 15}, {256, 8}}) {
    for (const bool ordered : {false, true}) {
      for (const std::size_t value_bytes : {8u, 50u}) {
        LeafGeometry leaf = chime_geometry(span, neighbourhood, value_bytes);
        leaf.ordered = ordered;
        all.push_back(leaf);
      }
    }
  }
  return all;
}

bool in_a_part(const Cover& cover, std::size_t offset, std::size_t bytes) {
  bool inside = false;
  cover.for_each_part([&](std::size_t begin, std::size_t size) {
    inside |= offset >= begin && offset + bytes <= begin + size;
  });
  return inside;
}

TEST(ChimeCover, HoldsAllThatTheKeysNeed) {
  Random random(1);
  for (const LeafGeometry& leaf : geometries()) {
    for (int round = 0; round < 300; ++round) {
      const std::uint64_t from = random.below(2) == 0 ? random.next() : random.below(100'000);
      const std::uint64_t to = from + 1 + random.below(2 * leaf.span);
      if (to < from) continue;
      const Cover cover = Cover::of(leaf, from, to);
      for (std::uint64_t key = from; key != to; ++key) {
        const std::size_t home = leaf.home_of(key);
        ASSERT_TRUE(cover.homes()[home]);
        for (std::size_t d = 0; d < leaf.neighbourhood; ++d) {
          ASSERT_TRUE(cover.entries()[leaf.wrapped(home + d)]);
        }
      }
      for (std::size_t i = 0; i < leaf.span; ++i) {
        ASSERT_EQ(cover.entries()[i], in_a_part(cover, leaf.entry[i], leaf.slot_bytes)) << i;
      }
      std::set<std::size_t> replicas;
      cover.for_each_replica([&](std::size_t r) { replicas.insert(r); });
      ASSERT_FALSE(replicas.empty());
      for (std::size_t r = 0; r < leaf.replicas(); ++r) {
        ASSERT_EQ(replicas.contains(r), in_a_part(cover, leaf.replica[r], 16)) << r;
      }
      // Neither the header nor what another READ brings.
      std::size_t end = kLineBytes;
      cover.for_each_part([&](std::size_t begin, std::size_t bytes) {
        ASSERT_GE(begin, end);
        ASSERT_LE(begin + bytes, leaf.bytes);
        end = begin + bytes;
      });
    }
  }
}

TEST(ChimeCover, IsNeverDearerThanTheLeaf) {
  Random random(2);
  for (const LeafGeometry& leaf : geometries()) {
    const std::size_t whole = Cover::all(leaf).cost();
    EXPECT_LT(whole, leaf.bytes + kReadBytes);
    EXPECT_EQ(Cover::all(leaf).reads(), 1u);
    for (int round = 0; round < 300; ++round) {
      const std::uint64_t from = random.below(1'000'000);
      const Cover cover = Cover::of(leaf, from, from + 1 + random.below(2 * leaf.span));
      if (cover.is_all()) EXPECT_EQ(cover.reads(), 1u);
      EXPECT_LE(cover.cost(), whole);
    }
    EXPECT_TRUE(Cover::of(leaf, 0, leaf.span + 1).is_all());
    EXPECT_TRUE(Cover::of(leaf, 7, ~std::uint64_t{0}).is_all());
  }
}

// As a get would: one neighbourhood with its replica, in two where it wraps around.
TEST(ChimeCover, OfOneKeyIsItsNeighbourhood) {
  const LeafGeometry leaf = chime_geometry(64, 8);
  for (std::uint64_t key = 0; key < 1'000; ++key) {
    const Cover cover = Cover::of(leaf, key, key + 1);
    const bool wraps = leaf.home_of(key) + 8 > 64;
    EXPECT_EQ(cover.entries().count(), 8u);
    EXPECT_EQ(cover.reads(), wraps ? 2u : 1u);
    EXPECT_LE(cover.bytes(), 192u);
  }
}

TEST(ChimeCover, ClosesGapsThatAreNotWorthARead) {
  const LeafGeometry leaf = chime_geometry(64, 8);
  for (std::uint64_t from = 0; from < 2'000; ++from) {
    const Cover cover = Cover::of(leaf, from, from + 1 + from % 20);
    std::size_t end = 0;
    cover.for_each_part([&](std::size_t begin, std::size_t bytes) {
      if (end != 0) EXPECT_GT(begin - end, kReadBytes - leaf.slot_bytes);  // but for a replica
      end = begin + bytes;
    });
  }
}

// Homes in a row: so many entries as keys, and the rest of the last one's neighbourhood.
TEST(ChimeCover, OfKeysWithOrderedHomesIsOneStretch) {
  LeafGeometry leaf = chime_geometry(64, 8);
  leaf.ordered = true;
  EXPECT_EQ(leaf.homes, 61u);
  for (std::uint64_t from = 0; from < 512 - 40; ++from) {
    for (const std::size_t count : {1u, 5u, 20u, 40u}) {
      const Cover cover = Cover::of(leaf, from, from + count);
      EXPECT_EQ(cover.homes().count(), count);
      // Where it wraps around, the last entries are no homes.
      EXPECT_LE(cover.entries().count(), count + 7 + 3);
      EXPECT_LE(cover.reads(), 2u);
    }
  }
}

// ---- Believing

// The parts alone, as a READ brings them: all else is noise.
LeafImage<> parts_of(LeafImage<>& image, const LeafGeometry& leaf, const Cover& cover,
                     std::uint64_t seed) {
  LeafImage<> part(leaf);
  Random random(seed);
  for (std::byte& byte : part.bytes()) byte = static_cast<std::byte>(random.next());
  cover.for_each_part([&](std::size_t begin, std::size_t bytes) {
    std::copy_n(image.bytes().begin() + static_cast<std::ptrdiff_t>(begin), bytes,
                part.bytes().begin() + static_cast<std::ptrdiff_t>(begin));
  });
  return part;
}

TEST(ChimeCover, IsBelievedIfAndOnlyIfItFitsTogether) {
  Random random(3);
  for (LeafGeometry leaf : geometries()) {
    for (std::uint64_t round = 0; round < 50; ++round) {
      LeafImage<> image(leaf);
      for (std::uint64_t key = 0; key < leaf.span; ++key) {
        if (random.below(4) != 0) insert_into(image.view(), key, "value");
      }
      const std::uint64_t from = random.below(leaf.span);
      const Cover cover = Cover::of(leaf, from, from + 1 + random.below(leaf.span / 2));
      const std::uint16_t version = slot_version(image.view());
      LeafImage<> part = parts_of(image, leaf, cover, round);
      ASSERT_TRUE(part.view().agrees(cover.entries(), cover.homes(), version));
      // A split or merge that reached one entry; a home that tells of other places, or moves.
      for (std::size_t i = 0; i < leaf.span; ++i) {
        if (!cover.entries()[i]) continue;
        LeafImage<> changed = part;
        changed.slot(i)[0] ^= std::byte{1};
        EXPECT_FALSE(changed.view().agrees(cover.entries(), cover.homes(), version));
        if (!cover.homes()[i]) continue;
        changed = part;
        changed.slot(i)[4] ^= std::byte{1};
        EXPECT_FALSE(changed.view().agrees(cover.entries(), cover.homes(), version));
      }
      for (std::size_t i = 0; i < leaf.span; ++i) {
        if (!cover.entries()[i] || part.view().empty(i)) continue;
        const std::size_t home = part.view().home_of(i);
        LeafImage<> changed = part;
        changed.slot(i)[3] ^= std::byte{1};  // its stamp
        EXPECT_EQ(changed.view().agrees(cover.entries(), cover.homes(), version),
                  !cover.homes()[home]);
      }
    }
  }
}

}  // namespace
}  // namespace pando::index::chime
