#include "pool/memory/epochs.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <random>

#include "base/spin.h"
#include "cluster.h"

namespace pando::pool {
namespace {

// ---- Pins ----

TEST(Epochs, OnlyTheOldestOperationShows) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  Epochs& epochs = member.node->epochs();
  EXPECT_EQ(member.session->pinned(), Session::kUnpinned);
  auto first = std::make_unique<Operation>(*member.session);
  const std::uint64_t start = first->epoch();
  epochs.observe(start + 1);
  auto second = std::make_unique<Operation>(*member.session);
  epochs.observe(start + 2);
  auto third = std::make_unique<Operation>(*member.session);
  EXPECT_EQ(second->epoch(), start + 1);
  EXPECT_EQ(Epochs::epoch_of(member.session->pinned()), start);
  EXPECT_EQ(epochs.announceable(), start);

  second.reset();  // in any order
  EXPECT_EQ(Epochs::epoch_of(member.session->pinned()), start);
  first.reset();
  EXPECT_EQ(Epochs::epoch_of(member.session->pinned()), start + 2);
  auto fourth = std::make_unique<Operation>(*member.session);
  third.reset();
  EXPECT_EQ(Epochs::epoch_of(member.session->pinned()), start + 2);
  fourth.reset();
  EXPECT_EQ(member.session->pinned(), Session::kUnpinned);
  EXPECT_EQ(epochs.announceable(), start + 2);
}

TEST(Epochs, SeenOnlyGrow) {
  Epochs epochs;
  epochs.observe(10);
  epochs.observe(7);
  EXPECT_EQ(epochs.current(), 10u);
  EXPECT_TRUE(epochs.safe(7));
  EXPECT_FALSE(epochs.safe(8));
}

TEST(Epochs, AnnouncementsNeverPassAPin) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> announced{0};
  std::thread housekeeper([&] {
    Epochs& epochs = member.node->epochs();
    while (!stop.load()) {
      announced.store(std::max(announced.load(), epochs.announceable()));
      epochs.observe(epochs.current() + 1);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        task::Worker worker;
        auto session = member.node->make_session(worker).value();  // come and go meanwhile
        for (int i = 0; i < 200; ++i) {
          Operation op(*session);
          const std::uint64_t over = announced.load();
          EXPECT_GE(op.epoch(), over) << "pinned what was announced as over";
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  housekeeper.join();
}

// ---- Reuse of blocks ----

TEST(Epochs, APinElsewhereHoldsReuseBack) {
  Cluster cluster(8 * kMiB);
  Member writer = cluster.join();
  Member reader = cluster.join();
  const Block block = writer.allocate(BlockKind::kNode, 256).value();
  const auto beat_all = [&] {
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(writer.beat());
      ASSERT_TRUE(reader.beat());
    }
  };
  beat_all();
  auto pinned = std::make_unique<Operation>(*reader.session);
  writer.node->allocator().retire(block);
  beat_all();
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(writer.allocate(BlockKind::kNode, 256).value().address, block.address);
  }
  pinned.reset();
  beat_all();
  EXPECT_EQ(writer.allocate(BlockKind::kNode, 256).value().address, block.address);
}

// The worst case of the claim in epochs.h: the reader pins one epoch more than the block is stamped
// with, for the writer has not seen the epoch move. Two epochs of grace would not do.
TEST(Epochs, APinOneEpochAheadOfTheStampHoldsReuseBack) {
  Cluster cluster(8 * kMiB);
  Member writer = cluster.join();
  Member reader = cluster.join();
  const Block block = writer.allocate(BlockKind::kNode, 256).value();
  const auto current = [](Member& member) { return member.node->epochs().current(); };
  for (int i = 0; i < 20 && current(writer) + 1 != current(reader); ++i) {
    ASSERT_TRUE(reader.beat());
    if (current(writer) + 1 == current(reader)) break;
    ASSERT_TRUE(writer.beat());
  }
  ASSERT_EQ(current(writer) + 1, current(reader));

  auto unlinking = std::make_unique<Operation>(*writer.session);
  Operation reading(*reader.session);  // finds the block now, just before it is unlinked
  ASSERT_EQ(reading.epoch(), unlinking->epoch() + 1);
  writer.node->allocator().retire(block);
  unlinking.reset();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(writer.beat());
    ASSERT_TRUE(reader.beat());
  }
  EXPECT_EQ(current(writer), reading.epoch() + 1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_NE(writer.allocate(BlockKind::kNode, 256).value().address, block.address);
  }
}

// ---- Reuse of blocks, by random use ----

constexpr std::size_t kCells = 8;
constexpr std::size_t kBytes = 256;

Task<Status> submit(Operation& op, fabric::Batch& batch) { co_return co_await op.submit(batch); }

// Far memory with a few cells that point to blocks. Writers put new blocks there and retire the
// old; readers look at a block twice within an operation, and must find the same life of it.
class Cells {
 public:
  explicit Cells(Member& member) : table_(member.allocate(BlockKind::kItem, kCells * 8).value()) {}

