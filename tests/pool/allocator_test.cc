#include "pool/memory/allocator.h"

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "cluster.h"
#include "pool/format.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/shared_stack.h"

namespace pando::pool {
namespace {

using namespace std::chrono_literals;

TEST(Allocator, FreshBlocksAreZeroAndOfIncarnationOne) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  const Block block = member.allocate(BlockKind::kNode, 1000).value();
  EXPECT_EQ(block.incarnation, 1u);
  EXPECT_EQ(block.bytes(), 1024u);
  EXPECT_EQ(block.address.offset() % 64, 0u);
  for (const std::byte byte : read_bytes(member, block.address, block.bytes())) {
    ASSERT_EQ(byte, std::byte{0});
  }
}

TEST(Allocator, SizesItCannotHave) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  EXPECT_EQ(member.allocate(BlockKind::kItem, 0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(member.allocate(BlockKind::kItem, 5 * kMiB / 4 + 1).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(member.allocate(BlockKind::kNode, 1).value().bytes(), 128u);
}

TEST(Allocator, ReleasedBlocksComeBackAtOnceWithALargerIncarnation) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  Block block = member.allocate(BlockKind::kItem, 64).value();
  block.incarnation = 17;  // as its user has counted on
  member.node->allocator().release(block);
  const Block again = member.allocate(BlockKind::kItem, 64).value();
  EXPECT_EQ(again.address, block.address);
  EXPECT_EQ(again.incarnation, 18u);
}

TEST(Allocator, BlocksWhoseIncarnationsAreUsedUpAreNotReused) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  Block block = member.allocate(BlockKind::kNode, 256).value();
  block.incarnation = 0xffff'ffff;
  member.node->allocator().release(block);
  EXPECT_NE(member.allocate(BlockKind::kNode, 256).value().address, block.address);
}

TEST(Allocator, MostAllocationsCostNoRoundTrip) {
  Cluster cluster(64 * kMiB);
  Member member = cluster.join();
  Counters cost;
  for (int i = 0; i < 1024; ++i) {
    Operation op(*member.session, &cost);
    ASSERT_TRUE(member.run(member.node->allocator().allocate(op, BlockKind::kNode, 1024)));
  }
  EXPECT_EQ(cost.round_trips, 8u);  // four chunks: a look and a CAS each
}

TEST(Allocator, LoadSpreadsOverMemoryNodes) {
  Cluster cluster(32 * kMiB, 4);
  Member member = cluster.join();  // with a chunk for ledgers
  for (int i = 0; i < 15 * 256; ++i) ASSERT_TRUE(member.allocate(BlockKind::kNode, 1024));
  const PoolStats stats = member.stats();
  for (const MemoryNodeStats& node : stats.memory_nodes) {
    const std::uint64_t first = first_chunk_of(node.id, node.size);
    EXPECT_EQ(node.reserved, first + 4 * kChunkBytes) << node.id;
  }
}

// ---- Overlap, type stability, incarnations: by random use ----

// What all threads together believe about far memory; finds every overlap.
class Ledger {
 public:
  void allocated(const Block& block) {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t start = block.address.raw();
    const std::uint64_t end = start + block.bytes();
    auto next = live_.lower_bound(start);
    ASSERT_TRUE(next == live_.end() || next->first >= end) << "overlaps the next block";
    if (next != live_.begin()) {
      ASSERT_LE(std::prev(next)->second, start) << "overlaps the block before";
    }
    live_[start] = end;
    auto [history, first] = history_.try_emplace(start, History{block.kind, block.size_class, 0});
    ASSERT_EQ(history->second.kind, block.kind) << "memory changed its kind";
    ASSERT_EQ(history->second.size_class, block.size_class) << "memory changed its class";
    ASSERT_GT(block.incarnation, history->second.incarnation) << "incarnations must grow";
    history->second.incarnation = block.incarnation;
  }
  void written(Block& block, std::uint32_t more) {
    const std::scoped_lock lock(mutex_);
    block.incarnation += more;
    history_[block.address.raw()].incarnation = block.incarnation;
  }
  void freed(const Block& block) {
    const std::scoped_lock lock(mutex_);
    live_.erase(block.address.raw());
  }
  std::size_t places() const { return history_.size(); }

