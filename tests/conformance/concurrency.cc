// Many threads, several compute nodes, coroutines: every key's history has a legal order.
#include <array>
#include <atomic>
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Concurrency : public ConformanceTest {
 protected:
  // One recorded operation of a random kind. Values are never written twice, so that the checker
  // knows which write a read saw.
  static void random_step(RecordedIndex& client, const OwnedKey& target, std::uint64_t step,
                          std::uint64_t dice) {
    const std::string value = numbered_value(client.client(), step);
    switch (dice % 8) {
      case 0:
      case 1:
        client.put(target, value);
        break;
      case 2:
        client.insert(target, value);
        break;
      case 3:
        client.update(target, value);
        break;
      case 4:
        client.erase(target);
        break;
      default:
        client.get(target);
    }
  }

  static Task<void> random_step(RecordedIndex& client, Worker& worker, OwnedKey target,
                                std::uint64_t step, std::uint64_t dice) {
    std::string value = numbered_value(client.client(), step);
    switch (dice % 8) {
      case 0:
      case 1:
        co_await client.put(worker, std::move(target), std::move(value));
        break;
      case 2:
        co_await client.insert(worker, std::move(target), std::move(value));
        break;
      case 3:
        co_await client.update(worker, std::move(target), std::move(value));
        break;
      case 4:
        co_await client.erase(worker, std::move(target));
        break;
      default:
        co_await client.get(worker, std::move(target));
    }
  }

  Task<void> random_client(RecordedIndex& client, Worker& worker, std::uint64_t keys,
                           std::uint64_t steps) const {
    std::mt19937_64 random(client.client() + 1'000);
    for (std::uint64_t step = 0; step < steps; ++step) {
      const std::uint64_t n = random() % keys;
      co_await random_step(client, worker, key(n), step, random());
    }
  }
};

TEST_P(Concurrency, FewHotKeysOnOneComputeNode) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  HistoryRecorder recorder;
  run_threads(4, [&](std::size_t thread) {
    RecordedIndex client(index, recorder);
    std::mt19937_64 random(thread);
    for (std::uint64_t step = 0; step < scaled(10'000, 500); ++step) {
      const std::uint64_t n = random() % 5;
      random_step(client, key(n), step, random());
      take_turns(step);
    }
  });
  EXPECT_TRUE(linearizable(recorder));
}

TEST_P(Concurrency, FewHotKeysOnSeveralComputeNodes) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  create_index(pool);
  std::vector<Index> views = open_on_nodes(pool, 3);
  views.push_back(open_on_nodes(pool, 1, "index", {.compute_budget = 0}).front());
  HistoryRecorder recorder;
  run_threads(views.size(), [&](std::size_t thread) {
    RecordedIndex client(views[thread], recorder);
    std::mt19937_64 random(thread);
    for (std::uint64_t step = 0; step < scaled(10'000, 500); ++step) {
      const std::uint64_t n = random() % 5;
      random_step(client, key(n), step, random());
      take_turns(step);
    }
  });
  EXPECT_TRUE(linearizable(recorder));
}

// Values of different sizes, some out of line: a mixture of two is no value of anyone.
TEST_P(Concurrency, BigAndSmallValuesAreNeverMixed) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  create_index(pool);
  const std::vector<Index> views = open_on_nodes(pool, 4);
  HistoryRecorder recorder;
  run_threads(views.size(), [&](std::size_t thread) {
    RecordedIndex client(views[thread], recorder);
    constexpr std::array<std::size_t, 6> kSizes{8, 8, 64, 200, 1'000, 5'000};
    for (std::uint64_t step = 0; step < scaled(1'500, 100); ++step) {
      const OwnedKey target = key(step % 3);
      const std::uint64_t seed = step * 16 + thread;
      if (thread % 2 == 0) {
        client.put(target, patterned_value(kSizes[seed * 7 % kSizes.size()], seed));
      } else {
        client.get(target);
      }
      take_turns(step);
    }
  });
  EXPECT_TRUE(linearizable(recorder));
}

// Hot keys are read and written while other clients make their leaves split and merge.
TEST_P(Concurrency, HotKeysAmongSplitsAndMerges) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  create_index(pool);
  HistoryRecorder recorder;
  std::atomic<int> busy{3};
  const std::vector<Index> views = open_on_nodes(pool, 5);
  constexpr std::uint64_t kSpacing = 100'000;  // room for the churn between two hot keys
  run_threads(views.size(), [&](std::size_t thread) {
    const Index& view = views[thread];
    if (thread >= 3) {
      // Bursts of neighbours of the hot keys come and go.
      for (std::uint64_t burst = thread; busy > 0; ++burst) {
        const std::uint64_t first = burst % 6 * kSpacing + 1 + thread * 1'000;
        fill(view, first, first + 300);
        erase_all(view, first, first + 300);
      }
      return;
    }
    RecordedIndex client(view, recorder);
    std::mt19937_64 random(thread);
    for (std::uint64_t step = 0; step < scaled(8'000, 400); ++step) {
      const std::uint64_t n = random() % 6;
      random_step(client, key(n * kSpacing), step, random());
      take_turns(step);
    }
    --busy;
  });
  EXPECT_TRUE(linearizable(recorder));
}

TEST_P(Concurrency, CoroutinesOnWorkersOfSeveralComputeNodes) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  create_index(pool);
  HistoryRecorder recorder;
  constexpr std::size_t kClientsAThread = 8;
  run_threads(3, [&](std::size_t) {
    const Pool node = must(pool.attach(kPatient));
    const Index view = must(Pool(node).open_index("index"));
    Worker worker = must(node.make_worker());
    std::deque<RecordedIndex> clients;
    for (std::size_t i = 0; i < kClientsAThread; ++i) {
      RecordedIndex& client = clients.emplace_back(view, recorder);
      worker.spawn(random_client(client, worker, 12, scaled(1'000, 60)));
    }
    worker.run();
  });
  EXPECT_TRUE(linearizable(recorder));
}

// Coroutines of one thread meet at one key: waiting for each other must not be for ever.
TEST_P(Concurrency, CoroutinesOfOneThreadOnOneKey) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  HistoryRecorder recorder;
  Worker worker = must(pool.make_worker());
  std::deque<RecordedIndex> clients;
  for (int i = 0; i < 16; ++i) {
    RecordedIndex& client = clients.emplace_back(index, recorder);
    worker.spawn(random_client(client, worker, 1, scaled(200, 30)));
  }
  worker.run();
  EXPECT_TRUE(linearizable(recorder));
}

// Everyone inserts into the empty tree at once; the root splits under all of them.
TEST_P(Concurrency, FirstInsertsAndRootSplits) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool("512MiB");
  const std::uint64_t per_thread = scaled(500, 150);
  constexpr std::size_t kThreads = 4;
  for (int round = 0; round < 8; ++round) {
    const std::string name = "round " + std::to_string(round);
    const Index index = create_index(pool, name);
    std::vector<Index> views = open_on_nodes(pool, kThreads / 2, name);
    views.resize(kThreads, index);
    run_threads(kThreads, [&](std::size_t thread) {
      const Index& view = views[thread];
      for (std::uint64_t i = 0; i < per_thread; ++i) {
        const std::uint64_t n = i * kThreads + thread;
        EXPECT_TRUE(succeeded(view.insert(key(n), numbered_value(n)))) << n;
        take_turns(i);
      }
    });
    ASSERT_TRUE(holds_numbers(index, 0, per_thread * kThreads)) << name;
    ASSERT_TRUE(succeeded(index.check())) << name;
  }
}

TEST_P(Concurrency, OfManyInsertsOfOneKeyExactlyOneWins) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t keys = scaled(1'500, 200);
  constexpr std::size_t kThreads = 4;
  std::vector<std::atomic<int>> winners(keys);
  std::vector<std::atomic<std::size_t>> winner(keys);
  const std::vector<Index> views = open_on_nodes(pool, kThreads);
  run_threads(kThreads, [&](std::size_t thread) {
    const Index& view = views[thread];
    for (std::uint64_t n = 0; n < keys; ++n) {
      const Status status = view.insert(key(n), numbered_value(n, thread));
      if (status) {
        ++winners[n];
        winner[n] = thread;
      } else {
        EXPECT_TRUE(failed_with(status, ErrorCode::kExists));
      }
      take_turns(n);
    }
  });
  for (std::uint64_t n = 0; n < keys; ++n) {
    ASSERT_EQ(winners[n], 1) << "key " << n;
    ASSERT_TRUE(holds(index.get(key(n)), numbered_value(n, winner[n]))) << "key " << n;
  }
}

TEST_P(Concurrency, OfManyErasesOfOneKeyExactlyOneWins) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  const std::uint64_t keys = scaled(1'500, 200);
  fill(index, 0, keys);
  std::vector<std::atomic<int>> winners(keys);
  const std::vector<Index> views = open_on_nodes(pool, 4);
  run_threads(views.size(), [&](std::size_t thread) {
    const Index& view = views[thread];
    for (std::uint64_t n = 0; n < keys; ++n) {
      if (view.erase(key(n))) ++winners[n];
      take_turns(n);
    }
  });
  for (std::uint64_t n = 0; n < keys; ++n) ASSERT_EQ(winners[n], 1) << "key " << n;
  EXPECT_TRUE(holds_exactly(index, Model(key_type())));
}

// Each thread owns some keys and must always read its own writes, whatever the others do to the
// leaves they share.
TEST_P(Concurrency, OwnWritesAreSeenBetweenOthersWrites) {
  PANDO_NEEDS_THREADS();
  Pool pool = open_pool();
  const Index index = create_index(pool);
  constexpr std::size_t kThreads = 4;
  const std::uint64_t keys_each = scaled(2'000, 200);
  std::vector<Model> models(kThreads, Model(key_type()));
  const std::vector<Index> views = open_on_nodes(pool, kThreads);
  run_threads(kThreads, [&](std::size_t thread) {
    const Index& view = views[thread];
    Model& model = models[thread];
    std::mt19937_64 random(thread);
    for (std::uint64_t step = 0; step < 10 * keys_each; ++step) {
      const OwnedKey own = key(random() % keys_each * kThreads + thread);
      const std::string value = numbered_value(thread, step);
      ::testing::AssertionResult same = ::testing::AssertionSuccess();
      switch (random() % 4) {
        case 0:
          same = same_outcome(view.erase(own), model.erase(own));
          break;
        case 1:
          same = same_outcome(view.get(own), model.get(own));
          break;
        default:
          same = same_outcome(view.put(own, value), model.put(own, value));
      }
      ASSERT_TRUE(same) << "thread " << thread << ", step " << step;
      take_turns(step);
    }
  });
  Model all(key_type());
  for (const Model& model : models) {
    for (const Entry& entry : model.scan(smallest(), model.size()))
      must(all.put(entry.key, entry.value));
  }
  EXPECT_TRUE(holds_exactly(index, all));
}

PANDO_FOR_ALL_CASES(Concurrency);

}  // namespace
}  // namespace pando::testing
