// Indexes by name: create, open, list, drop.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Catalogue : public ConformanceTest {
 protected:
  static std::vector<std::string> names(const Pool& pool) {
    std::vector<std::string> found;
    for (const IndexInfo& info : must(pool.list_indexes())) found.push_back(info.name);
    std::ranges::sort(found);
    return found;
  }
  using Names = std::vector<std::string>;
};

TEST_P(Catalogue, ListsWhatThereIs) {
  Pool pool = open_pool();
  EXPECT_TRUE(names(pool).empty());
  create_index(pool, "b");
  create_index(pool, "a");
  EXPECT_EQ(names(pool), (Names{"a", "b"}));
  Pool other = must(pool.attach({}));
  EXPECT_EQ(names(other), (Names{"a", "b"}));
  for (const IndexInfo& info : must(other.list_indexes())) {
    EXPECT_EQ(info.options.key_type, key_type());
    EXPECT_EQ(info.options.kind, GetParam().options().kind);
  }
}

TEST_P(Catalogue, CreateOfAPresentNameIsRefused) {
  Pool pool = open_pool();
  const Index index = create_index(pool, "users");
  fill(index, 0, 10);
  EXPECT_TRUE(
      failed_with(pool.create_index("users", GetParam().options()), ErrorCode::kExists, "users"));
  EXPECT_TRUE(holds_numbers(index, 0, 10));
}

TEST_P(Catalogue, OpenOrDropOfAnAbsentNameIsRefused) {
  Pool pool = open_pool();
  EXPECT_TRUE(failed_with(pool.open_index("ghost"), ErrorCode::kNotFound, "ghost"));
  EXPECT_TRUE(failed_with(pool.drop_index("ghost"), ErrorCode::kNotFound, "ghost"));
}

