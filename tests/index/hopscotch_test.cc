// Hopscotch: that keys are found again, that none is missing while others hop, and how full a leaf
// gets.
#include "index/chime/hopscotch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "support/chime_leaf.h"
#include "support/scale.h"

namespace pando::index::chime {
namespace {

using base::Random;
using testing::chime_geometry;
using testing::insert_into;
using testing::key_at_home;
using testing::LeafImage;
using testing::Piece;
using testing::Shape;
using testing::slot_version;
using testing::split_key;
using testing::Write;

using Model = std::map<std::uint64_t, std::string>;

constexpr std::array<Shape, 12> kShapes{{{8, 2},
                                         {8, 4},
                                         {8, 8},
                                         {9, 3},
                                         {16, 4},
                                         {22, 11},
                                         {24, 8},
                                         {32, 16},
                                         {64, 2},
                                         {64, 8},
                                         {64, 16},
                                         {256, 8}}};

// Every shape with every seed.
template <class Try>
void for_each_leaf(std::size_t seeds, Try try_leaf) {
  for (const Shape& shape : kShapes) {
    const LeafGeometry geometry = chime_geometry(shape.span, shape.neighbourhood);
    for (std::uint64_t seed = 0; seed < seeds && !::testing::Test::HasFatalFailure(); ++seed) {
      SCOPED_TRACE(::testing::Message() << "span " << shape.span << ", neighbourhood "
                                        << shape.neighbourhood << ", seed " << seed);
      Random random(seed);
      try_leaf(geometry, random);
    }
  }
}

std::string value_of(std::uint64_t key) { return "v" + std::to_string(key % 1'000'000); }

// How often the key stands in its neighbourhood, with its value.
std::size_t times_there(Leaf<IntKeys> leaf, std::uint64_t key, const std::string& value) {
  const LeafGeometry& geometry = leaf.geometry();
  std::size_t count = 0;
  for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
    const std::size_t i = geometry.wrapped(geometry.home_of(key) + d);
    if (!leaf.empty(i) && leaf.key_word(i) == key && leaf.value(i) == value) ++count;
  }
  return count;
}

// What the leaf should hold, no more and no less, each key where it is looked for.
::testing::AssertionResult holds(Leaf<IntKeys> leaf, const Model& model) {
  const auto no = [] { return ::testing::AssertionFailure(); };
  if (!leaf.agrees()) return no() << "the leaf does not agree";
  if (leaf.live() != model.size()) return no() << leaf.live() << " keys, not " << model.size();
  for (const auto& [key, value] : model) {
    const std::size_t home = leaf.geometry().home_of(key);
    const std::size_t slot = leaf.find(home, key);
    if (slot == leaf.capacity()) return no() << "key " << key << " is missing";
    if (leaf.value(slot) != value) return no() << "key " << key << " has another's value";
    if (!leaf.neighbourhood_agrees(home, slot_version(leaf))) {
      return no() << "the neighbourhood of key " << key << " does not agree";
    }
  }
  return ::testing::AssertionSuccess();
}

void erase_from(Leaf<IntKeys> leaf, Model& model, std::uint64_t key) {
  leaf.clear(leaf.find(leaf.geometry().home_of(key), key));
  model.erase(key);
}

std::uint64_t any_key_of(const Model& model, Random& random) {
  return std::next(model.begin(), static_cast<std::ptrdiff_t>(random.below(model.size())))->first;
}

// Fills a leaf with random keys until one finds no room, and returns that one. With erases in
// between, keys come to stand as in a leaf that has lived for a while.
std::uint64_t fill(Leaf<IntKeys> leaf, Model& model, Random& random, bool with_erases) {
  for (;;) {
    const std::uint64_t key = random.next();
    if (!insert_into(leaf, key, value_of(key))) return key;
    model[key] = value_of(key);
    if (with_erases && random.below(4) == 0) erase_from(leaf, model, any_key_of(model, random));
  }
}

// Whether any row of hops, each by less than a neighbourhood and away from `home`, ends in a free
// entry from which a neighbourhood on is known.
bool room_possible(Leaf<IntKeys> leaf, std::size_t home, std::size_t known) {
  const LeafGeometry& geometry = leaf.geometry();
  const std::size_t reach = geometry.neighbourhood;
  std::vector<bool> can_be_free(geometry.span, false);
  for (std::size_t d = known; d-- > 0;) {
    const std::size_t i = geometry.wrapped(home + d);
    if (leaf.empty(i)) {
      can_be_free[d] = known >= geometry.span || d + reach <= known;
      continue;
    }
    for (std::size_t to = d + 1; to < std::min(d + reach, geometry.span); ++to) {
      const std::size_t far = geometry.distance(leaf.home_of(i), geometry.wrapped(home + to));
      if (can_be_free[to] && far < reach) can_be_free[d] = true;
    }
  }
  return std::ranges::any_of(can_be_free.begin(),
                             can_be_free.begin() + static_cast<std::ptrdiff_t>(reach),
                             [](bool free) { return free; });
}

// --- Keys and their places ---

TEST(Hopscotch, KeysAreFoundAgain) {
  std::size_t refused = 0;
  for_each_leaf(testing::scaled(12, 2), [&](const LeafGeometry& geometry, Random& random) {
    LeafImage image(geometry);
    Leaf<IntKeys> leaf = image.view();
    Model model;
    for (int i = 0; i < 150; ++i) {
      const std::uint64_t key = random.next();
      const LeafImage before = image;
      const bool done = insert_into(image.view(), key, value_of(key)).has_value();
      if (done) {
        model[key] = value_of(key);
      } else {
        ++refused;
        ASSERT_TRUE(image == before) << "an insert that failed has left traces";
      }
      ASSERT_TRUE(holds(leaf, model));
      if (!model.empty() && (!done || random.below(5) == 0)) {
        erase_from(leaf, model, any_key_of(model, random));
        ASSERT_TRUE(holds(leaf, model));
      }
    }
  });
  EXPECT_GT(refused, 100);
}

// Refused is only what no row of hops makes room for, in the whole leaf or in the part that is
// known.
TEST(Hopscotch, MakesRoomWhereHopsCan) {
  std::size_t made = 0;
  std::size_t refused = 0;
  for_each_leaf(testing::scaled(30, 4), [&](const LeafGeometry& geometry, Random& random) {
    const std::size_t span = geometry.span;
    const std::size_t reach = geometry.neighbourhood;
    LeafImage image(geometry);
    Model model;
    fill(image.view(), model, random, true);
    for (std::size_t home = 0; home < span; ++home) {
      if (image.view().free_place(home) != span) continue;
      for (const std::size_t known : {span, reach, reach + random.below(span - reach + 1)}) {
        LeafImage copy = image;
        std::vector<std::size_t> moved_to;
        const std::size_t place = make_room(copy.view(), home, known, moved_to);
        ASSERT_EQ(place != span, room_possible(image.view(), home, known)) << known << " known";
        if (place == span) {
          ++refused;
          ASSERT_TRUE(moved_to.empty());
          ASSERT_TRUE(copy == image);
        } else {
          ++made;
          ASSERT_FALSE(moved_to.empty());
          ASSERT_LT(geometry.distance(home, place), reach);
          ASSERT_TRUE(copy.view().empty(place));
          ASSERT_TRUE(holds(copy.view(), model)) << known << " known";
        }
      }
    }
  });
  EXPECT_GT(made, testing::scaled(1000, 200));
  EXPECT_GT(refused, testing::scaled(1000, 200));
}

TEST(Hopscotch, MovesTheFarthestKeyThatMay) {
  // The keys of home 1 cannot stand in entry 9, those in 4 and 5 could: 4 is farther.
  const LeafGeometry geometry = chime_geometry(64, 8);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  const auto put = [&](std::size_t home, std::size_t number) {
    return insert_into(leaf, key_at_home(geometry, home, number), "v").value();
  };
  EXPECT_EQ(put(1, 0).slot, 1);
  EXPECT_EQ(put(1, 1).slot, 2);
  EXPECT_EQ(put(1, 2).slot, 3);
  EXPECT_EQ(put(4, 0).slot, 4);
  EXPECT_EQ(put(5, 0).slot, 5);
  EXPECT_EQ(put(1, 3).slot, 6);
  EXPECT_EQ(put(1, 4).slot, 7);
  EXPECT_EQ(put(1, 5).slot, 8);
  const auto done = put(1, 6);
  EXPECT_EQ(done.slot, 4);
  EXPECT_EQ(done.moved_to, std::vector<std::size_t>{9});
  EXPECT_EQ(leaf.find(4, key_at_home(geometry, 4)), 9);
  EXPECT_TRUE(leaf.agrees());
}

TEST(Hopscotch, HopsAroundTheEnd) {
  // The neighbourhood of 60 reaches up to entry 3; entry 4 is free.
  const LeafGeometry geometry = chime_geometry(64, 8);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  Model model;
  const auto put = [&](std::size_t home, std::size_t number) {
    const std::uint64_t key = key_at_home(geometry, home, number);
    model[key] = "v";
    return insert_into(leaf, key, "v").value();
  };
  for (std::size_t i = 0; i < 6; ++i) put(60, i);
  EXPECT_EQ(put(63, 0).slot, 2);
  EXPECT_EQ(put(60, 6).slot, 3);
  const auto done = put(60, 7);
  EXPECT_EQ(done.slot, 2);
  EXPECT_EQ(done.moved_to, std::vector<std::size_t>{4});
  EXPECT_TRUE(holds(leaf, model));
  // Now all of them are of home 60.
  EXPECT_FALSE(insert_into(leaf, key_at_home(geometry, 60, 8), "v"));
}

// --- What is not known ---

// An insert has read a part of the leaf. The rest of its buffer is whatever was there before.
TEST(Hopscotch, KeepsToWhatIsKnown) {
  std::size_t made = 0;
  for_each_leaf(testing::scaled(120, 6), [&](const LeafGeometry& geometry, Random& random) {
    const std::size_t span = geometry.span;
    const std::size_t reach = geometry.neighbourhood;
    LeafImage image(geometry);
    Model model;
    const std::uint64_t key = fill(image.view(), model, random, true);
    const std::size_t home = geometry.home_of(key);
    for (int i = 0; i < 4; ++i) {  // free entries again, at some distance
      const std::uint64_t victim = any_key_of(model, random);
      const std::size_t slot = image.view().find(geometry.home_of(victim), victim);
      if (geometry.distance(home, slot) >= reach) erase_from(image.view(), model, victim);
    }
    const std::size_t known = reach + random.below(span - reach + 1);
    std::vector<bool> read(geometry.bytes, false);
    geometry.for_each_part(home, known, [&](std::size_t offset, std::size_t bytes) {
      std::fill_n(read.begin() + static_cast<std::ptrdiff_t>(offset), bytes, true);
    });

    std::vector<std::size_t> moved_in_whole;
    const std::size_t whole_place = make_room(LeafImage(image).view(), home, span, moved_in_whole);
    std::array<std::size_t, 3> places{};
    std::array<std::vector<std::size_t>, 3> moved;
    for (std::size_t round = 0; round < 3; ++round) {
      LeafImage part = image;
      for (std::size_t i = 0; i < geometry.bytes; ++i) {
        if (read[i]) continue;
        part.bytes()[i] = round == 2 ? std::byte{0} : static_cast<std::byte>(random.next());
      }
      LeafImage before = part;
      places[round] = make_room(part.view(), home, known, moved[round]);
      ASSERT_EQ(places[round], places[0]) << "it has looked at what it does not know";
      ASSERT_EQ(moved[round], moved[0]) << "it has looked at what it does not know";
      if (places[round] == span) {
        ASSERT_TRUE(part == before);
        continue;
      }
      ++made;
      ASSERT_EQ(places[round], whole_place);
      ASSERT_EQ(moved[round], moved_in_whole);
      part.view().set_value(places[round], key, value_of(key));
      part.view().enter(places[round]);
      // All that has changed is known, and is what an insert writes back.
      const std::size_t farthest = geometry.distance(home, moved[round].front());
      const std::size_t back = std::min(farthest + reach, span);
      ASSERT_LE(back, known);
      std::vector<bool> written(geometry.bytes, false);
      for (std::size_t d = 0; d < back; ++d) {
        std::fill_n(written.begin() + geometry.entry[geometry.wrapped(home + d)],
                    geometry.slot_bytes, true);
      }
      LeafImage after = image;
      for (std::size_t i = 0; i < geometry.bytes; ++i) {
        if (written[i]) {
          after.bytes()[i] = part.bytes()[i];
        } else {
          ASSERT_EQ(part.bytes()[i], before.bytes()[i]) << "byte " << i;
        }
      }
      Model with_key = model;
      with_key[key] = value_of(key);
      ASSERT_TRUE(holds(after.view(), with_key));
    }
  });
  EXPECT_GT(made, testing::scaled(100, 20));
}

// --- The order of writing ---

// What a writer leaves that dies after any piece of any of its WRITEs.
struct Deaths {
  bool lost = false;     // at some moment, a key that had been there stood nowhere
  bool mended = true;    // whatever was left could be brought in order, with all keys
  bool arrived = false;  // at the end, the new key was there
};

Deaths die_everywhere(const LeafImage<>& before, LeafImage<> after,
                      const std::vector<Write>& writes, const Model& old, std::uint64_t key,
                      Random& random) {
  Deaths deaths;
  LeafImage memory = before;
  const auto look = [&] {
    LeafImage left = memory;
    Leaf<IntKeys> leaf = left.view();
    for (const auto& [each, value] : old) deaths.lost |= times_there(leaf, each, value) == 0;
    leaf.rebuild();
    deaths.mended &= leaf.agrees();
    for (const auto& [each, value] : old) deaths.mended &= times_there(leaf, each, value) == 1;
    const std::size_t with_new = times_there(leaf, key, value_of(key));
    deaths.mended &= with_new <= 1 && leaf.live() == old.size() + with_new;
    deaths.arrived = with_new == 1;
  };
  look();
  for (Write write : writes) {
    for (std::size_t i = write.size(); i-- > 0;) {
      std::swap(write[i], write[random.below(i + 1)]);
      const Piece& piece = write[i];
      std::memcpy(memory.bytes().data() + piece.offset, after.bytes().data() + piece.offset,
                  piece.bytes);
      look();
    }
  }
  if (!(memory == after)) ADD_FAILURE() << "the WRITEs do not bring all that has changed";
  return deaths;
}

TEST(Hopscotch, NoKeyIsMissingWhileOthersHop) {
  std::size_t hops = 0;
  std::size_t lost_in_wrong_order = 0;
  for_each_leaf(testing::scaled(25, 3), [&](const LeafGeometry& geometry, Random& random) {
    LeafImage image(geometry);
    Model model;
    fill(image.view(), model, random, false);
    for (int i = 0; i < 30; ++i) {
      const std::uint64_t key = random.next();
      const LeafImage before = image;
      const auto done = insert_into(image.view(), key, value_of(key));
      if (!done) {
        erase_from(image.view(), model, any_key_of(model, random));
        continue;
      }
      const Deaths deaths = die_everywhere(before, image, done->writes, model, key, random);
      ASSERT_FALSE(deaths.lost);
      ASSERT_TRUE(deaths.mended);
      ASSERT_TRUE(deaths.arrived);
      if (const std::size_t moved = done->moved_to.size(); moved != 0) {
        hops += moved;
        std::vector<Write> wrong = done->writes;
        std::reverse(wrong.begin(), wrong.begin() + static_cast<std::ptrdiff_t>(moved) + 1);
        const Deaths in_wrong_order = die_everywhere(before, image, wrong, model, key, random);
        lost_in_wrong_order += in_wrong_order.lost ? 1u : 0u;
      }
      model[key] = value_of(key);
    }
  });
  EXPECT_GT(hops, testing::scaled(500, 50));
  EXPECT_GT(lost_in_wrong_order, testing::scaled(200, 20)) << "the order does not matter?";
}

// A slot is told once, and where a key goes to before where it comes from.
TEST(Hopscotch, TellsMovesInOrder) {
  std::size_t rows = 0;  // of two hops or more
  for_each_leaf(testing::scaled(40, 4), [&](const LeafGeometry& geometry, Random& random) {
    LeafImage image(geometry);
    for (;;) {
      LeafImage before = image;
      const auto done = insert_into(image.view(), random.next(), "");
      if (!done) return;
      rows += done->moved_to.size() > 1 ? 1u : 0u;
      std::set<std::size_t> told;
      for (const std::size_t to : done->moved_to) {
        ASSERT_TRUE(told.insert(to).second);
        const std::uint64_t key = image.view().key_word(to);
        const std::size_t from = before.view().find(geometry.home_of(key), key);
        ASSERT_NE(from, geometry.span);
        ASSERT_FALSE(told.contains(from));
      }
      ASSERT_TRUE(told.insert(done->slot).second);
    }
  });
  EXPECT_GT(rows, testing::scaled(50, 5));
}

// --- Splits ---

struct Halves {
  LeafImage<> left;
  LeafImage<> right;
  Model on_left;
  Model on_right;
};

// Keys from `middle` on go right, each to the place where it stands.
Halves split_at(const LeafImage<>& full, const LeafGeometry& geometry, const Model& model,
                std::uint64_t middle) {
  Halves halves{full, LeafImage<>(geometry), {}, {}};
  Leaf<IntKeys> left = halves.left.view();
  Leaf<IntKeys> right = halves.right.view();
  for (const auto& [key, value] : model) {
    if (key < middle) {
      halves.on_left[key] = value;
      continue;
    }
    halves.on_right[key] = value;
    const std::size_t slot = left.find(geometry.home_of(key), key);
    right.copy(slot, left, slot);
    right.enter(slot);
    left.clear(slot);
  }
  left.set_version(left.Node<IntKeys>::version() + 1);
  return halves;
}

TEST(Hopscotch, TheNewKeyFindsAPlaceInItsHalf) {
  for_each_leaf(testing::scaled(100, 8), [&](const LeafGeometry& geometry, Random& random) {
    LeafImage image(geometry);
    Model model;
    const std::uint64_t key = fill(image.view(), model, random, random.below(2) == 0);
    const std::size_t home = geometry.home_of(key);
    const std::uint64_t middle = split_key(image.view(), key);
    Halves halves = split_at(image, geometry, model, middle);
    ASSERT_TRUE(holds(halves.left.view(), halves.on_left));
    ASSERT_TRUE(holds(halves.right.view(), halves.on_right));

    LeafImage<>& its_half = key < middle ? halves.left : halves.right;
    Model& its_keys = key < middle ? halves.on_left : halves.on_right;
    const std::size_t place = its_half.view().free_place(home);
    ASSERT_NE(place, geometry.span);
    its_half.view().set_value(place, key, value_of(key));
    its_half.view().enter(place);
    its_keys[key] = value_of(key);
    ASSERT_TRUE(holds(its_half.view(), its_keys));
    ASSERT_FALSE(halves.on_left.empty());
    ASSERT_FALSE(halves.on_right.empty());

    // Each half has got half of those that were in each other's way.
    std::size_t near_left = 0;
    std::size_t near_right = 0;
    for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
      const std::size_t i = geometry.wrapped(home + d);
      near_left += halves.left.view().empty(i) ? 0u : 1u;
      near_right += halves.right.view().empty(i) ? 0u : 1u;
    }
    ASSERT_EQ(near_left, (geometry.neighbourhood + 1) / 2);
    ASSERT_EQ(near_right, geometry.neighbourhood + 1 - near_left);
  });
}

