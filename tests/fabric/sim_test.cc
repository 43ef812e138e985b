#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/conformance.h"
#include "fabric/open.h"
#include "fabric/sim/simulation.h"

namespace pando::fabric::sim {
namespace {

using ::testing::HasSubstr;

FabricUnderTest sim(std::string name, std::string url) {
  return {.name = std::move(name),
          .open = [url = std::move(url)] { return open_fabric(url); },
          .threaded = false};
}

INSTANTIATE_TEST_SUITE_P(
    Sim, FabricConformance,
    ::testing::Values(sim("model", "sim:16MiB?huge=off"),
                      sim("model_3_nodes", "sim:48MiB?nodes=3&preset=connectx5-100g"),
                      sim("model_emulated", "sim:16MiB?masked_cas=emulated"),
                      sim("cxl", "sim:16MiB?preset=cxl"), sim("adversary", "sim:16MiB?adversary=1"),
                      sim("adversary_3_nodes",
                          "sim:48MiB?nodes=3&adversary=2&masked_cas=emulated")),
    name_of_fabric);

TEST(SimUrl, SaysWhatIsWrong) {
  const auto message = [](std::string_view url) { return open_fabric(url).error().message(); };
  EXPECT_THAT(message("sim:"), HasSubstr("size is missing"));
  EXPECT_THAT(message("sim:16MiB?preset=connectx9"), HasSubstr("connectx6-100g"));
  EXPECT_THAT(message("sim:16MiB?nodes=32"), HasSubstr("each needs"));
  EXPECT_THAT(message("sim:16MiB?nodes=0"), HasSubstr("nodes"));
  EXPECT_THAT(message("sim:16MiB?speed=9"), HasSubstr("'speed' is no parameter of sim"));
}

// ---- Calibration ----

// Clients that keep one verb each in flight against one memory node.
class Load {
 public:
  Load(std::string_view preset, unsigned clients, unsigned tasks) : simulation_(make(preset)) {
    for (unsigned i = 0; i < clients; ++i) {
      lanes_.push_back(std::make_unique<Client>(simulation_->attach()));
    }
    tasks_ = tasks;
  }

  // Verbs a second of simulated time; `what` adds one verb to a batch.
  using Add = std::function<void(Batch&, std::uint64_t number, std::byte* into)>;
  double rate(const Add& what, std::size_t bytes, Time time = 200 * kMicrosecond) {
    what_ = what;
    stop_ = false;
    for (auto& lane : lanes_) {
      for (unsigned i = 0; i < tasks_; ++i) lane->worker().spawn(loop(*lane, bytes));
    }
    Engine& engine = simulation_->engine();
    const auto never = [] { return false; };
    engine.run_until(never, engine.time() + 20 * kMicrosecond);  // until queues have formed
    done_ = 0;
    simulation_->reset_use();
    engine.run_until(never, engine.time() + time);
    const std::uint64_t done = done_;
    use_ = simulation_->use_of_memory_node(0);
    stop_ = true;
    for (auto& lane : lanes_) lane->worker().run();
    return static_cast<double>(done) * static_cast<double>(kSecond) / static_cast<double>(time);
  }
  const NicUse& use() const { return use_; }
  Simulation& simulation() { return *simulation_; }
  Client& lane(std::size_t i) { return *lanes_[i]; }

 private:
  static std::unique_ptr<Simulation> make(std::string_view preset) {
    return Simulation::make({.bytes = 16 << 20, .huge_pages = false, .preset = std::string(preset)})
        .value();
  }

  Task<void> loop(Client& lane, std::size_t bytes) {
    const Buffer buffer = lane.endpoint().buffer(bytes);
    while (!stop_) {
      Batch batch;
      what_(batch, next_++, buffer.data());
      EXPECT_TRUE(co_await lane.endpoint().submit(batch));
      ++done_;
    }
  }