 private:
  struct History {
    BlockKind kind;
    std::uint8_t size_class;
    std::uint32_t incarnation;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> live_;
  std::map<std::uint64_t, History> history_;
};

void churn(ComputeNode& node, Ledger& ledger, std::uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  task::Worker worker;
  auto session = node.make_session(worker).value();
  std::vector<Block> mine;
  constexpr std::size_t kSizes[] = {64, 100, 128, 256, 1000, 1024, 4000, 40'000};
  const auto allocate = [&](BlockKind kind, std::size_t bytes) {
    Operation op(*session);
    return worker.run(node.allocator().allocate(op, kind, bytes));
  };
  for (int i = 0; i < steps; ++i) {
    if (mine.size() < 40 && random() % 2 == 0) {
      const auto kind = static_cast<BlockKind>(random() % 2);
      const std::size_t bytes = kSizes[random() % 8];
      auto block = allocate(kind, bytes);
      while (!block && worker.run(node.allocator().reclaimed(*session, worker.now() + 10s))) {
        block = allocate(kind, bytes);
      }
      ASSERT_TRUE(block) << block.error().message();
      ledger.allocated(*block);
      mine.push_back(*block);
    } else if (!mine.empty()) {
      std::swap(mine[random() % mine.size()], mine.back());
      Block block = mine.back();
      mine.pop_back();
      Operation op(*session);
      ledger.written(block, random() % 4);
      ledger.freed(block);
      if (random() % 2 == 0) {
        node.allocator().retire(block);
      } else {
        node.allocator().release(block);
      }
    }
  }
}

void churn_everywhere(std::uint32_t memory_nodes, int steps) {
  Cluster cluster(64 * kMiB, memory_nodes);
  Ledger ledger;
  {
    Member first = cluster.join();
    Member second = cluster.join();
    first.start_housekeeping();
    second.start_housekeeping();
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      ComputeNode& node = t % 2 == 0 ? *first.node : *second.node;
      threads.emplace_back([&, t] { churn(node, ledger, t, steps); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(first.close());
    EXPECT_TRUE(second.close());
  }
  // What they gave back is for the next.
  const std::size_t places = ledger.places();
  Member third = cluster.join();
  third.start_housekeeping();
  churn(*third.node, ledger, 99, steps);
  EXPECT_LT(ledger.places(), places * 2);
}

TEST(Allocator, NeverHandsOutWhatIsInUse) { churn_everywhere(1, 20'000); }
TEST(Allocator, NeverHandsOutWhatIsInUseOnManyMemoryNodes) { churn_everywhere(3, 20'000); }

TEST(Allocator, CoroutinesOfOneThreadShareARefill) {
  Cluster cluster(16 * kMiB);
  Member member = cluster.join();
  Ledger ledger;
  const auto job = [](Member& on, Ledger& book) -> Task<void> {
    for (int i = 0; i < 50; ++i) {
      Operation op(*on.session);
      auto block = co_await on.node->allocator().allocate(op, BlockKind::kItem, 2000);
      EXPECT_TRUE(block);
      if (block) book.allocated(*block);
    }
  };
  for (int i = 0; i < 16; ++i) member.worker->spawn(job(member, ledger));
  member.worker->run();
  // 800 blocks of 2 KiB, 128 to a chunk, and one for ledgers.
  EXPECT_EQ(member.stats().remote_bytes(), first_chunk_of(0, 16 * kMiB) + 8 * kChunkBytes);
}

// ---- Bounds ----

// With nobody to help: allocating itself moves the epoch on before memory grows.
TEST(Allocator, MemoryStaysBoundedUnderChurn) {
  Cluster cluster(64 * kMiB);
  Member member = cluster.join();
  std::uint64_t after_warm_up = 0;
  std::vector<Block> live;
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    auto block = member.allocate(BlockKind::kItem, 64 + random() % 1000);
    ASSERT_TRUE(block) << block.error().message();
    live.push_back(*block);
    if (live.size() > 500) {
      std::swap(live[random() % live.size()], live.back());
      member.node->allocator().retire(live.back());
      live.pop_back();
    }
    if (i == 50'000) after_warm_up = member.stats().remote_bytes();
  }
  EXPECT_LE(member.stats().remote_bytes(), after_warm_up + 8 * kChunkBytes);
  EXPECT_LT(member.stats().remote_bytes(), 12 * kMiB);  // 13 classes, about 300 KiB live
}

TEST(Allocator, TablesStayWithinTheFloor) {
  Cluster cluster(64 * kMiB);
  Member member = cluster.join({.compute_budget = 0});
  EXPECT_LE(member.node->budget().used(), 24u << 10);
  Member pinner = cluster.join();
  Operation stuck(*pinner.session);  // no epoch moves from here on
  for (int i = 0; i < 100'000; ++i) {
    const Block block = member.allocate(BlockKind::kItem, 64).value();
    member.node->allocator().retire(block);
    if (i % 256 == 0) {
      ASSERT_TRUE(member.collect());
    }
  }
  EXPECT_EQ(member.node->allocator().waiting(), 100'000u);
  EXPECT_LE(member.node->budget().used(), 64u << 10);
}

TEST(Allocator, WhatWasWrittenToFarMemoryComesBack) {
  Cluster cluster(64 * kMiB);
  Member member = cluster.join({.compute_budget = 0});
  Member pinner = cluster.join();
  std::set<std::uint64_t> places;
  {
    Operation stuck(*pinner.session);
    for (int i = 0; i < 20'000; ++i) {
      const Block block = member.allocate(BlockKind::kNode, 256).value();
      places.insert(block.address.raw());
      member.node->allocator().retire(block);
      if (i % 256 == 0) {
        ASSERT_TRUE(member.collect());
      }
    }
    EXPECT_EQ(places.size(), 20'000u);  // none was safe
  }
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pinner.beat());
    ASSERT_TRUE(member.beat());
  }
  ASSERT_TRUE(member.collect());
  ASSERT_TRUE(member.collect());
  const std::uint64_t reserved = member.stats().remote_bytes();
  std::size_t reused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Block block = member.allocate(BlockKind::kNode, 256).value();
    reused += places.erase(block.address.raw());
    EXPECT_GE(block.incarnation, 1u);
  }
  EXPECT_EQ(member.stats().remote_bytes(), reserved);
  EXPECT_GE(reused, 19'000u);
}

TEST(Allocator, OutOfMemoryThenFreeThenAgain) {
  Cluster cluster(2 * kMiB);
  Member member = cluster.join();
  std::vector<Block> blocks;
  for (;;) {
    auto block = member.allocate(BlockKind::kNode, 4096);
    if (!block) {
      EXPECT_EQ(block.error().code(), ErrorCode::kOutOfMemory);
      EXPECT_NE(block.error().detail().find("4096"), std::string::npos);
      break;
    }
    blocks.push_back(*block);
  }
  EXPECT_GE(blocks.size(), 6u * 64);
  const std::uint64_t before = member.node->allocator().allocated();
  EXPECT_FALSE(member.allocate(BlockKind::kNode, 4096));
  EXPECT_EQ(member.node->allocator().allocated(), before);

  for (const Block& block : blocks) member.node->allocator().retire(block);
  // The operation's own pin keeps these from becoming safe, and it knows.
  EXPECT_EQ(member.allocate(BlockKind::kNode, 4096).error().code(), ErrorCode::kOutOfMemory);
  EXPECT_TRUE(
      member.run(member.node->allocator().reclaimed(*member.session, member.worker->now() + 10s)));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_TRUE(member.allocate(BlockKind::kNode, 4096)) << i;
  }
  EXPECT_FALSE(member.allocate(BlockKind::kNode, 4096));
}

// What is retired waits for a peer's operation, which its machine may hold up for long.
TEST(Allocator, WaitsForAPeerAsLongAsItMay) {
  for (const auto held_up : {4s, 6s}) {
    ManualClock clock;
    Cluster cluster(2 * kMiB);
    Member member = cluster.join({}, clock);
    Member peer = cluster.join({}, clock);
    const auto pass = [&](task::Duration time) {
      for (const auto end = clock.now() + time; clock.now() < end;) {
        clock.advance(10ms);
        ASSERT_TRUE(peer.beat());
        member.worker->run_ready();
      }
    };
    member.node->allocator().retire(member.allocate(BlockKind::kNode, 4096).value());
    std::optional<Operation> operation(std::in_place, *peer.session);
    Task<bool> waiting = member.node->allocator().reclaimed(*member.session, clock.now() + 5s);
    member.worker->start(waiting.handle());
    pass(held_up);
    EXPECT_EQ(waiting.done(), held_up > 5s);
    operation.reset();
    pass(100ms);
    ASSERT_TRUE(waiting.done());
    EXPECT_EQ(waiting.handle().promise().take(), held_up < 5s);
  }
}

TEST(Allocator, ItemsTakeALargerBlockBeforeTheyFail) {
  Cluster cluster(1 * kMiB);
  Member member = cluster.join();
  std::vector<Block> large;
  while (auto block = member.allocate(BlockKind::kItem, 8192)) large.push_back(*block);
  EXPECT_FALSE(member.allocate(BlockKind::kNode, 6000));
  EXPECT_FALSE(member.allocate(BlockKind::kItem, 6000));
  member.node->allocator().release(large.back());
  EXPECT_FALSE(member.allocate(BlockKind::kNode, 6000)) << "items are never reused as nodes";
  EXPECT_EQ(member.allocate(BlockKind::kItem, 6000).value().bytes(), 8192u);
}

TEST(Allocator, RunsOfChunksWasteLittle) {
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    const std::size_t chunks = chunks_for_run(c);
    ASSERT_GE(blocks_in(chunks, c), 1u);
    const std::size_t used = blocks_in(chunks, c) * class_bytes(c);
    EXPECT_LE((chunks * kChunkBytes - used) * 8, chunks * kChunkBytes) << class_bytes(c);
  }
  Cluster cluster(16 * kMiB);
  Member member = cluster.join();
  Ledger ledger;
  std::vector<Block> blocks;
  while (auto block = member.allocate(BlockKind::kItem, kMiB + 4096 + 24)) {
    ledger.allocated(*block);
    blocks.push_back(*block);
  }
  EXPECT_EQ(blocks.size(), 12u);  // 63 chunks, 5 each
  for (const Block& block : blocks) {
    ledger.freed(block);
    member.node->allocator().release(block);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ledger.allocated(member.allocate(BlockKind::kItem, kMiB + 4096 + 24).value());
  }
}

// ---- Sharing ----

TEST(Allocator, OneComputeNodeFreesAnotherReuses) {
  Cluster cluster(2 * kMiB);
  Member giver = cluster.join();
  Member taker = cluster.join();
  std::vector<Block> blocks;
  while (auto block = giver.allocate(BlockKind::kNode, 1024)) blocks.push_back(*block);
  EXPECT_FALSE(taker.allocate(BlockKind::kNode, 1024));
  for (const Block& block : blocks) giver.node->allocator().retire(block);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(giver.beat());
    ASSERT_TRUE(taker.beat());
  }
  ASSERT_TRUE(giver.collect());
  ASSERT_TRUE(giver.collect());  // idle by now: keeps but a list
  std::size_t taken = 0;
  while (auto block = taker.allocate(BlockKind::kNode, 1024)) {
    EXPECT_GE(block->incarnation, 2u);
    ++taken;
  }
  EXPECT_EQ(taken, blocks.size() - kListLimit);
}

TEST(Allocator, ACleanCloseGivesEverythingBack) {
  Cluster cluster(2 * kMiB);
  std::size_t had = 0;
  for (int i = 0; i < 5; ++i) {
    Member member = cluster.join();
    std::vector<Block> blocks;
    while (auto block = member.allocate(BlockKind::kItem, 500)) blocks.push_back(*block);
    if (i == 0) had = blocks.size();
    EXPECT_EQ(blocks.size(), had) << i;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (b % 2 == 0) {
        member.node->allocator().retire(blocks[b]);
      } else {
        member.node->allocator().release(blocks[b]);
      }
    }
    EXPECT_TRUE(member.close());
  }
}

TEST(Allocator, UnusedRestsOfChunksAreGivenBackAsFresh) {
  Cluster cluster(2 * kMiB);
  {
    Member member = cluster.join();
    ASSERT_TRUE(member.allocate(BlockKind::kItem, 64));
    EXPECT_TRUE(member.close());
  }
  Member member = cluster.join();
  const std::uint64_t reserved = member.stats().remote_bytes();
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < kChunkBytes / 64 - 1; ++i) {
    const Block block = member.allocate(BlockKind::kItem, 64).value();
    if (block.incarnation > 1) continue;  // the magazine's own
    ++fresh;
    for (const std::byte byte : read_bytes(member, block.address, 64)) {
      ASSERT_EQ(byte, std::byte{0});
    }
  }
  EXPECT_EQ(fresh, kChunkBytes / 64 - 2);
  EXPECT_EQ(member.stats().remote_bytes(), reserved);
}

// ---- Magazines ----

TEST(Magazines, KeepLineZeroAndVersionWords) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  for (const std::size_t bytes : {std::size_t{128}, std::size_t{192}, std::size_t{256},
                                  std::size_t{1024}, std::size_t{8192}}) {
    const std::size_t size_class = class_of(bytes);
    std::vector<FreeRun> runs;
    for (std::size_t i = 0; i < magazine_limit(BlockKind::kNode, size_class); ++i) {
      Block block = member.allocate(BlockKind::kNode, bytes).value();
      block.incarnation = 0xabcd'0000 + static_cast<std::uint32_t>(i);
      const std::vector<std::byte> pattern(bytes, std::byte{0xee});
      write_bytes(member, block.address, pattern.data(), bytes);
      runs.push_back({.block = block});
    }
    {
      Operation op(*member.session);
      ASSERT_TRUE(member.run(push_magazine(op, runs)));
    }
    const auto far = read_bytes(member, runs.back().block.address, bytes);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(far[i], std::byte{0xee});
    for (std::size_t i = 64; i < 128; ++i) {
      if (i % 64 >= 56) {
        EXPECT_EQ(far[i], std::byte{0});
      }
    }
    for (std::size_t line = 2; line < bytes / 64; ++line) {
      std::uint64_t version = 0;
      std::memcpy(&version, far.data() + line * 64 + 56, 8);
      // Zero where it was written, else as it was.
      EXPECT_TRUE(version == 0 || version == 0xeeee'eeee'eeee'eeee) << line;
    }
    const std::uint64_t word = read_word(member, stack_address(0, BlockKind::kNode, size_class));
    Operation op(*member.session);
    auto popped = member.run(pop_magazine(op, 0, BlockKind::kNode, size_class, word)).value();
    ASSERT_EQ(popped.size(), runs.size());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      EXPECT_EQ(popped[i].block.address, runs[i].block.address);
      EXPECT_EQ(popped[i].block.incarnation, runs[i].block.incarnation);
      EXPECT_EQ(popped[i].count, 1u);
    }
  }
}

// A popper that was held up between its READ and its CAS must not put the stack back to a magazine
// that has been popped, used and pushed again since.
TEST(Magazines, AStaleLookAtTheStackChangesNothing) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  const auto single = [&] {
    return std::vector<FreeRun>{{.block = member.allocate(BlockKind::kItem, 256).value()}};
  };
  const auto push = [&](const std::vector<FreeRun>& runs) {
    Operation op(*member.session);
    ASSERT_TRUE(member.run(push_magazine(op, runs)));
  };
  const fabric::Address stack = stack_address(0, BlockKind::kItem, class_of(256));
  const auto pop = [&] {
    Operation op(*member.session);
    const std::uint64_t word = read_word(member, stack);
    return member.run(pop_magazine(op, 0, BlockKind::kItem, class_of(256), word)).value();
  };
  const auto a = single();
  const auto b = single();
  push(b);
  push(a);
  const std::uint64_t stale = read_word(member, stack);  // a on top of b
  EXPECT_EQ(pop()[0].block.address, a[0].block.address);
  EXPECT_EQ(pop()[0].block.address, b[0].block.address);
  push(a);  // a alone
  EXPECT_NE(read_word(member, stack), stale);
  EXPECT_EQ(pop()[0].block.address, a[0].block.address);
  EXPECT_TRUE(pop().empty());
}

TEST(Magazines, GarbageOnAStackIsReported) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  const std::uint64_t word = (1 << 20) / 64;
  write_bytes(member, stack_address(0, BlockKind::kNode, class_of(512)), &word, 8);
  EXPECT_EQ(member.allocate(BlockKind::kNode, 512).error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace pando::pool