// --- How full a leaf gets ---

struct Loads {
  double fresh = 0;    // of leaves that were filled from nothing; in percent, mean
  double in_tree = 0;  // of leaves that had been halves of full ones
};

Loads measure_loads(std::size_t span, std::size_t neighbourhood, std::size_t leaves) {
  constexpr int kGenerations = 6;
  const LeafGeometry geometry = chime_geometry(span, neighbourhood);
  double fresh = 0;
  double in_tree = 0;
  for (std::uint64_t seed = 0; seed < leaves; ++seed) {
    Random random(seed);
    LeafImage image(geometry);
    Model model;
    std::uint64_t low = 0;
    std::uint64_t high = ~std::uint64_t{0};
    for (int generation = 1; generation <= kGenerations; ++generation) {
      std::uint64_t key = 0;
      for (;;) {
        key = low + random.below(high - low);
        if (model.contains(key)) continue;
        if (!insert_into(image.view(), key, "")) break;
        model[key] = "";
      }
      (generation == 1 ? fresh : in_tree) += static_cast<double>(model.size());
      // One half, with the new key if it belongs there.
      const std::uint64_t middle = split_key(image.view(), key);
      Halves halves = split_at(image, geometry, model, middle);
      const bool left = random.below(2) == 0;
      image = left ? halves.left : halves.right;
      model = left ? halves.on_left : halves.on_right;
      (left ? high : low) = middle;
      if ((key < middle) == left) {
        EXPECT_TRUE(insert_into(image.view(), key, ""));
        model[key] = "";
      }
    }
  }
  const double all = static_cast<double>(leaves * span) / 100;
  return {fresh / all, in_tree / all / (kGenerations - 1)};
}

// Figure 19b of the paper: a tree whose leaves have 64 entries.
void expect_load(std::size_t neighbourhood, double published) {
  const Loads loads = measure_loads(64, neighbourhood, testing::scaled(300, 60));
  ::testing::Test::RecordProperty("fresh_leaves_percent", std::to_string(loads.fresh));
  ::testing::Test::RecordProperty("in_a_tree_percent", std::to_string(loads.in_tree));
  EXPECT_NEAR(loads.in_tree, published, 2.5) << "fresh leaves: " << loads.fresh;
}

TEST(HopscotchLoad, NeighbourhoodsOf2) { expect_load(2, 37.7); }
TEST(HopscotchLoad, NeighbourhoodsOf8) { expect_load(8, 88.1); }
TEST(HopscotchLoad, NeighbourhoodsOf16) { expect_load(16, 99.8); }

}  // namespace
}  // namespace pando::index::chime
