// Bad input and full memory: a clear error that names the thing, and an index that goes on working.
#include <array>
#include <limits>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Errors : public ConformanceTest {
 protected:
  // An index with something in it, which each test must leave as it was.
  Index create_filled(Pool& pool) {
    const Index index = create_index(pool);
    fill(index, 0, kCount);
    return index;
  }
  ::testing::AssertionResult intact(const Index& index) const {
    if (auto sound = succeeded(index.check()); !sound) return sound;
    return holds_numbers(index, 0, kCount);
  }
  // Puts values until the pool is full. Returns how many there are.
  std::uint64_t fill_up(const Index& index, std::size_t value_bytes) const {
    constexpr std::uint64_t kFar = 10'000'000;
    for (std::uint64_t n = 0; n < kFar; ++n) {
      const Status status = index.put(key(n), patterned_value(value_bytes, n));
      if (status) continue;
      EXPECT_TRUE(failed_with(status, ErrorCode::kOutOfMemory));
      return n;
    }
    ADD_FAILURE() << "a small pool held " << kFar << " values";
    return kFar;
  }
  ::testing::AssertionResult holds_patterns(const Index& index, std::uint64_t count,
                                            std::size_t value_bytes) const {
    for (std::uint64_t n = 0; n < count; ++n) {
      auto same = holds(index.get(key(n)), patterned_value(value_bytes, n));
      if (!same) return same << " (key " << n << " of " << count << ")";
    }
    return ::testing::AssertionSuccess();
  }
  // For what takes a step for each of many small values: less where steps are slow.
  static std::string_view size_for_small_values() {
    return fabric_slowdown > 1 || kSanitizerSlowdown > 1 ? "2MiB" : "16MiB";
  }
  // Fills a pool, then asks for all, erases some, inserts again.
  void run_out_of_memory(std::size_t value_bytes, std::string_view size = "16MiB") {
    Pool pool = open_pool(size);
    const Index index = create_index(pool);
    const std::uint64_t count = fill_up(index, value_bytes);
    ASSERT_GT(count, 4u);

    // Every acknowledged key is there, the refused one is not, the structure is sound.
    EXPECT_TRUE(holds_patterns(index, count, value_bytes));
    EXPECT_TRUE(failed_with(index.get(key(count)), ErrorCode::kNotFound));
    EXPECT_EQ(must(index.scan(smallest(), count + 1)).size(), count);
    EXPECT_TRUE(succeeded(index.check()));

    // A quarter less makes room for at least an eighth again.
    erase_all(index, 0, count / 4);
    if (HasFatalFailure()) return;
    for (std::uint64_t n = 0; n < count / 8; ++n) {
      ASSERT_TRUE(eventually([&] {
        return index.put(key(n), patterned_value(value_bytes, n)).has_value();
      })) << "key "
          << n << " of " << count / 8;
    }
    EXPECT_TRUE(holds_patterns(index, count / 8, value_bytes));
    EXPECT_TRUE(holds(index.get(key(count - 1)), patterned_value(value_bytes, count - 1)));
  }

  static constexpr std::uint64_t kCount = 500;
};

TEST_P(Errors, UnknownIndexKind) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  IndexOptions options = GetParam().options();
  options.kind = "shermann";
  EXPECT_TRUE(
      failed_with(pool.create_index("other", options), ErrorCode::kInvalidArgument, "shermann"));
  EXPECT_TRUE(failed_with(pool.open_index("other"), ErrorCode::kNotFound, "other"));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, UnknownSetting) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  IndexOptions options = GetParam().options();
  options.settings["leaf_bites"] = "1024";
  EXPECT_TRUE(
      failed_with(pool.create_index("other", options), ErrorCode::kInvalidArgument, "leaf_bites"));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, TextOfOptions) {
  for (const std::string_view text : {"", ":", "sherman:", "sherman:keys", "sherman:keys=floats",
                                      "sherman:=1", "sherman:keys=bytes,keys=bytes"}) {
    const auto parsed = IndexOptions::parse(text);
    // An empty list of settings may pass; what passes must say the same again.
    if (parsed) {
      const auto again = IndexOptions::parse(parsed->to_string());
      ASSERT_TRUE(succeeded(again)) << text;
      EXPECT_EQ(again->to_string(), parsed->to_string()) << text;
    } else {
      EXPECT_TRUE(failed_with(parsed, ErrorCode::kInvalidArgument)) << text;
    }
  }
  EXPECT_TRUE(
      failed_with(IndexOptions::parse("sherman:keys=floats"), ErrorCode::kInvalidArgument, "keys"));
}