  std::unique_ptr<Simulation> simulation_;
  std::vector<std::unique_ptr<Client>> lanes_;
  unsigned tasks_;
  Add what_;
  bool stop_ = false;
  std::uint64_t next_ = 0;
  std::uint64_t done_ = 0;
  NicUse use_;
};

Address scattered(std::uint64_t number) { return {0, (1 + number * 7919 % 4096) * 1024}; }

Load::Add reads_of(std::size_t bytes) {
  return [bytes](Batch& batch, std::uint64_t number, std::byte* into) {
    batch.read(scattered(number), into, bytes);
  };
}

class Calibration : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Presets, Calibration,
                         ::testing::Values("connectx5-100g", "connectx6-100g", "cxl"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(Calibration, ALoneSmallReadTakesTheRoundTrip) {
  Load load(GetParam(), 1, 1);
  Client& client = load.lane(0);
  const Time before = load.simulation().time();
  client.read_word({0, 4096});
  const Time took = load.simulation().time() - before;
  EXPECT_NEAR(static_cast<double>(took), static_cast<double>(load.simulation().preset().round_trip),
              static_cast<double>(2 * kNanosecond));
}

TEST_P(Calibration, SmallReadsSaturateAtTheVerbRate) {
  if (GetParam() == "cxl") GTEST_SKIP() << "its links carry a line in less than a verb's time";
  Load load(GetParam(), 10, 64);
  const double rate = load.rate(reads_of(8), 8);
  const auto limit = static_cast<double>(load.simulation().preset().verbs_per_second);
  EXPECT_NEAR(rate / limit, 1.0, 0.01);
  EXPECT_GT(load.use().verbs, 0.99);
  EXPECT_LT(load.use().out, 0.5);
}

TEST_P(Calibration, LargerReadsSaturateTheLink) {
  Load load(GetParam(), 10, 64);
  constexpr std::size_t kBytes = 1024;
  const double rate = load.rate(reads_of(kBytes), kBytes);
  const Preset& preset = load.simulation().preset();
  const Verb verb{.kind = VerbKind::kRead, .length = kBytes};
  const double limit = static_cast<double>(preset.link_bytes_per_second) /
                       static_cast<double>(preset.response_bytes(verb));
  EXPECT_NEAR(rate / limit, 1.0, 0.01);
  EXPECT_GT(load.use().out, 0.99);
  EXPECT_LE(load.use().out, 1.0 + 0.01);
}

TEST_P(Calibration, AtomicsOfOneWordAreSerialised) {
  Load load(GetParam(), 10, 16);
  const auto hot = [](Batch& batch, std::uint64_t, std::byte*) { batch.fetch_add({0, 64}, 1); };
  const double rate = load.rate(hot, 8);
  const Preset& preset = load.simulation().preset();
  const double limit = static_cast<double>(kSecond) / static_cast<double>(preset.host_atomic);
  EXPECT_NEAR(rate / limit, 1.0, 0.02);

  // On different words they are not.
  const auto cold = [](Batch& batch, std::uint64_t number, std::byte*) {
    batch.fetch_add(scattered(number), 1);
  };
  EXPECT_GT(load.rate(cold, 8), 10 * limit);
}

TEST_P(Calibration, AtomicsOnChipAreFast) {
  Load load(GetParam(), 10, 16);
  if (load.simulation().preset().onchip_bytes == 0) GTEST_SKIP();
  const auto host = [](Batch& batch, std::uint64_t, std::byte*) { batch.fetch_add({0, 64}, 1); };
  const auto onchip = [](Batch& batch, std::uint64_t, std::byte*) {
    batch.fetch_add({0, Address::kOnChip}, 1);
  };
  EXPECT_GT(load.rate(onchip, 8), 10 * load.rate(host, 8));
}

// A doorbell tells of a list of work requests; the client's card fetches every one of them.
TEST_P(Calibration, EveryWorkRequestIsFetchedOverTheClientsBus) {
  const auto simulation =
      Simulation::make({.bytes = 16 << 20, .nodes = 2, .huge_pages = false, .preset = GetParam()})
          .value();
  Client client(simulation->attach());
  const Buffer buffer = client.endpoint().buffer(4096);
  const auto bus_time = [&](Batch& batch) {
    simulation->reset_use();
    const Time from = simulation->time();
    EXPECT_TRUE(client.submit(batch));
    return simulation->use_of_client(client.fabric().client()).dma *
           static_cast<double>(simulation->time() - from);
  };
  const Preset& preset = simulation->preset();
  const auto on_bus = [&](std::uint64_t bytes) {
    return bytes == 0 ? 0.0 : static_cast<double>(preset.on_bus(bytes));
  };
  const bool is_card = GetParam() != "cxl";  // a processor's loads and stores have no such thing
  ASSERT_EQ(preset.work_request, is_card ? 64u : 0u);

  Batch small;  // two doorbells
  small.read({0, 4096}, buffer.data(), 8);
  small.write({0, 8192}, buffer.data(), 8);
  small.fetch_add({0, 64}, 1);
  small.read({1, 4096}, buffer.data(), 1024);
  EXPECT_NEAR(bus_time(small), 4 * on_bus(preset.work_request), 1);

  Batch large;
  large.write({0, 4096}, buffer.data(), 4096);
  EXPECT_NEAR(bus_time(large), on_bus(is_card ? 64 + 4096 : 0), 1);
}

// A work request has its turn on the bus; it does not wait for data of verbs that have yet to
// start.
TEST(Model, LargeWritesKeepTheirClientsLinkBusy) {
  Load load("connectx5-100g", 1, 64);
  constexpr std::size_t kBytes = 1024;
  const auto writes = [](Batch& batch, std::uint64_t number, std::byte* from) {
    batch.write(scattered(number), from, kBytes);
  };
  const double rate = load.rate(writes, kBytes);
  const Preset& preset = load.simulation().preset();
  const Verb verb{.kind = VerbKind::kWrite, .length = kBytes};
  const double limit = static_cast<double>(preset.link_bytes_per_second) /
                       static_cast<double>(preset.request_bytes(verb));
  EXPECT_NEAR(rate / limit, 1.0, 0.01);
}

// Data that is fetched first holds up what comes behind it, and not for ever.
TEST(Model, ALargeWriteAndASmallOneTakeLittleLonger) {
  const auto simulation = Simulation::make({.bytes = 16 << 20, .huge_pages = false}).value();
  Client client(simulation->attach());
  const Buffer buffer = client.endpoint().buffer(4096);
  const std::uint64_t word = 1;
  Batch batch;
  batch.write({0, 4096}, buffer.data(), 4096);
  batch.write_word({0, 64}, &word);
  ASSERT_TRUE(client.submit(batch));
  EXPECT_GT(simulation->time(), 1 * kMicrosecond);
  EXPECT_LT(simulation->time(), 4 * kMicrosecond);
}

TEST(Model, PopulatingTakesNoTime) {
  const auto simulation = Simulation::make({.bytes = 16 << 20, .huge_pages = false}).value();
  Client client(simulation->attach());
  simulation->set_instant(true);
  client.write_word({0, 4096}, 7);
  EXPECT_EQ(simulation->time(), 0u);
  simulation->set_instant(false);
  EXPECT_EQ(client.read_word({0, 4096}), 7u);
  EXPECT_GT(simulation->time(), 0u);
}

// ---- The adversary: what it does, and what it may not ----

class Adversary : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr Address kPlace{0, 8192};
  static constexpr std::size_t kLines = 8;

  Adversary() : simulation_(make(GetParam())) {
    for (int i = 0; i < 3; ++i) clients_.push_back(std::make_unique<Client>(simulation_->attach()));
  }
  static std::unique_ptr<Simulation> make(std::uint64_t seed) {
    AdversaryOptions rough;
    rough.seed = seed;
    rough.tear = 80;
    rough.delay = 20;
    return Simulation::make({.bytes = 2 << 20, .huge_pages = false, .adversary = rough}).value();
  }
  Client& client(std::size_t i) { return *clients_[i]; }
  // Until all tasks have ended.
  void run() {
    for (auto& each : clients_) each->worker().run();
  }

  // All words of all lines the same, `rounds` times.
  static Task<void> write_patterns(Client& client, unsigned rounds) {
    const Buffer buffer = client.endpoint().buffer(kLines * kLineBytes);
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (std::size_t i = 0; i < buffer.size(); i += 8) std::memcpy(buffer.data() + i, &round, 8);
      Batch batch;
      batch.write(kPlace, buffer.data(), buffer.size());
      EXPECT_TRUE(co_await client.endpoint().submit(batch));
    }
  }

