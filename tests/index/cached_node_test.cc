// Cached nodes route as a std::map of their separators would, and give back what was put in.
#include "index/blink/cached_node.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <iterator>
#include <limits>
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

// --- What is written small comes back whole ---

// Of any size, those at the ends of a range more often than others.
rc::Gen<std::uint64_t> any_number(std::uint64_t most) {
  return rc::gen::map(rc::gen::tuple(rc::gen::inRange(0, 65), rc::gen::arbitrary<std::uint64_t>(),
                                     rc::gen::inRange(0, 4)),
                      [most](const auto& drawn) {
                        const auto& [shift, bits, end] = drawn;
                        if (end == 0) return most - (bits & 1);
                        return (shift == 64 ? 0 : bits >> shift) & most;
                      });
}

NodeRef any_ref() {
  constexpr std::uint64_t kLines = fabric::Address::kOffsetMask / 64;
  const auto node = static_cast<fabric::NodeId>(*any_number(0xffff));
  return {Address(node, 64 * *any_number(kLines)),
          static_cast<std::uint32_t>(*any_number(NodeRef::kBirthMask))};
}

template <class K>
void expect_same(const CachedNode<K>& node, const std::vector<InnerEntry<K>>& entries) {
  RC_ASSERT(node.count() == entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RC_ASSERT(node.key(i) == typename K::View(entries[i].key));
    RC_ASSERT(node.cell(i) == entries[i].cell);
    RC_ASSERT(node.child(i) == entries[i].child);
    RC_ASSERT(node.find(entries[i].key) == i);
    RC_ASSERT(node.find(entries[i].key, true) == (i == 0 ? entries.size() : i - 1));
  }
}

bool any_integer_node_comes_back() {
  return rc::check("any separators, references and fences", [] {
    std::map<std::uint64_t, NodeRef> entries;
    const std::uint64_t from = *any_number(~std::uint64_t{0});
    const std::uint64_t span = *any_number(~std::uint64_t{0});
    const bool near = *rc::gen::arbitrary<bool>();  // all children in the first one's life
    const NodeRef first = any_ref();
    for (int left = *rc::gen::inRange(0, 50); left > 0; --left) {
      const std::uint64_t key = from + *any_number(span);  // may wrap around
      entries.insert_or_assign(key, near ? NodeRef(first.address, any_ref().birth) : any_ref());
    }
    std::vector<InnerEntry<IntKeys>> list;
    list.reserve(entries.size());
    for (const auto& [key, child] : entries) list.push_back({key, IntKeys::cell(key), child});
    const std::uint64_t high = *any_number(~std::uint64_t{0});
    const NodeRef self = any_ref();
    const NodeRef sibling = any_ref();
    const bool has_high = *rc::gen::arbitrary<bool>();
    const auto node = own<IntKeys>(
        CachedNode<IntKeys>::make({self, sibling, 1, has_high}, list, high, IntKeys::cell(high)));
    RC_ASSERT(node->self() == self);
    RC_ASSERT(node->is(self));
    RC_ASSERT(!node->is({self.address, self.birth ^ 1}));
    RC_ASSERT(!node->is({self.address, self.birth ^ (1u << 21)}));
    RC_ASSERT(node->sibling() == sibling);
    expect_same(*node, list);
    if (has_high) RC_ASSERT(node->key(list.size()) == high);
    if (has_high) RC_ASSERT(node->cell(list.size()) == IntKeys::cell(high));
    for (const std::uint64_t wanted : {std::uint64_t{0}, from, high, ~std::uint64_t{0}}) {
      for (const bool strict : {false, true}) {
        const auto after = strict ? entries.lower_bound(wanted) : entries.upper_bound(wanted);
        const auto before = static_cast<std::size_t>(std::distance(entries.begin(), after));
        RC_ASSERT(node->find(wanted, strict) == (before == 0 ? list.size() : before - 1));
      }
    }
  });
}

TEST(CachedNode, GivesBackAnyIntegers) { EXPECT_TRUE(any_integer_node_comes_back()); }

TEST(CachedNode, GivesBackAnyChildrenOfByteStrings) {
  EXPECT_TRUE(rc::check("any references", [] {
    std::map<std::string, NodeRef> entries;
    for (int left = *rc::gen::inRange(0, 30); left > 0; --left) {
      const auto length = *rc::gen::inRange<std::size_t>(0, 40);
      entries.insert_or_assign(std::string(length, 'k'), any_ref());
    }
    std::vector<InnerEntry<ByteKeys>> list;
    list.reserve(entries.size());
    for (const auto& [key, child] : entries) {
      list.push_back({key, cell_for(key, key.size()), child});
    }
    const auto node =
        own<ByteKeys>(CachedNode<ByteKeys>::make({{}, {}, 1, false}, list, "", ByteKeys::Cell{}));
    expect_same(*node, list);
  }));
}

// The ends of every width, one below and one above.
TEST(CachedNode, GivesBackTheEndsOfEveryWidth) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (int bits = 0; bits <= 64; ++bits) {
    for (const std::uint64_t off : {kMost, std::uint64_t{0}, std::uint64_t{1}}) {
      const std::uint64_t span = (bits == 64 ? 0 : std::uint64_t{1} << bits) + off;
      if (span == 0) continue;
      for (const std::uint64_t from : {std::uint64_t{0}, kMost - span}) {
        const std::uint64_t line = span & (fabric::Address::kOffsetMask / 64);
        const auto birth = static_cast<std::uint32_t>(span & NodeRef::kBirthMask);
        const std::vector<InnerEntry<IntKeys>> list{
            {from, IntKeys::cell(from), NodeRef(Address(0, 0), 0)},
            {from + span, IntKeys::cell(from + span), NodeRef(Address(0, 64 * line), birth)}};
        const auto node =
            own<IntKeys>(CachedNode<IntKeys>::make({{}, {}, 1, false}, list, 0, IntKeys::Cell{}));
        for (std::size_t i = 0; i < list.size(); ++i) {
          EXPECT_EQ(node->key(i), list[i].key) << "span " << span;
          EXPECT_EQ(node->child(i), list[i].child) << "span " << span;
        }
        EXPECT_EQ(node->find(from + span), 1);
        EXPECT_EQ(node->find(from + span, true), 0);
        EXPECT_EQ(node->find(from), 0);
      }
    }
  }
}

// What a level above the leaves takes with random keys: what 60 M of them may cost hangs on it.
TEST(CachedNode, TakesElevenBytesAnEntryOfRandomKeys) {
  constexpr std::size_t kEntries = 30;
  std::mt19937_64 random(1);
  std::map<std::uint64_t, NodeRef> entries;
  while (entries.size() < kEntries) {
    entries.insert({(std::uint64_t{77} << 49) + random() % (std::uint64_t{1} << 49),
                    NodeRef(Address(static_cast<fabric::NodeId>(random() % 4),
                                    64 * (random() % (std::uint64_t{1} << 30))),
                            1)});
  }
  std::vector<InnerEntry<IntKeys>> list;
  list.reserve(entries.size());
  for (const auto& [key, child] : entries) list.push_back({key, IntKeys::cell(key), child});
  const std::uint64_t high = list.back().key + 1000;
  const auto node =
      own<IntKeys>(CachedNode<IntKeys>::make({{}, {}, 1, true}, list, high, IntKeys::cell(high)));
  EXPECT_LE(node->bytes(),
            sizeof(CachedNode<IntKeys>) + 7 * (kEntries + 1) + 4 * kEntries + 8 + 15);
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
