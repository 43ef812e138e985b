// Scans: at rest exactly the model; under writers the contract (ascending, no duplicates, all that
// was there throughout, only values that were there).
#include <atomic>
#include <limits>
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Scans : public ConformanceTest {};

TEST_P(Scans, LimitsZeroOneAndHuge) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(2'000, 300);
  fill(index, 0, count);
  EXPECT_TRUE(must(index.scan(smallest(), 0)).empty());
  EXPECT_EQ(must(index.scan(smallest(), 1)).size(), 1u);
  EXPECT_EQ(must(index.scan(smallest(), count)).size(), count);
  EXPECT_EQ(must(index.scan(smallest(), std::numeric_limits<std::size_t>::max())).size(), count);
}

TEST_P(Scans, EveryStartAndLimitOfSparseKeys) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (std::uint64_t n = 0; n < 600; n += 3) {
    ASSERT_TRUE(same_outcome(index.put(key(n * n), numbered_value(n)),
                             model.put(key(n * n), numbered_value(n))));
  }
  // Starts at present keys, between them, before the first and past the last.
  for (std::uint64_t n = 0; n < 610; ++n) {
    for (const std::size_t limit : {1u, 2u, 20u, 150u, 1'000u}) {
      const OwnedKey from = key(n * n + n % 2);
      ASSERT_TRUE(same_entries(must(index.scan(from, limit)), model.scan(from, limit)))
          << "from " << n << ", limit " << limit;
    }
  }
}

TEST_P(Scans, PastTheEnd) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  fill(index, 0, 500);
  EXPECT_TRUE(must(index.scan(key(500), 10)).empty());
  EXPECT_TRUE(must(index.scan(hostile_keys(key_type()).back(), 10)).empty());
}

// Long stretches without keys: whole leaves were emptied.
TEST_P(Scans, AcrossEmptiedStretches) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(10'000, 2'000);
  fill(index, 0, count);
  Model model(key_type());
  for (std::uint64_t n = 0; n < count; ++n) {
    const bool kept = n % 1'000 < 3;
    if (kept) must(model.put(key(n), numbered_value(n)));
    if (!kept) ASSERT_TRUE(succeeded(index.erase(key(n))));
  }
  EXPECT_TRUE(holds_exactly(index, model));
  for (std::uint64_t n = 0; n < count; n += 97) {
    ASSERT_TRUE(same_entries(must(index.scan(key(n), 7)), model.scan(key(n), 7))) << n;
  }
}

TEST_P(Scans, RangeStopsBeforeUntil) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(3'000, 500);
  fill(index, 0, count);
  for (const auto& [from, until] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {5, 5}, {0, 1}, {10, 300}, {count - 1, count}, {0, count + 5}, {9, 3}}) {
    const OwnedKey first = key(from);
    const OwnedKey last = key(until);
    std::uint64_t expected = from;
    Range range = index.range(first, last);
    for (const Entry& entry : range) {
      ASSERT_EQ(number_of(entry.key), expected);
      ASSERT_EQ(entry.value, numbered_value(expected));
      ++expected;
    }
    EXPECT_TRUE(succeeded(range.status()));
    EXPECT_EQ(expected, std::max(from, std::min(until, count))) << from << " to " << until;
  }
}

TEST_P(Scans, RangeUpToTheLargestKey) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const OwnedKey largest = hostile_keys(key_type()).back();
  ASSERT_TRUE(succeeded(index.put(key(1), "small")));
  ASSERT_TRUE(succeeded(index.put(largest, "largest")));
  std::size_t seen = 0;
  Range range = index.range(smallest());
  for (const Entry& entry : range) {
    EXPECT_EQ(entry.value, seen == 0 ? "small" : "largest");
    ++seen;
  }
  EXPECT_EQ(seen, 2u);
  EXPECT_TRUE(succeeded(range.status()));
}

