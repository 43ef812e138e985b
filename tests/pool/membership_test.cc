#include "pool/membership/membership.h"

#include <set>

#include "cluster.h"

namespace pando::pool {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Slot slot_of(Member& member, std::size_t slot) {
  return Slot::from_word(read_word(member, member_address(slot)));
}

bool gone(Member& member, OwnerId owner) {
  Operation op(*member.session);
  return member.run(member.node->membership().gone(op, owner)).value();
}

TEST(Membership, SlotWords) {
  const Slot slot{0xdead'beef, 0xab'cdef, SlotState::kDead};
  const Slot again = Slot::from_word(slot.word());
  EXPECT_EQ(again.client, slot.client);
  EXPECT_EQ(again.generation, slot.generation);
  EXPECT_EQ(again.state, slot.state);
  EXPECT_EQ(owner_slot(make_owner(255, 7)), 255u);
  EXPECT_EQ(owner_generation(make_owner(255, 7)), 7u);
}

TEST(Membership, PlacesAreReusedUnderANewGeneration) {
  Cluster cluster(4 * kMiB);
  Member first = cluster.join();
  Member second = cluster.join();
  const OwnerId old = first.node->membership().self();
  EXPECT_EQ(old, make_owner(0, 1));
  EXPECT_EQ(second.node->membership().self(), make_owner(1, 1));
  EXPECT_FALSE(gone(second, old));
  EXPECT_TRUE(first.close());
  EXPECT_EQ(first.node->membership().self(), 0u);
  EXPECT_TRUE(gone(second, old));
  Member third = cluster.join();
  EXPECT_EQ(third.node->membership().self(), make_owner(0, 2));
  EXPECT_TRUE(gone(second, old));
  EXPECT_FALSE(gone(second, third.node->membership().self()));
}

TEST(Membership, NobodyGetsAPlaceTwice) {
  Cluster cluster(4 * kMiB);
  std::mutex mutex;
  std::set<OwnerId> seen;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        Member member = cluster.join();
        const OwnerId self = member.node->membership().self();
        {
          const std::scoped_lock lock(mutex);
          EXPECT_TRUE(seen.insert(self).second);
        }
        EXPECT_TRUE(member.close());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen.size(), 80u);
}

TEST(Membership, AllPlacesTaken) {
  Cluster cluster(4 * kMiB);
  std::vector<Member> members;
  for (std::size_t i = 0; i < kMaxComputeNodes; ++i) members.push_back(cluster.join());
  EXPECT_EQ(members.back().node->membership().self(), make_owner(255, 1));
  for (Member& member : members) ASSERT_TRUE(member.beat());
  EXPECT_GE(members[0].node->epochs().current(), 2u);

  Member one_more = cluster.unopened({.deadline = milliseconds(20), .lease = milliseconds(10'000)});
  const Status refused = one_more.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  EXPECT_NE(refused.error().detail().find("256"), std::string::npos);

  // One that died with nobody to declare it so: the newcomer does.
  members[77].crash();
  Member late = cluster.join({.lease = milliseconds(20)});
  EXPECT_EQ(late.node->membership().self(), make_owner(77, 2));
}

TEST(Membership, TheDeadAreSuspectedAfterTheLeaseThenFencedAndBuried) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member watcher = cluster.join({.lease = seconds(1)}, clock);
  Member victim = cluster.join({}, clock);
  const OwnerId owner = victim.node->membership().self();
  ASSERT_TRUE(watcher.beat());
  victim.crash();
  const std::uint64_t stuck = watcher.node->epochs().current();
  for (int i = 0; i < 9; ++i) {
    clock.advance(milliseconds(100));
    ASSERT_TRUE(watcher.beat());
    ASSERT_EQ(slot_of(watcher, 1).state, SlotState::kAlive) << i;
  }
  EXPECT_FALSE(gone(watcher, owner));
  EXPECT_LE(watcher.node->epochs().current(), stuck + 1);
  clock.advance(milliseconds(101));
  ASSERT_TRUE(watcher.beat());
  EXPECT_EQ(slot_of(watcher, 1).state, SlotState::kDead);
  EXPECT_TRUE(gone(watcher, owner));
  watcher.move_epochs(5);
  EXPECT_GE(watcher.node->epochs().current(), stuck + 4);
}

TEST(Membership, GoneBuriesWithoutABeat) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member watcher = cluster.join({.lease = seconds(1)}, clock);
  Member victim = cluster.join({}, clock);
  const OwnerId owner = victim.node->membership().self();
  victim.crash();
  int looks = 0;
  for (; !gone(watcher, owner); ++looks) {
    ASSERT_LT(looks, 20);
    clock.advance(milliseconds(100));
  }
  EXPECT_EQ(looks, 10);
  EXPECT_EQ(slot_of(watcher, 1).state, SlotState::kDead);
}

TEST(Membership, TheSlowAreLeftAlone) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member watcher = cluster.join({.lease = seconds(1)}, clock);
  Member slow = cluster.join({}, clock);
  for (int i = 0; i < 200; ++i) {
    clock.advance(milliseconds(100));
    if (i % 9 == 0) {
      ASSERT_TRUE(slow.beat());
    }
    ASSERT_TRUE(watcher.beat());
    ASSERT_EQ(slot_of(watcher, 1).state, SlotState::kAlive);
  }
}

