// What a reader of chime's leaves may believe that takes the lines of a neighbourhood at different
// moments; and what a merger that dies may leave for it to see.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "index/chime/hopscotch.h"
#include "index/chime/layout.h"
#include "index/crash_cluster.h"
#include "support/chime_leaf.h"
#include "support/scale.h"

namespace pando::index::chime {
namespace {

using base::Random;
using testing::add_entries;
using testing::bitmap_in;
using testing::chime_geometry;
using testing::insert_into;
using testing::key_at_home;
using testing::kMovesAt;
using testing::kStampAt;
using testing::LeafImage;
using testing::Shapes;
using testing::split_key;
using testing::state_in;
using testing::Write;
using testing::write_of;

// What a reader compares before it believes a neighbourhood.
struct Rules {
  bool versions = true;  // all slots have the replica's version
  bool bitmaps = true;   // keys stand where the home's bitmap says
  bool stamps = true;    // they have the home's count of moves (the paper does without)
};

bool agrees_by(const Rules& rules, LeafImage<>& image, std::size_t home, std::uint16_t version) {
  const Leaf<IntKeys> leaf = image.view();
  const LeafGeometry& geometry = leaf.geometry();
  bool believed = true;
  unsigned seen = 0;
  for (std::size_t d = 0; d < geometry.neighbourhood; ++d) {
    const std::size_t i = geometry.wrapped(home + d);
    if (rules.versions) believed &= (state_in(image.slot(i)) & 0x3fff) == version;
    if (state_in(image.slot(i)) >> 14 == 0 || leaf.home_of(i) != home) continue;
    seen |= 1u << d;
    if (rules.stamps) believed &= image.slot(i)[kStampAt] == image.slot(home)[kMovesAt];
  }
  return believed && (!rules.bitmaps || seen == bitmap_in(geometry, image.slot(home)));
}

void take_line(LeafImage<>& to, LeafImage<>& from, std::size_t line) {
  std::memcpy(to.bytes().data() + line * kLineBytes, from.bytes().data() + line * kLineBytes,
              kLineBytes);
}

// Why bitmaps are not enough. k stands in entry 5, hops to entry 9 for X to come in, X is erased,
// and y, whose home is that of k, takes its place. A reader has the home (4) and entry 9 from
// before all this, and entry 5 from after it: a key of the home stands in 5 and in no other, as the
// bitmap says. But k was there all the time.
TEST(ChimeTornReads, BitmapsAloneAreFooled) {
  const LeafGeometry geometry = chime_geometry(64, 8);
  LeafImage image(geometry);
  Leaf<IntKeys> leaf = image.view();
  const auto put = [&](std::uint64_t key) { return insert_into(leaf, key, "v").value(); };
  const auto of_home_1 = [&](std::size_t number) { return key_at_home(geometry, 1, number); };
  const std::uint64_t k = key_at_home(geometry, 4, 0);
  const std::uint64_t y = key_at_home(geometry, 4, 1);
  const std::uint64_t x = of_home_1(7);

  for (std::size_t i = 0; i < 4; ++i) put(of_home_1(i));  // entries 1 to 4
  EXPECT_EQ(put(k).slot, 5);
  for (std::size_t i = 4; i < 7; ++i) put(of_home_1(i));  // entries 6 to 8
  LeafImage before = image;

  const auto hop = put(x);
  EXPECT_EQ(hop.moved_to, std::vector<std::size_t>{9});
  EXPECT_EQ(hop.slot, 5);
  LeafImage hopped = image;
  leaf.clear(5);
  LeafImage erased = image;
  EXPECT_EQ(put(y).slot, 5);
  LeafImage after = image;
  for (LeafImage<>* moment : {&before, &hopped, &erased, &after}) {
    EXPECT_TRUE(moment->view().agrees());
    EXPECT_NE(moment->view().find(4, k), geometry.span) << "k is there throughout";
  }

  // Slots of one line come together, and so does the replica.
  const auto line_of = [&](std::size_t i) { return geometry.entry[i] / kLineBytes; };
  ASSERT_NE(line_of(4), line_of(5));
  ASSERT_NE(line_of(9), line_of(5));
  LeafImage seen = before;
  take_line(seen, after, line_of(5));
  const std::uint16_t version = seen.view().replica_version(geometry.replica_for(4));

  EXPECT_TRUE(agrees_by({.stamps = false}, seen, 4, version)) << "the paper's comparison";
  EXPECT_EQ(seen.view().find(4, k), geometry.span) << "and k is not found";
  EXPECT_FALSE(agrees_by({}, seen, 4, version));
  EXPECT_FALSE(seen.view().neighbourhood_agrees(4, version));
  EXPECT_FALSE(seen.view().agrees());
}

// The same by chance. A leaf goes through a random history of inserts (with hops and splits),
// erases, updates and merges, landing piece by piece. Beside it the keys of the whole level are
// known at every moment. A reader takes each line, or each slot, at some moment of its own between
// a beginning and an end. If it believes a neighbourhood, then of the keys with that home below the
// fence every one that was in the level from the beginning to the end must be there, and those that
// are there must have been in the level, with that value, at some moment.
//
// And a writer may die after any piece: what it leaves, rebuilt, must be the leaf's keys.
constexpr std::uint64_t kKeys = 48;

class History {
 public:
  History(const LeafGeometry& geometry, const Rules& rules, std::uint64_t seed)
      : geometry_(geometry), rules_(rules), random_(seed), image_(geometry), memory_(geometry) {
    tick();
  }