TEST_P(Scans, BigValuesInOnePage) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (std::uint64_t n = 0; n < 12; ++n) {
    const std::string value = patterned_value(n % 3 == 0 ? kMaxValueBytes : n, n);
    ASSERT_TRUE(same_outcome(index.put(key(n), value), model.put(key(n), value)));
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

TEST_P(Scans, OnAnEmptyCache) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(5'000, 500);
  fill(index, 0, count);
  // The very first operation of a fresh compute node, with and without room to cache.
  for (const std::uint64_t budget : {std::uint64_t{0}, std::uint64_t{64} << 20}) {
    const Index fresh = must(must(pool.attach({.compute_budget = budget})).open_index("index"));
    const auto scanned = must(fresh.scan(key(count / 2), 100));
    ASSERT_EQ(scanned.size(), 100u);
    EXPECT_EQ(number_of(scanned.front().key), count / 2);
    EXPECT_EQ(number_of(scanned.back().key), count / 2 + 99);
  }
}

// Keys divisible by 4 stay, the others come and go. Every scan must return all of the former.
TEST_P(Scans, KeysPresentThroughoutAreNeverMissed) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(4'000, 800);
  for (std::uint64_t n = 0; n < count; n += 4) {
    ASSERT_TRUE(succeeded(index.put(key(n), numbered_value(n))));
  }
  std::atomic<bool> stop{false};
  const std::vector<Index> views = open_on_nodes(pool, 4);
  run_threads(views.size(), [&](std::size_t thread) {
    const Index& view = views[thread];
    std::mt19937_64 random(thread);
    if (thread < 2) {
      while (!stop) {
        const std::uint64_t n = random() % count;
        if (n % 4 == 0) continue;
        const Status status =
            random() % 2 == 0 ? view.put(key(n), numbered_value(n)) : view.erase(key(n));
        if (!status) EXPECT_TRUE(failed_with(status, ErrorCode::kNotFound));
      }
      return;
    }
    for (std::size_t round = 0; round < scaled(60, 8); ++round) {
      std::uint64_t expected_next = 0;  // the next key that must appear
      std::uint64_t above = 0;          // nothing may appear below this
      Range range = view.range(smallest());
      for (const Entry& entry : range) {
        const std::uint64_t n = number_of(entry.key);
        EXPECT_GE(n, above) << "out of order or twice";
        EXPECT_LE(n, expected_next) << "a key that was there throughout is missing";
        EXPECT_EQ(entry.value, numbered_value(n));
        above = n + 1;
        if (n == expected_next) expected_next += 4;
      }
      EXPECT_TRUE(succeeded(range.status()));
      EXPECT_GE(expected_next, count) << "the last keys are missing";
      if (::testing::Test::HasFailure()) break;
    }
    if (thread == 2) stop = true;
  });
}

// Consecutive keys, most of them there: scans of parts of leaves. Those divisible by 4 stay.
TEST_P(Scans, OfConsecutiveKeysUnderWriters) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(3'000, 600);
  fill(index, 0, count);
  std::atomic<bool> stop{false};
  const std::vector<Index> views = open_on_nodes(pool, 4);
  run_threads(views.size(), [&](std::size_t thread) {
    const Index& view = views[thread];
    std::mt19937_64 random(thread);
    if (thread < 2) {
      while (!stop) {
        const std::uint64_t n = random() % count;
        // Values change, too: they have the key's number and one of two ends.
        const std::string value = numbered_value(n) + (random() % 2 == 0 ? "a" : "b");
        const Status status =
            n % 4 == 0 || random() % 2 == 0 ? view.put(key(n), value) : view.erase(key(n));
        if (!status) EXPECT_TRUE(failed_with(status, ErrorCode::kNotFound));
      }
      return;
    }
    for (std::size_t round = 0; round < scaled(6'000, 400); ++round) {
      const std::uint64_t first = random() % count;
      const std::size_t limit = 1 + random() % 60;
      const std::vector<Entry> entries = must(view.scan(key(first), limit));
      std::uint64_t above = first;  // nothing may appear below this
      for (const Entry& entry : entries) {
        const std::uint64_t n = number_of(entry.key);
        EXPECT_GE(n, above) << "out of order or twice";
        EXPECT_LE(n, (above + 3) / 4 * 4) << "a key that was there throughout is missing";
        EXPECT_TRUE(entry.value.starts_with(numbered_value(n)));
        above = n + 1;
      }
      EXPECT_LE(entries.size(), limit);
      if (entries.size() < limit) EXPECT_GE((above + 3) / 4 * 4, count) << "the last are missing";
      if (::testing::Test::HasFailure()) break;
    }
    if (thread == 2) stop = true;
  });
  // Chime reads parts of leaves for them.
  for (const auto& [name, number] : views[2].stats().counts) {
    if (name != "partial_leaf_scans") continue;
    EXPECT_EQ(number > 0, key_type() == KeyType::kInteger);
  }
}

// The contract in full, by the checker: each scanned key is a read during the scan.
TEST_P(Scans, ValuesAndAbsencesAreOfTheScansTime) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  create_index(pool);
  HistoryRecorder recorder;
  std::vector<OwnedKey> universe;
  for (std::uint64_t n = 0; n < 150; ++n) universe.push_back(key(n));
  const std::vector<Index> views = open_on_nodes(pool, 4);
  run_threads(views.size(), [&](std::size_t thread) {
    RecordedIndex client(views[thread], recorder);
    std::mt19937_64 random(thread + 50);
    for (std::size_t step = 0; step < scaled(thread == 3 ? 600 : 6'000, 100); ++step) {
      const OwnedKey& target = universe[random() % universe.size()];
      const std::string value = numbered_value(thread, step);
      if (thread == 3) {
        client.scan(universe, target, 1 + random() % 80);
      } else if (random() % 2 == 0) {
        client.put(target, value);
      } else {
        client.erase(target);
      }
      take_turns(step);
    }
  });
  EXPECT_TRUE(linearizable(recorder));
}

PANDO_FOR_ALL_CASES(Scans);

}  // namespace
}  // namespace pando::testing