// A machine that slept: the watcher's clock has jumped, the peer has had no chance to beat.
TEST(Membership, AWatcherThatSleptSuspectsNobodyForIt) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member watcher = cluster.join({.lease = seconds(1)}, clock);
  Member peer = cluster.unopened({}, clock);
  ASSERT_TRUE(peer.open());
  const OwnerId owner = peer.node->membership().self();
  ASSERT_TRUE(watcher.beat());
  peer.crash();  // so that the fence would succeed
  clock.advance(seconds(60));
  ASSERT_TRUE(watcher.beat());
  EXPECT_FALSE(gone(watcher, owner));
}

TEST(Membership, NobodyIsBuriedUnlessTheFenceSucceeds) {
  ManualClock clock;
  Cluster cluster(4 * kMiB);
  Member watcher = cluster.join({.lease = seconds(1)}, clock);
  Member silent = cluster.join({}, clock);  // its attachment exists, so fence() is refused
  const OwnerId owner = silent.node->membership().self();
  for (int i = 0; i < 100; ++i) {
    clock.advance(milliseconds(100));
    ASSERT_TRUE(watcher.beat());
    ASSERT_FALSE(gone(watcher, owner));
  }
  EXPECT_EQ(slot_of(watcher, 1).state, SlotState::kAlive);
  ASSERT_TRUE(silent.beat());
}

TEST(Membership, TheBuriedLearnOfIt) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Slot slot = slot_of(member, 0);
  slot.state = SlotState::kDead;
  const std::uint64_t word = slot.word();
  write_bytes(member, member_address(0), &word, 8);
  EXPECT_EQ(member.beat().error().code(), ErrorCode::kFenced);
  EXPECT_TRUE(member.node->health());
  member.start_housekeeping();
  while (member.node->health()) std::this_thread::yield();
  EXPECT_EQ(member.node->health().error().code(), ErrorCode::kFenced);
  member.stop_housekeeping();
  EXPECT_EQ(member.close().error().code(), ErrorCode::kFenced);
}

TEST(Membership, AKickMovesEpochsOfAllComputeNodesSoon) {
  Cluster cluster(4 * kMiB);
  Member first = cluster.join();
  Member second = cluster.join();
  first.start_housekeeping();
  second.start_housekeeping();
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t target = first.node->epochs().current() + 100;
  while (first.node->epochs().current() < target) {
    first.node->kick();
    std::this_thread::yield();
  }
  // 100 epochs at the usual pace are a second or more.
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(60));
  first.stop_housekeeping();
  second.stop_housekeeping();
}

}  // namespace
}  // namespace pando::pool