  fabric::Address cell(std::size_t i) const { return table_.address + i * 8; }

  void write(ComputeNode& node, Session& session, std::mt19937_64& random) const {
    task::Worker& worker = session.worker();
    Operation op(session);
    auto block = worker.run(node.allocator().allocate(op, BlockKind::kItem, kBytes));
    if (!block) return;  // memory waits for epochs
    fabric::Buffer buffer = op.buffer(kBytes);
    for (std::size_t i = 0; i < kBytes / 8; ++i) {
      const std::uint64_t word = block->incarnation;
      std::memcpy(buffer.data() + i * 8, &word, 8);
    }
    const fabric::Address target = cell(random() % kCells);
    fabric::Batch batch;
    batch.write(block->address, buffer.data(), kBytes);
    batch.read(target, buffer.data(), 8);
    ASSERT_TRUE(worker.run(submit(op, batch)));
    std::uint64_t old = 0;
    std::memcpy(&old, buffer.data(), 8);
    batch.clear();
    batch.compare_swap(target, old, block->address.raw());
    ASSERT_TRUE(worker.run(submit(op, batch)));
    if (!batch[0].succeeded()) {
      node.allocator().release(*block);
      return;
    }
    if (old == 0) return;
    const auto [incarnation, same] = look(op, fabric::Address::from_raw(old));
    ASSERT_TRUE(same) << "reused before it was even retired";
    Block retired = *block;
    retired.address = fabric::Address::from_raw(old);
    retired.incarnation = static_cast<std::uint32_t>(incarnation);
    node.allocator().retire(retired);
  }

  void read(Session& session, std::mt19937_64& random) const {
    task::Worker& worker = session.worker();
    Operation op(session);
    fabric::Buffer buffer = op.buffer(8);
    fabric::Batch batch;
    batch.read(cell(random() % kCells), buffer.data(), 8);
    ASSERT_TRUE(worker.run(submit(op, batch)));
    std::uint64_t raw = 0;
    std::memcpy(&raw, buffer.data(), 8);
    if (raw == 0) return;
    const auto before = look(op, fabric::Address::from_raw(raw));
    ASSERT_TRUE(before.second);
    // Mostly a moment; now and then long enough for epochs to move, on a machine with few cores.
    if (random() % 64 == 0) std::this_thread::yield();
    for (std::uint64_t i = random() % 256; i > 0; --i) base::cpu_relax();
    const auto after = look(op, fabric::Address::from_raw(raw));
    ASSERT_TRUE(after.second);
    ASSERT_EQ(before.first, after.first) << "reused while an operation that saw it was pinned";
  }

 private:
  // The first word of a block, and whether all others are the same.
  static std::pair<std::uint64_t, bool> look(Operation& op, fabric::Address address) {
    fabric::Buffer buffer = op.buffer(kBytes);
    fabric::Batch batch;
    batch.read(address, buffer.data(), kBytes);
    EXPECT_TRUE(op.worker().run(submit(op, batch)));
    std::array<std::uint64_t, kBytes / 8> words;
    std::memcpy(words.data(), buffer.data(), kBytes);
    return {words[0], std::ranges::all_of(words, [&](std::uint64_t w) { return w == words[0]; })};
  }

