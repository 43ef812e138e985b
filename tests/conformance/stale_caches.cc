// Several compute nodes: one changes the tree under the others' caches.
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class StaleCaches : public ConformanceTest {
 protected:
  // Reads everything, so that the cache is full of the tree as it is now.
  void warm(const Index& view, std::uint64_t begin, std::uint64_t end) const {
    for (std::uint64_t n = begin; n < end; ++n) ASSERT_TRUE(succeeded(view.get(key(n)))) << n;
  }
};

TEST_P(StaleCaches, OthersSeeEachWriteAtOnce) {
  Pool pool = open_pool();
  const Index writer = create_index(pool);
  const std::vector<Index> readers = open_on_nodes(pool, 2);
  for (std::uint64_t round = 0; round < scaled(1'000, 100); ++round) {
    ASSERT_TRUE(succeeded(writer.put(key(round % 50), numbered_value(1, round))));
    for (const Index& reader : readers) {
      ASSERT_TRUE(holds(reader.get(key(round % 50)), numbered_value(1, round)));
    }
  }
}

// The cached tree is one leaf; the real one has grown levels above it.
TEST_P(StaleCaches, TreeGrewFromOneLeaf) {
  Pool pool = open_pool();
  const Index writer = create_index(pool);
  fill(writer, 0, 4);
  const std::vector<Index> readers = open_on_nodes(pool, 3);
  for (const Index& reader : readers) warm(reader, 0, 4);

  const std::uint64_t count = scaled(20'000, 2'000);
  fill(writer, 4, count);

  for (std::uint64_t n = count; n-- > 0;) {
    ASSERT_TRUE(holds(readers[0].get(key(n)), numbered_value(n))) << n;
  }
  EXPECT_TRUE(holds_numbers(readers[1], 0, count)) << "scan through a stale cache";
  for (std::uint64_t n = 0; n < count; n += 7) {
    ASSERT_TRUE(succeeded(readers[2].update(key(n), numbered_value(n, 1)))) << n;
    ASSERT_TRUE(holds(writer.get(key(n)), numbered_value(n, 1))) << n;
  }
}

// Leaves split many times between the cached ones.
TEST_P(StaleCaches, LeavesSplitEverywhere) {
  Pool pool = open_pool();
  const Index writer = create_index(pool);
  const std::uint64_t count = scaled(20'000, 2'000);
  Model model(key_type());
  const auto put_where = [&](std::uint64_t remainder) {
    for (std::uint64_t n = 0; n < count; ++n) {
      if ((n % 10 == 0) != (remainder == 0)) continue;
      ASSERT_TRUE(same_outcome(writer.put(key(n), numbered_value(n)),
                               model.put(key(n), numbered_value(n))));
    }
  };
  put_where(0);
  const std::vector<Index> readers = open_on_nodes(pool, 2);
  for (const Index& reader : readers) ASSERT_TRUE(holds_exactly(reader, model));
  put_where(1);
  for (const Index& reader : readers) EXPECT_TRUE(holds_exactly(reader, model));
}

// Nodes that caches point to were freed, and their memory serves other keys now.
TEST_P(StaleCaches, EverythingErasedAndTheMemoryReused) {
  Pool pool = open_pool();
  const Index writer = create_index(pool);
  const std::uint64_t count = scaled(10'000, 1'000);
  fill(writer, 0, count);
  const std::vector<Index> readers = open_on_nodes(pool, 3);
  for (const Index& reader : readers) warm(reader, 0, count);

  erase_all(writer, 0, count);
  EXPECT_TRUE(holds_exactly(readers[0], Model(key_type())));

  const std::uint64_t moved = 1'000'000;
  fill(writer, moved, moved + count, 1);
  for (std::uint64_t n = 0; n < count; ++n) {
    ASSERT_TRUE(failed_with(readers[1].get(key(n)), ErrorCode::kNotFound)) << n;
    ASSERT_TRUE(holds(readers[1].get(key(moved + n)), numbered_value(moved + n, 1))) << n;
  }
  EXPECT_TRUE(holds_numbers(readers[2], moved, moved + count, 1));
}

TEST_P(StaleCaches, WritesThroughStaleCachesLandInTheRightPlace) {
  Pool pool = open_pool();
  const Index first = create_index(pool);
  const std::uint64_t count = scaled(6'000, 600);
  fill(first, 0, count);
  const std::vector<Index> views = open_on_nodes(pool, 2);
  for (const Index& view : views) warm(view, 0, count);

  erase_all(first, 0, count);
  fill(first, count, 2 * count);
  // views[0] still knows the tree of the erased keys.
  fill(views[0], 0, count, 1);
  for (std::uint64_t n = count; n < 2 * count; ++n) {
    ASSERT_TRUE(succeeded(views[1].erase(key(n)))) << n;
  }
  EXPECT_TRUE(holds_numbers(first, 0, count, 1));
  EXPECT_TRUE(holds_numbers(views[0], 0, count, 1));
  EXPECT_TRUE(holds_numbers(views[1], 0, count, 1));
}

// All of them read and write in turn; nobody's cache is ever quite right.
TEST_P(StaleCaches, TurnsAgainstTheModel) {
  Pool pool = open_pool();
  std::vector<Index> nodes{create_index(pool)};
  for (const std::uint64_t budget : {std::uint64_t{0}, std::uint64_t{128} << 10}) {
    nodes.push_back(must(must(pool.attach({.compute_budget = budget})).open_index("index")));
  }
  Model model(key_type());
  std::mt19937_64 random(11);
  const std::uint64_t keys = 4'000;
  for (std::size_t step = 0; step < scaled(50'000, 5'000); ++step) {
    const Index& node = nodes[random() % nodes.size()];
    const OwnedKey target = key(random() % keys);
    const std::string value = numbered_value(step);
    // Half of the time mostly inserts, half of the time mostly erases.
    const bool growing = step / 5'000 % 2 == 0;
    const std::uint64_t dice = random() % 10;
    if (dice < 2) {
      ASSERT_TRUE(same_outcome(node.get(target), model.get(target))) << "step " << step;
    } else if (dice == 2) {
      ASSERT_TRUE(same_entries(must(node.scan(target, 30)), model.scan(target, 30)))
          << "step " << step;
    } else if (growing == (dice < 9)) {
      ASSERT_TRUE(same_outcome(node.put(target, value), model.put(target, value)));
    } else {
      ASSERT_TRUE(same_outcome(node.erase(target), model.erase(target))) << "step " << step;
    }
  }
  for (const Index& node : nodes) EXPECT_TRUE(holds_exactly(node, model));
}

TEST_P(StaleCaches, ComputeNodesComeAndGo) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t per_node = 200;
  for (std::uint64_t i = 0; i < scaled(40, 10); ++i) {
    const Index passing = must(must(pool.attach({})).open_index("index"));
    fill(passing, i * per_node, (i + 1) * per_node);
    ASSERT_TRUE(holds(passing.get(key(0)), numbered_value(0)));
  }
  EXPECT_TRUE(holds_numbers(index, 0, scaled(40, 10) * per_node));
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(StaleCaches);

}  // namespace
}  // namespace pando::testing
