#include "pool/memory/recycler.h"

#include <algorithm>
#include <set>

#include "cluster.h"
#include "pool/format.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/census.h"
#include "support/fault_fabric.h"

namespace pando::pool {
namespace {

using namespace std::chrono_literals;
using testing::Faults;

constexpr std::uint64_t kPoolBytes = 8 * kMiB;

TEST(Runs, BlocksTellWhereTheirRunBegins) {
  for (std::size_t size_class = 0; size_class < kSizeClasses; ++size_class) {
    std::set<std::uint64_t> places;
    for (std::size_t i = 0; i < blocks_in(chunks_for_run(size_class), size_class); ++i) {
      const std::uint64_t at = i * class_bytes(size_class);
      EXPECT_TRUE(places.insert(at % kChunkBytes).second) << size_class;
      EXPECT_EQ(chunks_before(size_class, at % kChunkBytes), at / kChunkBytes) << size_class;
    }
  }
}

class Recycling : public ::testing::Test {
 protected:
  Member join(const std::shared_ptr<Faults>& faults = nullptr) {
    std::unique_ptr<fabric::Fabric> fabric = cluster_.attach();
    if (faults != nullptr) fabric = testing::with_faults(std::move(fabric), faults);
    PoolOptions options;
    options.lease = 100ms;
    Member member(std::move(fabric), options, clock_);
    EXPECT_TRUE(member.open());
    member.node->recycler().serve(true);
    return member;
  }

  // What the housekeeper does.
  static Status upkeep(Member& member) {
    const auto all = [](ComputeNode& node, Operation& op) -> Task<Status> {
      co_await node.allocator().update_ledger(op);
      if (Status beat = co_await node.membership().beat_and_look_after(op); !beat) {
        co_return beat;
      }
      if (Status freed = co_await node.abandoned_locks().take_back(op); !freed) co_return freed;
      if (Status done = co_await node.allocator().collect(op); !done) co_return done;
      (void)co_await node.recycler().look(op);  // what fails is tried again
      co_return Status{};
    };
    Operation op(*member.session);
    return member.run(all(*member.node, op));
  }
  void pass_time(std::initializer_list<Member*> members, int rounds) {
    for (int i = 0; i < rounds; ++i) {
      clock_.advance(2ms);
      for (Member* member : members) static_cast<void>(upkeep(*member));
    }
  }
  static std::uint64_t recycler_word(Member& member) {
    return read_word(member, tables_field(offsetof(PoolTables, recycler_word)));
  }
  static Census census(Member& member, std::vector<Member*> others = {}) {
    std::vector<const Allocator*> living = {&member.node->allocator()};
    for (Member* other : others) living.push_back(&other->node->allocator());
    Operation op(*member.session);
    auto taken = member.run(take_census(op, living));
    EXPECT_TRUE(taken) << taken.error().message();
    return taken ? *taken : Census{};
  }

  // Blocks of many sizes; half of them, and whatever was beside them, become free again.
  static std::vector<Block> live_a_little(Member& member, std::uint8_t mark) {
    std::vector<Block> all;
    for (const std::size_t bytes : {64u, 1000u, 1024u, 5000u, 90'000u}) {
      for (int i = 0; i < 12; ++i) {
        all.push_back(member.allocate(BlockKind::kItem, bytes).value());
        if (bytes > 64) all.push_back(member.allocate(BlockKind::kNode, bytes).value());
        if (bytes == 90'000 && i == 1) break;
      }
    }
    for (const std::size_t bytes : {16u, 32u, 200u}) {
      for (int i = 0; i < 100; ++i) all.push_back(member.allocate(BlockKind::kBorn, bytes).value());
    }
    std::vector<Block> used;
    for (const Block& block : all) {
      // As a user does: the incarnation first.
      std::vector<std::byte> content(block.bytes(), std::byte{mark});
      if (description(block.kind).lock_word_at) std::memset(content.data(), 0, 8);
      set_incarnation(member, block, content.data());
      write_bytes(member, block.address, content.data(), content.size());
      if (block.size_class == class_of(1000) && used.size() < 3) {
        used.push_back(block);
      } else {
        member.node->allocator().release(block);
      }
    }
    return used;
  }
  static void expect_intact(Member& reader, const std::vector<Block>& used, std::uint8_t mark) {
    for (const Block& block : used) {
      const auto bytes = read_bytes(reader, block.address, block.bytes());
      ASSERT_EQ(bytes[16], std::byte{mark});
      ASSERT_EQ(bytes[block.bytes() - 1], std::byte{mark});
    }
  }
  static std::uint64_t bytes_of(const std::vector<Block>& blocks) {
    std::uint64_t bytes = 0;
    for (const Block& block : blocks) bytes += block.bytes();
    return bytes;
  }
  static std::size_t free_chunks(Member& member) {
    std::size_t count = 0;
    const std::uint64_t first = first_chunk_of(0, kPoolBytes);
    for (std::size_t chunk = 0; first + (chunk + 1) * kChunkBytes <= kPoolBytes; ++chunk) {
      const std::uint64_t word = read_word(member, chunk_state_address(0, chunk));
      EXPECT_NE(chunk_state(word, chunk), ChunkState::kTurning);
      if (chunk_state(word, chunk) != ChunkState::kFree) continue;
      ++count;
      const auto bytes =
          read_bytes(member, fabric::Address(0, first + chunk * kChunkBytes), kChunkBytes);
      EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }));
    }
    return count;
  }

