// What chime's operations cost, in round trips and in bytes, with its techniques on and off: exact
// counts, the same on every machine. What all indexes promise: tests/conformance/round_trips.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fabric/verbs.h"
#include "index/chime/options.h"
#include "support/keys.h"
#include "support/model.h"
#include "support/outcome.h"
#include "support/scale.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

using index::chime::LeafGeometry;

// A tree of integer keys with far more room between them than there are keys, on one compute node
// that has all inner nodes cached.
class ChimeTree {
 public:
  static constexpr std::uint64_t kStep = 1 << 16;

  explicit ChimeTree(const std::string& settings = "", const std::string& url = "embedded:256MiB",
                     std::uint64_t count = scaled(20'000, 4'000))
      : options_(IndexOptions::parse("chime" + (settings.empty() ? "" : ":" + settings)).value()),
        geometry_(index::chime::Options::parse(options_).value().leaf),
        pool_(must(Pool::open(url))),
        index_(must(pool_.create_index("index", options_))),
        count_(count) {
    for (std::uint64_t n = 0; n < count_; ++n) must(index_.insert(key(n), value(n)));
    warm(index_);
  }
  ~ChimeTree() { EXPECT_TRUE(succeeded(index_.check())); }
  ChimeTree(const ChimeTree&) = delete;
  ChimeTree& operator=(const ChimeTree&) = delete;

  static std::uint64_t key(std::uint64_t n) { return (n + 1) * kStep; }
  static std::string value(std::uint64_t n) { return patterned_value(8, n); }
  // Spread over the whole tree, none twice. None from the last leaf, which may be nearly empty: an
  // erase would read it, to see whether to merge it.
  std::uint64_t sample(std::uint64_t i) const { return i * 7919 % (count_ - geometry_.span); }
  std::uint64_t count() const { return count_; }

  const Index& index() const { return index_; }
  const LeafGeometry& geometry() const { return geometry_; }
  std::uint64_t stat(std::string_view name) const { return stat_of(index_, name); }
  static std::uint64_t stat_of(const Index& index, std::string_view name) {
    for (const auto& [each, number] : index.stats().counts) {
      if (each == name) return number;
    }
    ADD_FAILURE() << "no count of " << name;
    return 0;
  }

  // Another compute node, with settings of its own; it knows the inner nodes, and no hotspots.
  Index other_node(const std::string& settings = "") const {
    Pool pool = must(pool_.attach({}));
    Index other = must(pool.open_index(
        "index", IndexOptions::parse("chime" + (settings.empty() ? "" : ":" + settings)).value()));
    warm(other);
    return other;
  }
  // An absent key of the same home, in the same leaf; the n-th of them.
  std::uint64_t same_home(std::uint64_t of, std::uint64_t n = 0) const {
    for (std::uint64_t next = of + 1;; ++next) {
      if (geometry_.home_of(next) == geometry_.home_of(of) && n-- == 0) return next;
    }
  }
  // Leaves as full as that, on average; which keys are left.
  std::vector<std::uint64_t> thin_out(double load) {
    const std::uint64_t leaves = stat("splits") + 1;
    const auto keep = static_cast<std::uint64_t>(load * static_cast<double>(leaves) *
                                                 static_cast<double>(geometry_.span));
    std::vector<std::uint64_t> numbers(count_);
    for (std::uint64_t n = 0; n < count_; ++n) numbers[n] = n;
    std::mt19937_64 random(3);
    std::ranges::shuffle(numbers, random);
    while (numbers.size() > keep) {
      must(index_.erase(key(numbers.back())));
      numbers.pop_back();
    }
    return numbers;
  }

 private:
  void warm(const Index& index) const { EXPECT_EQ(must(index.scan(0, count_ + 1)).size(), count_); }

  const IndexOptions options_;
  const LeafGeometry geometry_;
  Pool pool_;
  Index index_;
  const std::uint64_t count_;
};

// What one operation costs.
Counters cost_of(const std::function<void(Counters*)>& operation) {
  Counters cost;
  operation(&cost);
  return cost;
}

// Most, least and mean of what operations of a kind cost.
struct Costs {
  std::uint64_t operations = 0;
  Counters sum;
  Counters most;
  Counters least;

