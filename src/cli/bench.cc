#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <expected>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/machine_memory.h"
#include "cli/bench_options.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "lab/pool_size.h"
#include "lab/progress.h"
#include "lab/report.h"
#include "lab/runner.h"
#include "lab/targets/pando_target.h"
#include "lab/targets/peers.h"
#include "lab/targets/sim_target.h"

namespace pando::cli {

namespace {

using Targets = std::vector<std::unique_ptr<lab::Target>>;

Result<std::unique_ptr<lab::Target>> open_index(const Bench& bench, const BenchIndex& index,
                                                std::uint64_t pool_size) {
  const lab::PandoTargetOptions options{.index_text = index.text,
                                        .index = index.options,
                                        .pool = bench.pool,
                                        .compute_nodes = bench.runner.compute_nodes};
  if (!bench.simulation) {
    const bool sized = !lab::lacks_size(bench.pool_url);
    return lab::open_pando_target(
        sized ? bench.pool_url : lab::with_size(bench.pool_url, pool_size), options);
  }
  // A memory node has tables of its own; what it does not use costs nothing.
  constexpr std::uint64_t kLeastNodeBytes = std::uint64_t{16} << 20;
  fabric::sim::SimOptions cluster = *bench.simulation;
  cluster.bytes = std::max(pool_size, cluster.nodes * kLeastNodeBytes);
  return lab::open_sim_target(cluster, options);
}

Result<Targets> open_targets(const Bench& bench) {
  const lab::DataSize data{.items = bench.items_at_end(),
                           .key_bytes = bench.runner.key_space.key_bytes(),
                           .value_bytes = bench.runner.value_size};
  std::uint64_t pool_size = 0;
  if (bench.simulation || lab::lacks_size(bench.pool_url)) {
    const std::uint64_t stores = bench.indexes.size() + bench.peers.size();
    const auto size = lab::choose_pool_size(data, base::machine_memory().available, stores);
    if (!size) return fail(size.error());
    pool_size = *size;
  }
  Targets targets;
  for (const BenchIndex& index : bench.indexes) {
    auto target = open_index(bench, index, pool_size);
    if (!target) return fail(target.error());
    targets.push_back(std::move(*target));
  }
  for (const std::string& peer : bench.peers) {
    auto target = lab::open_peer(
        peer, {.key_type = bench.runner.key_space.type(), .data_bytes = data.bytes()});
    if (!target) return fail(target.error());
    targets.push_back(std::move(*target));
  }
  return targets;
}

using Reports = std::vector<lab::RunReport>;
using Ran = std::expected<void, std::string>;

// Loads the targets and takes them through the workloads, with each number of clients. Every target
// goes through a workload before the next one, so that what is compared was measured in the same
// minute.
Ran run_targets(const Bench& bench, const Targets& targets, const std::vector<unsigned>& clients,
                lab::Progress& progress, Reports& reports) {
  const auto keep = [&reports](lab::Runner::Outcome report) -> Ran {
    if (!report) return std::unexpected(std::move(report.error()));
    reports.push_back(std::move(*report));
    return {};
  };
  std::vector<std::unique_ptr<lab::Runner>> runners;
  for (const auto& target : targets) {
    runners.push_back(std::make_unique<lab::Runner>(*target, bench.runner, progress));
    lab::Runner& runner = *runners.back();
    const unsigned most = std::ranges::max(clients);
    const Ran loaded = bench.reports_load() ? keep(runner.load(most)) : runner.populate(most);
    if (!loaded) return loaded;
  }
  for (const lab::Mix* mix : bench.workloads) {
    if (mix->is_load()) continue;
    for (const unsigned count : clients) {
      for (const auto& runner : runners) {
        const Ran ran = keep(runner->run(*mix, count, bench.operations_of(*mix)));
        if (!ran) return ran;
      }
    }
  }
  return {};
}

std::string describe(const Bench& bench) {
  const lab::RunnerOptions& run = bench.runner;
  const bool integers = run.key_space.type() == KeyType::kInteger;
  const std::string fabric = bench.simulation
                                 ? fmt::format("{} simulated memory node(s) with {}",
                                               bench.simulation->nodes, bench.simulation->preset)
                                 : lab::fabric_of(bench.pool_url);
  return fmt::format(
      "{} {}{} keys, values of {}, {} compute node(s) with {}, {} client(s) with {} task(s), "
      "{}\n",
      lab::human_count(run.keys), run.key_space.is_dense() ? "dense " : "",
      integers ? "integer" : "string", lab::human_bytes(static_cast<double>(run.value_size)),
      run.compute_nodes, lab::human_bytes(static_cast<double>(bench.pool.compute_budget)),
      fmt::join(bench.clients, ", "), run.tasks, fabric);
}

// An error of the command line's where it shows only now, else what went wrong in the run.
std::expected<Reports, int> run_all(const Bench& bench, const std::atomic<bool>& interrupted) {
  using Style = lab::Progress::Style;
  lab::Progress progress(bench.quiet ? Style::kNone : lab::Progress::style_for_stderr());
  // LOAD begins with an empty store: with several numbers of clients, each has one of its own.
  std::vector<std::vector<unsigned>> rounds = {bench.clients};
  if (bench.reports_load()) {
    rounds.clear();
    for (const unsigned count : bench.clients) rounds.push_back({count});
  }
  Reports reports;
  for (const std::vector<unsigned>& clients : rounds) {
    const auto targets = open_targets(bench);
    if (!targets) return std::unexpected(complain("bench", targets.error()));
    if (!bench.quiet && reports.empty()) fmt::print(stderr, "{}", describe(bench));
    const Ran ran = run_targets(bench, *targets, clients, progress, reports);
    if (!ran) {
      fmt::print(stderr, "pando bench: {}\n", ran.error());
      return std::unexpected(interrupted.load() ? kInterrupted : kFailure);
    }
  }
  return reports;
}

int run_bench(const BenchWords& words) {
  auto bench = understand(words);
  if (!bench) return complain("bench", bench.error());
  std::optional<OutputFile> json;
  if (!bench->json.empty()) {
    auto opened = open_output("--json", bench->json);
    if (!opened) return complain("bench", opened.error());
    json.emplace(std::move(*opened));
  }
  // The peers' files and other people's pools must be left clean: stop in order.
  const std::atomic<bool>& interrupted = stop_on_signals();
  bench->runner.interrupted = &interrupted;
  const auto reports = run_all(*bench, interrupted);
  if (!reports) return reports.error();
  fmt::print("{}", lab::format_table(*reports));
  if (const std::string network = lab::format_network(*reports); !network.empty()) {
    fmt::print("\n{}", network);
  }
  if (const std::string ratios = lab::format_ratios(*reports); !ratios.empty()) {
    fmt::print("\n{}", ratios);
  }
  if (json) {
    const Status written = json->commit(lab::to_json(*reports, bench->runner).dump(2) + "\n");
    if (!written) return complain("bench", written.error());
  }
  return kSuccess;
}

}  // namespace

Command add_bench(CLI::App& app) {
  CLI::App* parser = app.add_subcommand(
      "bench", "Run YCSB workloads on an index (and on peers) and print what they cost.");
  const auto words = std::make_shared<BenchWords>();
  add_options(*parser, *words);
  return {parser, [words] { return run_bench(*words); }};
}

}  // namespace pando::cli