TEST_P(Errors, KeyTooLong) {
  if (key_type() != KeyType::kBytes) GTEST_SKIP() << "byte-string keys only";
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  const std::string too_long(kMaxKeyBytes + 1, 'k');
  const std::string word = std::to_string(kMaxKeyBytes + 1);
  using enum ErrorCode;
  EXPECT_TRUE(failed_with(index.put(too_long, "v"), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.insert(too_long, "v"), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.update(too_long, "v"), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.erase(too_long), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.get(too_long), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.scan(too_long, 1), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.multi_get(std::vector<Key>{too_long}), kInvalidArgument, word));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, ValueTooLong) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  const std::string too_long(kMaxValueBytes + 1, 'v');
  const std::string word = std::to_string(kMaxValueBytes + 1);
  using enum ErrorCode;
  EXPECT_TRUE(failed_with(index.put(key(1), too_long), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.insert(key(kCount), too_long), kInvalidArgument, word));
  EXPECT_TRUE(failed_with(index.update(key(1), too_long), kInvalidArgument, word));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, WrongKeyType) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  const OwnedKey wrong =
      key_type() == KeyType::kInteger ? OwnedKey(std::string("text")) : OwnedKey(std::uint64_t{1});
  using enum ErrorCode;
  EXPECT_TRUE(failed_with(index.put(wrong, "v"), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.insert(wrong, "v"), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.update(wrong, "v"), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.erase(wrong), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.get(wrong), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.scan(wrong, 1), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(index.multi_get(std::vector<Key>{wrong}), kInvalidArgument, "key"));
  Range range = index.range(wrong);
  for (const Entry& entry : range) ADD_FAILURE() << show(entry.key);
  EXPECT_TRUE(failed_with(range.status(), kInvalidArgument, "key"));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, NegativeKey) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  EXPECT_TRUE(failed_with(index.put(-1, "v"), ErrorCode::kInvalidArgument));
  EXPECT_TRUE(failed_with(index.get(-1), ErrorCode::kInvalidArgument));
  EXPECT_TRUE(failed_with(index.scan(std::numeric_limits<std::int64_t>::min(), 1),
                          ErrorCode::kInvalidArgument));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, MultiGetWithOneBadKeyAmongGoodOnes) {
  Pool pool = open_pool();
  const Index index = create_filled(pool);
  const OwnedKey good = key(1);
  const std::vector<Key> keys{good, -5, good};
  EXPECT_TRUE(failed_with(index.multi_get(keys), ErrorCode::kInvalidArgument));
  EXPECT_TRUE(intact(index));
}

TEST_P(Errors, PoolUrls) {
  using enum ErrorCode;
  EXPECT_TRUE(failed_with(Pool::open(""), kInvalidArgument));
  EXPECT_TRUE(failed_with(Pool::open("carrier-pigeon:1GiB"), kInvalidArgument, "carrier-pigeon"));
  EXPECT_TRUE(failed_with(Pool::open("embedded"), kInvalidArgument));
  EXPECT_TRUE(failed_with(Pool::open("embedded:"), kInvalidArgument));
  EXPECT_TRUE(failed_with(Pool::open("embedded:much"), kInvalidArgument, "much"));
  EXPECT_TRUE(failed_with(Pool::open("embedded:-1GiB"), kInvalidArgument, "-1GiB"));
  EXPECT_TRUE(failed_with(Pool::open("embedded:99999999999999999999GiB"), kInvalidArgument,
                          "99999999999999999999GiB"));
  EXPECT_TRUE(failed_with(Pool::open("embedded:256MiB?nodes=0"), kInvalidArgument, "nodes"));
  EXPECT_TRUE(failed_with(Pool::open("embedded:256MiB?nodes=x"), kInvalidArgument, "nodes"));
  EXPECT_TRUE(failed_with(Pool::open("embedded:256MiB?noodles=2"), kInvalidArgument, "noodles"));
}

TEST_P(Errors, PoolTooSmall) {
  if (GetParam().remote()) GTEST_SKIP() << "memory nodes refuse it: tests/node/memory_test.cc";
  for (const std::string_view size : {"0", "1", "4KiB"}) {
    const auto pool = Pool::open(GetParam().pool_url(size));
    ASSERT_FALSE(pool.has_value()) << size;
    const ErrorCode code = pool.error().code();
    EXPECT_TRUE(code == ErrorCode::kInvalidArgument || code == ErrorCode::kOutOfMemory)
        << pool.error().message();
    EXPECT_FALSE(pool.error().detail().empty()) << size;
  }
}

TEST_P(Errors, OutOfMemoryWithSmallValues) { run_out_of_memory(8, size_for_small_values()); }
TEST_P(Errors, OutOfMemoryWithBigValues) { run_out_of_memory(20'000); }
TEST_P(Errors, OutOfMemoryWithTheBiggestValues) { run_out_of_memory(kMaxValueBytes); }

// In a full pool, all writes of all kinds of one key either work or change nothing.
TEST_P(Errors, FullPoolChangesNothing) {
  Pool pool = open_pool("16MiB");
  const Index index = create_index(pool);
  const std::uint64_t count = fill_up(index, 2'000);
  const std::string bigger = patterned_value(200'000, 1);
  for (std::uint64_t n = 0; n < count; n += 50) {
    const Status status = index.update(key(n), bigger);
    if (status) {
      ASSERT_TRUE(holds(index.get(key(n)), bigger));
    } else {
      ASSERT_TRUE(failed_with(status, ErrorCode::kOutOfMemory));
      ASSERT_TRUE(holds(index.get(key(n)), patterned_value(2'000, n)));
    }
  }
}

// Splits that fail for want of memory under many writers leave a sound tree.
TEST_P(Errors, OutOfMemoryUnderConcurrentInserts) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool(size_for_small_values());
  const Index index = create_index(pool);
  constexpr std::size_t kThreads = 3;
  std::array<std::uint64_t, kThreads> acknowledged{};
  run_threads(kThreads, [&](std::size_t thread) {
    for (std::uint64_t i = 0;; ++i) {
      const std::uint64_t n = i * kThreads + thread;
      const Status status = index.insert(key(n), patterned_value(60, n));
      if (!status) {
        EXPECT_TRUE(failed_with(status, ErrorCode::kOutOfMemory));
        return;
      }
      acknowledged[thread] = i + 1;
    }
  });
  EXPECT_TRUE(succeeded(index.check()));
  std::uint64_t total = 0;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    total += acknowledged[thread];
    for (std::uint64_t i = 0; i < acknowledged[thread]; ++i) {
      const std::uint64_t n = i * kThreads + thread;
      ASSERT_TRUE(holds(index.get(key(n)), patterned_value(60, n))) << n;
    }
  }
  EXPECT_EQ(must(index.scan(smallest(), total + 1)).size(), total);
}

PANDO_FOR_ALL_CASES(Errors);

}  // namespace
}  // namespace pando::testing