  void run(std::size_t changes) {
    for (std::size_t i = 0; i < changes; ++i) change();
  }
  // Whether some reader believes something wrong.
  bool misleads(std::size_t readers) {
    for (std::size_t i = 0; i < readers; ++i) {
      if (misled_once()) return true;
    }
    return false;
  }
  // Whether a writer that died at some moment would have left a wrong leaf, once it is rebuilt.
  bool dies_badly() {
    return std::ranges::any_of(moments_, [&](Moment& moment) { return died_badly(moment); });
  }
  std::size_t believed() const { return believed_; }
  std::size_t hops() const { return hops_; }
  std::size_t splits() const { return splits_; }
  std::size_t merges() const { return merges_; }

 private:
  // By key: which value it has; 0: none. Of two moments: before and after what is under way.
  using Level = std::array<std::uint32_t, kKeys>;
  struct Moment {
    LeafImage<> memory;
    Level before;
    Level after;
  };

  std::size_t below(std::size_t n) { return random_.below(n); }
  bool chance(std::size_t one_in) { return below(one_in) == 0; }
  static std::string text(std::uint32_t value) { return std::to_string(value); }

  void tick() { moments_.push_back({memory_, level_, after_}); }

  // Lands the WRITEs. Keys from `thawed` on are others', and change meanwhile.
  void land(const std::vector<Write>& writes, std::uint64_t thawed) {
    for (Write write : writes) {
      for (std::size_t i = write.size(); i-- > 0;) {
        std::swap(write[i], write[below(i + 1)]);
        std::memcpy(memory_.bytes().data() + write[i].offset,
                    image_.bytes().data() + write[i].offset, write[i].bytes);
        tick();
        if (thawed < kKeys && chance(4)) {
          const std::uint64_t key = thawed + below(kKeys - thawed);
          level_[key] = after_[key] = after_[key] == 0 ? ++last_value_ : 0;
          tick();
        }
      }
    }
    level_ = after_;
    tick();
  }

  void change() {
    if (high_ < kKeys && chance(high_ < kKeys / 4 ? 4 : 20)) return merge();
    Leaf<IntKeys> leaf = image_.view();
    const std::uint64_t key = below(high_);
    if (level_[key] == 0) return insert(key);
    const std::size_t slot = leaf.find(geometry_.home_of(key), key);
    std::vector<Write> writes;
    if (chance(3)) {
      after_[key] = ++last_value_;
      leaf.set_value(slot, key, text(last_value_));
      add_entries(writes, geometry_, slot, slot);
    } else {
      after_[key] = 0;
      leaf.clear(slot);
      add_entries(writes, geometry_, geometry_.home_of(key), slot);
    }
    land(writes, high_);
  }

