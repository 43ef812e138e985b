#include "cli/bench_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "base/parse.h"
#include "cli/words.h"
#include "lab/targets/pando_target.h"
#include "lab/targets/peers.h"

namespace pando::cli {

namespace {

constexpr std::string_view kEmbedded = "embedded";
constexpr std::string_view kSim = "sim";
constexpr std::uint64_t kScanShare = 10;  // scans get a tenth of the default operations

Status read_workloads(const BenchWords& words, Bench& bench) {
  for (const std::string& name : split(words.workloads, ',')) {
    const lab::Mix* mix = lab::find_mix(name);
    if (mix == nullptr) {
      std::vector<std::string_view> names;
      for (const lab::Mix& known : lab::all_mixes()) names.push_back(known.name);
      return invalid("--workload",
                     fmt::format("no workload '{}'; there are {}", name, fmt::join(names, ", ")));
    }
    bench.workloads.push_back(mix);
  }
  if (bench.workloads.empty()) return invalid("--workload", "names no workload");
  const auto loads = [](const lab::Mix* mix) { return mix->is_load(); };
  if (std::erase_if(bench.workloads, loads) > 0) {
    bench.workloads.insert(bench.workloads.begin(), lab::find_mix("LOAD"));
  }
  return {};
}

Status read_keys(const BenchWords& words, Bench& bench) {
  KeyType type = KeyType::kInteger;
  for (const std::string& word : words.keys) {
    for (const std::string& piece : split(word, ',')) {
      if (piece == "integer" || piece == "string") {
        type = piece == "integer" ? KeyType::kInteger : KeyType::kBytes;
        continue;
      }
      const auto count = parse_count("--keys", piece);
      if (!count || *count == 0) {
        return invalid("--keys", fmt::format("'{}' is neither a number of keys (10M) nor a type of "
                                             "keys (integer, string)",
                                             piece));
      }
      bench.runner.keys = *count;
    }
  }
  lab::Order order;
  if (words.order == "random") {
    order = lab::Order::kRandom;
  } else if (words.order == "sequential") {
    order = lab::Order::kSequential;
  } else {
    return invalid("--order",
                   fmt::format("no order '{}'; there are random, sequential", words.order));
  }
  if (words.key_space != "scattered" && words.key_space != "dense") {
    return invalid("--key-space",
                   fmt::format("no key space '{}'; there are scattered, dense", words.key_space));
  }
  const bool dense = words.key_space == "dense";
  if (dense && type != KeyType::kInteger) {
    return invalid("--key-space", "dense: of integer keys only");
  }
  bench.runner.key_space =
      dense ? lab::KeySpace::dense(order, bench.runner.keys) : lab::KeySpace(type, order);
  return {};
}

Status read_distribution(const BenchWords& words, Bench& bench) {
  using lab::Distribution;
  if (words.distribution != "workload") {
    constexpr std::array kAll = {Distribution::kZipf, Distribution::kUniform,
                                 Distribution::kLatest};
    const auto* found = std::ranges::find_if(
        kAll, [&](Distribution known) { return lab::to_string(known) == words.distribution; });
    if (found == kAll.end()) {
      return invalid("--distribution",
                     fmt::format("no distribution '{}'; there are workload, zipf, uniform, latest",
                                 words.distribution));
    }
    bench.runner.distribution = *found;
  }
  if (!(words.theta >= 0 && words.theta <= 100)) {
    return invalid("--theta", fmt::format("{} is not between 0 and 100", words.theta));
  }
  bench.runner.theta = words.theta;
  return {};
}

Status read_operations(const BenchWords& words, Bench& bench) {
  bench.operations_given = !words.operations.empty();
  if (bench.operations_given) {
    const auto count = parse_count("--ops", words.operations);
    if (!count) return fail(count.error());
    if (*count == 0) return invalid("--ops", "must be at least 1");
    bench.runner.operations = *count;
  }
  if (!words.warm_up.empty()) {
    const auto count = parse_count("--warmup", words.warm_up);
    if (!count) return fail(count.error());
    bench.runner.warm_up = *count;
  }
  return {};
}

Status read_sizes(const BenchWords& words, Bench& bench) {
  const auto value_size = base::parse_size("--value-size", words.value_size);
  if (!value_size) return fail(value_size.error());
  if (*value_size > kMaxValueBytes) return invalid("--value-size", "the most is 1MiB");
  bench.runner.value_size = *value_size;
  const auto budget = base::parse_size("--budget", words.budget);
  if (!budget) return fail(budget.error());
  bench.pool.compute_budget = *budget;
  return {};
}

// Where nothing is said: the pool of the environment, which `pando cluster up` sets.
std::string pool_of(const BenchWords& words) {
  const bool chosen = !words.fabric.empty() || !words.preset.empty() || words.memory_nodes;
  const char* const pool = std::getenv("PANDO_POOL");
  return words.pool.empty() && !chosen && pool != nullptr ? pool : words.pool;
}

// A pool's URL says all there is to say.
Status read_pool(const BenchWords& words, const std::string& pool, Bench& bench) {
  if (!words.fabric.empty() || !words.preset.empty() || words.memory_nodes) {
    return invalid("--pool",
                   "leave out --fabric, --preset and --memory-nodes: the URL says it all");
  }
  if (lab::fabric_of(pool) == kSim) {
    return invalid("--pool",
                   "for the simulated fabric take --fabric sim, --preset and --memory-nodes");
  }
  bench.pool_url = pool;
  return {};
}

Status read_fabric(const BenchWords& words, Bench& bench) {
  if (const std::string pool = pool_of(words); !pool.empty()) return read_pool(words, pool, bench);
  const bool simulated = words.fabric == kSim;
  if (!simulated && !words.fabric.empty() && words.fabric != kEmbedded) {
    return invalid("--fabric",
                   fmt::format("no fabric '{}'; there are {}, {} (a URL goes to --pool)",
                               words.fabric, kEmbedded, kSim));
  }
  const unsigned memory_nodes = words.memory_nodes.value_or(1);
  constexpr unsigned kMostNodes = fabric::sim::SimOptions::kMaxNodes;
  if (memory_nodes < 1 || memory_nodes > kMostNodes) {
    return invalid("--memory-nodes", fmt::format("must be 1 to {}", kMostNodes));
  }
  if (!simulated) {
    if (!words.preset.empty()) {
      return invalid("--preset", "only the simulated fabric has presets: --fabric sim");
    }
    bench.pool_url = fmt::format("{}?nodes={}", kEmbedded, memory_nodes);
    return {};
  }
  fabric::sim::SimOptions& simulation = bench.simulation.emplace();
  simulation.nodes = memory_nodes;
  if (!words.preset.empty()) simulation.preset = words.preset;
  const auto preset = fabric::sim::find_preset(simulation.preset);
  if (!preset) return invalid("--preset", preset.error().detail());
  return {};
}

constexpr unsigned kMostClients = 1024;
bool within_limit(std::uint64_t count) { return count >= 1 && count <= kMostClients; }

Status read_clients(const BenchWords& words, Bench& bench) {
  const auto limit = fmt::format("must be 1 to {}", kMostClients);
  if (!within_limit(words.compute_nodes)) return invalid("--compute-nodes", limit);
  // Papers count clients with one operation in flight each.
  bench.runner.tasks = words.tasks.value_or(bench.simulation ? 1 : 8);
  if (!within_limit(bench.runner.tasks)) return invalid("--tasks", limit);
  bench.runner.compute_nodes = words.compute_nodes;
  for (const std::string& word : split(words.clients, ',')) {
    const auto count = parse_count("--clients", word);
    if (!count) return fail(count.error());
    if (!within_limit(*count)) return invalid("--clients", limit);
    if (*count < words.compute_nodes) {
      return invalid("--clients", fmt::format("{} leave some of {} compute nodes idle", *count,
                                              words.compute_nodes));
    }
    bench.clients.push_back(static_cast<unsigned>(*count));
  }
  if (words.clients.empty()) bench.clients = {words.compute_nodes};
  if (bench.clients.empty()) return invalid("--clients", "names no number");
  return {};
}

Status read_targets(const BenchWords& words, Bench& bench) {
  for (const std::string& word : words.indexes) {
    for (std::string& text : split_indexes(word)) {
      auto options = IndexOptions::parse(text);
      if (!options) return invalid("--index", options.error().detail());
      options->key_type = bench.runner.key_space.type();
      bench.indexes.push_back({std::move(text), std::move(*options)});
    }
  }
  if (bench.indexes.empty()) return invalid("--index", "names no index");
  bench.peers = split(words.peers, ',');
  const auto known = lab::peer_names();
  for (const std::string& peer : bench.peers) {
    if (std::ranges::find(known, peer) == known.end()) {
      return invalid("--peers",
                     fmt::format("no peer '{}'; there are {}", peer, fmt::join(known, ", ")));
    }
    const bool scans =
        std::ranges::any_of(bench.workloads, [](const lab::Mix* mix) { return mix->scan > 0; });
    if (scans && !lab::peer_scans(peer)) {
      return invalid("--peers",
                     fmt::format("'{}' has no order to scan: leave workload E out, as by "
                                 "--workload C,A",
                                 peer));
    }
  }
  if (bench.simulation && !bench.peers.empty()) {
    return invalid("--peers",
                   "their time is this machine's, and cannot be set against simulated "
                   "time; leave out --fabric sim");
  }
  return {};
}

}  // namespace

std::uint64_t Bench::operations_of(const lab::Mix& mix) const {
  const bool fewer = mix.scan > 0 && !operations_given;
  return fewer ? std::max<std::uint64_t>(1, runner.operations / kScanShare) : runner.operations;
}

std::uint64_t Bench::items_at_end() const {
  // With LOAD, each number of clients has a store of its own.
  const std::uint64_t times = reports_load() ? 1 : clients.size();
  std::uint64_t items = runner.keys;
  for (const lab::Mix* mix : workloads) {
    if (mix->is_load() || mix->insert == 0) continue;
    const std::uint64_t operations = operations_of(*mix);
    const std::uint64_t all = operations + runner.warm_up.value_or(operations / 10);
    items += times * std::min(all, all * 2 * mix->insert / 100 + 1000);  // chance has its share
  }
  return items;
}

Result<Bench> understand(const BenchWords& words) {
  Bench bench{.json = words.json, .quiet = words.quiet};
  bench.runner.seed = words.seed;
  // Clients after the fabric, targets after the type of the keys.
  for (const auto read : {read_workloads, read_keys, read_distribution, read_operations, read_sizes,
                          read_fabric, read_clients, read_targets}) {
    if (const Status status = read(words, bench); !status) return fail(status.error());
  }
  return bench;
}

}  // namespace pando::cli
