// What each operation answers, one at a time.
#include "support/conformance.h"

namespace pando::testing {
namespace {

class Basic : public ConformanceTest {};

TEST_P(Basic, GetOfAbsentKeyIsNotFound) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(failed_with(index.get(key(1)), ErrorCode::kNotFound));
}

TEST_P(Basic, PutThenGet) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(succeeded(index.put(key(1), "one")));
  EXPECT_TRUE(holds(index.get(key(1)), "one"));
  EXPECT_TRUE(failed_with(index.get(key(0)), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.get(key(2)), ErrorCode::kNotFound));
}

TEST_P(Basic, PutReplaces) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(succeeded(index.put(key(1), "one")));
  EXPECT_TRUE(succeeded(index.put(key(1), "uno")));
  EXPECT_TRUE(holds(index.get(key(1)), "uno"));
}

TEST_P(Basic, InsertOnlyWhereAbsent) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(succeeded(index.insert(key(1), "first")));
  EXPECT_TRUE(failed_with(index.insert(key(1), "second"), ErrorCode::kExists));
  EXPECT_TRUE(holds(index.get(key(1)), "first"));
}

TEST_P(Basic, UpdateOnlyWherePresent) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(failed_with(index.update(key(1), "early"), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.get(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(succeeded(index.put(key(1), "one")));
  EXPECT_TRUE(succeeded(index.update(key(1), "late")));
  EXPECT_TRUE(holds(index.get(key(1)), "late"));
}

TEST_P(Basic, EraseRemovesOnce) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  EXPECT_TRUE(failed_with(index.erase(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(succeeded(index.put(key(1), "one")));
  EXPECT_TRUE(succeeded(index.erase(key(1))));
  EXPECT_TRUE(failed_with(index.get(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.update(key(1), "zombie"), ErrorCode::kNotFound));
  EXPECT_TRUE(failed_with(index.erase(key(1)), ErrorCode::kNotFound));
  EXPECT_TRUE(succeeded(index.insert(key(1), "again")));
  EXPECT_TRUE(holds(index.get(key(1)), "again"));
}

TEST_P(Basic, HandlesAreCopies) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const Index copy = index;
  EXPECT_TRUE(succeeded(copy.put(key(7), "seven")));
  EXPECT_TRUE(holds(index.get(key(7)), "seven"));
}

TEST_P(Basic, IndexOutlivesPoolHandle) {
  const Index index = [this] {
    Pool pool = open_pool();
    return create_index(pool);
  }();
  EXPECT_TRUE(succeeded(index.put(key(1), "one")));
  EXPECT_TRUE(holds(index.get(key(1)), "one"));
}

TEST_P(Basic, InfoTellsNameAndOptions) {
  Pool pool = open_pool();
  const Index index = create_index(pool, "name with spaces, and ünïcode");
  EXPECT_EQ(index.info().name, "name with spaces, and ünïcode");
  EXPECT_EQ(index.info().options.key_type, key_type());
  EXPECT_EQ(index.info().options.kind, GetParam().options().kind);
}

TEST_P(Basic, AscendingDescendingAndShuffledFills) {
  Pool pool = open_pool();
  const std::uint64_t count = scaled(5'000, 500);
  // A multiplier without common divisors visits each number once; 1 and -1 are the sorted orders.
  for (const std::uint64_t step : {std::uint64_t{1}, count - 1, std::uint64_t{7919}}) {
    const Index index = create_index(pool, "step " + std::to_string(step));
    for (std::uint64_t i = 0, n = 0; i < count; ++i, n = (n + step) % count) {
      ASSERT_TRUE(succeeded(index.insert(key(n), numbered_value(n))));
    }
    EXPECT_TRUE(holds_numbers(index, 0, count)) << "step " << step;
  }
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Basic);

}  // namespace
}  // namespace pando::testing
