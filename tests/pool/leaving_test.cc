// Leaving: what ComputeNode::close() proves before it gives its slot up.
#include <array>

#include "cluster.h"
#include "pool/membership/membership.h"
#include "pool/memory/census.h"
#include "support/fault_fabric.h"

namespace pando::pool {
namespace {

using pando::testing::Fate;
using pando::testing::Faults;
using std::chrono::milliseconds;

constexpr fabric::NodeId kFar = 1;
constexpr std::uint64_t kPlace = 2 * kMiB;  // in chunks that nobody has taken

// A compute node whose links can be cut, beside one that looks on.
class Leaving : public ::testing::Test {
 protected:
  Member join_with_faults() {
    Member member(pando::testing::with_faults(cluster_.attach(), faults_),
                  {.lease = milliseconds(20)});
    EXPECT_TRUE(member.open());
    return member;
  }
  SlotState slot_of(OwnerId owner) {
    const Slot slot = Slot::from_word(read_word(onlooker_, member_address(owner_slot(owner))));
    return slot.generation == owner_generation(owner) ? slot.state : SlotState::kFree;
  }
  static Status write(Member& member, fabric::Address to, std::uint64_t word) {
    Operation op(*member.session);
    fabric::Batch batch;
    batch.write_word(to, &word);
    const auto submit = [](Operation& on, fabric::Batch& what) -> Task<Status> {
      co_return co_await on.submit(what);
    };
    return member.run(submit(op, batch));
  }

