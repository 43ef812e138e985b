// Cached nodes route as a std::map of their separators would.
#include "index/common/cached_node.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace pando::index {
namespace {

template <class K>
using Handle = std::unique_ptr<CachedNode<K>, void (*)(CachedNode<K>*)>;

template <class K>
Handle<K> own(CachedNode<K>* node) {
  return {node, [](CachedNode<K>* each) { CachedNode<K>::free_node(each); }};
}

IntKeys::Cell cell_for(std::uint64_t key, std::uint64_t) { return IntKeys::cell(key); }
ByteKeys::Cell cell_for(const std::string& key, std::uint64_t salt) {
  if (ByteKeys::fits_cell(key)) return ByteKeys::cell(key);
  return ByteKeys::long_cell(key.size(), pool::ItemPointer::from_raw(salt + 1), salt * 31);
}

void random_key(std::mt19937_64& random, std::uint64_t& key) {
  key = random() % 4 == 0 ? ~std::uint64_t{0} - random() % 50 : random() % 200;
}
// Up to three times what a cell holds, mostly alike at the beginning.
void random_key(std::mt19937_64& random, std::string& key) {
  key.clear();
  if (random() % 2 == 0) key.assign(15 + random() % 4, 'p');
  const std::size_t more = random() % 30;
  for (std::size_t i = 0; i < more; ++i) key.push_back(static_cast<char>(random() % 3));
}

template <class K>
void compare_with_map(std::uint64_t seed) {
  using Owned = typename K::Owned;
  std::mt19937_64 random(seed);
  std::map<Owned, NodeRef> entries;
  for (std::size_t i = random() % 20; i > 0; --i) {
    Owned key{};
    random_key(random, key);
    entries.insert_or_assign(
        key, NodeRef(Address(static_cast<fabric::NodeId>(random() % 5), 64 * (1 + random() % 1000)),
                     static_cast<std::uint32_t>(random())));
  }
  Owned high{};
  random_key(random, high);
  const bool has_high = random() % 2 == 0;
  std::vector<InnerEntry<K>> list;
  list.reserve(entries.size());
  for (const auto& [key, child] : entries) list.push_back({key, cell_for(key, random()), child});
  const NodeRef self(Address(1, 640), 5);
  const NodeRef sibling(Address(2, 6400), 6);
  const auto high_cell = cell_for(high, random());
  const Handle<K> node =
      own<K>(CachedNode<K>::make({self, sibling, 3, has_high}, list, high, high_cell));
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(node->self(), self);
  EXPECT_EQ(node->sibling(), sibling);
  EXPECT_EQ(node->level(), 3);
  ASSERT_EQ(node->count(), list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(node->key(i), typename K::View(list[i].key));
    EXPECT_TRUE(node->cell(i) == list[i].cell);
    EXPECT_EQ(node->child(i), list[i].child);
  }
  if (has_high) {
    EXPECT_TRUE(node->cell(node->count()) == high_cell);
    EXPECT_EQ(node->key(node->count()), typename K::View(high));
  }

  for (int i = 0; i < 60; ++i) {
    Owned wanted{};
    random_key(random, wanted);
    if (!list.empty() && random() % 2 == 0) wanted = list[random() % list.size()].key;
    if (random() % 8 == 0) wanted = high;
    for (const bool strict : {false, true}) {
      const auto after = strict ? entries.lower_bound(wanted) : entries.upper_bound(wanted);
      const std::size_t expected =
          after == entries.begin()
              ? list.size()
              : static_cast<std::size_t>(std::distance(entries.begin(), std::prev(after)));
      ASSERT_EQ(node->find(wanted, strict), expected) << "strict " << strict;
      const bool reached = !has_high || (strict ? wanted <= high : wanted < high);
      ASSERT_EQ(node->reaches(wanted, strict), reached) << "strict " << strict;
    }
  }
}

TEST(CachedNode, RoutesIntegersAsAMapDoes) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) compare_with_map<IntKeys>(seed);
}

TEST(CachedNode, RoutesByteStringsAsAMapDoes) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) compare_with_map<ByteKeys>(seed);
}

TEST(CachedNode, CountsTheBytesOfLongKeys) {
  const std::string long_key(3000, 'l');
  std::vector<InnerEntry<ByteKeys>> list{{"", ByteKeys::cell(""), NodeRef(Address(0, 64), 1)}};
  const auto small =
      own<ByteKeys>(CachedNode<ByteKeys>::make({{}, {}, 1, false}, list, "", ByteKeys::Cell{}));
  list.push_back({long_key, cell_for(long_key, 1), NodeRef(Address(0, 128), 1)});
  const auto large =
      own<ByteKeys>(CachedNode<ByteKeys>::make({{}, {}, 1, false}, list, "", ByteKeys::Cell{}));
  EXPECT_GE(large->bytes(), small->bytes() + long_key.size());
}

TEST(CachedNode, HasASecondChance) {
  const auto node =
      own<IntKeys>(CachedNode<IntKeys>::make({{}, {}, 1, false}, {}, 0, IntKeys::Cell{}));
  EXPECT_TRUE(node->forget_touch()) << "a new one counts as touched";
  EXPECT_FALSE(node->forget_touch());
  node->touch();
  EXPECT_TRUE(node->forget_touch());
}

}  // namespace
}  // namespace pando::index
