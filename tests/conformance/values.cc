// Values of every size, and from each size to each other.
#include "support/conformance.h"

namespace pando::testing {
namespace {

class Values : public ConformanceTest {};

TEST_P(Values, EverySizeComesBackWhole) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (const std::size_t size : value_sizes()) {
    const std::string value = patterned_value(size, size);
    ASSERT_TRUE(same_outcome(index.insert(key(size), value), model.insert(key(size), value)))
        << size;
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

TEST_P(Values, EverySizeBecomesEveryOther) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  std::uint64_t seed = 0;
  for (const std::size_t from : value_sizes()) {
    for (const std::size_t to : value_sizes()) {
      ASSERT_TRUE(succeeded(index.put(key(1), patterned_value(from, ++seed))));
      const std::string value = patterned_value(to, ++seed);
      ASSERT_TRUE(succeeded(index.update(key(1), value))) << from << " to " << to;
      ASSERT_TRUE(holds(index.get(key(1)), value)) << from << " to " << to;
    }
  }
}

TEST_P(Values, EverySizeUnderLongKeys) {
  if (key_type() != KeyType::kBytes) GTEST_SKIP() << "byte-string keys only";
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (const std::size_t size : value_sizes()) {
    for (const std::size_t key_size : {0u, 1u, 8u, 9u, 64u, 4096u}) {
      const std::string long_key = patterned_value(key_size, size + 1);
      const std::string value = patterned_value(size, key_size);
      ASSERT_TRUE(same_outcome(index.put(long_key, value), model.put(long_key, value)));
    }
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

TEST_P(Values, MixedSizesThroughSplits) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (std::uint64_t n = 0; n < scaled(3'000, 300); ++n) {
    const std::string value = patterned_value(n * 37 % 300, n);
    ASSERT_TRUE(same_outcome(index.put(key(n), value), model.put(key(n), value)));
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

TEST_P(Values, AnyBytesAreAllowed) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  for (int byte = 0; byte < 256; ++byte) {
    for (const std::size_t size : {1u, 8u, 64u, 300u}) {
      const std::string value(size, static_cast<char>(byte));
      ASSERT_TRUE(succeeded(index.put(key(size), value)));
      ASSERT_TRUE(holds(index.get(key(size)), value));
    }
  }
}

// Memory of replaced values comes back, or this pool could not hold them.
TEST_P(Values, ReplacedBigValuesGiveMemoryBack) {
  Pool pool = open_pool("64MiB");
  const Index index = create_index(pool);
  for (std::uint64_t round = 0; round < scaled(400, 100); ++round) {
    const std::string value = patterned_value(kMaxValueBytes, round);
    ASSERT_TRUE(succeeded(index.put(key(round % 4), value))) << "round " << round;
    ASSERT_TRUE(holds(index.get(key(round % 4)), value)) << "round " << round;
  }
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Values);

}  // namespace
}  // namespace pando::testing