  std::unique_ptr<Simulation> simulation_;
  std::vector<std::unique_ptr<Client>> clients_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, Adversary, ::testing::Range<std::uint64_t>(1, 9));

// Rules 2 and 3: a line is of one moment; the lines of a READ are not.
TEST_P(Adversary, TearsReadsBetweenLinesAndNotWithin) {
  unsigned mixed = 0;
  const auto read = [&](Client& reader) -> Task<void> {
    const Buffer buffer = reader.endpoint().buffer(kLines * kLineBytes);
    for (int i = 0; i < 300; ++i) {
      Batch batch;
      batch.read(kPlace, buffer.data(), buffer.size());
      EXPECT_TRUE(co_await reader.endpoint().submit(batch));
      const auto* words = reinterpret_cast<const std::uint64_t*>(buffer.data());
      bool same = true;
      for (std::size_t word = 0; word < kLines * 8; ++word) {
        EXPECT_EQ(words[word], words[word / 8 * 8]) << "a torn line";
        same &= words[word] == words[0];
      }
      mixed += same ? 0u : 1u;
    }
  };
  client(0).worker().spawn(write_patterns(client(0), 300));
  client(1).worker().spawn(read(client(1)));
  run();
  EXPECT_GT(mixed, 10u);
  EXPECT_GT(simulation_->coverage().torn, 100u);
}

// Rules 5 and 7.
TEST_P(Adversary, SumsAreExactAndCompletedWritesVisible) {
  const auto add = [](Client& adder) -> Task<void> {
    for (int i = 0; i < 200; ++i) {
      Batch batch;
      batch.fetch_add({0, 64}, 1);
      EXPECT_TRUE(co_await adder.endpoint().submit(batch));
    }
  };
  for (std::size_t i = 0; i < 3; ++i) client(i).worker().spawn(add(client(i)));
  run();
  EXPECT_EQ(client(1).read_word({0, 64}), 600u);
  client(0).write_word({0, 64}, 7);
  EXPECT_EQ(client(2).read_word({0, 64}), 7u);
}

// Rule 4: what stands behind a WRITE in a batch is not seen before it.
TEST_P(Adversary, KeepsTheOrderWithinABatch) {
  const Address flag{0, 64};
  const auto publish = [&](Client& writer) -> Task<void> {
    const Buffer buffer = writer.endpoint().buffer(kLines * kLineBytes);
    for (std::uint64_t round = 1; round <= 200; ++round) {
      for (std::size_t i = 0; i < buffer.size(); i += 8) std::memcpy(buffer.data() + i, &round, 8);
      Batch batch;
      batch.write(kPlace, buffer.data(), buffer.size());
      batch.write_word(flag, &round);
      EXPECT_TRUE(co_await writer.endpoint().submit(batch));
    }
  };
  const auto look = [&](Client& reader) -> Task<void> {
    const Buffer buffer = reader.endpoint().buffer(kLines * kLineBytes);
    for (int i = 0; i < 200; ++i) {
      Batch first;
      first.read(flag, buffer.data(), 8);
      EXPECT_TRUE(co_await reader.endpoint().submit(first));
      const std::uint64_t seen = *reinterpret_cast<const std::uint64_t*>(buffer.data());
      Batch second;
      second.read(kPlace, buffer.data(), buffer.size());
      EXPECT_TRUE(co_await reader.endpoint().submit(second));
      const auto* words = reinterpret_cast<const std::uint64_t*>(buffer.data());
      for (std::size_t word = 0; word < kLines * 8; ++word) EXPECT_GE(words[word], seen);
    }
  };
  client(0).worker().spawn(publish(client(0)));
  client(1).worker().spawn(look(client(1)));
  run();
}

// Rule 9: over a cut link the outcome is unknown; what comes late comes before the next verb that
// the client posts there, and never after it.
TEST_P(Adversary, WhatWasUnderWayIsOverBeforeTheNextVerb) {
  unsigned unknown = 0;
  unsigned happened = 0;
  for (std::uint64_t round = 1; round <= 60; ++round) {
    const Address word{0, 64 * round};
    Batch batch;
    batch.write_word(word, &round);
    Status status;
    const auto write = [&](Client& writer) -> Task<void> {
      status = co_await writer.endpoint().submit(batch);
    };
    client(0).worker().spawn(write(client(0)));
    simulation_->engine().at(simulation_->time() + round * 50 * kNanosecond, [&] {
      simulation_->cut_link(client(0).fabric().client(), 0, kMicrosecond);
    });
    client(0).worker().run();
    if (status) {
      EXPECT_EQ(client(1).read_word(word), round);
      continue;
    }
    EXPECT_EQ(status.error().code(), ErrorCode::kUnavailable);
    if (batch[0].outcome == Outcome::kIndeterminate) ++unknown;
    simulation_->engine().run_until([] { return false; }, simulation_->time() + 2 * kMicrosecond);
    const std::uint64_t left = client(0).read_word(word);  // the next verb
    EXPECT_TRUE(left == 0 || left == round);
    if (batch[0].outcome == Outcome::kNotExecuted) EXPECT_EQ(left, 0u);
    happened += left == round ? 1u : 0u;
    simulation_->engine().run_until([] { return false; }, simulation_->time() + kMillisecond);
    EXPECT_EQ(client(1).read_word(word), left) << "an effect after the client's next verb";
  }
  EXPECT_GT(unknown, 0u);
  EXPECT_GT(happened, 0u);
}

// Rule 10.
TEST_P(Adversary, NothingOfAFencedClientTakesEffect) {
  const ClientId victim = client(0).fabric().client();
  const auto write = [](Client& writer) -> Task<void> {
    for (std::uint64_t i = 1; i < 1'000'000; ++i) {
      Batch batch;
      batch.write_word({0, 64}, &i);
      if (!co_await writer.endpoint().submit(batch)) break;
    }
  };
  client(0).worker().spawn(write(client(0)));
  simulation_->after_steps(victim, 20, Counted::kAll,
                           [&] { simulation_->hold(victim, std::nullopt); });
  simulation_->engine().run_until([] { return false; }, simulation_->time() + kMillisecond);
  ASSERT_TRUE(client(1).fence(victim));
  const std::uint64_t last = client(1).read_word({0, 64});
  EXPECT_GE(last, 20u);
  simulation_->release(victim);
  client(0).worker().run();  // ends by an error
  EXPECT_EQ(client(1).read_word({0, 64}), last);
}

// A fence reaches memory nodes one by one; where one could not be told, the client is shut out of
// the others and not of that one.
TEST_P(Adversary, AFenceThatCannotReachANodeIsHalfDone) {
  AdversaryOptions rough;
  rough.seed = GetParam();
  const auto simulation =
      Simulation::make({.bytes = 4 << 20, .nodes = 2, .huge_pages = false, .adversary = rough})
          .value();
  Client fencer(simulation->attach());
  Client victim(simulation->attach());
  const ClientId id = victim.fabric().client();
  simulation->cut_link(fencer.fabric().client(), 1, kMillisecond);
  const Time before = simulation->time();
  const Status half = fencer.fence(id);
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().code(), ErrorCode::kUnavailable);
  EXPECT_GT(simulation->time(), before) << "it takes time";
  EXPECT_FALSE(simulation->is_fenced(id));

