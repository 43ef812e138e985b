// NodeCache: what it holds, what it forgets, and that it stays within its budget.
#include "index/blink/node_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "fabric/embedded/embedded.h"
#include "support/scale.h"

namespace pando::index {
namespace {

using CacheNode = CachedNode<IntKeys>;

NodeRef ref_of(std::uint64_t number, std::uint32_t birth = 1) {
  return {Address(0, 64 * (number + 1)), birth};
}

// All of its entries say which node it is.
CacheNode* make_node(const NodeRef& ref, std::size_t entries = 8) {
  std::vector<InnerEntry<IntKeys>> list;
  list.reserve(entries);
  for (std::size_t i = 0; i < entries; ++i) {
    list.push_back({i, IntKeys::cell(i), NodeRef(ref.address, ref.birth)});
  }
  return CacheNode::make({ref, {}, 1, false}, list, 0, IntKeys::Cell{});
}

bool intact(const CacheNode& node, const NodeRef& ref) {
  if (node.self() != ref) return false;
  for (std::size_t i = 0; i < node.count(); ++i) {
    if (node.child(i) != ref) return false;
  }
  return true;
}

class NodeCacheTest : public ::testing::Test {
 protected:
  static PoolOptions options(std::uint64_t budget) {
    PoolOptions options;
    options.compute_budget = budget;
    return options;
  }
  static std::unique_ptr<fabric::Fabric> memory() {
    return fabric::open_embedded({.bytes = 16 << 20, .huge_pages = false}).value();
  }

  explicit NodeCacheTest(std::uint64_t budget = 256 << 10)
      : compute_node(memory(), options(budget)) {}

