// Hotspots: what they know, what they forget first, and that they stay within the budget.
#include "index/chime/hotspots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/random.h"
#include "fabric/embedded/embedded.h"
#include "pool/compute_node.h"
#include "support/scale.h"

namespace pando::index::chime {
namespace {

using base::Random;
using fabric::Address;
using pool::Budget;
using pool::BudgetUse;
using Spot = Hotspots::Spot;

constexpr Address kLeaf(0, 4096);
constexpr std::uint64_t kPlenty = 64 << 20;
constexpr LineNumbers kFourGiB{.memory_node_bits = 0, .bits = 26};

// Hotspots that no operation is under way in when they are given up.
struct Spots {
  Spots(Budget& budget, std::size_t bytes, LineNumbers lines = kFourGiB)
      : hotspots(budget, limbo, lines, bytes) {}

  pool::Epochs epochs;
  pool::Limbo limbo{epochs};
  Hotspots hotspots;
};

// Where a key is said to stand.
Spot spot_of(std::uint64_t key) {
  return {key % 16, static_cast<std::uint16_t>(key * 7 % (1 << 14))};
}

TEST(Hotspots, KnowWhatWasFound) {
  Budget budget(kPlenty);
  Spots spots(budget, 64 << 10);
  Hotspots& hotspots = spots.hotspots;
  EXPECT_EQ(hotspots.find(kLeaf, 1), std::nullopt);
  for (std::uint64_t key = 0; key < 100; ++key) hotspots.found(kLeaf, key, spot_of(key));
  for (std::uint64_t key = 0; key < 100; ++key) {
    EXPECT_EQ(hotspots.find(kLeaf, key), spot_of(key));
    EXPECT_EQ(hotspots.find(kLeaf + 64, key), std::nullopt) << "of another leaf";
    EXPECT_EQ(hotspots.find(kLeaf, key + 1000), std::nullopt);
  }
}

// Of memory nodes of all sizes and numbers, up to 64 TiB in all, first and last leaf.
TEST(Hotspots, KeepEverySpot) {
  for (unsigned node_bits = 0; node_bits <= 16; node_bits += 4) {
    for (unsigned bits = node_bits + 10; bits <= 40; bits += 5) {
      Budget budget(kPlenty);
      Spots spots(budget, 1 << 20, {node_bits, bits});
      Hotspots& hotspots = spots.hotspots;
      const auto last_node = static_cast<fabric::NodeId>((1u << node_bits) - 1);
      const std::uint64_t lines = std::uint64_t{1} << (bits - node_bits);
      for (const Address leaf : {Address(0, 64), Address(last_node, 64 * (lines - 1))}) {
        for (const std::uint64_t key : {std::uint64_t{0}, ~std::uint64_t{0}}) {
          for (const std::size_t distance : {0u, 1u, 8u, 15u}) {
            for (const unsigned version : {0u, 1u, 0x2aaau, 0x3fffu}) {
              const Spot spot{distance, static_cast<std::uint16_t>(version)};
              hotspots.found(leaf, key, spot);
              ASSERT_EQ(hotspots.find(leaf, key), spot) << node_bits << " of " << bits;
              ASSERT_EQ(hotspots.find(leaf + 64, key), std::nullopt);
            }
          }
        }
      }
    }
  }
}

// Nor are they taken for others.
TEST(Hotspots, KeepNoLeavesFurtherOut) {
  Budget budget(kPlenty);
  Spots spots(budget, 1 << 20, {.memory_node_bits = 16, .bits = 58});
  constexpr std::uint64_t kLines = std::uint64_t{1} << 24;  // of a node: 40 bits with the node's 16
  const Address within(0xffff, 64 * (kLines - 1));
  const Address out(0xffff, 64 * (2 * kLines - 1));
  spots.hotspots.found(within, 1, {2, 3});
  spots.hotspots.found(out, 1, {4, 5});
  EXPECT_EQ(spots.hotspots.find(within, 1), (Spot{2, 3}));
  EXPECT_EQ(spots.hotspots.find(out, 1), std::nullopt);
}

TEST(Hotspots, BelieveTheLatest) {
  Budget budget(kPlenty);
  Spots spots(budget, 64 << 10);
  Hotspots& hotspots = spots.hotspots;
  hotspots.found(kLeaf, 7, {3, 10});
  for (int i = 0; i < 1000; ++i) hotspots.find(kLeaf, 7);
  hotspots.found(kLeaf, 7, {4, 10});
  EXPECT_EQ(hotspots.find(kLeaf, 7), (Spot{4, 10})) << "the key has moved";
  hotspots.found(kLeaf, 7, {4, 11});
  EXPECT_EQ(hotspots.find(kLeaf, 7), (Spot{4, 11})) << "the leaf has been split";
}

// --- What is forgotten ---

// Keys of one leaf that share a bucket with key 0, told from outside: in a small table, each was
// taken in at the cost of key 0 when that was the least used and the bucket was full.
class HotspotsBucket : public ::testing::Test {
 protected:
  static constexpr std::size_t kPlaces = 8;
  static constexpr std::size_t kBytes = Hotspots::kLeastBytes;
  static constexpr std::uint64_t kVictim = 0;