  void add(const Counters& cost) {
    const auto each = [&](std::uint64_t Counters::* count) {
      most.*count = std::max(most.*count, cost.*count);
      least.*count = operations == 0 ? cost.*count : std::min(least.*count, cost.*count);
    };
    each(&Counters::round_trips);
    each(&Counters::reads);
    each(&Counters::writes);
    each(&Counters::compare_swaps);
    each(&Counters::bytes_read);
    each(&Counters::bytes_written);
    sum += cost;
    ++operations;
  }
  double mean(std::uint64_t Counters::* count) const {
    return static_cast<double>(sum.*count) / static_cast<double>(operations);
  }
};
void PrintTo(const Costs& costs, std::ostream* out) {
  const auto each = [&](const char* name, std::uint64_t Counters::* count) {
    *out << fmt::format(" {} {:.3f} ({} to {})", name, costs.mean(count), costs.least.*count,
                        costs.most.*count);
  };
  each("round trips", &Counters::round_trips);
  each("reads", &Counters::reads);
  each("bytes read", &Counters::bytes_read);
  each("bytes written", &Counters::bytes_written);
}
::testing::AssertionResult always(const Costs& costs, std::uint64_t Counters::* count,
                                  std::uint64_t expected) {
  std::ostringstream shown;
  PrintTo(costs, &shown);
  shown << ", of " << costs.operations;
  if (costs.operations > 0 && costs.least.*count == expected && costs.most.*count == expected) {
    return ::testing::AssertionSuccess() << shown.str();
  }
  return ::testing::AssertionFailure() << "not always " << expected << ":" << shown.str();
}

// Nothing that the test did not ask for: no split, no merge, nobody misled.
class Quiet {
 public:
  explicit Quiet(const Index& index) : index_(index), before_(now()) {}
  bool still() const { return now() == before_; }

 private:
  std::vector<std::uint64_t> now() const {
    return {ChimeTree::stat_of(index_, "splits"), ChimeTree::stat_of(index_, "merges"),
            ChimeTree::stat_of(index_, "misled_by_cache")};
  }
  const Index& index_;
  const std::vector<std::uint64_t> before_;
};

constexpr auto kRoundTrips = &Counters::round_trips;
constexpr auto kReads = &Counters::reads;
constexpr auto kBytesRead = &Counters::bytes_read;
constexpr std::uint64_t kSamples = 1'000;
constexpr std::uint64_t kNeighbourhoodBytes = 192;
constexpr std::uint64_t kEntryBytes = 32;

// Everything that leaves trees as they are; the costs by kind of operation.
struct Usual {
  Costs get, get_again, get_absent, update, update_hot, put, erase, insert, scan, multi_get;

  explicit Usual(const ChimeTree& tree) : Usual(tree, tree.index()) {}
  Usual(const ChimeTree& tree, const Index& index) {
    const Quiet quiet(index);
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const std::uint64_t key = ChimeTree::key(tree.sample(i));
      const std::uint64_t other = ChimeTree::key(tree.sample(i + kSamples));
      const std::string old = ChimeTree::value(tree.sample(i));
      const std::string value = ChimeTree::value(i + 1);
      get.add(cost_of([&](Counters* cost) { EXPECT_TRUE(holds(index.get(key, cost), old)); }));
      get_again.add(
          cost_of([&](Counters* cost) { EXPECT_TRUE(holds(index.get(key, cost), old)); }));
      get_absent.add(cost_of([&](Counters* cost) {
        EXPECT_TRUE(failed_with(index.get(key + 1, cost), ErrorCode::kNotFound));
      }));
      update_hot.add(
          cost_of([&](Counters* cost) { EXPECT_TRUE(succeeded(index.update(key, value, cost))); }));
      update.add(
          cost_of([&](Counters* cost) { EXPECT_TRUE(succeeded(index.update(other, old, cost))); }));
      put.add(cost_of([&](Counters* cost) {
        EXPECT_TRUE(succeeded(index.put(other, ChimeTree::value(tree.sample(i + kSamples)), cost)));
      }));
      EXPECT_TRUE(holds(index.get(key), value));
      erase.add(cost_of([&](Counters* cost) { EXPECT_TRUE(succeeded(index.erase(key, cost))); }));
      EXPECT_TRUE(failed_with(index.get(key), ErrorCode::kNotFound));
      insert.add(
          cost_of([&](Counters* cost) { EXPECT_TRUE(succeeded(index.insert(key, old, cost))); }));
    }
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const std::uint64_t first = tree.sample(i) % (tree.count() - 100);
      scan.add(cost_of([&](Counters* cost) {
        const auto entries = must(index.scan(ChimeTree::key(first), 100, cost));
        EXPECT_EQ(entries.size(), 100u);
        EXPECT_EQ(entries.front().key.integer(), ChimeTree::key(first));
        EXPECT_EQ(entries.back().key.integer(), ChimeTree::key(first + 99));
        EXPECT_EQ(entries.back().value, ChimeTree::value(first + 99));
      }));
      std::vector<Key> keys;
      for (std::uint64_t j = 0; j < 64; ++j) keys.emplace_back(ChimeTree::key(tree.sample(i + j)));
      multi_get.add(cost_of([&](Counters* cost) {
        const auto values = must(index.multi_get(keys, cost));
        for (std::uint64_t j = 0; j < 64; ++j) {
          EXPECT_EQ(values[j], ChimeTree::value(tree.sample(i + j)));
        }
      }));
    }
    EXPECT_TRUE(quiet.still());
  }
};