  pool::ComputeNode compute_node;
};

TEST_F(NodeCacheTest, FindsWhatWasInserted) {
  NodeCache<IntKeys> cache(compute_node, true);
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(cache.insert(make_node(ref_of(i))));
  for (std::uint64_t i = 0; i < 50; ++i) {
    const CacheNode* found = cache.find(ref_of(i));
    ASSERT_NE(found, nullptr) << i;
    EXPECT_TRUE(intact(*found, ref_of(i)));
  }
  EXPECT_EQ(cache.find(ref_of(50)), nullptr);
  cache.erase(ref_of(7));
  EXPECT_EQ(cache.find(ref_of(7)), nullptr);
  cache.erase(ref_of(7));
  cache.erase(NodeRef{});
}

TEST_F(NodeCacheTest, KnowsNodesByTheirBirth) {
  NodeCache<IntKeys> cache(compute_node, true);
  ASSERT_TRUE(cache.insert(make_node(ref_of(3, 1))));
  EXPECT_EQ(cache.find(ref_of(3, 2)), nullptr) << "another life of the same block";
  ASSERT_TRUE(cache.insert(make_node(ref_of(3, 2))));
  EXPECT_EQ(cache.find(ref_of(3, 1)), nullptr) << "replaced";
  ASSERT_NE(cache.find(ref_of(3, 2)), nullptr);
  // Whoever was misled by the reference to a former life wants the entry gone all the same.
  cache.erase(ref_of(3, 1));
  EXPECT_EQ(cache.find(ref_of(3, 2)), nullptr);
}

TEST_F(NodeCacheTest, ReplacesTheSameNode) {
  NodeCache<IntKeys> cache(compute_node, true);
  ASSERT_TRUE(cache.insert(make_node(ref_of(3), 4)));
  const std::size_t before = cache.bytes();
  ASSERT_TRUE(cache.insert(make_node(ref_of(3), 4)));
  EXPECT_EQ(cache.bytes(), before);
  ASSERT_TRUE(cache.insert(make_node(ref_of(3), 6)));
  EXPECT_EQ(cache.find(ref_of(3))->count(), 6);
}

TEST_F(NodeCacheTest, StaysWithinTheBudget) {
  {
    NodeCache<IntKeys> cache(compute_node, true);
    std::size_t kept = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      CacheNode* node = make_node(ref_of(i), 1 + i % 40);
      if (cache.insert(node)) {
        ++kept;
        ASSERT_NE(cache.find(ref_of(i)), nullptr) << "the newest is there";
      } else {
        CacheNode::free_node(node);
      }
      ASSERT_LE(compute_node.budget().used(), compute_node.budget().limit());
    }
    EXPECT_GT(kept, 19'000) << "old ones make room for new ones";
    std::size_t found = 0;
    for (std::uint64_t i = 0; i < 20'000; ++i) found += cache.find(ref_of(i)) != nullptr ? 1u : 0u;
    EXPECT_GT(found, 100) << "and what fits stays";
  }
  compute_node.limbo().collect();
  EXPECT_LT(compute_node.budget().used(pool::BudgetUse::kNodeCache), 4 << 10)
      << "all nodes are given back";
}

class AmpleBudget : public NodeCacheTest {
 protected:
  AmpleBudget() : NodeCacheTest(64 << 20) {}
};

// A bucket may overflow before the table grows, of which a few nodes in a thousand may fall victim.
constexpr std::size_t unlucky(std::size_t nodes) { return nodes / 500; }

// The table is as large as the nodes that it holds want it to be, and none is lost as it grows.
TEST_F(AmpleBudget, GrowsWithItsNodes) {
  NodeCache<IntKeys> cache(compute_node, true);
  EXPECT_LT(cache.bytes(), 4 << 10) << "the budget alone makes no large table";
  std::size_t node_bytes = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    CacheNode* node = make_node(ref_of(i), i % 5);
    node_bytes += node->bytes();
    ASSERT_TRUE(cache.insert(node));
    const std::size_t table = cache.bytes() - node_bytes;
    ASSERT_LE(table, (4 << 10) + 64 * (i + 1)) << i;
  }
  std::size_t known = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    const CacheNode* found = cache.find(ref_of(i));
    if (found == nullptr) continue;
    ++known;
    ASSERT_TRUE(intact(*found, ref_of(i)));
  }
  EXPECT_GE(known + unlucky(20'000), 20'000);
  compute_node.limbo().collect();
  EXPECT_EQ(compute_node.budget().used(pool::BudgetUse::kNodeCache), cache.bytes())
      << "outgrown tables are gone";
}

// Each thread has nodes of its own: what it put in is there, what it took out is not.
TEST_F(AmpleBudget, GrowsWhileThreadsAreAtIt) {
  const std::uint64_t nodes = testing::scaled(20'000, 2'000);
  for (int round = 0; round < 5; ++round) {
    NodeCache<IntKeys> cache(compute_node, true);
    std::atomic<std::size_t> lost{0};
    std::atomic<std::size_t> left{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        task::Worker worker;
        const auto session = compute_node.make_session(worker).value();
        for (std::uint64_t i = 0; i < nodes; ++i) {
          const pool::Operation op(*session);
          const std::uint64_t mine = 4 * i + t;
          CacheNode* node = make_node(ref_of(mine), i % 5);
          if (!cache.insert(node)) CacheNode::free_node(node);
          const CacheNode* found = cache.find(ref_of(mine));
          if (found == nullptr || !intact(*found, ref_of(mine))) ++lost;
          if (i % 3 != 0) continue;
          cache.erase(ref_of(mine));
          if (cache.find(ref_of(mine)) != nullptr) ++left;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(left, 0);
    EXPECT_LE(lost, unlucky(nodes));
    std::size_t found = 0;
    for (std::uint64_t i = 0; i < 4 * nodes; ++i)
      found += cache.find(ref_of(i)) != nullptr ? 1u : 0u;
    const std::size_t kept = 4 * (nodes - (nodes + 2) / 3);
    EXPECT_LE(found, kept);
    EXPECT_GE(found + unlucky(4 * nodes), kept);
    compute_node.limbo().collect();
    EXPECT_EQ(compute_node.budget().used(pool::BudgetUse::kNodeCache), cache.bytes());
  }
}

TEST_F(NodeCacheTest, GivesUsedNodesASecondChance) {
  NodeCache<IntKeys> cache(compute_node, true);
  ASSERT_TRUE(cache.insert(make_node(ref_of(0))));
  std::size_t lost = 0;
  for (std::uint64_t i = 1; i < 5'000; ++i) {
    CacheNode* node = make_node(ref_of(i));
    if (!cache.insert(node)) CacheNode::free_node(node);
    if (cache.find(ref_of(0)) != nullptr) continue;
    ++lost;
    ASSERT_TRUE(cache.insert(make_node(ref_of(0))));
  }
  EXPECT_LT(lost, 50) << "one that is looked at all the time is seldom evicted";
}

TEST_F(NodeCacheTest, KeepsNothingWhereItIsSwitchedOff) {
  NodeCache<IntKeys> cache(compute_node, false);
  CacheNode* node = make_node(ref_of(1));
  EXPECT_FALSE(cache.insert(node));
  CacheNode::free_node(node);
  EXPECT_EQ(cache.find(ref_of(1)), nullptr);
  EXPECT_EQ(cache.bytes(), 0);
}

class TinyBudget : public NodeCacheTest {
 protected:
  TinyBudget() : NodeCacheTest(16 << 10) {}
};

TEST_F(TinyBudget, KeepsNothing) {
  NodeCache<IntKeys> cache(compute_node, true);
  CacheNode* node = make_node(ref_of(1));
  EXPECT_FALSE(cache.insert(node));
  CacheNode::free_node(node);
  EXPECT_EQ(cache.find(ref_of(1)), nullptr);
}

// What find() returned stays readable until the operation ends, whatever others do to the cache.
TEST_F(NodeCacheTest, ReadersAndWritersAtOnce) {
  NodeCache<IntKeys> cache(compute_node, true);
  const std::size_t rounds = testing::scaled(60'000, 2'000);
  constexpr std::uint64_t kNodes = 3'000;  // more than fit
  std::atomic<std::size_t> hits{0};
  std::atomic<std::uint64_t> most_used{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      task::Worker worker;
      const auto session = compute_node.make_session(worker).value();
      std::mt19937_64 random(t);
      for (std::size_t i = 0; i < rounds;) {
        const pool::Operation op(*session);
        std::vector<std::pair<const CacheNode*, NodeRef>> held;
        for (int step = 0; step < 8; ++step, ++i) {
          const NodeRef ref =
              ref_of(random() % kNodes, 1 + static_cast<std::uint32_t>(random() % 2));
          switch (random() % 4) {
            case 0: {
              CacheNode* node = make_node(ref);
              if (!cache.insert(node)) CacheNode::free_node(node);
              break;
            }
            case 1:
              cache.erase(ref);
              break;
            default:
              if (const CacheNode* found = cache.find(ref)) held.emplace_back(found, ref);
          }
        }
        for (const auto& [node, ref] : held) EXPECT_TRUE(intact(*node, ref));
        hits += held.size();
        const std::uint64_t used = compute_node.budget().used(pool::BudgetUse::kNodeCache);
        for (std::uint64_t most = most_used;
             used > most && !most_used.compare_exchange_weak(most, used);) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
  EXPECT_LE(most_used, compute_node.budget().limit());
}

}  // namespace
}  // namespace pando::index