  const std::uint64_t word = 7;
  Batch refused;
  refused.write_word({0, 64}, &word);
  const Status status = victim.submit(refused);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kFenced);
  victim.write_word({1, 64}, 7);

  simulation->engine().run_until([] { return false; }, simulation->time() + 2 * kMillisecond);
  EXPECT_TRUE(fencer.fence(id));
  EXPECT_TRUE(simulation->is_fenced(id));
  Batch again;
  again.write_word({1, 64}, &word);
  EXPECT_FALSE(victim.submit(again));
  EXPECT_EQ(fencer.read_word({0, 64}), 0u);
  EXPECT_EQ(fencer.read_word({1, 64}), 7u);
}

// Rule 9: it is a verb that gets through which ends what was left, not one that fails.
TEST_P(Adversary, WhatWasLeftOutlivesPostsThatFail) {
  AdversaryOptions rough;
  rough.seed = GetParam();
  rough.longest_ghost = 4 * kMillisecond;
  const auto simulation =
      Simulation::make({.bytes = 2 << 20, .huge_pages = false, .adversary = rough}).value();
  Client writer(simulation->attach());
  Client reader(simulation->attach());
  const ClientId id = writer.fabric().client();
  unsigned late = 0;
  for (std::uint64_t round = 1; round <= 200; ++round) {
    const Address word{0, 64 * round};
    Batch batch;
    batch.write_word(word, &round);
    Status status;
    const auto write = [&]() -> Task<void> { status = co_await writer.endpoint().submit(batch); };
    writer.worker().spawn(write());
    simulation->engine().at(simulation->time() + 500 * kNanosecond,
                            [&] { simulation->cut_link(id, 0, kMillisecond); });
    writer.worker().run();
    if (status) continue;
    Batch failing;
    failing.write_word({0, 32}, &round);
    EXPECT_FALSE(writer.submit(failing));
    const bool open = !simulation->nothing_under_way(id);
    const std::uint64_t before = reader.read_word(word);
    simulation->engine().run_until([] { return false; }, simulation->time() + 8 * kMillisecond);
    const std::uint64_t after = reader.read_word(word);
    if (before != after) {
      ++late;
      EXPECT_TRUE(open) << "nothing was under way, and yet it happened";
    }
    EXPECT_TRUE(simulation->nothing_under_way(id));
  }
  EXPECT_GT(late, 0u);
}