  HotspotsBucket() {
    std::vector<std::uint64_t> others;  // up to the one that pushed the victim out
    std::uint64_t key = 1;
    do {
      others.push_back(key++);
    } while (!pushes_out(others));
    mates_.push_back(others.back());
    others.pop_back();
    for (; mates_.size() < 3 * kPlaces; ++key) {
      others.push_back(key);
      if (pushes_out(others)) mates_.push_back(key);
      others.pop_back();
    }
  }

  // Taken in, and used so often after that.
  static void use(Hotspots& hotspots, std::uint64_t key, std::uint64_t times) {
    hotspots.found(kLeaf, key, spot_of(key));
    for (std::uint64_t i = 0; i < times; ++i) hotspots.find(kLeaf, key);
  }
  static bool knows(Hotspots& hotspots, std::uint64_t key) {
    return hotspots.find(kLeaf, key).has_value();
  }
  std::uint64_t mate(std::size_t i) const { return mates_[i]; }

 private:
  // Whether the last of these does. The others are used, the victim is not.
  static bool pushes_out(const std::vector<std::uint64_t>& others) {
    Budget budget(kPlenty);
    Spots spots(budget, kBytes);
    Hotspots& hotspots = spots.hotspots;
    use(hotspots, kVictim, 0);
    for (const std::uint64_t key : others) use(hotspots, key, 1);
    return !knows(hotspots, kVictim);
  }

