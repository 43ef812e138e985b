// Blocks that begin with their birth: small ones that share lines, births that follow the epoch,
// and blocks near others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "pool/cluster.h"
#include "pool/memory/allocator.h"
#include "pool/memory/census.h"
#include "pool/memory/shared_stack.h"

namespace pando::pool {
namespace {

class Born : public ::testing::TestWithParam<std::size_t> {
 protected:
  // As an index does before anything leads to the block: its birth, then bytes of its own.
  static void use(Member& member, const Block& block) {
    std::vector<std::byte> content(block.bytes(), std::byte{0xee});
    set_incarnation(member, block, content.data());
    write_bytes(member, block.address, content.data(), content.size());
  }
  static std::vector<Block> allocate(Member& member, std::size_t count) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(member.allocate(BlockKind::kBorn, GetParam()).value());
      use(member, blocks.back());
    }
    return blocks;
  }
  static Census census(Member& member) {
    const Allocator* const own = &member.node->allocator();
    Operation op(*member.session);
    return member.run(take_census(op, {&own, 1})).value();
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, Born, ::testing::Values(16, 32, 64, 320),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(Born, BlocksAreExactlyAsLargeAsAskedFor) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  std::set<std::uint64_t> places;
  for (const Block& block : allocate(member, 1000)) {
    EXPECT_EQ(block.bytes(), GetParam());
    EXPECT_EQ(block.address.offset() % std::min<std::size_t>(GetParam(), 64), 0u);
    EXPECT_TRUE(places.insert(block.address.raw()).second);
  }
  EXPECT_LT(*places.rbegin() - *places.begin(), 1000 * GetParam()) << "side by side";
}

class Lives : public ::testing::TestWithParam<std::tuple<std::size_t, std::uint64_t>> {};

// From an epoch on that brings them to where what is kept of births wraps around.
INSTANTIATE_TEST_SUITE_P(SizesAndEpochs, Lives,
                         ::testing::Combine(::testing::Values(16, 320),
                                            ::testing::Values(1, (1ull << 31) - 40,
                                                              (1ull << 32) - 40)));

TEST_P(Lives, AreBornLaterThanThoseBefore) {
  const auto [bytes, first_epoch] = GetParam();
  Cluster cluster(1 * kMiB + 512 * 1024);
  {
    Member first = cluster.join();
    write_bytes(first, tables_field(offsetof(PoolTables, epoch_word)), &first_epoch, 8);
    ASSERT_TRUE(first.close());
  }
  Member member = cluster.join();
  std::map<std::uint64_t, std::uint64_t> last;
  std::size_t reused = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<Block> blocks;
    for (int i = 0; i < 200; ++i) {
      blocks.push_back(member.allocate(BlockKind::kBorn, bytes).value());
    }
    const std::uint64_t epoch = member.node->epochs().current();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::uint64_t born = birth(blocks[i], epoch);
      EXPECT_EQ(born, epoch) << "the operation pinned it";
      std::uint64_t& before = last[blocks[i].address.raw()];
      if (before != 0) ++reused;
      EXPECT_GT(born, before);
      before = born;
      if (i % 2 == 0) {
        member.node->allocator().retire(blocks[i]);
      } else {
        member.node->allocator().release(blocks[i]);
      }
    }
    member.move_epochs(Epochs::kGrace + 1);
    ASSERT_TRUE(member.collect());
  }
  EXPECT_GT(reused, 1000u);
}

// An operation that began long ago must not give a block a birth that a life before it had.
TEST_P(Born, AnOldOperationGivesNoOldBirth) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Member other = cluster.join();
  {
    const std::vector<Block> blocks = allocate(other, 100);
    for (const Block& block : blocks) other.node->allocator().retire(block);
    for (std::size_t i = 0; i < 2 * Epochs::kGrace; ++i) {
      ASSERT_TRUE(other.beat());
      ASSERT_TRUE(member.beat());
    }
    EXPECT_TRUE(other.close());
  }
  Operation old(*member.session);
  ASSERT_TRUE(member.beat());
  ASSERT_TRUE(member.beat());
  for (int i = 0; i < 100; ++i) {
    const Block block =
        member.run(member.node->allocator().allocate(old, BlockKind::kBorn, GetParam())).value();
    std::uint64_t was = 0;
    std::memcpy(&was, read_bytes(member, block.address, 16).data(), 5);
    EXPECT_GT(birth(block, old.epoch()), was);
    EXPECT_LE(birth(block, old.epoch()), member.node->epochs().current());
  }
}

TEST_P(Born, ReleasedBlocksWaitForTheirEpoch) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  const Block block = allocate(member, 1).front();
  member.node->allocator().release(block);
  EXPECT_NE(allocate(member, 1).front().address, block.address);
  EXPECT_EQ(member.node->allocator().freed(), 1u);
}

