// Keys at the edges of what is allowed, alone and all together.
#include <algorithm>
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class HostileKeys : public ConformanceTest {
 protected:
  // Puts every key with a value of its own, in the order given.
  static Model put_all(const Index& index, KeyType type, const std::vector<OwnedKey>& keys) {
    Model model(type);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_TRUE(same_outcome(index.insert(keys[i], numbered_value(i)),
                               model.insert(keys[i], numbered_value(i))))
          << show(keys[i]);
    }
    return model;
  }
};

TEST_P(HostileKeys, EachAlone) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  for (const OwnedKey& hostile : hostile_keys(key_type())) {
    ASSERT_TRUE(failed_with(index.get(hostile), ErrorCode::kNotFound)) << show(hostile);
    ASSERT_TRUE(succeeded(index.insert(hostile, "v"))) << show(hostile);
    ASSERT_TRUE(holds(index.get(hostile), "v")) << show(hostile);
    const auto scanned = must(index.scan(hostile, 2));
    ASSERT_EQ(scanned.size(), 1u) << show(hostile);
    ASSERT_EQ(scanned[0].key, hostile) << show(scanned[0].key);
    ASSERT_TRUE(succeeded(index.erase(hostile))) << show(hostile);
    ASSERT_TRUE(must(index.scan(smallest(), 2)).empty()) << show(hostile);
  }
}

TEST_P(HostileKeys, AllTogetherInAnyOrder) {
  Pool pool = open_pool();
  std::vector<OwnedKey> keys = hostile_keys(key_type());
  std::mt19937_64 random(1);
  for (const std::string order : {"ascending", "descending", "shuffled"}) {
    if (order == "descending") std::ranges::reverse(keys);
    if (order == "shuffled") std::ranges::shuffle(keys, random);
    const Index index = create_index(pool, order);
    const Model model = put_all(index, key_type(), keys);
    EXPECT_TRUE(holds_exactly(index, model)) << order;
  }
}

TEST_P(HostileKeys, ScanFromEachFindsItAndItsSuccessor) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::vector<OwnedKey> keys = hostile_keys(key_type());
  const Model model = put_all(index, key_type(), keys);
  for (const OwnedKey& from : keys) {
    EXPECT_TRUE(same_entries(must(index.scan(from, 3)), model.scan(from, 3))) << show(from);
  }
}

TEST_P(HostileKeys, EachIsErasedWithoutHarmToItsNeighbours) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  std::vector<OwnedKey> keys = hostile_keys(key_type());
  Model model = put_all(index, key_type(), keys);
  std::mt19937_64 random(2);
  std::ranges::shuffle(keys, random);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(succeeded(index.erase(keys[i]))) << show(keys[i]);
    must(model.erase(keys[i]));
    ASSERT_TRUE(failed_with(index.get(keys[i]), ErrorCode::kNotFound)) << show(keys[i]);
    if (i % 8 == 0) {
      ASSERT_TRUE(holds_exactly(index, model)) << "after erasing " << show(keys[i]);
    }
  }
  EXPECT_EQ(model.size(), 0u);
  EXPECT_TRUE(holds_exactly(index, model));
}

TEST_P(HostileKeys, AmongManyPlainOnes) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model = put_all(index, key_type(), hostile_keys(key_type()));
  for (std::uint64_t n = 1'000; n < 1'000 + scaled(3'000, 500); ++n) {
    ASSERT_TRUE(
        same_outcome(index.put(key(n), numbered_value(n)), model.put(key(n), numbered_value(n))));
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

// Many keys whose first kilobyte is the same: nothing short can tell them apart.
TEST_P(HostileKeys, ManyLongKeysWithOnePrefix) {
  if (key_type() != KeyType::kBytes) GTEST_SKIP() << "byte-string keys only";
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  for (const std::size_t shared : {1024u, 4088u}) {
    for (std::uint64_t n = 0; n < scaled(400, 100); ++n) {
      const OwnedKey number(n * 7919);
      const OwnedKey long_key(std::string(shared, 'u') + order_bytes(number));
      ASSERT_TRUE(same_outcome(index.insert(long_key, numbered_value(n)),
                               model.insert(long_key, numbered_value(n))));
    }
  }
  EXPECT_TRUE(holds_exactly(index, model));
  for (const OwnedKey& long_key : model.keys()) {
    ASSERT_TRUE(succeeded(index.update(long_key, "new")));
    must(model.update(long_key, "new"));
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

// A chain in which each key is a prefix of the next one.
TEST_P(HostileKeys, EveryPrefixOfOneKey) {
  if (key_type() != KeyType::kBytes) GTEST_SKIP() << "byte-string keys only";
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  const std::string longest = patterned_value(600, 3);
  for (std::size_t length = 0; length <= longest.size(); ++length) {
    const std::string prefix = longest.substr(0, length);
    ASSERT_TRUE(same_outcome(index.insert(prefix, numbered_value(length)),
                             model.insert(prefix, numbered_value(length))));
  }
  EXPECT_TRUE(holds_exactly(index, model));
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(HostileKeys);

}  // namespace
}  // namespace pando::testing