  void insert(std::uint64_t key) {
    after_[key] = ++last_value_;
    const auto done = insert_into(image_.view(), key, text(last_value_));
    if (!done) return split(key);
    hops_ += done->moved_to.size();
    land(done->writes, high_);
  }

  Write lines() const { return write_of(kLineBytes, geometry_.bytes - kLineBytes); }
  static Write header() { return write_of(8, kLineBytes - 8); }

  void split(std::uint64_t key) {
    Leaf<IntKeys> leaf = image_.view();
    const std::uint64_t middle = split_key(leaf, key);
    for (std::size_t i = 0; i < geometry_.span; ++i) {
      if (!leaf.empty(i) && leaf.key_word(i) >= middle) leaf.clear(i);
    }
    if (key < middle) {
      const std::size_t slot = leaf.free_place(geometry_.home_of(key));
      leaf.set_value(slot, key, text(after_[key]));
      leaf.enter(slot);
    }
    leaf.set_high(IntKeys::cell(middle));
    leaf.set_version(leaf.Node<IntKeys>::version() + 1);
    land({header(), lines()}, high_);  // nobody finds the right leaf before this one is whole
    high_ = middle;
    ++splits_;
  }

  void merge() {
    const std::uint64_t upper = std::min(kKeys, high_ + 1 + below(kKeys / 2));
    LeafImage image = image_;
    Leaf<IntKeys> leaf = image.view();
    for (std::uint64_t key = high_; key < upper; ++key) {
      if (level_[key] == 0) continue;
      const std::size_t slot = leaf.free_place(geometry_.home_of(key));
      if (slot == geometry_.span) return;
      leaf.set_value(slot, key, text(level_[key]));
      leaf.enter(slot);
    }
    image_ = image;
    leaf = image_.view();
    if (upper < kKeys) {
      leaf.set_high(IntKeys::cell(upper));
    } else {
      leaf.set_flag(kHasHigh, false);
    }
    leaf.set_version(leaf.Node<IntKeys>::version() + 1);
    land({lines(), header()}, upper);  // both leaves are locked
    high_ = upper;
    ++merges_;
  }

  // --- Readers ---

  struct Interval {
    std::size_t begin;
    std::size_t end;
  };

  LeafImage<> read(const Interval& interval) {
    const bool two_moments = chance(2);
    const auto any = [&]() -> LeafImage<>& {
      const std::size_t length = interval.end - interval.begin;
      const std::size_t at = two_moments ? (chance(2) ? 0 : length - 1) : below(length);
      return moments_[interval.begin + at].memory;
    };
    LeafImage<> seen(geometry_);
    for (std::size_t line = 0; line < geometry_.bytes / kLineBytes; ++line) {
      take_line(seen, any(), line);
    }
    if (chance(2)) {  // more than the fabric allows: lines are torn, slots are not
      for (std::size_t i = 0; i < geometry_.span; ++i) {
        std::memcpy(seen.slot(i), any().slot(i), geometry_.slot_bytes);
      }
      for (std::size_t r = 0; r < geometry_.replicas(); ++r) {
        std::memcpy(seen.replica(r), any().replica(r), geometry_.slot_bytes);
      }
    }
    return seen;
  }

  // Whether what a reader has found (none: nothing) is wrong.
  bool wrong(const Interval& interval, std::uint64_t key, const std::optional<std::string>& found) {
    bool always = true;
    bool right = false;
    for (std::size_t at = interval.begin; at < interval.end; ++at) {
      for (const std::uint32_t value : {moments_[at].before[key], moments_[at].after[key]}) {
        always &= value != 0;
        right |= found && value != 0 && text(value) == *found;
      }
    }
    return found ? !right : always;
  }
  static std::optional<std::string> value_in(const Leaf<IntKeys>& leaf, std::uint64_t key) {
    const std::size_t slot = leaf.find(leaf.geometry().home_of(key), key);
    if (slot == leaf.capacity()) return std::nullopt;
    return std::string(leaf.value(slot));
  }