// ---- Bytes

TEST(ChimeCosts, GetsReadANeighbourhoodAndThenOneEntry) {
  const ChimeTree tree;
  const Index cold = tree.other_node();
  Costs first, absent, second;
  for (std::uint64_t n = 0; n < tree.count(); ++n) {
    const std::uint64_t key = ChimeTree::key(n);
    first.add(cost_of([&](Counters* cost) { must(cold.get(key, cost)); }));
    absent.add(cost_of([&](Counters* cost) { (void)cold.get(key + 1, cost); }));
    second.add(cost_of([&](Counters* cost) { must(cold.get(key, cost)); }));
  }
  for (const Costs* each : {&first, &absent, &second}) EXPECT_TRUE(always(*each, kRoundTrips, 1));
  EXPECT_LE(first.most.bytes_read, kNeighbourhoodBytes);
  EXPECT_LE(absent.most.bytes_read, kNeighbourhoodBytes);
  EXPECT_LE(second.most.bytes_read, kEntryBytes);
  EXPECT_TRUE(always(second, kReads, 1));
  EXPECT_EQ(ChimeTree::stat_of(cold, "speculative_reads"), tree.count());
  EXPECT_EQ(ChimeTree::stat_of(cold, "wrong_speculations"), 0u);
}

TEST(ChimeCosts, UsualOperations) {
  const ChimeTree tree;
  const Usual cost(tree);
  for (const Costs* each :
       {&cost.get, &cost.get_again, &cost.get_absent, &cost.scan, &cost.multi_get}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
  }
  for (const Costs* each : {&cost.update, &cost.update_hot, &cost.put, &cost.erase, &cost.insert}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 2));
    EXPECT_LE(each->most.bytes_read, kNeighbourhoodBytes);
  }
  EXPECT_LE(cost.get_again.most.bytes_read, kEntryBytes);
  EXPECT_LE(cost.update_hot.most.bytes_read, kEntryBytes);
  // The entry, and the lock word.
  EXPECT_TRUE(always(cost.update, &Counters::bytes_written, tree.geometry().slot_bytes + 8));
  EXPECT_TRUE(always(cost.update_hot, &Counters::bytes_written, tree.geometry().slot_bytes + 8));
  // Of keys that lie apart, all entries of the leaves, without the header.
  EXPECT_LE(cost.scan.sum.bytes_read, cost.scan.sum.reads * (tree.geometry().bytes - 60));
  EXPECT_LE(cost.scan.most.reads, 5u);
  EXPECT_EQ(tree.stat("partial_leaf_scans"), 0u);
}

TEST(ChimeCosts, WithoutExclusionScansReadWholeLeaves) {
  const ChimeTree tree("exclude=off");
  const Usual cost(tree);
  EXPECT_TRUE(always(cost.scan, kRoundTrips, 1));
  EXPECT_EQ(cost.scan.sum.bytes_read, cost.scan.sum.reads * tree.geometry().bytes);
  EXPECT_LE(cost.scan.most.reads, 5u);
}

// Consecutive keys, inserted in no order: leaves of all widths.
struct DenseTree {
  static constexpr std::uint64_t kCount = 20'000;
  Pool pool = must(Pool::open("embedded:64MiB"));
  Index index;

  explicit DenseTree(const std::string& settings)
      : index(must(pool.create_index("index", IndexOptions::parse("chime:" + settings).value()))) {
    std::vector<std::uint64_t> keys(kCount);
    for (std::uint64_t n = 0; n < kCount; ++n) keys[n] = n;
    std::ranges::shuffle(keys, std::mt19937_64(5));
    for (const std::uint64_t key : keys) must(index.insert(key, ChimeTree::value(key)));
    for (std::uint64_t n = 0; n < kCount; ++n) must(index.get(n));
  }
  Costs scans(std::size_t length) const {
    (void)must(index.scan(0, kCount));  // to learn that all keys are there
    Costs costs;
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      const std::uint64_t first = i * 7919 % (kCount - 500);
      costs.add(cost_of([&](Counters* cost) {
        const auto entries = must(index.scan(first, length, cost));
        ASSERT_EQ(entries.size(), length);
        for (std::size_t n = 0; n < length; ++n) {
          ASSERT_EQ(entries[n].key.integer(), first + n);
          ASSERT_EQ(entries[n].value, ChimeTree::value(first + n));
        }
      }));
    }
    return costs;
  }
};

