#include "lab/check/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/random.h"
#include "index/registry.h"

namespace pando::lab::check {
namespace {

using base::Random;

constexpr std::array<std::string_view, kFaults> kNames = {"tear", "delay",   "kill", "pause",
                                                          "cut",  "restart", "lose", "leave",
                                                          "drop", "indexes", "join", "atomics"};

// Streams of random numbers, one a purpose.
enum class Stream : std::uint64_t {
  kFaults,
  kSizes,
  kSettings,
  kData,
  kRoughness,
  kFates,
  kMemory,
  kSockets
};

Random stream(std::uint64_t seed, Stream purpose) {
  return Random(base::mix64(seed, 0x706c616eU + static_cast<std::uint64_t>(purpose)));
}

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& from) {
  return from[random.below(N)];
}

// Of those that `fabric` has. On tcp no memory node joins: clients that are given a list of them
// keep to it, and those that look for more do so by etcd and on a thread of their own, which
// simulated time knows nothing of. And a memory node's one thread executes verbs one by one: the
// two halves of an atomic have nothing between them.
FaultSet draw_faults(std::uint64_t seed, FaultSet allowed, CheckedFabric fabric) {
  if (fabric == CheckedFabric::kTcp) {
    allowed.set(Fault::kJoin, false);
    allowed.set(Fault::kAtomics, false);
  }
  constexpr std::array<unsigned, kFaults> kPercent = {85, 60, 45, 35, 30, 20,
                                                      8,  30, 25, 15, 10, 20};
  Random random = stream(seed, Stream::kFaults);
  FaultSet drawn;
  for (std::size_t i = 0; i < kFaults; ++i) {
    const bool wanted = random.below(100) < kPercent[i];
    const auto fault = static_cast<Fault>(i);
    drawn.set(fault, wanted && allowed.has(fault));
  }
  return drawn;
}

// Small trees often: there the rare cases are.
void draw_sizes(CheckPlan& plan, const CheckSizes& given) {
  Random random = stream(plan.seed, Stream::kSizes);
  const auto memory_nodes = pick(random, std::array{1u, 1u, 1u, 2u, 2u, 3u});
  const auto compute_nodes = pick(random, std::array{1u, 2u, 2u, 3u, 4u});
  const auto clients = pick(random, std::array{1u, 1u, 2u, 3u});
  const auto tasks = pick(random, std::array{1u, 1u, 2u, 3u});
  const auto operations = pick(random, std::array{10u, 30u, 60u, 120u, 300u});
  const auto keys = pick(random, std::array{1u, 2u, 4u, 8u, 16u, 32u, 64u, 64u, 128u, 250u});
  plan.memory_nodes = given.memory_nodes.value_or(memory_nodes);
  plan.compute_nodes = given.compute_nodes.value_or(compute_nodes);
  plan.clients = given.clients.value_or(clients);
  plan.tasks = given.tasks.value_or(tasks);
  plan.operations = given.operations.value_or(operations);
  plan.keys = given.keys.value_or(keys);
}

bool is_switch(const index::Setting& setting) {
  return setting.default_value == "on" || setting.default_value == "off";
}

// Settings that the user did not give: now and then another value than the default.
void draw_settings(CheckPlan& plan, const index::Kind& kind, bool keys_given) {
  Random random = stream(plan.seed, Stream::kSettings);
  for (const index::Setting& setting : kind.settings()) {
    const std::uint64_t draw = random.next() >> 1;
    const bool flip = random.below(100) < 15;
    if (setting.name == "keys") {
      if (!keys_given) plan.index.key_type = draw % 3 == 0 ? KeyType::kBytes : KeyType::kInteger;
      continue;
    }
    if (plan.index.settings.contains(setting.name)) continue;
    if (is_switch(setting)) {
      if (flip) plan.index.settings[setting.name] = setting.default_value == "on" ? "off" : "on";
    } else if (!setting.trials.empty()) {
      plan.index.settings[setting.name] = setting.trials[draw % setting.trials.size()];
    }
  }
}

void draw_data(CheckPlan& plan) {
  Random random = stream(plan.seed, Stream::kData);
  plan.preloaded = pick(random, std::array{0u, 0u, 50u, 100u});
  static constexpr std::array<std::array<std::size_t, 3>, 5> kSizes = {
      {{8, 8, 8}, {8, 20, 47}, {8, 8, 300}, {100, 600, 1500}, {0, 8, 64}}};
  const auto& sizes = pick(random, kSizes);
  plan.value_sizes.assign(sizes.begin(), sizes.end());
  plan.compute_budget = pick(random, std::array<std::uint64_t, 4>{0, 80 << 10, 256 << 10, 8 << 20});
  plan.native_masked_cas = random.below(4) != 0;
  static constexpr std::array<std::array<unsigned, 7>, 6> kMixes = {{{30, 20, 10, 10, 15, 5, 10},
                                                                     {0, 30, 0, 0, 30, 0, 40},
                                                                     {10, 45, 0, 0, 40, 0, 5},
                                                                     {50, 0, 0, 40, 5, 5, 0},
                                                                     {15, 5, 35, 5, 35, 0, 5},
                                                                     {5, 25, 5, 5, 20, 10, 30}}};
  const auto& mix = pick(random, kMixes);
  plan.weights.assign(mix.begin(), mix.end());
  plan.waves = random.below(3) == 0;
}

void draw_roughness(CheckPlan& plan) {
  using fabric::sim::kMicrosecond;
  Random random = stream(plan.seed, Stream::kRoughness);
  plan.adversary.seed = base::mix64(plan.seed, 1);
  const unsigned tear = pick(random, std::array{20u, 60u, 100u});
  const auto spread = pick(random, std::array{2 * kMicrosecond, 100 * kMicrosecond,
                                              4 * kMicrosecond, 20 * kMicrosecond});
  const unsigned delay = pick(random, std::array{2u, 10u, 30u});
  const auto longest = pick(random, std::array{10 * kMicrosecond, 100 * kMicrosecond});
  plan.adversary.tear = plan.faults.has(Fault::kTear) ? tear : 0;
  plan.adversary.spread = spread;
  plan.adversary.delay = plan.faults.has(Fault::kDelay) ? delay : 0;
  plan.adversary.longest_delay = longest;
}

// Enough for what is alive, mostly; not for chunks of each size on each compute node, for ever.
void draw_memory(CheckPlan& plan) {
  Random random = stream(plan.seed, Stream::kMemory);
  const bool short_of_it = random.below(3) == 0;
  const unsigned few = pick(random, std::array{6u, 8u, 12u, 24u});
  const unsigned recyclings = pick(random, std::array{2u, 5u, 10u});
  plan.chunks = short_of_it ? few : 255;
  plan.recyclings = short_of_it ? recyclings : 0;
}

// What came to be drawn later than the rest. The lease of a check is 4 ms.
void draw_fates(CheckPlan& plan) {
  using fabric::sim::kMicrosecond;
  using fabric::sim::kMillisecond;
  Random random = stream(plan.seed, Stream::kFates);
  plan.adversary.longest_ghost = pick(random, std::array{100 * kMicrosecond, 2 * kMillisecond,
                                                         8 * kMillisecond, 20 * kMillisecond});
  plan.adversary.longest_fence =
      pick(random, std::array{4 * kMicrosecond, 4 * kMicrosecond, kMillisecond, 8 * kMillisecond});
  plan.adversary.fence_timeout =
      pick(random, std::array{100 * kMicrosecond, 2 * kMillisecond, 12 * kMillisecond});
  const auto gap = pick(random, std::array{500 * fabric::sim::kNanosecond, 2 * kMicrosecond});
  plan.adversary.atomic_gap = plan.faults.has(Fault::kAtomics) ? gap : 0;
  plan.near_wrap = random.below(6) == 0;
}

void draw_sockets(CheckPlan& plan) {
  using fabric::sim::kMicrosecond;
  Random random = stream(plan.seed, Stream::kSockets);
  plan.sockets.seed = base::mix64(plan.seed, 4);
  const unsigned cut = pick(random, std::array{10u, 40u, 80u});
  const unsigned delay = pick(random, std::array{2u, 10u, 30u});
  plan.sockets.cut = plan.faults.has(Fault::kTear) ? cut : 0;
  plan.sockets.delay = plan.faults.has(Fault::kDelay) ? delay : 0;
  plan.sockets.longest_delay = pick(random, std::array{10 * kMicrosecond, 100 * kMicrosecond});
  plan.sockets.window = pick(random, std::array<std::size_t, 3>{8 << 10, 64 << 10, 256 << 10});
  plan.timeout = pick(random, std::array{std::chrono::milliseconds(2), std::chrono::milliseconds(4),
                                         std::chrono::milliseconds(8)});
}

Status check_sizes(const CheckPlan& plan) {
  const auto within = [](std::string_view name, unsigned value, unsigned most) -> Status {
    if (value >= 1 && value <= most) return {};
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--{}: {} is not between 1 and {}", name, value, most));
  };
  if (Status ok = within("memory-nodes", plan.memory_nodes, 64); !ok) return ok;
  if (Status ok = within("compute-nodes", plan.compute_nodes, 64); !ok) return ok;
  if (Status ok = within("clients-per-node", plan.clients, 64); !ok) return ok;
  if (Status ok = within("tasks", plan.tasks, 64); !ok) return ok;
  if (Status ok = within("ops-per-task", plan.operations, 1'000'000); !ok) return ok;
  return within("keys", plan.keys, 100'000);
}

}  // namespace

// ---- FaultSet ----

void FaultSet::set(Fault fault, bool on) {
  const unsigned bit = 1u << static_cast<unsigned>(fault);
  bits_ = on ? bits_ | bit : bits_ & ~bit;
}

bool FaultSet::breaks() const {
  return has(Fault::kKill) || has(Fault::kPause) || has(Fault::kCut) || has(Fault::kRestart) ||
         has(Fault::kLose);
}

Result<FaultSet> FaultSet::parse(std::string_view text) {
  if (text == "all") return all();
  FaultSet set;
  if (text == "none") return set;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    std::size_t at = 0;
    while (at < kFaults && kNames[at] != word) ++at;
    if (at == kFaults) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("there is no fault '{}'; there are {}, all and none", word,
                              fmt::join(kNames, ", ")));
    }
    set.set(static_cast<Fault>(at), true);
  }
  return set;
}