// Rule 7: atomics are atomic among each other; a WRITE between load and store is lost.
TEST_P(Adversary, AtomicsMayLoseWritesAndNeverAtomics) {
  AdversaryOptions rough;
  rough.seed = GetParam();
  rough.atomic_gap = 2 * kMicrosecond;
  const auto simulation =
      Simulation::make({.bytes = 2 << 20, .huge_pages = false, .adversary = rough}).value();
  Client first(simulation->attach());
  Client second(simulation->attach());
  Client third(simulation->attach());
  const Address counted{0, 64};
  const Address contested{0, 128};
  const auto add = [&](Client& client) -> Task<void> {
    for (int i = 0; i < 200; ++i) {
      Batch batch;
      batch.fetch_add(counted, 1);
      batch.fetch_add(contested, 1);
      EXPECT_TRUE(co_await client.endpoint().submit(batch));
    }
  };
  const auto write = [&](Client& client) -> Task<void> {
    const std::uint64_t far = std::uint64_t{1} << 32;
    for (int i = 0; i < 200; ++i) {
      Batch batch;
      batch.write_word(contested, &far);
      EXPECT_TRUE(co_await client.endpoint().submit(batch));
    }
  };
  first.worker().spawn(add(first));
  second.worker().spawn(add(second));
  third.worker().spawn(write(third));
  for (Client* each : {&first, &second, &third}) each->worker().run();
  EXPECT_EQ(third.read_word(counted), 400u);
  EXPECT_GT(simulation->coverage().lost_to_atomics, 0u);
}

