// LocalLocks: one holder at a time, in the order asked, handed over a bounded number of times.
#include "index/common/local_locks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/scale.h"
#include <pando/task.h>

namespace pando::index {
namespace {

using fabric::Address;
using Ticket = LocalLocks::Ticket;

constexpr Address kLock(0, 4096);

TEST(LocalLocks, TryAcquireTakesAFreeLockOnly) {
  LocalLocks locks;
  Ticket first, second, other;
  EXPECT_TRUE(locks.try_acquire(first, kLock));
  EXPECT_FALSE(locks.try_acquire(second, kLock));
  EXPECT_TRUE(locks.try_acquire(other, kLock + 64));
  EXPECT_FALSE(locks.should_hand_over(first, 16)) << "nobody waits";
  locks.release(first, false);
  EXPECT_TRUE(locks.try_acquire(second, kLock));
  locks.release(second, false);
  locks.release(other, false);
}

Task<void> take_turn(LocalLocks& locks, task::Worker& worker, int number, std::vector<int>& order) {
  Ticket ticket;
  co_await locks.acquire(ticket, kLock, worker);
  order.push_back(number);
  co_await worker.yield();
  locks.release(ticket, false);
}

TEST(LocalLocks, ServeInTheOrderAsked) {
  LocalLocks locks;
  task::Worker worker;
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) worker.spawn(take_turn(locks, worker, i, order));
  worker.run();
  ASSERT_EQ(order.size(), 20);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

struct Turn {
  bool handed_over;
  std::uint64_t word;
};

Task<void> hand_over(LocalLocks& locks, task::Worker& worker, std::uint32_t limit,
                     std::uint64_t& remote, std::uint64_t& next_word, std::vector<Turn>& turns) {
  Ticket ticket;
  co_await locks.acquire(ticket, kLock, worker);
  turns.push_back({ticket.handed_over, ticket.word});
  const std::uint64_t word = ticket.handed_over ? ticket.word : ++next_word;
  if (ticket.handed_over) {
    EXPECT_EQ(remote, word) << "what was handed over is held";
  } else {
    EXPECT_EQ(remote, 0) << "what was not is free";
  }
  remote = word;
  co_await worker.yield();
  const bool give = locks.should_hand_over(ticket, limit);
  if (!give) remote = 0;
  locks.release(ticket, give, word);
}

TEST(LocalLocks, HandOverNoMoreThanTheLimit) {
  for (const std::uint32_t limit : {0u, 1u, 3u, 16u}) {
    LocalLocks locks;
    task::Worker worker;
    std::vector<Turn> turns;
    std::uint64_t remote = 0;
    std::uint64_t next_word = 0;
    for (int i = 0; i < 40; ++i) {
      worker.spawn(hand_over(locks, worker, limit, remote, next_word, turns));
    }
    worker.run();
    ASSERT_EQ(turns.size(), 40);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      EXPECT_EQ(turns[i].handed_over, i % (limit + 1) != 0) << "turn " << i << ", limit " << limit;
    }
    EXPECT_EQ(remote, 0);
  }
}

// Locks that share buckets, threads with several coroutines each, some of which only try.
struct Guarded {
  std::atomic<int> inside{0};
  std::uint64_t count = 0;  // not atomic on purpose: the lock is what protects it
  bool remote_held = false;
};

Task<void> work(LocalLocks& locks, task::Worker& worker, std::array<Guarded, 3>& guarded,
                std::size_t rounds, std::size_t salt, std::atomic<std::uint64_t>& done) {
  for (std::size_t i = 0; i < rounds; ++i) {
    const std::size_t which = (i * 7 + salt) % guarded.size();
    Guarded& mine = guarded[which];
    const Address lock = kLock + 64 * which;
    Ticket ticket;
    if ((i + salt) % 5 == 0) {
      if (!locks.try_acquire(ticket, lock)) continue;
    } else {
      co_await locks.acquire(ticket, lock, worker);
    }
    EXPECT_EQ(mine.inside.fetch_add(1), 0);
    EXPECT_EQ(mine.remote_held, ticket.handed_over);
    mine.remote_held = true;
    ++mine.count;
    ++done;
    if (i % 3 == 0) co_await worker.yield();
    const bool give = locks.should_hand_over(ticket, 4);
    mine.remote_held = give;
    mine.inside.fetch_sub(1);
    locks.release(ticket, give, 1);
  }
}

TEST(LocalLocks, ExcludeAcrossThreadsAndCoroutines) {
  LocalLocks locks;
  std::array<Guarded, 3> guarded;
  std::atomic<std::uint64_t> done{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  const std::size_t rounds = testing::scaled(4000, 200);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      task::Worker worker;
      for (std::size_t c = 0; c < 4; ++c) {
        worker.spawn(work(locks, worker, guarded, rounds, t * 4 + c, done));
      }
      worker.run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(guarded[0].count + guarded[1].count + guarded[2].count, done.load());
  Ticket ticket;
  for (std::size_t which = 0; which < guarded.size(); ++which) {
    EXPECT_TRUE(locks.try_acquire(ticket, kLock + 64 * which)) << "all are free in the end";
    locks.release(ticket, false);
  }
}

}  // namespace
}  // namespace pando::index