// The pool writes behind the first 16 bytes alone, and no word of it has its highest bits set.
TEST_P(Born, WhatIsFreeStillBeginsAsItsUserLeftIt) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  const std::vector<Block> blocks = allocate(member, 500);
  for (const Block& block : blocks) member.node->allocator().retire(block);
  member.move_epochs(Epochs::kGrace + 1);
  {
    Operation op(*member.session);
    ASSERT_TRUE(member.run(member.node->allocator().give_back_free(op)));
  }
  std::size_t written = 0;
  for (const Block& block : blocks) {
    const auto far = read_bytes(member, block.address, block.bytes());
    std::uint64_t born = 0;
    std::memcpy(&born, far.data(), 5);
    EXPECT_EQ(birth_mark(born), block.incarnation);
    const std::size_t from = std::min<std::size_t>(16, block.bytes() / 2);
    for (std::size_t i = 5; i < from; ++i) EXPECT_EQ(far[i], std::byte{0xee});
    for (std::size_t i = from; i < block.bytes(); i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, far.data() + i, 8);
      if (word == 0xeeee'eeee'eeee'eeee) continue;
      ++written;
      EXPECT_EQ(word >> 61, 0u);
    }
  }
  EXPECT_GT(written, 0u);
}

TEST_P(Born, ACleanCloseLosesNothing) {
  Cluster cluster(4 * kMiB);
  std::uint64_t reserved = 0;
  for (int round = 0; round < 3; ++round) {
    Member member = cluster.join();
    std::vector<Block> blocks = allocate(member, 300);
    if (round == 0) reserved = member.stats().remote_bytes();
    for (const Block& block : blocks) member.node->allocator().retire(block);
    member.move_epochs(Epochs::kGrace + 1);
    EXPECT_TRUE(member.close());
  }
  Member last = cluster.join();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(last.beat());
    ASSERT_TRUE(last.collect());
  }
  const Census after = census(last);
  EXPECT_TRUE(after.twice.empty()) << after.twice.front();
  EXPECT_EQ(after.other, 0u);
  EXPECT_LE(after.reserved, reserved + 2 * kChunkBytes) << "a ledger's, and one more";
}

TEST_P(Born, ComesNearWhereThereIsRoom) {
  Cluster cluster(6 * kMiB, 3);
  Member member = cluster.join();
  const auto near = [&](fabric::NodeId where) {
    Operation op(*member.session);
    return member.run(member.node->allocator().allocate(op, BlockKind::kBorn, GetParam(), where));
  };
  for (int i = 0; i < 300; ++i) {
    const auto where = static_cast<fabric::NodeId>(i % 3);
    const auto block = near(where);
    ASSERT_TRUE(block) << block.error().message();
    EXPECT_EQ(block->address.node(), where);
  }
  // Until that one is full; then elsewhere, until all are.
  std::map<fabric::NodeId, std::size_t> on;
  while (const auto block = near(1)) ++on[block->address.node()];
  EXPECT_GT(on[0], 0u);
  EXPECT_GT(on[2], 0u);
  EXPECT_GE(on[1] + 2 * 100 + kChunkBytes / GetParam(), on[0]);
}

class Near : public ::testing::Test {
 protected:
  static Result<Block> allocate(Member& member, std::size_t bytes,
                                std::optional<fabric::NodeId> near, Counters* cost = nullptr) {
    Operation op(*member.session, cost);
    return member.run(member.node->allocator().allocate(op, BlockKind::kBorn, bytes, near));
  }
};

// Though its list is full of blocks of another memory node.
TEST_F(Near, FetchesNoMoreThanItNeeds) {
  Cluster cluster(16 * kMiB, 2);
  Member member = cluster.join();
  {
    Member other = cluster.join();
    std::vector<Block> blocks;
    for (int i = 0; i < 2000; ++i) blocks.push_back(allocate(other, 16, 1).value());
    for (const Block& block : blocks) other.node->allocator().retire(block);
    for (std::size_t i = 0; i < 2 * Epochs::kGrace; ++i) {
      ASSERT_TRUE(other.beat());
      ASSERT_TRUE(member.beat());
    }
    ASSERT_TRUE(other.close());
  }
  std::vector<Block> mine;
  for (int i = 0; i < 200; ++i) mine.push_back(allocate(member, 16, 0).value());
  for (const Block& block : mine) member.node->allocator().retire(block);
  member.move_epochs(Epochs::kGrace + 1);
  Counters cost{};
  EXPECT_EQ(allocate(member, 16, 1, &cost).value().address.node(), 1);
  EXPECT_LE(cost.round_trips, 4u);
}

TEST_F(Near, WhatIsFreedIsReusedBeforeMemoryGrows) {
  std::vector<std::uint64_t> reserved;
  for (const std::optional<fabric::NodeId> where : {std::optional<fabric::NodeId>(), {1}}) {
    Cluster cluster(64 * kMiB, 2);
    Member member = cluster.join();
    for (int i = 0; i < 100'000; ++i) {
      member.node->allocator().retire(allocate(member, 64, where).value());
    }
    reserved.push_back(member.stats().remote_bytes());
  }
  EXPECT_LE(reserved[1], reserved[0] + kChunkBytes);
}

TEST_F(Near, NoRoomForALargeOneSaysNothingOfSmallOnes) {
  Cluster cluster(2 * kMiB, 2);
  Member member = cluster.join();
  EXPECT_FALSE(allocate(member, 1 << 20, 1));
  EXPECT_EQ(allocate(member, 32, 1).value().address.node(), 1);
}

}  // namespace
}  // namespace pando::pool