TEST(ChimeCosts, ScansOfConsecutiveKeysLeaveOutWhatCannotBeInRange) {
  const DenseTree tree("exclude=on");
  const DenseTree whole("exclude=off");
  const DenseTree ordered("ordered_homes=on");
  for (const std::size_t length : {1u, 10u, 50u, 100u}) {
    const Costs part = tree.scans(length);
    EXPECT_LE(part.mean(kRoundTrips), 1.01) << length;
    EXPECT_LE(ordered.scans(length).mean(kRoundTrips), 1.01) << length;
    EXPECT_LE(whole.scans(length).mean(kRoundTrips), 1.01) << length;
    EXPECT_LT(part.mean(kBytesRead), 0.9 * whole.scans(length).mean(kBytesRead)) << length;
    EXPECT_LT(ordered.scans(length).mean(kBytesRead), 0.75 * whole.scans(length).mean(kBytesRead))
        << length;
  }
  EXPECT_LE(tree.scans(1).mean(kBytesRead), kNeighbourhoodBytes) << "like a get";
  EXPECT_GT(ChimeTree::stat_of(tree.index, "partial_leaf_scans"), kSamples);
  EXPECT_EQ(ChimeTree::stat_of(whole.index, "partial_leaf_scans"), 0u);
}

// What inserts cost while the load stays as it is: for each that comes, one goes.
Costs inserts_at(ChimeTree& tree, double load) {
  std::vector<std::uint64_t> present = tree.thin_out(load);
  std::mt19937_64 random(1);
  std::set<std::uint64_t> used(present.begin(), present.end());
  Costs costs;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    std::uint64_t n = random() % tree.count();
    while (!used.insert(n).second) n = random() % tree.count();
    const Quiet quiet(tree.index());
    const Counters cost = cost_of([&](Counters* counted) {
      EXPECT_TRUE(succeeded(tree.index().insert(ChimeTree::key(n), ChimeTree::value(n), counted)));
    });
    if (quiet.still()) costs.add(cost);
    EXPECT_TRUE(succeeded(tree.index().erase(ChimeTree::key(present[i]))));
    used.erase(present[i]);
  }
  return costs;
}

TEST(ChimeCosts, InsertsIntoLeavesAtSeventyPercent) {
  ChimeTree tree;
  const Costs costs = inserts_at(tree, 0.7);
  EXPECT_GE(costs.operations, kSamples * 99 / 100) << "hardly any splits";
  EXPECT_EQ(costs.least.round_trips, 2u);
  EXPECT_LE(costs.most.round_trips, 4u);
  EXPECT_LE(costs.mean(kRoundTrips), 2.2) << ::testing::PrintToString(costs);
  EXPECT_LE(costs.mean(kBytesRead), 1.2 * kNeighbourhoodBytes) << ::testing::PrintToString(costs);
}

// Full leaves: the vacancy map spares most of them the READ of the whole leaf.
TEST(ChimeCosts, InsertsIntoLeavesAtEightyFivePercent) {
  ChimeTree tree;
  const Costs costs = inserts_at(tree, 0.85);
  EXPECT_GE(costs.operations, kSamples * 9 / 10);
  EXPECT_LE(costs.mean(kRoundTrips), 2.2) << ::testing::PrintToString(costs);
  EXPECT_LE(costs.mean(kBytesRead), 2.0 * kNeighbourhoodBytes) << ::testing::PrintToString(costs);
}

// Where a leaf looks half empty, some erases read it to see whether to merge it.
TEST(ChimeCosts, ErasesFromLeavesAtSixtyPercent) {
  ChimeTree tree;
  const std::vector<std::uint64_t> present = tree.thin_out(0.6);
  Costs costs;
  for (std::uint64_t i = 0; i < kSamples / 2; ++i) {
    const Quiet quiet(tree.index());
    const Counters cost = cost_of([&](Counters* counted) {
      EXPECT_TRUE(succeeded(tree.index().erase(ChimeTree::key(present[i]), counted)));
    });
    if (quiet.still() && cost.compare_swaps == 1) costs.add(cost);  // more where it tried to merge
    must(tree.index().insert(ChimeTree::key(present[i]), ChimeTree::value(i)));
  }
  EXPECT_LE(costs.most.round_trips, 3u);
  EXPECT_LE(costs.mean(kRoundTrips), 2.2) << ::testing::PrintToString(costs);
  RecordProperty("round_trips", ::testing::PrintToString(costs));
}

TEST(ChimeCosts, ScansOfLeavesAtSeventyPercent) {
  ChimeTree tree;
  (void)tree.thin_out(0.7);
  Costs costs;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t first = tree.sample(i) % (tree.count() - 200);
    costs.add(cost_of([&](Counters* cost) {
      EXPECT_EQ(must(tree.index().scan(ChimeTree::key(first), 100, cost)).size(), 100u);
    }));
  }
  EXPECT_LE(costs.most.round_trips, 2u);
  EXPECT_LE(costs.mean(kRoundTrips), 1.01) << ::testing::PrintToString(costs);
}