TEST_P(Catalogue, NamesEmptyAndTooLong) {
  Pool pool = open_pool();
  const IndexOptions options = GetParam().options();
  EXPECT_TRUE(failed_with(pool.create_index("", options), ErrorCode::kInvalidArgument, "name"));
  const std::string too_long(10'000, 'n');
  EXPECT_TRUE(
      failed_with(pool.create_index(too_long, options), ErrorCode::kInvalidArgument, "name"));
  EXPECT_TRUE(names(pool).empty());
}

TEST_P(Catalogue, IndexesDoNotMix) {
  Pool pool = open_pool();
  const Index one = create_index(pool, "one");
  const Index two = create_index(pool, "two");
  const std::uint64_t count = scaled(2'000, 300);
  fill(one, 0, count, 1);
  fill(two, count / 2, 2 * count, 2);
  EXPECT_TRUE(holds_numbers(one, 0, count, 1));
  EXPECT_TRUE(holds_numbers(two, count / 2, 2 * count, 2));
  erase_all(one, 0, count);
  EXPECT_TRUE(holds_exactly(one, Model(key_type())));
  EXPECT_TRUE(holds_numbers(two, count / 2, 2 * count, 2));
}

TEST_P(Catalogue, BothKeyTypesSideBySide) {
  Pool pool = open_pool();
  IndexOptions options = GetParam().options();
  options.key_type = KeyType::kInteger;
  const Index numbers = must(pool.create_index("numbers", options));
  options.key_type = KeyType::kBytes;
  const Index words = must(pool.create_index("words", options));
  EXPECT_TRUE(succeeded(numbers.put(1, "one")));
  EXPECT_TRUE(succeeded(words.put("one", "1")));
  EXPECT_TRUE(holds(numbers.get(1), "one"));
  EXPECT_TRUE(holds(words.get("one"), "1"));
  EXPECT_TRUE(succeeded(numbers.check()));
  EXPECT_TRUE(succeeded(words.check()));
}

TEST_P(Catalogue, ReopenedIndexKeepsItsData) {
  Pool pool = open_pool();
  const std::uint64_t count = scaled(3'000, 300);
  {
    const Index index = must(pool.create_index("kept", GetParam().options()));
    fill(index, 0, count);
  }
  {
    const Index index = must(pool.open_index("kept"));
    EXPECT_TRUE(holds_numbers(index, 0, count));
    fill(index, 0, count, 1);
  }
  const Index index = must(must(pool.attach({})).open_index("kept", GetParam().options()));
  EXPECT_TRUE(holds_numbers(index, 0, count, 1));
  EXPECT_TRUE(succeeded(index.check()));
}

TEST_P(Catalogue, TwoHandlesOfOneIndex) {
  Pool pool = open_pool();
  const Index index = create_index(pool, "twice");
  const Index again = must(pool.open_index("twice"));
  EXPECT_TRUE(succeeded(again.put(key(1), "one")));
  EXPECT_TRUE(holds(index.get(key(1)), "one"));
}

TEST_P(Catalogue, OtherKeyTypeIsIncompatible) {
  Pool pool = open_pool();
  const Index index = create_index(pool, "typed");
  fill(index, 0, 10);
  IndexOptions options = GetParam().options();
  options.key_type = key_type() == KeyType::kInteger ? KeyType::kBytes : KeyType::kInteger;
  EXPECT_TRUE(failed_with(pool.open_index("typed", options), ErrorCode::kIncompatible, "keys"));
  EXPECT_TRUE(holds_numbers(index, 0, 10));
}

TEST_P(Catalogue, OtherFormatSettingIsIncompatible) {
  Pool pool = open_pool();
  const Index index = create_index(pool, "set");
  // Whatever settings of the format the kind has: a number twice as large is another format, or no
  // setting at all for keys of this type. Either way the error names it.
  std::size_t incompatible = 0;
  for (const auto& [name, value] : index.info().options.settings) {
    IndexOptions options = GetParam().options();
    const std::uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (number == 0) continue;
    options.settings[name] = std::to_string(2 * number);
    const auto opened = pool.open_index("set", options);
    if (failed_with(opened, ErrorCode::kInvalidArgument, name)) continue;
    EXPECT_TRUE(failed_with(opened, ErrorCode::kIncompatible, name));
    ++incompatible;
  }
  EXPECT_GT(incompatible, 0u);
  EXPECT_TRUE(succeeded(pool.open_index("set", index.info().options)));
}

TEST_P(Catalogue, DropInUseIsBusy) {
  Pool pool = open_pool();
  Index index = must(pool.create_index("used", GetParam().options()));
  fill(index, 0, 100);
  EXPECT_TRUE(failed_with(pool.drop_index("used"), ErrorCode::kBusy, "used"));
  EXPECT_TRUE(holds_numbers(index, 0, 100));
  EXPECT_TRUE(succeeded(index.check()));
}

TEST_P(Catalogue, DropInUseByAnotherComputeNodeIsBusy) {
  Pool pool = open_pool();
  {
    const Index created = must(pool.create_index("used", GetParam().options()));
  }
  Pool other = must(pool.attach({}));
  {
    const Index index = must(other.open_index("used"));
    EXPECT_TRUE(failed_with(pool.drop_index("used"), ErrorCode::kBusy, "used"));
    EXPECT_TRUE(succeeded(index.put(key(1), "still here")));
  }
  EXPECT_TRUE(succeeded(pool.drop_index("used")));
  EXPECT_TRUE(failed_with(other.open_index("used"), ErrorCode::kNotFound));
}

TEST_P(Catalogue, DroppedNameStartsEmpty) {
  Pool pool = open_pool();
  for (std::uint64_t round = 0; round < 4; ++round) {
    {
      const Index index = must(pool.create_index("again", GetParam().options()));
      EXPECT_TRUE(holds_exactly(index, Model(key_type()))) << "round " << round;
      fill(index, 0, 500, round);
      EXPECT_TRUE(holds_numbers(index, 0, 500, round));
      EXPECT_TRUE(succeeded(index.check()));
    }
    ASSERT_TRUE(succeeded(pool.drop_index("again"))) << "round " << round;
    EXPECT_TRUE(names(pool).empty());
  }
}

// Many rounds of what fits only a few times: dropping gives the memory back.
TEST_P(Catalogue, DropGivesMemoryBack) {
  const bool small = kSanitizerSlowdown > 1;
  Pool pool = open_pool(small ? "8MiB" : "32MiB");
  const std::uint64_t keys = small ? 250 : 1'000;
  for (int round = 0; round < 20; ++round) {
    {
      const Index index = must(pool.create_index("big", GetParam().options()));
      for (std::uint64_t n = 0; n < keys; ++n) {
        ASSERT_TRUE(succeeded(index.put(key(n), patterned_value(8'000, n))))
            << "round " << round << ", key " << n;
      }
    }
    ASSERT_TRUE(succeeded(pool.drop_index("big"))) << "round " << round;
  }
}

TEST_P(Catalogue, ManyRoundsTakeNoMoreMemory) {
  Pool pool = open_pool();
  const auto round = [&] {
    {
      const Index index = must(pool.create_index("small", GetParam().options()));
      fill(index, 0, 200);
    }
    ASSERT_TRUE(succeeded(pool.drop_index("small")));
  };
  for (int i = 0; i < 5; ++i) round();
  const std::uint64_t before = remote_bytes(pool);
  for (std::size_t i = 0; i < scaled(150, 30); ++i) round();
  EXPECT_LE(remote_bytes(pool), before + (2 << 20));
}

TEST_P(Catalogue, CreatedByManyAtOnceExactlyOneWins) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  for (int round = 0; round < 10; ++round) {
    const std::string name = "race " + std::to_string(round);
    std::atomic<int> winners{0};
    run_threads(4, [&](std::size_t) {
      Pool node = must(pool.attach({}));
      const auto created = node.create_index(name, GetParam().options());
      if (created) {
        ++winners;
      } else {
        EXPECT_TRUE(failed_with(created, ErrorCode::kExists));
      }
    });
    EXPECT_EQ(winners, 1) << name;
    EXPECT_TRUE(succeeded(pool.drop_index(name)));
  }
}

PANDO_FOR_ALL_CASES(Catalogue);

}  // namespace
}  // namespace pando::testing
