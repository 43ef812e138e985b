// Memory that was erased or dropped is for values of any size.
#include <array>
#include <cstdio>
#include <map>

#include "support/conformance.h"

namespace pando::testing {
namespace {

const std::string_view kSize = scaled(64, 8) == 64 ? "64MiB" : "8MiB";

class Recycling : public ConformanceTest {
 protected:
  // Keys 0 … count - 1, until memory runs out.
  std::uint64_t fill_up(const Index& index, std::size_t value_bytes) const {
    const std::string value(value_bytes, 'v');
    for (std::uint64_t n = 0;; ++n) {
      const Status put = index.put(key(n), value);
      if (put) continue;
      EXPECT_EQ(put.error().code(), ErrorCode::kOutOfMemory) << put.error().message();
      return n;
    }
  }
};

TEST_P(Recycling, AnEmptiedPoolTakesValuesOfAnySize) {
  const IndexCase& given = GetParam();
  if (given.remote() || given.simulated() || given.variant || !given.name.contains("1node")) {
    GTEST_SKIP() << "tens of thousands of keys, five times; what is recycled is the same";
  }
  constexpr std::array<std::size_t, 5> kValues = {1000, 100, 8, 1 << 20, 1000};
  Pool used = open_pool(kSize);
  std::map<std::size_t, std::uint64_t> fresh;  // how many fit into a pool of its own
  for (const std::size_t bytes : kValues) {
    if (!fresh.contains(bytes)) {
      Pool pool = open_pool(kSize);
      const Index index = must(pool.create_index("fresh", GetParam().options()));
      fresh[bytes] = fill_up(index, bytes);
    }
    const auto began = std::chrono::steady_clock::now();
    std::uint64_t filled = 0;
    {
      const Index index = must(used.create_index("used", GetParam().options()));
      filled = fill_up(index, bytes);
      EXPECT_TRUE(succeeded(index.check()));
      // Half of them erased, the rest dropped.
      for (std::uint64_t n = 0; n < filled; n += 2) ASSERT_TRUE(succeeded(index.erase(key(n))));
    }
    ASSERT_TRUE(succeeded(used.drop_index("used")));
    const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - began;
    std::printf("values of %zu bytes: %zu fit, %zu into a fresh pool, %.2f s\n", bytes,
                static_cast<std::size_t>(filled), static_cast<std::size_t>(fresh[bytes]),
                lasted.count());
    EXPECT_GE(filled * 10, fresh[bytes] * 9) << "values of " << bytes << " bytes";
  }
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Recycling);

}  // namespace
}  // namespace pando::testing