// ---- The paper's Table 1

TEST(ChimeCosts, AsInThePaper) {
  const ChimeTree tree("lock_with_read=off");
  const Usual cost(tree);
  for (const Costs* each : {&cost.get, &cost.get_again, &cost.get_absent, &cost.scan}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
  }
  for (const Costs* each : {&cost.update, &cost.update_hot, &cost.put, &cost.erase, &cost.insert}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 3));
  }
  EXPECT_LE(cost.update_hot.most.bytes_read, kEntryBytes);
}

TEST(ChimeCosts, InsertsAsInThePaper) {
  ChimeTree tree("lock_with_read=off");
  const Costs costs = inserts_at(tree, 0.7);
  EXPECT_EQ(costs.least.round_trips, 3u);
  EXPECT_LE(costs.mean(kRoundTrips), 3.02) << ::testing::PrintToString(costs);
}

// Speculation that goes wrong. A knows where a key stands; B erases it, and lets another key of the
// same home take its place before it comes back, so that it stands elsewhere in the leaf.
class WrongSpeculation : public ::testing::TestWithParam<const char*> {
 protected:
  // The costs of `operation` by A, of those keys where it did guess wrong.
  Costs costs_of(
      const std::function<void(const Index& a, std::uint64_t key, Counters* cost)>& operation) {
    const ChimeTree tree(GetParam());
    const Index a = tree.other_node(GetParam());
    const Index& b = tree.index();
    const std::string moved = ChimeTree::value(77);
    Costs costs;
    std::uint64_t tried = 0;
    for (std::uint64_t i = 0; i < kSamples && costs.operations < 200; ++i) {
      const std::uint64_t key = ChimeTree::key(tree.sample(i));
      const std::uint64_t intruder = tree.same_home(key);
      // Where a neighbour was split, it has to find the leaf and the inner node above it first.
      for (int times = 0; times < 2; ++times) must(a.get(key));
      const Counters hit = cost_of([&](Counters* cost) { must(a.get(key, cost)); });
      EXPECT_EQ(hit.bytes_read, tree.geometry().slot_bytes);
      const Quiet quiet(b);
      must(b.erase(key));
      must(b.insert(intruder, ChimeTree::value(i)));
      must(b.insert(key, moved));
      if (!quiet.still()) {  // the leaf was full
        EXPECT_TRUE(holds(a.get(key), moved));
        continue;
      }
      ++tried;
      const std::uint64_t wrong = ChimeTree::stat_of(a, "wrong_speculations");
      const Counters cost = cost_of([&](Counters* counted) { operation(a, key, counted); });
      if (ChimeTree::stat_of(a, "wrong_speculations") == wrong) continue;  // back in its place
      EXPECT_EQ(ChimeTree::stat_of(a, "wrong_speculations"), wrong + 1);
      EXPECT_TRUE(holds(a.get(intruder), ChimeTree::value(i)));
      costs.add(cost);
      // A get that guessed wrong knows it now.
      EXPECT_TRUE(holds(a.get(key), moved));
      const Counters again = cost_of([&](Counters* counted) { must(a.get(key, counted)); });
      EXPECT_EQ(again.bytes_read, tree.geometry().slot_bytes);
    }
    EXPECT_GT(costs.operations, tried / 4) << "of " << tried;
    return costs;
  }
  static bool lock_with_read() { return std::string_view(GetParam()).empty(); }
};

TEST_P(WrongSpeculation, OfAGetCostsOneMore) {
  const Costs costs = costs_of([](const Index& a, std::uint64_t key, Counters* cost) {
    EXPECT_TRUE(holds(a.get(key, cost), ChimeTree::value(77)));
  });
  EXPECT_TRUE(always(costs, kRoundTrips, 2));
  EXPECT_LE(costs.most.bytes_read, kNeighbourhoodBytes + kEntryBytes);
}

TEST_P(WrongSpeculation, OfAnUpdateCostsOneMore) {
  const Costs costs = costs_of([](const Index& a, std::uint64_t key, Counters* cost) {
    EXPECT_TRUE(succeeded(a.update(key, ChimeTree::value(77), cost)));
  });
  EXPECT_TRUE(always(costs, kRoundTrips, lock_with_read() ? 3 : 4));
}