  bool misled_once() {
    Interval interval{below(moments_.size()), 0};
    interval.end = std::min(moments_.size(), interval.begin + 1 + below(chance(2) ? 6 : 40));
    LeafImage seen = read(interval);
    const Leaf<IntKeys> leaf = seen.view();
    const bool more_than_one = interval.end > interval.begin + 1;
    if (leaf.agrees()) {
      believed_ += more_than_one ? 1u : 0u;
      const std::uint64_t high = leaf.has(kHasHigh) ? IntKeys::short_key(leaf.high()) : kKeys;
      for (std::uint64_t key = 0; key < high; ++key) {
        if (wrong(interval, key, value_in(leaf, key))) return true;
      }
    }
    bool misled = false;
    for (std::size_t home = 0; home < geometry_.span; ++home) {
      const std::size_t r = geometry_.replica_for(home);
      const std::uint16_t version = leaf.replica_version(r);
      const bool good = agrees_by(rules_, seen, home, version);
      if (rules_.versions && rules_.bitmaps && rules_.stamps) {
        EXPECT_EQ(leaf.neighbourhood_agrees(home, version), good);
      }
      if (!good) continue;
      believed_ += more_than_one ? 1u : 0u;
      const std::uint64_t high = leaf.replica_has_next(r) ? leaf.replica_fence(r) : kKeys;
      for (std::uint64_t key = 0; key < high; ++key) {
        if (geometry_.home_of(key) == home) misled |= wrong(interval, key, value_in(leaf, key));
      }
    }
    return misled;
  }

  // --- The dead ---

  bool died_badly(const Moment& moment) const {
    LeafImage left = moment.memory;
    Leaf<IntKeys> leaf = left.view();
    leaf.rebuild();
    leaf.set_version(leaf.Node<IntKeys>::version() + 2);
    if (!leaf.agrees()) return true;
    const std::uint64_t high = leaf.has(kHasHigh) ? IntKeys::short_key(leaf.high()) : kKeys;
    for (std::uint64_t key = 0; key < high; ++key) {
      const auto found = value_in(leaf, key);
      bool right = false;
      for (const std::uint32_t value : {moment.before[key], moment.after[key]}) {
        right |= found ? value != 0 && text(value) == *found : value == 0;
      }
      if (!right) return true;
    }
    return false;
  }

  const LeafGeometry& geometry_;
  const Rules rules_;
  Random random_;
  LeafImage<> image_;   // the writer's own copy
  LeafImage<> memory_;  // what readers see
  std::vector<Moment> moments_;
  Level level_{};
  Level after_{};
  std::uint32_t last_value_ = 0;
  std::uint64_t high_ = kKeys;
  std::size_t believed_ = 0;
  std::size_t hops_ = 0;
  std::size_t splits_ = 0;
  std::size_t merges_ = 0;
};

struct Tally {
  std::size_t histories = 0;
  std::size_t misleading = 0;
  std::size_t dying_badly = 0;
  std::size_t believed = 0;
  std::size_t hops = 0;
  std::size_t splits = 0;
  std::size_t merges = 0;
};

Tally try_histories(const Rules& rules, std::size_t seeds) {
  Tally tally;
  for (const auto& [span, n] : Shapes{{8, 4}, {16, 4}, {16, 8}, {9, 3}, {8, 2}, {32, 16}}) {
    LeafGeometry geometry = chime_geometry(span, n);
    geometry.fences = true;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      SCOPED_TRACE(::testing::Message() << span << "/" << n << ", seed " << seed);
      History history(geometry, rules, seed);
      history.run(100);
      ++tally.histories;
      const bool misleads = history.misleads(150);
      const bool dies_badly = history.dies_badly();
      if (rules.versions && rules.bitmaps && rules.stamps) {
        EXPECT_FALSE(misleads);
        EXPECT_FALSE(dies_badly);
      }
      tally.misleading += misleads ? 1u : 0u;
      tally.dying_badly += dies_badly ? 1u : 0u;
      tally.believed += history.believed();
      tally.hops += history.hops();
      tally.splits += history.splits();
      tally.merges += history.merges();
    }
  }
  return tally;
}

TEST(ChimeTornReads, WhatIsBelievedIsRight) {
  const Tally tally = try_histories({}, testing::scaled(120, 6));
  EXPECT_GT(tally.believed, tally.histories * 100)
      << "a reader that believes nothing proves nothing";
  EXPECT_GT(tally.hops, tally.histories * 2);
  EXPECT_GT(tally.splits, tally.histories);
  EXPECT_GT(tally.merges, tally.histories);
}

TEST(ChimeTornReads, EachRuleIsNeeded) {
  const std::size_t seeds = testing::scaled(30, 8);
  EXPECT_GT(try_histories({.versions = false}, seeds).misleading, 0);
  EXPECT_GT(try_histories({.bitmaps = false}, seeds).misleading, 0);
  EXPECT_GT(try_histories({.stamps = false}, seeds).misleading, 0) << "the paper's comparison";
}

}  // namespace
}  // namespace pando::index::chime