  Block table_;
};

TEST(Epochs, NothingIsReusedWhileItIsPinned) {
  Cluster cluster(4 * kMiB, 2);
  Member first = cluster.join();
  Member second = cluster.join();
  const Cells cells(first);
  first.start_housekeeping();
  second.start_housekeeping();
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ComputeNode& node = t % 2 == 0 ? *first.node : *second.node;
      task::Worker worker;
      auto session = node.make_session(worker).value();
      std::mt19937_64 random(t);
      for (int i = 0; i < 8'000; ++i) {
        if (t < 2) {
          cells.write(node, *session, random);
        } else {
          cells.read(*session, random);
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(first.node->allocator().freed(), 1'000u);
  first.stop_housekeeping();
  second.stop_housekeeping();
}

// ---- Limbo ----

// Counts when it is freed.
struct Counting : Limbo::Deferred {
  explicit Counting(std::atomic<int>& freed) : counter(freed) {}
  std::atomic<int>& counter;
};
void count_one(Limbo::Deferred* object) {
  auto* const counting = static_cast<Counting*>(object);
  counting->counter.fetch_add(1);
  delete counting;
}

TEST(Limbo, FreesAtOnceWhereNobodyIsAbout) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  std::atomic<int> freed{0};
  member.node->limbo().defer(new Counting(freed), count_one);
  member.node->limbo().collect();
  EXPECT_EQ(freed, 1);
}

TEST(Limbo, WaitsForOperationsOfThisComputeNodeAlone) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  Member other = cluster.join();
  std::atomic<int> freed{0};
  Operation elsewhere(*other.session);
  auto here = std::make_unique<Operation>(*member.session);
  member.node->limbo().defer(new Counting(freed), count_one);
  member.node->limbo().collect();
  EXPECT_EQ(freed, 0);
  here.reset();
  member.node->limbo().collect();
  EXPECT_EQ(freed, 1);

  // An operation that began later does not matter, though in the same epoch.
  here = std::make_unique<Operation>(*member.session);
  const std::uint64_t epoch = here->epoch();
  member.node->limbo().defer(new Counting(freed), count_one);
  task::Worker worker;
  auto session = member.node->make_session(worker).value();
  Operation later(*session);
  EXPECT_EQ(later.epoch(), epoch);
  member.node->limbo().collect();
  EXPECT_EQ(freed, 1);
  here.reset();
  member.node->limbo().collect();
  EXPECT_EQ(freed, 2);
}

TEST(Limbo, WaitsForTheEpochWhereTicksRunOut) {
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  Epochs& epochs = member.node->epochs();
  const std::uint64_t epoch = epochs.current();
  for (std::uint64_t i = 0; i < std::uint64_t{2} << Epochs::kTickBits; ++i) epochs.stamp_barrier();
  EXPECT_EQ(epochs.current(), epoch);

  std::atomic<int> freed{0};
  auto here = std::make_unique<Operation>(*member.session);
  member.node->limbo().defer(new Counting(freed), count_one);
  here.reset();
  auto same_tick = std::make_unique<Operation>(*member.session);
  member.node->limbo().collect();
  EXPECT_EQ(freed, 0);
  epochs.observe(epoch + 1);
  task::Worker worker;
  const auto session = member.node->make_session(worker).value();
  const Operation later(*session);
  EXPECT_EQ(later.epoch(), epoch + 1);
  same_tick.reset();
  member.node->limbo().collect();
  EXPECT_EQ(freed, 1);
}

TEST(Limbo, RunsTheRestAtTheEnd) {
  Cluster cluster(8 * kMiB);
  std::atomic<int> freed{0};
  {
    Member member = cluster.join();
    const Operation op(*member.session);
    for (int i = 0; i < 1000; ++i) member.node->limbo().defer(new Counting(freed), count_one);
  }
  EXPECT_EQ(freed, 1000);
}

// A cell with an object that readers look at without a lock; ASan and TSan see what goes wrong.
TEST(Limbo, ReadersNeverSeeWhatWasFreed) {
  struct Object : Limbo::Deferred {
    Object(std::uint64_t first, std::uint64_t second) : a(first), b(second) {}
    std::uint64_t a;
    std::uint64_t b;
  };
  Cluster cluster(8 * kMiB);
  Member member = cluster.join();
  member.start_housekeeping();
  std::atomic<Object*> cell{new Object(0, 0)};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      task::Worker worker;
      auto session = member.node->make_session(worker).value();
      for (std::uint64_t i = 0; i < 10'000; ++i) {
        Operation op(*session);
        if (t == 0) {
          Object* const old = cell.exchange(new Object(i, i), std::memory_order_acq_rel);
          const auto free = [](Limbo::Deferred* object) {
            auto* const dead = static_cast<Object*>(object);
            dead->a = ~std::uint64_t{0};
            delete dead;
          };
          member.node->limbo().defer(old, free);
          if (i % 16 == 0) member.node->limbo().collect();
        } else {
          const Object* const seen = cell.load(std::memory_order_acquire);
          ASSERT_EQ(seen->a, seen->b);
          if (i % 64 == 0) std::this_thread::yield();
          ASSERT_EQ(seen->a, seen->b);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  member.stop_housekeeping();
  delete cell.load();
}

}  // namespace
}  // namespace pando::pool
