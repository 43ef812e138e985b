#include "pool/membership/memory_nodes.h"

#include <algorithm>

#include "cluster.h"
#include "pool/format.h"

namespace pando::pool {
namespace {

using std::chrono::milliseconds;

// Shows the first memory nodes, and those that it is told to.
class GrowingFabric : public fabric::Fabric {
 public:
  GrowingFabric(std::unique_ptr<fabric::Fabric> real, std::size_t shown)
      : real_(std::move(real)), shown_(real_->memory_node_count()) {
    for (std::size_t i = 0; i < shown; ++i) shown_[i] = true;
  }
  void show(fabric::NodeId node) { shown_[node] = true; }
  // The next time that it looks for nodes, it finds this one.
  void hide_until_looked_for(fabric::NodeId node) { found_ = node; }

  const fabric::Caps& caps() const override { return real_->caps(); }
  fabric::ClientId client() const override { return real_->client(); }
  std::size_t memory_node_count() const override { return real_->memory_node_count(); }
  std::uint64_t memory_node_size(fabric::NodeId node) const override {
    return node < shown_.size() && shown_[node] ? real_->memory_node_size(node) : 0;
  }
  bool may_grow() const override { return true; }
  Status look_for_memory_nodes() override {
    if (found_ > 0) show(found_);
    return {};
  }
  Result<std::unique_ptr<fabric::Endpoint>> open_endpoint(task::Worker& worker) override {
    return real_->open_endpoint(worker);
  }
  Result<std::unique_ptr<fabric::Fabric>> attach() override { return real_->attach(); }

 private:
  std::unique_ptr<fabric::Fabric> real_;
  std::vector<std::atomic<bool>> shown_;
  fabric::NodeId found_ = 0;
};

struct Growing {
  GrowingFabric* fabric;
  Member member;

  Growing(Cluster& cluster, std::size_t shown, const PoolOptions& options = {},
          task::Clock& clock = task::Clock::system())
      : Growing(std::make_unique<GrowingFabric>(cluster.attach(), shown), options, clock) {}
  Growing(std::unique_ptr<GrowingFabric> made, const PoolOptions& options, task::Clock& clock)
      : fabric(made.get()), member(std::move(made), options, clock) {}