namespace pando::testing {
namespace {

// --- A merger that dies ---

// L is split into L and R, behind the back of a reader whose cached parent knows L and then S. A
// merger writes the lines of L with R's entries, which say that S comes after L, and dies before it
// writes the header. So R goes on living, and is written to. The reader believes the replicas of L.
struct DeadMerger {
  std::uint64_t seed;
  std::vector<std::size_t> verbs;  // of the victim: how many lines each touched
  std::vector<std::uint64_t> read_wrong;

  void run(const std::optional<StopAt>& stop) {
    const CrashCluster cluster({.index = "chime:span=8,neighbourhood=4,inner_bytes=1024"});
    Survivor writer(cluster);
    writer.create(cluster);
    std::set<std::uint64_t> keys;
    const auto put = [&](std::uint64_t key) {
      keys.insert(key);
      writer.apply({Step::kPut, key, "old"}).value();
    };
    for (std::uint64_t key = 0; key < 3000; key += 100) put(key);
    Survivor reader(cluster);
    reader.open(cluster);
    for (const std::uint64_t key : keys) reader.get(key).value();
    const std::uint64_t splits = writer.count("splits");
    for (const std::uint64_t key : {1030u, 1060u, 1090u}) put(key);
    EXPECT_EQ(writer.count("splits"), splits + 1);
    {
      Victim victim(cluster, writer.index());
      std::vector<std::uint64_t> erased(keys.lower_bound(600), keys.upper_bound(1600));
      base::Random random(seed);
      for (std::size_t i = erased.size(); i-- > 1;) {
        std::swap(erased[i], erased[random.below(i + 1)]);
      }
      erased.resize(erased.size() * 3 / 4);
      victim.faults->count_from_here();
      if (stop) victim.faults->die_at(*stop);
      for (const std::uint64_t key : erased) {
        if (!victim.faults->dead()) (void)victim.apply({Step::kErase, key, {}});
      }
      verbs = victim.faults->verbs();
    }
    if (!stop) return;
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {  // R's before L's
      writer.apply({Step::kPut, *key, "new"}).value();
      const Result<std::string> value = reader.get(*key);
      if (!value || *value != "new") read_wrong.push_back(*key);
    }
  }
};

TEST(ChimeDeadMergers, AreNotBelievedBeforeTheyCommit) {
  std::size_t points = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    DeadMerger dry{seed, {}, {}};
    dry.run(std::nullopt);
    // The lines of L, its header (the commit), the lines of R as those of a dead leaf.
    for (std::size_t verb = 0; verb + 2 < dry.verbs.size(); ++verb) {
      if (dry.verbs[verb] < 3 || dry.verbs[verb] != dry.verbs[verb + 2]) continue;
      ++points;
      DeadMerger merger{seed, {}, {}};
      merger.run(StopAt{.verb = verb + 1});
      EXPECT_EQ(merger.read_wrong, std::vector<std::uint64_t>{}) << "seed " << seed;
    }
  }
  EXPECT_GT(points, 0);
}

}  // namespace
}  // namespace pando::testing