  ManualClock clock_;
  Cluster cluster_{kPoolBytes};
};

TEST_F(Recycling, WhatIsFreeIsForAnySize) {
  Member one = join();
  Member two = join();
  const std::vector<Block> kept = live_a_little(one, 1);
  const std::vector<Block> kept_too = live_a_little(two, 2);
  pass_time({&one, &two}, 10);  // until what was retired is free
  const std::uint64_t reserved = census(one, {&two}).reserved;
  one.node->recycler().request();
  pass_time({&one, &two}, 30);
  EXPECT_EQ(one.node->recycler().rounds(), 1u);
  EXPECT_EQ(recycler_word(one) >> 32, 0u);
  // But for those that hold what is in use (nodes and items of 1000 bytes, of two) and a ledger's.
  EXPECT_GE(free_chunks(one) * kChunkBytes, reserved - 5 * kChunkBytes);
  const Census after = census(one, {&two});
  EXPECT_TRUE(after.twice.empty());
  EXPECT_EQ(after.other, bytes_of(kept) + bytes_of(kept_too));
  // Runs of five chunks.
  std::size_t large = 0;
  while (one.allocate(BlockKind::kItem, 1 << 20)) ++large;
  EXPECT_GE(large, 2u);
  expect_intact(two, kept, 1);
  expect_intact(two, kept_too, 2);
}

TEST_F(Recycling, WaitsForOperationsOfBefore) {
  Member one = join();
  Member two = join();
  static_cast<void>(live_a_little(one, 1));
  {
    const Operation long_one(*two.session);
    one.node->recycler().request();
    // Long enough to see all but the end; the other still answers that it lives.
    pass_time({&one, &two}, 30);
    EXPECT_EQ(one.node->recycler().chunks(), 0u);
  }
  pass_time({&one, &two}, 30);
  EXPECT_GT(free_chunks(one), 0u);
}

TEST_F(Recycling, IsGivenUpWhereSomeoneDoesNotForget) {
  Member one = join();
  Member two = join();
  static_cast<void>(live_a_little(one, 1));
  const Operation endless(*two.session);
  one.node->recycler().request();
  pass_time({&one, &two}, 200);
  EXPECT_EQ(one.node->recycler().rounds(), 1u);
  EXPECT_EQ(free_chunks(one), 0u);
  EXPECT_TRUE(census(one, {&two}).twice.empty());
}

// Whoever is left goes on, or puts everything back.
TEST_F(Recycling, DeathsAtEveryVerb) {
  std::size_t undone = 0;
  std::size_t done = 0;
  for (std::uint64_t verb = 0;; ++verb) {
    SCOPED_TRACE(::testing::Message() << "verb " << verb);
    cluster_ = Cluster(kPoolBytes);
    Member survivor = join();
    const std::vector<Block> kept = live_a_little(survivor, 1);
    std::vector<Block> kept_too;
    bool ended = false;
    {
      const auto faults = std::make_shared<Faults>();
      Member victim = join(faults);
      kept_too = live_a_little(victim, 2);
      pass_time({&survivor, &victim}, 2);
      victim.node->recycler().request();
      faults->count_from_here();
      faults->die_at({.verb = verb, .lines = verb % 3, .line_order = verb});
      pass_time({&victim, &survivor}, 40);
      ended = !faults->dead();
    }
    pass_time({&survivor}, 300);
    ASSERT_EQ(recycler_word(survivor) >> 32, 0u);
    const Census after = census(survivor);
    ASSERT_TRUE(after.twice.empty()) << after.twice.front();
    // What the dead had in hand: of each of nine classes a run.
    ASSERT_LE(after.other, bytes_of(kept) + bytes_of(kept_too) + 10 * kChunkBytes);
    (free_chunks(survivor) > 0 ? done : undone) += 1;
    expect_intact(survivor, kept, 1);
    expect_intact(survivor, kept_too, 2);
    if (ended) break;
  }
  EXPECT_GT(undone, 20u);
  EXPECT_GT(done, 20u);
}

TEST_F(Recycling, ASlotIsNotFreeBeforeItsLedgerIsRecovered) {
  Member one = join();
  Member dies = join();
  std::vector<Block> blocks = {dies.allocate(BlockKind::kItem, 1024).value()};
  pass_time({&one, &dies}, 5);  // its ledger lists the rest of the run
  for (int i = 0; i < 255; ++i) blocks.push_back(dies.allocate(BlockKind::kItem, 1024).value());
  for (const Block& block : blocks) {
    write_bytes(dies, block.address + 8, &block.incarnation, 4);  // as an index does
  }
  const OwnerId dead = dies.node->membership().self();
  dies.crash();
  const auto slot = [&] {
    return Slot::from_word(read_word(one, member_address(owner_slot(dead))));
  };
  for (int i = 0; i < 30 && slot().state != SlotState::kDead; ++i) {
    clock_.advance(10ms);
    ASSERT_TRUE(one.beat());  // an upkeep would recover what it left
  }
  ASSERT_EQ(slot().state, SlotState::kDead);
  {
    Member brief = join();
    ASSERT_EQ(owner_slot(brief.node->membership().self()), owner_slot(dead));
    ASSERT_TRUE(brief.close());
  }
  for (const Block& block : blocks) one.node->allocator().retire(block);  // all erased
  pass_time({&one}, 30);
  one.node->recycler().request();
  pass_time({&one}, 60);
  EXPECT_GT(one.node->recycler().chunks(), 0u);
  Member next = join();
  ASSERT_EQ(owner_slot(next.node->membership().self()), owner_slot(dead));
  pass_time({&one, &next}, 10);
  const Census after = census(one, {&next});
  EXPECT_TRUE(after.twice.empty()) << after.twice.size() << " " << after.twice.front();
}

TEST_F(Recycling, WhatIsGivenUpWasNotInVain) {
  Member one = join();
  Member slow = join();
  live_a_little(one, 1);
  auto stuck = std::make_unique<Operation>(*slow.session);  // a long scan, say
  auto own = std::make_unique<task::Worker>(clock_);
  auto session = slow.node->make_session(*own).value();
  const auto beat = [&] {
    Operation op(*session);
    const auto all = [](ComputeNode& node, Operation& op) -> Task<Status> {
      if (Status beat = co_await node.membership().beat_and_look_after(op); !beat) co_return beat;
      (void)co_await node.recycler().look(op);  // what fails is tried again
      co_return Status{};
    };
    (void)own->run(all(*slow.node, op));
  };
  one.node->recycler().request();
  for (int i = 0; i < 400 && one.node->recycler().rounds() == 0; ++i) {
    clock_.advance(2ms);
    (void)upkeep(one);
    beat();
  }
  ASSERT_EQ(one.node->recycler().rounds(), 1u);
  EXPECT_EQ(free_chunks(one), 0u);
  stuck.reset();
  EXPECT_FALSE(one.node->recycler().exhausted(clock_.now() + 10s)) << "chunks were whole";
}

}  // namespace
}  // namespace pando::pool