  std::vector<std::uint64_t> mates_;
};

TEST_F(HotspotsBucket, TheLeastFrequentlyUsedGoes) {
  for (std::size_t least = 0; least < kPlaces; ++least) {
    Budget budget(kPlenty);
    Spots spots(budget, kBytes);
    Hotspots& hotspots = spots.hotspots;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      use(hotspots, mate(i), i == least ? 3 : 4 + i);
    }
    use(hotspots, mate(kPlaces), 0);
    EXPECT_TRUE(knows(hotspots, mate(kPlaces)));
    for (std::size_t i = 0; i < kPlaces; ++i) {
      EXPECT_EQ(knows(hotspots, mate(i)), i != least) << i << ", the least used is " << least;
    }
  }
}

TEST_F(HotspotsBucket, NewcomersPushOutEachOther) {
  Budget budget(kPlenty);
  Spots spots(budget, kBytes);
  Hotspots& hotspots = spots.hotspots;
  for (std::size_t i = 0; i < kPlaces - 1; ++i) use(hotspots, mate(i), 2);
  for (std::size_t i = kPlaces; i < 3 * kPlaces; ++i) use(hotspots, mate(i), 0);
  for (std::size_t i = 0; i < kPlaces - 1; ++i) EXPECT_TRUE(knows(hotspots, mate(i)));
  EXPECT_TRUE(knows(hotspots, mate(3 * kPlaces - 1)));
  for (std::size_t i = kPlaces; i < 3 * kPlaces - 1; ++i) EXPECT_FALSE(knows(hotspots, mate(i)));
}

TEST_F(HotspotsBucket, AnOutdatedSpotStartsAnew) {
  Budget budget(kPlenty);
  Spots spots(budget, kBytes);
  Hotspots& hotspots = spots.hotspots;
  use(hotspots, mate(0), 100);
  for (std::size_t i = 1; i < kPlaces; ++i) use(hotspots, mate(i), 5);
  hotspots.found(kLeaf, mate(0), {7, 777});
  use(hotspots, mate(kPlaces), 0);
  EXPECT_FALSE(knows(hotspots, mate(0)));
  for (std::size_t i = 1; i <= kPlaces; ++i) EXPECT_TRUE(knows(hotspots, mate(i)));
}

// What was hot once is overtaken by what is hot now, however often it was used.
TEST_F(HotspotsBucket, OldFameFades) {
  constexpr std::uint64_t kFull = 1 << 20;  // more uses than a place can count
  Budget budget(kPlenty);
  Spots spots(budget, kBytes);
  Hotspots& hotspots = spots.hotspots;
  use(hotspots, mate(0), kFull);
  use(hotspots, mate(1), 4 * kFull);  // fills up again and again, and takes from all each time
  for (std::size_t i = 2; i < kPlaces; ++i) use(hotspots, mate(i), 200);
  use(hotspots, mate(kPlaces), 0);
  EXPECT_FALSE(knows(hotspots, mate(0)));
  for (std::size_t i = 1; i <= kPlaces; ++i) EXPECT_TRUE(knows(hotspots, mate(i)));
}

// Counts are rough where there are many, yet ten times as often is told apart.
TEST_F(HotspotsBucket, TellsManyUsesFromMore) {
  for (const std::uint64_t times : {20u, 100u, 1'000u, 5'000u}) {
    for (std::size_t least = 0; least < kPlaces; ++least) {
      Budget budget(kPlenty);
      Spots spots(budget, kBytes);
      for (std::size_t i = 0; i < kPlaces; ++i) {
        use(spots.hotspots, mate(i), i == least ? times : 10 * times);
      }
      use(spots.hotspots, mate(kPlaces), 0);
      for (std::size_t i = 0; i < kPlaces; ++i) {
        EXPECT_EQ(knows(spots.hotspots, mate(i)), i != least) << times << " times, " << least;
      }
    }
  }
}

TEST(Hotspots, KeepTheHotThroughAStreamOfTheCold) {
  Budget budget(kPlenty);
  Spots spots(budget, 16 << 10);
  Hotspots& hotspots = spots.hotspots;
  constexpr std::uint64_t kHot = 200;  // of about 1000 places
  for (std::uint64_t key = 0; key < kHot; ++key) {
    hotspots.found(kLeaf, key, spot_of(key));
    for (int i = 0; i < 5; ++i) hotspots.find(kLeaf, key);
  }
  Random random(1);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const std::uint64_t key = kHot + random.next() / 2;
    hotspots.found(kLeaf + 64 * (i % 16), key, spot_of(key));
  }
  std::size_t known = 0;
  for (std::uint64_t key = 0; key < kHot; ++key) {
    known += hotspots.find(kLeaf, key) == spot_of(key) ? 1u : 0u;
  }
  EXPECT_EQ(known, kHot);
}

// --- The budget ---