  void look() {
    Operation op(*member.session);
    member.run(member.node->memory_nodes().look(op));
  }
  std::vector<NodeId> all() { return member.node->memory_nodes().all(); }
  std::vector<NodeId> in_use() { return member.node->memory_nodes().in_use(); }
};

using Ids = std::vector<NodeId>;

TEST(MemoryNodes, ANodeThatComesIsUsed) {
  Cluster cluster(16 * kMiB, 4);
  ManualClock clock;
  Growing one(cluster, 2, {}, clock);
  ASSERT_TRUE(one.member.open());
  EXPECT_EQ(one.all(), (Ids{0, 1}));
  one.fabric->show(3);  // 2 is never there
  one.look();           // adds it
  EXPECT_EQ(one.all(), (Ids{0, 1}));
  clock.advance(milliseconds(200));
  one.look();  // finds it on the list
  EXPECT_EQ(one.all(), (Ids{0, 1, 3}));
  EXPECT_EQ(one.in_use(), (Ids{0, 1}));
  ASSERT_TRUE(one.member.beat());
  EXPECT_EQ(one.in_use(), (Ids{0, 1, 3}));
  // Until all is full, so from there, too.
  bool there = false;
  for (auto block = one.member.allocate(BlockKind::kItem, 100'000); block;
       block = one.member.allocate(BlockKind::kItem, 100'000)) {
    EXPECT_NE(block->address.node(), 2);
    there |= block->address.node() == 3;
  }
  EXPECT_TRUE(there);
  EXPECT_EQ(one.member.stats().memory_nodes.size(), 3u);
  EXPECT_TRUE(one.member.close());
}

TEST(MemoryNodes, AFullPoolGoesOn) {
  Cluster cluster(8 * kMiB, 2);
  Growing one(cluster, 1);
  ASSERT_TRUE(one.member.open());
  one.member.start_housekeeping();
  while (one.member.allocate(BlockKind::kItem, 1000)) {
  }
  one.fabric->show(1);
  Result<Block> block = fail(ErrorCode::kOutOfMemory);
  for (int i = 0; i < 1000 && !block; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    block = one.member.allocate(BlockKind::kItem, 1000);
  }
  ASSERT_TRUE(block) << block.error().message();
  EXPECT_EQ(block->address.node(), 1);
  EXPECT_TRUE(one.member.close());
}

TEST(MemoryNodes, UsedOnlyOnceEveryComputeNodeKnowsIt) {
  Cluster cluster(12 * kMiB, 3);
  ManualClock clock;
  Growing one(cluster, 2, {}, clock);
  Growing two(cluster, 2, {}, clock);
  ASSERT_TRUE(one.member.open());
  ASSERT_TRUE(two.member.open());
  one.fabric->show(2);
  for (int i = 0; i < 3; ++i) {
    clock.advance(milliseconds(200));
    one.look();
    two.look();
    ASSERT_TRUE(one.member.beat());
    ASSERT_TRUE(two.member.beat());
  }
  EXPECT_EQ(one.all(), (Ids{0, 1, 2}));
  EXPECT_EQ(two.all(), (Ids{0, 1}));
  EXPECT_EQ(one.in_use(), (Ids{0, 1}));
  two.fabric->show(2);
  clock.advance(milliseconds(200));
  two.look();
  ASSERT_TRUE(two.member.beat());
  ASSERT_TRUE(one.member.beat());
  EXPECT_EQ(one.in_use(), (Ids{0, 1, 2}));
  EXPECT_EQ(two.in_use(), (Ids{0, 1, 2}));
}

TEST(MemoryNodes, WhoJoinsMustReachAll) {
  Cluster cluster(12 * kMiB, 3);
  ManualClock clock;
  Growing one(cluster, 3, {}, clock);
  Growing late(cluster, 2, {}, clock);
  {
    Growing first(cluster, 2, {}, clock);
    ASSERT_TRUE(first.member.open());
    first.fabric->show(2);
    for (int i = 0; i < 2; ++i) {
      clock.advance(milliseconds(200));
      first.look();
    }
    EXPECT_EQ(first.all(), (Ids{0, 1, 2}));
    EXPECT_TRUE(first.member.close());
  }
  ASSERT_TRUE(one.member.open());
  EXPECT_EQ(one.all(), (Ids{0, 1, 2}));
  const Status refused = late.member.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().detail().find("memory node 2"), std::string::npos);
  // It has left: nobody waits for it.
  ASSERT_TRUE(one.member.beat());
  EXPECT_EQ(one.in_use(), (Ids{0, 1, 2}));
  late.fabric->hide_until_looked_for(2);
  EXPECT_TRUE(late.member.open());
  // Without a registry, the nodes must be given, all of them.
  Member fixed = cluster.unopened();
  EXPECT_TRUE(fixed.open());
}

TEST(MemoryNodes, ListsThatDoNotGrowMustBeComplete) {
  Cluster cluster(12 * kMiB, 3);
  Growing one(cluster, 2);
  ASSERT_TRUE(one.member.open());
  const Status refused = cluster.unopened().open();  // has a third
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kIncompatible);
}

TEST(MemoryNodes, TakesOverFromOneThatDiedWhileItAdded) {
  Cluster cluster(8 * kMiB, 2);
  ManualClock clock;
  Growing one(cluster, 1, {}, clock);
  ASSERT_TRUE(one.member.open());
  std::uint64_t dead = 0;
  {
    const auto gone = cluster.attach();
    dead = gone->client();
  }
  write_bytes(one.member, {1, 0}, &dead, 8);
  one.fabric->show(1);
  for (int i = 0; i < 3; ++i) {
    one.look();
    EXPECT_EQ(one.all(), (Ids{0}));
    clock.advance(milliseconds(200));
  }
  clock.advance(std::chrono::seconds(1));
  one.look();
  clock.advance(milliseconds(200));
  one.look();
  EXPECT_EQ(one.all(), (Ids{0, 1}));
}

TEST(MemoryNodes, AFormatterThatDiedMayHaveSeenFewer) {
  Cluster cluster(8 * kMiB, 2);
  ManualClock clock;
  Growing one(cluster, 2, {.lease = milliseconds(0)}, clock);
  Superblock begun = make_header(*one.fabric, 0, 1, 12345);
  {
    const auto gone = cluster.attach();
    begun.state_word = gone->client();
  }
  write_bytes(one.member, {0, 0}, &begun, fabric::kLineBytes);
  ASSERT_TRUE(one.member.open());
  EXPECT_EQ(one.member.node->pool_id(), 12345u);
  EXPECT_EQ(one.all(), (Ids{0}));
  for (int i = 0; i < 2; ++i) {
    one.look();
    clock.advance(milliseconds(200));
  }
  EXPECT_EQ(one.all(), (Ids{0, 1}));
}

TEST(MemoryNodes, AnotherPoolsNodeIsLeftAlone) {
  Cluster cluster(8 * kMiB, 2);
  ManualClock clock;
  Growing one(cluster, 1, {}, clock);
  ASSERT_TRUE(one.member.open());
  Superblock foreign = make_header(*one.fabric, 1, 1, 12345);
  foreign.size = 4 * kMiB;
  write_bytes(one.member, {1, 0}, &foreign, fabric::kLineBytes);
  one.fabric->show(1);
  for (int i = 0; i < 3; ++i) {
    clock.advance(std::chrono::seconds(2));
    one.look();
  }
  EXPECT_EQ(one.all(), (Ids{0}));
  EXPECT_EQ(read_word(one.member, {1, offsetof(Superblock, pool_id)}), 12345u);
}

// Threads that add nodes at the same time add each once.
TEST(MemoryNodes, ManyAddTheSame) {
  for (int round = 0; round < 20; ++round) {
    Cluster cluster(24 * kMiB, 6);
    std::vector<std::unique_ptr<Growing>> members;
    for (int i = 0; i < 3; ++i) {
      members.push_back(std::make_unique<Growing>(cluster, 2));
      ASSERT_TRUE(members.back()->member.open());
      members.back()->member.start_housekeeping();
    }
    for (const auto& each : members) {
      for (const NodeId id : Ids{4, 2, 5, 3}) each->fabric->show(id);
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (const auto& each : members) {
      while (each->in_use().size() < 6 && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      Ids ids = each->in_use();
      EXPECT_EQ(ids, members.front()->in_use());
      std::ranges::sort(ids);
      EXPECT_EQ(ids, (Ids{0, 1, 2, 3, 4, 5}));
    }
    for (const auto& each : members) EXPECT_TRUE(each->member.close());
  }
}

}  // namespace
}  // namespace pando::pool
