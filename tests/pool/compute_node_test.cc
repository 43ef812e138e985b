#include "pool/compute_node.h"

#include "cluster.h"
#include "pool/format.h"

namespace pando::pool {
namespace {

using std::chrono::milliseconds;

// ---- Formatting ----

// Says that a memory node is smaller than it is.
class SmallFabric : public fabric::Fabric {
 public:
  SmallFabric(std::unique_ptr<fabric::Fabric> real, fabric::NodeId small, std::uint64_t size)
      : real_(std::move(real)), small_(small), size_(size) {}
  const fabric::Caps& caps() const override { return real_->caps(); }
  fabric::ClientId client() const override { return real_->client(); }
  std::size_t memory_node_count() const override { return real_->memory_node_count(); }
  std::uint64_t memory_node_size(fabric::NodeId node) const override {
    return node == small_ ? size_ : real_->memory_node_size(node);
  }
  Result<std::unique_ptr<fabric::Endpoint>> open_endpoint(task::Worker& worker) override {
    return real_->open_endpoint(worker);
  }
  Result<std::unique_ptr<fabric::Fabric>> attach() override { return real_->attach(); }

 private:
  std::unique_ptr<fabric::Fabric> real_;
  fabric::NodeId small_;
  std::uint64_t size_;
};

TEST(Open, TooSmall) {
  Cluster cluster(4 * kMiB, 2);
  Member member(std::make_unique<SmallFabric>(cluster.attach(), 1, 200'000), {});
  const Status refused = member.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  for (const std::string& word :
       {std::string("node 1"), std::string("200000"), std::to_string(least_memory_node_size(1))}) {
    EXPECT_NE(refused.error().detail().find(word), std::string::npos) << refused.error().detail();
  }
  EXPECT_EQ(read_word(member, {0, 0}), 0u);  // untouched
  EXPECT_TRUE(cluster.unopened().open());
}

TEST(Open, FormatsOnceForAll) {
  for (int round = 0; round < 50; ++round) {
    Cluster cluster(4 * kMiB, 3);
    std::array<std::uint64_t, 3> ids{};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      threads.emplace_back([&, t] {
        Member member = cluster.join();
        ids[t] = member.node->pool_id();
        EXPECT_TRUE(member.close());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_NE(ids[0], 0u);
    EXPECT_EQ(ids[0], ids[1]);
    EXPECT_EQ(ids[0], ids[2]);
  }
}

TEST(Open, TakesOverFromAFormatterThatDied) {
  Cluster cluster(4 * kMiB, 3);
  Member member = cluster.unopened({.lease = milliseconds(20)});
  std::uint64_t dead = 0;
  {
    const auto gone = cluster.attach();
    dead = gone->client();
  }
  write_bytes(member, {0, 0}, &dead, 8);
  EXPECT_TRUE(member.open());
  EXPECT_TRUE(cluster.unopened().open());
}

TEST(Open, GoesOnWhereADeadFormatterStopped) {
  Cluster cluster(4 * kMiB, 3);
  std::uint64_t id = 0;
  {
    Member first = cluster.join();
    id = first.node->pool_id();
    EXPECT_TRUE(first.close());
  }
  Member member = cluster.unopened({.lease = milliseconds(20)});
  std::uint64_t dead = cluster.attach()->client();
  write_bytes(member, {0, 0}, &dead, 8);  // node 0 not done, 1 done, 2 still fresh
  const std::uint64_t fresh = 0;
  write_bytes(member, {2, 0}, &fresh, 8);
  EXPECT_TRUE(member.open());
  EXPECT_EQ(member.node->pool_id(), id);
}

TEST(Open, WaitsForALivingFormatter) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.unopened({.deadline = milliseconds(30), .lease = milliseconds(5)});
  const auto alive = cluster.attach();
  const std::uint64_t client = alive->client();
  write_bytes(member, {0, 0}, &client, 8);
  EXPECT_EQ(member.open().error().code(), ErrorCode::kTimeout);
}

struct Damage {
  const char* what;
  fabric::NodeId node;
  std::size_t offset;
  std::uint64_t value;
  std::size_t length;
  ErrorCode code;
  const char* says;
};

TEST(Open, RefusesWhatIsNotItsPool) {
  const Damage damages[] = {
      {"format", 1, offsetof(Superblock, format), 3, 4, ErrorCode::kIncompatible,
       "node 1 has pool format 3"},
      {"magic", 0, offsetof(Superblock, magic), 2, 8, ErrorCode::kIncompatible, "node 0"},
      {"pool", 2, offsetof(Superblock, pool_id), 2, 8, ErrorCode::kIncompatible, "another pool"},
      {"order", 2, offsetof(Superblock, node_id), 1, 4, ErrorCode::kIncompatible, "node 1 of 3"},
      {"size", 1, offsetof(Superblock, size), 4096, 8, ErrorCode::kIncompatible, "4096"},
      {"lost", 1, 0, 0, 8, ErrorCode::kDataLost, "node 1"},
      {"garbage", 0, 0, 0x1234'5678'9abc, 8, ErrorCode::kIncompatible, "node 0"},
  };
  for (const Damage& damage : damages) {
    Cluster cluster(6 * kMiB, 3);
    Member member = cluster.join();
    write_bytes(member, {damage.node, damage.offset}, &damage.value, damage.length);
    const Status refused = cluster.unopened().open();
    ASSERT_FALSE(refused) << damage.what;
    EXPECT_EQ(refused.error().code(), damage.code) << damage.what;
    EXPECT_NE(refused.error().detail().find(damage.says), std::string::npos)
        << refused.error().detail();
  }
}

TEST(Open, DoesNotFormatBesideSomebodyElsesNode) {
  Cluster cluster(4 * kMiB, 2);
  Member member = cluster.unopened();
  const std::uint64_t other = kFormatted;
  write_bytes(member, {1, 0}, &other, 8);
  EXPECT_EQ(member.open().error().code(), ErrorCode::kIncompatible);
  EXPECT_EQ(read_word(member, {0, 0}), 0u);
}

// ---- Housekeeping and statistics ----

TEST(Housekeeping, BeatsByItselfAndStops) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  const std::uint64_t before = member.node->epochs().current();
  member.start_housekeeping();
  while (member.node->epochs().current() < before + 3) std::this_thread::yield();
  member.stop_housekeeping();
  EXPECT_TRUE(member.node->health());
  EXPECT_TRUE(member.close());
}

// The same on a clock that stands still between steps.
TEST(Housekeeping, RunsOnAManualClock) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member member = cluster.join({}, clock);
  member.worker->spawn(member.node->housekeeping(*member.session));
  const std::uint64_t before = member.node->epochs().current();
  for (int i = 0; i < 100; ++i) {
    while (member.worker->run_ready()) {
    }
    clock.advance(milliseconds(1));
  }
  EXPECT_GE(member.node->epochs().current(), before + 9);
  EXPECT_LE(member.node->epochs().current(), before + 11);
  member.node->kick();
  while (member.worker->run_ready()) {
  }
  EXPECT_GE(member.node->epochs().current(), before + 12);  // at once
  member.node->stop();
  while (member.worker->spawned() > 0) {
    member.worker->run_ready();
    clock.advance(milliseconds(1));
  }
}

TEST(Stats, AddUp) {
  Cluster cluster(8 * kMiB, 2);
  Member member = cluster.join();
  Counters cost;
  {
    Operation op(*member.session, &cost);
    ASSERT_TRUE(member.run(member.node->allocator().allocate(op, BlockKind::kNode, 1024)));
  }
  const PoolStats stats = member.stats();
  ASSERT_EQ(stats.memory_nodes.size(), 2u);
  EXPECT_EQ(stats.memory_nodes[0].size, 4 * kMiB);
  EXPECT_EQ(stats.remote_bytes(),
            first_chunk_of(0, 4 * kMiB) + first_chunk_of(1, 4 * kMiB) + 2 * kChunkBytes);
  EXPECT_EQ(stats.blocks_allocated, 1u);
  EXPECT_EQ(stats.housekeeping, Counters{});
  EXPECT_GE(stats.operations.round_trips, cost.round_trips + 5);
  EXPECT_GT(stats.compute.transfer_buffers, 0u);
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : stats.compute.parts) sum += bytes;
  EXPECT_EQ(sum, stats.compute.bytes);
  EXPECT_EQ(sum, member.node->budget().used());

  member.start_housekeeping();
  while (member.stats().housekeeping.round_trips == 0) std::this_thread::yield();
  member.stop_housekeeping();  // its session is gone, its counts are not
  EXPECT_GT(member.stats().housekeeping.round_trips, 0u);
}

TEST(Budget, NoCacheBelowTheFloor) {
  Budget small(1000);
  EXPECT_EQ(small.limit(), Budget::kFloor);
  EXPECT_FALSE(small.caches());
  EXPECT_FALSE(small.try_take(BudgetUse::kNodeCache, 1));
  EXPECT_TRUE(small.try_take(BudgetUse::kIndexTables, 1));
  Budget large(1 << 20);
  EXPECT_TRUE(large.try_take(BudgetUse::kNodeCache, 1 << 20));
  EXPECT_FALSE(large.try_take(BudgetUse::kNodeCache, 1));
  large.give_back(BudgetUse::kNodeCache, 1);
  EXPECT_TRUE(large.try_take(BudgetUse::kNodeCache, 1));
  EXPECT_EQ(large.used(), std::uint64_t{1} << 20);
}

}  // namespace
}  // namespace pando::pool
