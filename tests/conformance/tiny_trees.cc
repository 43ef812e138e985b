// Trees at and about the sizes where peers break: none, one, one leaf full, and back.
#include "support/conformance.h"

namespace pando::testing {
namespace {

class TinyTrees : public ConformanceTest {};

TEST_P(TinyTrees, EmptyIndexAnswersEverything) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(failed_with(index.get(smallest()), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.update(key(1), "x"), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.erase(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(must(index.scan(smallest(), 10)).empty());
  const OwnedKey one = key(1);
  EXPECT_EQ(must(index.multi_get(std::vector<Key>{one})).at(0), std::nullopt);
  EXPECT_TRUE(holds_exactly(index, Model(key_type())));
}

TEST_P(TinyTrees, EmptyIndexSeenByAnotherComputeNode) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Pool other = must(pool.attach({}));
  const Index view = must(other.open_index("index"));
  EXPECT_TRUE(failed_with(view.get(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(must(view.scan(smallest(), 10)).empty());
  EXPECT_TRUE(succeeded(view.insert(key(1), "first key, from afar")));
  EXPECT_TRUE(holds(index.get(key(1)), "first key, from afar"));
}

TEST_P(TinyTrees, OneKeyBackAndForth) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  for (std::uint64_t round = 0; round < scaled(2'000, 100); ++round) {
    ASSERT_TRUE(succeeded(index.insert(key(5), numbered_value(5, round))));
    ASSERT_TRUE(holds(index.get(key(5)), numbered_value(5, round)));
    ASSERT_EQ(must(index.scan(smallest(), 10)).size(), 1u);
    ASSERT_TRUE(succeeded(index.erase(key(5))));
    ASSERT_TRUE(must(index.scan(smallest(), 10)).empty());
  }
}

// Every size from nothing through the first splits, whole content compared at each.
TEST_P(TinyTrees, EverySizeUpAndDown) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t most = scaled(300, 120);
  for (std::uint64_t n = 0; n < most; ++n) {
    ASSERT_TRUE(succeeded(index.insert(key(n), numbered_value(n))));
    ASSERT_TRUE(holds_numbers(index, 0, n + 1)) << "after inserting " << n;
  }
  for (std::uint64_t n = 0; n < most; ++n) {
    ASSERT_TRUE(succeeded(index.erase(key(n))));
    ASSERT_TRUE(holds_numbers(index, n + 1, most)) << "after erasing " << n;
  }
}

TEST_P(TinyTrees, StructureIsSoundAtEverySize) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t most = scaled(400, 150);
  ASSERT_TRUE(succeeded(index.check())) << "empty";
  for (std::uint64_t n = most; n-- > 0;) {
    ASSERT_TRUE(succeeded(index.put(key(n), numbered_value(n))));
    ASSERT_TRUE(succeeded(index.check())) << "with " << most - n << " keys";
  }
  for (std::uint64_t n = most; n-- > 0;) {
    ASSERT_TRUE(succeeded(index.erase(key(n))));
    ASSERT_TRUE(succeeded(index.check())) << "with " << n << " keys left";
  }
}

TEST_P(TinyTrees, EmptiedTreeStartsOver) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t count = scaled(3'000, 400);
  for (std::uint64_t round = 0; round < 3; ++round) {
    fill(index, 0, count, round);
    ASSERT_TRUE(holds_numbers(index, 0, count, round));
    erase_all(index, 0, count);
    ASSERT_TRUE(holds_exactly(index, Model(key_type())));
  }
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(TinyTrees);

}  // namespace
}  // namespace pando::testing