std::string FaultSet::to_string() const {
  if (empty()) return "none";
  if (*this == all()) return "all";
  std::string text;
  for (std::size_t i = 0; i < kFaults; ++i) {
    if (!has(static_cast<Fault>(i))) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ",", kNames[i]);
  }
  return text;
}

// ---- CheckPlan ----

Result<CheckedFabric> parse_checked_fabric(std::string_view text) {
  if (text == "sim") return CheckedFabric::kSim;
  if (text == "tcp") return CheckedFabric::kTcp;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no '{}' to check on; there are sim and tcp", text));
}

Result<CheckPlan> draw_plan(std::uint64_t seed, const std::string& index, FaultSet allowed,
                            const CheckSizes& sizes, CheckedFabric fabric) {
  auto options = IndexOptions::parse(index);
  if (!options) return fail(options.error());
  const auto kind = index::find_kind(options->kind);
  if (!kind) return fail(kind.error());
  CheckPlan plan;
  plan.seed = seed;
  plan.index_words = index;
  plan.index = *options;
  plan.fabric = fabric;
  plan.faults = draw_faults(seed, allowed, fabric);
  draw_sizes(plan, sizes);
  draw_settings(plan, **kind, index.contains("keys="));
  draw_data(plan);
  draw_roughness(plan);
  draw_memory(plan);
  draw_fates(plan);
  draw_sockets(plan);
  if (Status ok = check_sizes(plan); !ok) return fail(ok.error());
  if (auto valid = (*kind)->normalize(plan.index); !valid) {
    // Drawn settings that do not go together: what the user gave, then.
    plan.index = *options;
    if (valid = (*kind)->normalize(plan.index); !valid) return fail(valid.error());
  }
  return plan;
}

std::string CheckPlan::command() const {
  return fmt::format(
      "./pando check {}--index '{}' --seed {} --faults {} --memory-nodes {} --compute-nodes {} "
      "--clients-per-node {} --tasks {} --ops-per-task {} --keys {}",
      fabric == CheckedFabric::kTcp ? "--fabric tcp " : "", index_words, seed, faults.to_string(),
      memory_nodes, compute_nodes, clients, tasks, operations, keys);
}

std::string CheckPlan::describe() const {
  return fmt::format(
      "seed {}: {}{}, faults {}, {} memory nodes, {} compute nodes x {} clients x {} tasks x {} "
      "operations, {} keys ({}% there at first), values of {} bytes, budget {}, {} chunks on each "
      "memory node",
      seed, index.to_string(), fabric == CheckedFabric::kTcp ? " over tcp" : "", faults.to_string(),
      memory_nodes, compute_nodes, clients, tasks, operations, keys, preloaded,
      fmt::join(value_sizes, "/"), compute_budget, chunks);
}

}  // namespace pando::lab::check