// Memory nodes come, and each client hears of them in its own time.
TEST_P(Adversary, MemoryNodesMayJoin) {
  AdversaryOptions rough;
  rough.seed = GetParam();
  const auto simulation =
      Simulation::make({.bytes = 2 << 20, .huge_pages = false, .adversary = rough, .grows = true})
          .value();
  Client client(simulation->attach());
  EXPECT_TRUE(client.fabric().may_grow());
  simulation->add_memory_node(kMillisecond);
  Client newcomer(simulation->attach());
  EXPECT_EQ(newcomer.fabric().memory_node_count(), 2u);
  newcomer.write_word({1, 64}, 7);
  simulation->engine().run_until([] { return false; }, simulation->time() + 2 * kMillisecond);
  EXPECT_EQ(client.fabric().memory_node_count(), 2u);
  EXPECT_EQ(client.read_word({1, 64}), 7u);
}

TEST_P(Adversary, AMemoryNodeComesBackWithItsMemoryOrSaysThatItIsLost) {
  client(0).write_word({0, 64}, 7);
  simulation_->stop_memory_node(0, 10 * kMicrosecond, false);
  Batch batch;
  batch.fetch_add({0, 64}, 1);
  EXPECT_FALSE(client(0).submit(batch));
  simulation_->engine().run_until([] { return false; }, simulation_->time() + kMillisecond);
  EXPECT_GE(client(1).read_word({0, 64}), 7u);

  simulation_->stop_memory_node(0, 10 * kMicrosecond, true);
  simulation_->engine().run_until([] { return false; }, simulation_->time() + kMillisecond);
  Batch again;
  again.fetch_add({0, 64}, 1);
  const Status status = client(0).submit(again);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLost);
  Client newcomer(simulation_->attach());
  EXPECT_EQ(newcomer.read_word({0, 64}), 0u);
}

}  // namespace
}  // namespace pando::fabric::sim