// As a get, an update that guessed wrong should learn where the key stands.
TEST_P(WrongSpeculation, OfAnUpdateHappensOnce) {
  std::vector<std::uint64_t> costs;
  (void)costs_of([&](const Index& a, std::uint64_t key, Counters* cost) {
    must(a.update(key, ChimeTree::value(77), cost));
    costs.push_back(cost_of([&](Counters* again) {
                      must(a.update(key, ChimeTree::value(77), again));
                    }).round_trips);
  });
  ASSERT_FALSE(costs.empty());
  EXPECT_EQ(std::ranges::max(costs), lock_with_read() ? 2u : 3u);
}

// It does not speculate: it has to see the key's home.
TEST_P(WrongSpeculation, DoesNotHappenToErases) {
  const ChimeTree tree(GetParam());
  Costs costs;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t key = ChimeTree::key(tree.sample(i));
    must(tree.index().get(key));
    const std::uint64_t before = tree.stat("speculative_reads");
    costs.add(
        cost_of([&](Counters* cost) { EXPECT_TRUE(succeeded(tree.index().erase(key, cost))); }));
    EXPECT_EQ(tree.stat("speculative_reads"), before);
    must(tree.index().insert(key, ChimeTree::value(i)));
  }
  EXPECT_TRUE(always(costs, kRoundTrips, lock_with_read() ? 2 : 3));
}

INSTANTIATE_TEST_SUITE_P(Chime, WrongSpeculation, ::testing::Values("", "lock_with_read=off"),
                         [](const auto& info) {
                           return std::string_view(info.param).empty() ? "default_settings"
                                                                       : "as_in_the_paper";
                         });

// The key is gone, moved by hops, split away or merged away, or its leaf's memory serves others:
// what A remembers of it is never believed.
TEST(Speculation, OfKeysThatOthersMove) {
  const std::string settings = "span=16,neighbourhood=4,inner_bytes=256";
  ChimeTree tree(settings, "embedded:256MiB", 2'000);
  const Index a = tree.other_node();
  const Index& b = tree.index();
  Model model(KeyType::kInteger);
  for (std::uint64_t n = 0; n < tree.count(); ++n) {
    must(model.put(ChimeTree::key(n), ChimeTree::value(n)));
  }
  const auto read_twice = [&](const char* when) {
    const std::vector<OwnedKey> keys = model.keys();
    for (const OwnedKey& key : keys) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(same_outcome(a.get(key), model.get(key))) << when;
    }
    for (std::uint64_t n = 0; n < tree.count(); ++n) {
      const Key key(ChimeTree::key(n));
      ASSERT_TRUE(same_outcome(a.get(key), model.get(key))) << when << " " << n;
    }
  };
  const auto put = [&](std::uint64_t key) {
    must(b.put(key, ChimeTree::value(key)));
    must(model.put(key, ChimeTree::value(key)));
  };
  const auto erase = [&](std::uint64_t key) {
    must(b.erase(key));
    must(model.erase(key));
  };
  read_twice("as built");
  for (std::uint64_t n = 0; n < tree.count(); n += 3) erase(ChimeTree::key(n));
  read_twice("erased");
  const std::uint64_t hops = tree.stat("hops");
  const std::uint64_t splits = tree.stat("splits");
  for (std::uint64_t n = 0; n < tree.count(); ++n) put(ChimeTree::key(n) + 1 + n % 5);
  EXPECT_GT(tree.stat("hops"), hops);
  EXPECT_GT(tree.stat("splits"), splits);
  read_twice("hopped and split");
  for (std::uint64_t n = 0; n < tree.count(); ++n) {
    if (n % 20 == 0) continue;
    erase(ChimeTree::key(n) + 1 + n % 5);
    if (n % 3 != 0) erase(ChimeTree::key(n));
  }
  EXPECT_GT(tree.stat("merges"), 0u);
  read_twice("merged");
  for (std::uint64_t n = 0; n < tree.count(); ++n) put(ChimeTree::key(n));
  read_twice("filled again");
  EXPECT_TRUE(holds_exactly(a, model));
  EXPECT_GT(ChimeTree::stat_of(a, "wrong_speculations"), 0u);
}

// ---- Techniques switched off, one by one

TEST(ChimeCosts, WithoutVacancyMapInsertsReadTheLeaf) {
  ChimeTree tree("vacancy=off");
  const Usual cost(tree);
  const Costs at_seventy = inserts_at(tree, 0.7);
  for (const Costs* each : {&cost.insert, &at_seventy}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 2));
    EXPECT_TRUE(always(*each, kReads, 1));
    EXPECT_TRUE(always(*each, kBytesRead, tree.geometry().bytes));
  }
  // They do not insert.
  for (const Costs* each : {&cost.update, &cost.erase, &cost.get}) {
    EXPECT_LE(each->most.bytes_read, kNeighbourhoodBytes);
  }
}

