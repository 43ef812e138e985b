#include "lab/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace pando::lab {
namespace {

PlanOptions options_for(std::string_view workload) {
  const Mix* mix = find_mix(workload);
  return {.mix = mix,
          .distribution = mix->distribution,
          .items = 10'000,
          .operations = 100'000,
          .seed = 1};
}

std::vector<std::uint64_t> items_of(const std::vector<Operation>& plan) {
  std::vector<std::uint64_t> items;
  items.reserve(plan.size());
  for (const Operation& operation : plan) items.push_back(operation.item());
  return items;
}

TEST(Mixes, AddUp) {
  for (const Mix& mix : all_mixes()) {
    EXPECT_EQ(mix.search + mix.insert + mix.update + mix.scan + mix.read_modify_write, 100u)
        << mix.name;
  }
}

TEST(Mixes, AreFoundByName) {
  EXPECT_EQ(find_mix("load")->name, "LOAD");
  EXPECT_EQ(find_mix("e")->name, "E");
  EXPECT_EQ(find_mix("G"), nullptr);
  EXPECT_EQ(find_mix(""), nullptr);
}

TEST(Plan, HasTheMixesProportions) {
  for (const Mix& mix : all_mixes()) {
    if (mix.is_load()) continue;
    std::map<OperationKind, double> percent;
    for (const Operation& operation : make_plan(options_for(mix.name))) {
      percent[operation.kind()] += 0.001;
    }
    EXPECT_NEAR(percent[OperationKind::kSearch], mix.search, 1) << mix.name;
    EXPECT_NEAR(percent[OperationKind::kInsert], mix.insert, 1) << mix.name;
    EXPECT_NEAR(percent[OperationKind::kUpdate], mix.update, 1) << mix.name;
    EXPECT_NEAR(percent[OperationKind::kScan], mix.scan, 1) << mix.name;
    EXPECT_NEAR(percent[OperationKind::kReadModifyWrite], mix.read_modify_write, 1) << mix.name;
  }
}

TEST(Plan, ScansAreOneToAHundredLong) {
  std::vector<unsigned> lengths;
  for (const Operation& operation : make_plan(options_for("E"))) {
    if (operation.kind() == OperationKind::kScan) lengths.push_back(operation.scan_length());
  }
  const auto [least, most] = std::ranges::minmax(lengths);
  EXPECT_EQ(least, 1u);
  EXPECT_EQ(most, kMaxScan);
  double sum = 0;
  for (const unsigned length : lengths) sum += length;
  EXPECT_NEAR(sum / static_cast<double>(lengths.size()), 50.5, 1);
}

TEST(Plan, DependsOnSeedPhaseAndClientOnly) {
  PlanOptions options = options_for("A");
  const auto first = items_of(make_plan(options));
  EXPECT_EQ(items_of(make_plan(options)), first);
  for (std::uint64_t PlanOptions::* field :
       {&PlanOptions::seed, &PlanOptions::phase, &PlanOptions::client}) {
    PlanOptions other = options;
    other.*field += 1;
    EXPECT_NE(items_of(make_plan(other)), first);
  }
}

TEST(Plan, ZipfIsScrambledButSkewedAlikeForAllClients) {
  PlanOptions options = options_for("C");
  std::array<std::uint64_t, 2> hottest{};
  for (std::uint64_t client = 0; client < 2; ++client) {
    options.client = client;
    std::map<std::uint64_t, int> counts;
    for (const std::uint64_t item : items_of(make_plan(options))) {
      ASSERT_LT(item, options.items);
      ++counts[item];
    }
    hottest[client] =
        std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
    // zeta(10000, 0.99) is 10.22.
    EXPECT_NEAR(counts[hottest[client]], 100'000 / 10.22, 500);
  }
  EXPECT_EQ(hottest[0], hottest[1]);
  EXPECT_NE(hottest[0], 0u);
}

TEST(Plan, UniformIsFlat) {
  PlanOptions options = options_for("C");
  options.distribution = Distribution::kUniform;
  options.items = 100;
  std::map<std::uint64_t, int> counts;
  for (const std::uint64_t item : items_of(make_plan(options))) ++counts[item];
  ASSERT_EQ(counts.size(), 100u);
  for (const auto& [item, count] : counts) EXPECT_NEAR(count, 1000, 200) << item;
}

TEST(Operation, Packs) {
  const std::uint64_t item = (std::uint64_t{1} << 53) - 1;
  const Operation operation(OperationKind::kReadModifyWrite, item, 100);
  EXPECT_EQ(operation.kind(), OperationKind::kReadModifyWrite);
  EXPECT_EQ(operation.item(), item);
  EXPECT_EQ(operation.scan_length(), 100u);
}

TEST(InsertCounter, CountsWithoutGaps) {
  InsertCounter counter;
  counter.reset(10);
  EXPECT_EQ(counter.acknowledged(), 10u);
  EXPECT_EQ(counter.try_next(), 10u);
  EXPECT_EQ(counter.try_next(), 11u);
  EXPECT_EQ(counter.try_next(), 12u);
  counter.acknowledge(11);
  EXPECT_EQ(counter.acknowledged(), 10u);
  counter.acknowledge(10);
  EXPECT_EQ(counter.acknowledged(), 12u);
  counter.acknowledge(12);
  EXPECT_EQ(counter.acknowledged(), 13u);
}

TEST(InsertCounter, StopsWhereOneHangsFarBehind) {
  InsertCounter counter;
  counter.reset(5);
  const std::uint64_t hanging = *counter.try_next();
  std::uint64_t others = 0;
  while (const auto item = counter.try_next()) {
    counter.acknowledge(*item);
    ++others;
  }
  EXPECT_GT(others, 10'000u);
  EXPECT_EQ(counter.acknowledged(), hanging);
  counter.acknowledge(hanging);
  EXPECT_EQ(counter.acknowledged(), 6 + others);
  EXPECT_TRUE(counter.try_next().has_value());
}

// Writers mark an item before they acknowledge it; readers must find every item below the count
// marked.
TEST(InsertCounter, ReadersSeeOnlyWhatWasInserted) {
  constexpr std::uint64_t kItems = 200'000;
  const auto inserted = std::make_unique<std::atomic<bool>[]>(kItems);
  InsertCounter counter;
  counter.reset(0);
  std::atomic<std::uint64_t> missing{0};
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (;;) {
          const auto item = counter.try_next();
          if (!item) continue;
          if (*item >= kItems) return;
          inserted[*item].store(true, std::memory_order_relaxed);
          counter.acknowledge(*item);
        }
      });
    }
    threads.emplace_back([&] {
      for (std::uint64_t count = 0; count < kItems;) {
        count = counter.acknowledged();
        if (count > 0 && !inserted[count - 1].load(std::memory_order_relaxed)) ++missing;
      }
    });
  }
  EXPECT_EQ(missing.load(), 0u);
  EXPECT_EQ(counter.acknowledged(), kItems);
}

}  // namespace
}  // namespace pando::lab