  // In the end, and none of it twice.
  static void expect_all_free(Member& alone) {
    const auto census = [&] {
      const std::vector<const Allocator*> living = {&alone.node->allocator()};
      Operation op(*alone.session);
      return alone.run(take_census(op, living)).value();
    };
    for (int i = 0; i < 200 && census().other > 0; ++i) {
      alone.move_epochs(Epochs::kGrace);
      ASSERT_TRUE(alone.collect());
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_EQ(census().other, 0u);
    EXPECT_TRUE(census().twice.empty());
  }

  Cluster cluster_{16 * kMiB, 2};
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  Member onlooker_ = cluster_.join();
};

TEST_F(Leaving, IsSeenByAll) {
  Member leaver = join_with_faults();
  const OwnerId owner = leaver.node->membership().self();
  EXPECT_EQ(slot_of(owner), SlotState::kAlive);
  ASSERT_TRUE(leaver.close());
  EXPECT_EQ(slot_of(owner), SlotState::kFree);
}

TEST_F(Leaving, WithAMemoryNodeOutOfReachIsADeath) {
  Member leaver = join_with_faults();
  const OwnerId owner = leaver.node->membership().self();
  faults_->cut(kFar, Fate::kNever);
  EXPECT_FALSE(leaver.close());
  EXPECT_EQ(slot_of(owner), SlotState::kAlive);
}

// The lock would be taken over without a fence.
TEST_F(Leaving, WithALockAbandonedIsADeath) {
  Member leaver = join_with_faults();
  const OwnerId owner = leaver.node->membership().self();
  const fabric::Address lock(kFar, kPlace);
  const std::uint64_t word = std::uint64_t{owner} << 32 | 7;
  ASSERT_TRUE(write(leaver, lock, word));
  leaver.node->abandoned_locks().add(lock, word);
  faults_->cut(kFar, Fate::kNever);
  EXPECT_FALSE(leaver.close());
  EXPECT_EQ(slot_of(owner), SlotState::kAlive);
  EXPECT_EQ(read_word(onlooker_, lock), word);
}

TEST_F(Leaving, TakesAbandonedLocksBack) {
  Member leaver = join_with_faults();
  const fabric::Address lock(kFar, kPlace);
  const std::uint64_t word = std::uint64_t{leaver.node->membership().self()} << 32 | 7;
  ASSERT_TRUE(write(leaver, lock, word));
  leaver.node->abandoned_locks().add(lock, word);
  ASSERT_TRUE(leaver.close());
  EXPECT_EQ(read_word(onlooker_, lock), 0u);
}

// Nothing of who has left may happen any more.
TEST_F(Leaving, ComesAfterWhatWasOfUnknownOutcome) {
  Member leaver = join_with_faults();
  const OwnerId owner = leaver.node->membership().self();
  const fabric::Address place(kFar, kPlace);
  faults_->cut(kFar, Fate::kHappensLater);
  ASSERT_FALSE(write(leaver, place, 4711));
  EXPECT_TRUE(leaver.node->in_doubt().any());
  EXPECT_FALSE(leaver.close());
  EXPECT_EQ(slot_of(owner), SlotState::kAlive);
  faults_->mend(kFar);
  ASSERT_TRUE(leaver.close());
  EXPECT_EQ(slot_of(owner), SlotState::kFree);
  pando::testing::deliver(leaver.session->endpoint());
  EXPECT_EQ(read_word(onlooker_, place), 0u);
}

// A block that it wrote to must not be another's when the WRITE lands.
TEST_F(Leaving, UnknownOutcomesHoldTheEpochUntilTheyAreResolved) {
  Member member = join_with_faults();
  faults_->cut(kFar, Fate::kHappensLater);
  ASSERT_FALSE(write(member, fabric::Address(kFar, kPlace), 4711));
  const std::uint64_t begun = onlooker_.node->epochs().current();
  const auto beat_both = [&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(member.beat());
      ASSERT_TRUE(onlooker_.beat());
    }
  };
  beat_both();
  EXPECT_LE(onlooker_.node->epochs().current(), begun + 1);
  const auto resolve = [&] {
    Operation op(*member.session);
    return member.run(member.node->in_doubt().resolve(op));
  };
  EXPECT_FALSE(resolve()) << "the node cannot be reached";
  faults_->mend(kFar);
  ASSERT_TRUE(resolve());
  EXPECT_FALSE(member.node->in_doubt().any());
  beat_both();
  EXPECT_GT(onlooker_.node->epochs().current(), begun + Epochs::kGrace);
}

// A peer's long operation keeps what is retired from becoming free: who leaves meanwhile leaves a
// list of it. More than the ledger holds while its compute node works.
TEST_F(Leaving, WhatIsRetiredIsLeftForOthers) {
  constexpr std::size_t kBlocks = 6000;
  auto reading = std::make_unique<Operation>(*onlooker_.session);
  for (int cycle = 0; cycle < 3; ++cycle) {
    // With a small budget, most of it waits in far memory.
    Member leaver = cycle == 0 ? cluster_.join({.compute_budget = 0}) : cluster_.join();
    const OwnerId owner = leaver.node->membership().self();
    for (std::size_t i = 0; i < kBlocks; ++i) {
      leaver.node->allocator().retire(leaver.allocate(BlockKind::kItem, 100).value());
      if (i % 256 == 0) {
        ASSERT_TRUE(leaver.collect());
      }
    }
    ASSERT_TRUE(leaver.close());
    EXPECT_EQ(slot_of(owner), SlotState::kDead);
  }
  reading.reset();
  expect_all_free(onlooker_);
  EXPECT_GE(onlooker_.node->allocator().recovered(), kBlocks);
}

// The same where there is no room for a list when it leaves: its pages have been there from the
// start.
TEST_F(Leaving, WhatIsRetiredIsLeftForOthersInAFullPool) {
  Cluster full(4 * kMiB);
  Member onlooker = full.join();
  auto reading = std::make_unique<Operation>(*onlooker.session);
  Member leaver = full.join();
  std::vector<Block> retired;
  for (const std::size_t bytes : std::to_array<std::size_t>({100, 600, 1500, 4000})) {
    for (int i = 0; i < 20; ++i) {
      retired.push_back(leaver.allocate(BlockKind::kItem, bytes).value());
    }
  }
  std::vector<Block> filling;
  while (auto block = onlooker.allocate(BlockKind::kItem, 100'000)) filling.push_back(*block);
  for (const Block& block : retired) leaver.node->allocator().retire(block);
  const auto left_behind = leaver.node->allocator().left_behind();
  ASSERT_TRUE(leaver.close());
  EXPECT_EQ(*left_behind, 0u);
  for (const Block& block : filling) onlooker.node->allocator().release(block);
  reading.reset();
  expect_all_free(onlooker);
  EXPECT_EQ(onlooker.node->allocator().recovered(), retired.size());
}

}  // namespace
}  // namespace pando::pool