TEST(ChimeCosts, WithoutReplicasTheHeaderIsReadToo) {
  const ChimeTree tree("replicas=off");
  const Usual cost(tree);
  for (const Costs* each : {&cost.get, &cost.get_absent}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
    EXPECT_EQ(each->least.reads, 2u);
    EXPECT_LE(each->most.reads, 3u);  // where the neighbourhood goes around the end
    EXPECT_GT(each->least.bytes_read, fabric::kLineBytes);
    EXPECT_LE(each->most.bytes_read, kNeighbourhoodBytes + fabric::kLineBytes);
  }
  EXPECT_TRUE(always(cost.get_again, kReads, 1));
  for (const Costs* each : {&cost.update, &cost.erase, &cost.insert}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 2));
    EXPECT_EQ(each->least.reads, 2u);
  }
}

TEST(ChimeCosts, WithoutSpeculationEveryGetReadsANeighbourhood) {
  const ChimeTree tree("speculation=off");
  const Usual cost(tree);
  for (const Costs* each : {&cost.get, &cost.get_again}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
    EXPECT_GT(each->least.bytes_read, 8 * tree.geometry().slot_bytes);
  }
  EXPECT_TRUE(always(cost.update_hot, kRoundTrips, 2));
  EXPECT_GT(cost.update_hot.least.bytes_read, 8 * tree.geometry().slot_bytes);
  EXPECT_EQ(tree.stat("speculative_reads"), 0u);
}

TEST(ChimeCosts, WithFencesInReplicasTheSame) {
  const ChimeTree tree("sibling_validation=off");
  const Usual cost(tree);
  for (const Costs* each : {&cost.get, &cost.get_again, &cost.get_absent}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
    EXPECT_LE(each->most.bytes_read, kNeighbourhoodBytes);
  }
  for (const Costs* each : {&cost.update, &cost.put, &cost.erase, &cost.insert}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 2));
  }
}

TEST(ChimeCosts, UnlockingApartCostsOneMore) {
  const ChimeTree tree("unlock_with_write=off");
  const Usual cost(tree);
  for (const Costs* each : {&cost.update, &cost.put, &cost.erase, &cost.insert}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 3));
  }
}

TEST(ChimeCosts, ScanWithoutParallelReadsTakesOneALeaf) {
  const ChimeTree tree("parallel_scan=off");
  const Usual cost(tree);
  EXPECT_GE(cost.scan.least.round_trips, 2u);
  EXPECT_EQ(cost.scan.sum.round_trips, cost.scan.sum.reads);
}

// ---- The same answers, whatever is switched off

struct Setup {
  const char* name;
  const char* settings;
  const char* url = "embedded:64MiB";
};
void PrintTo(const Setup& setup, std::ostream* out) {
  *out << setup.settings << " on " << setup.url;
}

constexpr const char* kEmulated = "embedded:64MiB?masked_cas=emulated";
constexpr Setup kSetups[] = {
    {"lock_with_read", "lock_with_read=off"},
    {"unlock_with_write", "unlock_with_write=off"},
    {"vacancy", "vacancy=off"},
    {"replicas", "replicas=off"},
    {"speculation", "speculation=off"},
    {"exclude", "exclude=off"},
    {"ordered_homes", "ordered_homes=on"},
    {"ordered_homes_and_fences", "ordered_homes=on,sibling_validation=off"},
    {"sibling_validation", "sibling_validation=off"},
    {"fences_and_no_replicas", "sibling_validation=off,replicas=off"},
    {"vacancy_and_lock_with_read", "vacancy=off,lock_with_read=off"},
    {"cache", "cache=off"},
    {"handovers", "handovers=0"},
    {"merge", "merge=off"},
    {"hopscotch_only", "vacancy=off,replicas=off,speculation=off"},
    {"emulated_cas", "", kEmulated},
    {"emulated_cas_as_in_the_paper", "lock_with_read=off", kEmulated},
    {"emulated_cas_bytes", "keys=bytes", kEmulated},
    {"emulated_cas_simulated", "", "sim:64MiB?nodes=2&adversary=5&huge=off&masked_cas=emulated"},
};

class ChimeSetups : public ::testing::TestWithParam<Setup> {};