TEST(Hotspots, TakeFromTheBudgetWhatTheySay) {
  for (const std::size_t asked : {4096u, 4097u, 65'536u, 1'000'000u, 30u << 20}) {
    Budget budget(kPlenty);
    budget.take(BudgetUse::kLockTable, 1000);
    {
      Spots spots(budget, asked);
      const Hotspots& hotspots = spots.hotspots;
      EXPECT_LE(hotspots.bytes(), asked);
      EXPECT_GT(hotspots.bytes(), asked - 256) << "there is plenty";
      EXPECT_EQ(budget.used(BudgetUse::kIndexTables), hotspots.bytes());
      EXPECT_EQ(budget.used(), hotspots.bytes() + 1000);
    }
    EXPECT_EQ(budget.used(BudgetUse::kIndexTables), 0);
    EXPECT_EQ(budget.used(), 1000);
  }
}

void expect_nothing(Budget& budget, std::size_t asked) {
  const std::uint64_t before = budget.used();
  Spots spots(budget, asked);
  Hotspots& hotspots = spots.hotspots;
  EXPECT_EQ(hotspots.bytes(), 0);
  EXPECT_EQ(budget.used(), before);
  hotspots.found(kLeaf, 1, {2, 3});
  EXPECT_EQ(hotspots.find(kLeaf, 1), std::nullopt);
}

TEST(Hotspots, TakeNothingWhereThereIsNothing) {
  Budget no_caches(Budget::kFloor - 1);
  expect_nothing(no_caches, 64 << 10);
  Budget full(kPlenty);
  full.take(BudgetUse::kNodeCache, kPlenty - (Hotspots::kLeastBytes - 1));
  expect_nothing(full, 30 << 20);
  Budget overdrawn(kPlenty);
  overdrawn.take(BudgetUse::kNodeCache, kPlenty + 3000);
  expect_nothing(overdrawn, 30 << 20);
  Budget plenty(kPlenty);
  expect_nothing(plenty, 0);
  expect_nothing(plenty, Hotspots::kLeastBytes - 1);
}

TEST(Hotspots, TakeLessWhereThereIsLess) {
  for (const std::uint64_t left : {4096u, 5000u, 10'000u, 100'000u, 1'000'000u}) {
    Budget budget(kPlenty);
    budget.take(BudgetUse::kNodeCache, kPlenty - left);
    Spots spots(budget, 30 << 20);
    Hotspots& hotspots = spots.hotspots;
    EXPECT_LE(hotspots.bytes(), left);
    EXPECT_GT(hotspots.bytes(), left - 256);
    EXPECT_EQ(budget.used(BudgetUse::kIndexTables), hotspots.bytes());
    hotspots.found(kLeaf, 1, {2, 3});
    EXPECT_EQ(hotspots.find(kLeaf, 1), (Spot{2, 3}));
  }
}

// Another cache, of so many bytes.
class OtherCache final : public pool::Cache {
 public:
  OtherCache(Budget& budget, std::uint64_t bytes) : budget_(budget), bytes_(bytes) {
    budget_.take(BudgetUse::kNodeCache, bytes_);
    budget_.add(*this);
  }
  ~OtherCache() override {
    budget_.remove(*this);
    budget_.give_back(BudgetUse::kNodeCache, bytes_);
  }
  void forget() override {}
  OtherCache(const OtherCache&) = delete;
  OtherCache& operator=(const OtherCache&) = delete;
  std::uint64_t shrink(std::uint64_t bytes) override {
    const std::uint64_t given = std::min(bytes, bytes_);
    bytes_ -= given;
    budget_.give_back(BudgetUse::kNodeCache, given);
    return given;
  }

 private:
  Budget& budget_;
  std::uint64_t bytes_;
};

TEST(Hotspots, AreGivenUpForTablesAfterOtherCaches) {
  constexpr std::uint64_t kBytes = 1 << 20;
  Budget budget(kPlenty);
  const OtherCache older(budget, kBytes / 2);
  Spots spots(budget, kBytes);
  Hotspots& hotspots = spots.hotspots;
  const OtherCache younger(budget, kBytes / 2);
  const std::uint64_t charged = hotspots.bytes();
  hotspots.found(kLeaf, 1, {2, 3});

  budget.take(BudgetUse::kLockTable, kPlenty - budget.used());
  EXPECT_EQ(budget.used(BudgetUse::kNodeCache), kBytes) << "it fits exactly";
  budget.take(BudgetUse::kLockTable, kBytes);
  EXPECT_EQ(budget.used(BudgetUse::kNodeCache), 0);
  EXPECT_EQ(hotspots.bytes(), charged) << "others had enough to give";
  EXPECT_EQ(hotspots.find(kLeaf, 1), (Spot{2, 3}));

  budget.take(BudgetUse::kLockTable, 1);
  EXPECT_EQ(hotspots.bytes(), 0);
  EXPECT_EQ(budget.used(BudgetUse::kIndexTables), hotspots.bytes());
  EXPECT_LE(budget.used(), budget.limit());
  EXPECT_EQ(hotspots.find(kLeaf, 1), std::nullopt);
  budget.give_back(BudgetUse::kLockTable, kPlenty / 2);
  hotspots.found(kLeaf, 1, {2, 3});
  EXPECT_EQ(hotspots.find(kLeaf, 1), std::nullopt) << "for good";
  budget.take(BudgetUse::kLockTable, kPlenty);  // there is nothing more to give
  EXPECT_EQ(budget.used(BudgetUse::kIndexTables), hotspots.bytes());
}

// --- Threads ---

// Each key has two spots, one a thread.
struct Hammering {
  std::size_t hits = 0;
  std::size_t wrong = 0;
};
Hammering hammer(Hotspots& hotspots, std::size_t me, std::size_t steps) {
  constexpr std::uint64_t kHammered = 600;  // more than there are places: evictions all the time
  Hammering seen;
  Random random(me);
  for (std::size_t i = 0; i < steps; ++i) {
    const std::uint64_t key = random.below(random.below(2) == 0 ? 20 : kHammered);
    if (random.below(4) == 0) {
      hotspots.found(kLeaf, key, {key % 16, static_cast<std::uint16_t>(key * 2 + me)});
    } else if (const std::optional<Spot> spot = hotspots.find(kLeaf, key)) {
      ++seen.hits;
      seen.wrong += spot->distance != key % 16 || spot->version / 2 != key ? 1u : 0u;
    }
  }
  return seen;
}

TEST(Hotspots, ServeThreads) {
  Budget budget(kPlenty);
  Spots spots(budget, Hotspots::kLeastBytes,
              {.memory_node_bits = 0, .bits = 16});  // no keys look alike
  Hotspots& hotspots = spots.hotspots;
  const std::size_t steps = testing::scaled(200'000, 20'000);
  Hammering others;
  std::jthread other([&] { others = hammer(hotspots, 1, steps); });
  const Hammering mine = hammer(hotspots, 0, steps);
  other.join();
  EXPECT_GT(mine.hits + others.hits, steps / 4);
  EXPECT_EQ(mine.wrong + others.wrong, 0);
}

// A thread's operations, so many steps each.
Hammering operate(pool::ComputeNode& node, Hotspots& hotspots, std::size_t me, std::size_t steps) {
  task::Worker worker;
  const auto session = node.make_session(worker).value();
  Hammering seen;
  for (std::size_t i = 0; i < steps; i += 50) {
    const pool::Operation op(*session);
    const Hammering now = hammer(hotspots, me, 50);
    seen.hits += now.hits;
    seen.wrong += now.wrong;
  }
  return seen;
}

TEST(Hotspots, AreGivenUpWhileThreadsAreAtIt) {
  PoolOptions options;
  options.compute_budget = kPlenty;
  pool::ComputeNode node(fabric::open_embedded({.bytes = 16 << 20, .huge_pages = false}).value(),
                         options);
  pool::Budget& budget = node.budget();
  const std::uint64_t before = budget.used(BudgetUse::kIndexTables);
  for (std::size_t round = 0; round < 20; ++round) {
    Hotspots hotspots(budget, node.limbo(), LineNumbers::of(node.fabric()), Hotspots::kLeastBytes);
    Hammering others;
    std::jthread other([&] { others = operate(node, hotspots, 1, 2000); });
    EXPECT_EQ(operate(node, hotspots, 0, 50 * round).wrong, 0);
    budget.take(BudgetUse::kLockTable, kPlenty);
    EXPECT_EQ(operate(node, hotspots, 0, 100).hits, 0);
    other.join();
    EXPECT_EQ(others.wrong, 0);
    EXPECT_EQ(hotspots.bytes(), 0);
    node.limbo().collect();
    EXPECT_EQ(budget.used(BudgetUse::kIndexTables), before);
    budget.give_back(BudgetUse::kLockTable, kPlenty);
  }
}

}  // namespace
}  // namespace pando::index::chime