// Grows and shrinks a tree of small leaves through two compute nodes, the second with stale caches.
TEST_P(ChimeSetups, GiveTheRightAnswers) {
  std::string text = "chime:span=16,neighbourhood=4,inner_bytes=256";
  if (GetParam().settings[0] != '\0') text += std::string(",") + GetParam().settings;
  const IndexOptions options = IndexOptions::parse(text).value();
  Pool pool = must(Pool::open(GetParam().url));
  const Index first = must(pool.create_index("index", options));
  Pool other = must(pool.attach({}));
  const Index second = must(other.open_index("index", options));
  Model model(options.key_type);
  std::mt19937_64 random(7);
  const std::uint64_t steps = scaled(16'000, 4'000);
  for (std::uint64_t step = 0; step < steps; ++step) {
    // A few growths and declines.
    const bool growing = step * 4 / steps % 2 == 0;
    const Index& index = random() % 4 == 0 ? second : first;
    const OwnedKey key = numbered_key(options.key_type, random() % 1'500);
    const std::string value = patterned_value(random() % 8 == 0 ? 40 : 8, step);
    const std::uint64_t dice = random() % 16;
    if (dice < 2) {
      ASSERT_TRUE(same_outcome(index.get(key), model.get(key))) << step;
    } else if (dice == 2) {
      ASSERT_TRUE(same_outcome(index.update(key, value), model.update(key, value))) << step;
    } else if (dice == 3) {
      ASSERT_TRUE(same_entries(must(index.scan(key, 20)), model.scan(key, 20))) << step;
    } else if (growing == (dice < 13)) {
      const bool put = dice % 2 == 0;
      ASSERT_TRUE(same_outcome(put ? index.put(key, value) : index.insert(key, value),
                               put ? model.put(key, value) : model.insert(key, value)))
          << step;
    } else {
      ASSERT_TRUE(same_outcome(index.erase(key), model.erase(key))) << step;
    }
    if (step % 1'000 == 999) ASSERT_TRUE(succeeded(first.check())) << step;
  }
  EXPECT_GT(ChimeTree::stat_of(first, "splits"), 0u);
  EXPECT_GT(ChimeTree::stat_of(first, "hops"), 0u);
  if (!text.contains("merge=off")) EXPECT_GT(ChimeTree::stat_of(first, "merges"), 0u);
  EXPECT_TRUE(holds_exactly(first, model));
  EXPECT_TRUE(holds_exactly(second, model));
  EXPECT_TRUE(succeeded(second.check()));
}

INSTANTIATE_TEST_SUITE_P(Chime, ChimeSetups, ::testing::ValuesIn(kSetups),
                         [](const auto& info) { return info.param.name; });

// ---- Memory nodes without masked compare-and-swap

// Nobody knows the vacancy map before the lock: where it is not all zero, the first guess is wrong,
// and the second right.
TEST(ChimeCosts, EmulatedMaskedCasCostsAtMostOneMoreALock) {
  const ChimeTree native;
  const ChimeTree emulated("", "embedded:256MiB?masked_cas=emulated");
  const Usual expected(native);
  const Usual cost(emulated);
  for (const Costs* each :
       {&cost.get, &cost.get_again, &cost.get_absent, &cost.scan, &cost.multi_get}) {
    EXPECT_TRUE(always(*each, kRoundTrips, 1));
  }
  for (const auto each :
       {&Usual::update, &Usual::update_hot, &Usual::put, &Usual::erase, &Usual::insert}) {
    const Costs& without = cost.*each;
    EXPECT_TRUE(always(expected.*each, kRoundTrips, 2));
    EXPECT_GE(without.least.round_trips, 2u);
    EXPECT_LE(without.most.round_trips, 3u) << ::testing::PrintToString(without);
    EXPECT_LE(without.most.compare_swaps, 2u);
  }
}

// A tree that is built and taken down again: each lock at most one more, splits and merges too.
TEST(ChimeCosts, EmulatedMaskedCasOfAWholeLife) {
  Counters costs[2];
  for (const bool native : {true, false}) {
    Pool pool = must(Pool::open(native ? "embedded:64MiB" : kEmulated));
    const Index index = must(pool.create_index("index", IndexOptions::parse("chime").value()));
    const std::uint64_t count = 4'000;
    Counters& cost = costs[native ? 0 : 1];
    for (std::uint64_t i = 0; i < count; ++i) {
      must(index.insert(i * 7919 % count, ChimeTree::value(i), &cost));
    }
    for (std::uint64_t i = 0; i < count; ++i) must(index.update(i, ChimeTree::value(i), &cost));
    for (std::uint64_t i = 0; i < count; ++i) must(index.erase(i * 7919 % count, &cost));
    EXPECT_TRUE(succeeded(index.check()));
    EXPECT_GT(ChimeTree::stat_of(index, "splits"), 0u);
    EXPECT_GT(ChimeTree::stat_of(index, "merges"), 0u);
  }
  const Counters& native = costs[0];
  const Counters& emulated = costs[1];
  EXPECT_GT(emulated.round_trips, native.round_trips) << "the fabric does emulate";
  EXPECT_LE(emulated.round_trips, native.round_trips + native.compare_swaps);
  EXPECT_LE(emulated.compare_swaps, 2 * native.compare_swaps);
}

}  // namespace
}  // namespace pando::testing
