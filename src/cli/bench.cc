#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/bench_options.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "lab/machine_memory.h"
#include "lab/progress.h"
#include "lab/report.h"
#include "lab/runner.h"
#include "lab/targets/pando_target.h"
#include "lab/targets/peers.h"

namespace pando::cli {

namespace {

using Targets = std::vector<std::unique_ptr<lab::Target>>;

Result<Targets> open_targets(const Bench& bench) {
  const lab::DataSize data{.items = bench.items_at_end(),
                           .key_bytes = bench.runner.key_space.key_bytes(),
                           .value_bytes = bench.runner.value_size};
  std::string url = bench.pool_url;
  if (lab::lacks_size(url)) {
    const std::uint64_t stores = bench.indexes.size() + bench.peers.size();
    const auto size = lab::choose_pool_size(data, lab::available_memory(), stores);
    if (!size) return fail(size.error());
    url = lab::with_size(url, *size);
  }
  Targets targets;
  for (const BenchIndex& index : bench.indexes) {
    auto target = lab::open_pando_target({.pool_url = url,
                                          .index_text = index.text,
                                          .index = index.options,
                                          .pool = bench.pool,
                                          .compute_nodes = bench.runner.compute_nodes});
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

// Every target goes through a workload before the next one, so that what is compared was measured
// in the same minute.
std::expected<std::vector<lab::RunReport>, std::string> run_all(const Bench& bench,
                                                                const Targets& targets) {
  using Style = lab::Progress::Style;
  lab::Progress progress(bench.quiet ? Style::kNone : lab::Progress::style_for_stderr());
  std::vector<std::unique_ptr<lab::Runner>> runners;
  std::vector<lab::RunReport> reports;
  for (const auto& target : targets) {
    runners.push_back(std::make_unique<lab::Runner>(*target, bench.runner, progress));
    auto report = runners.back()->load();
    if (!report) return std::unexpected(std::move(report.error()));
    if (bench.reports_load()) reports.push_back(std::move(*report));
  }
  for (const lab::Mix* mix : bench.workloads) {
    if (mix->is_load()) continue;
    for (const auto& runner : runners) {
      auto report = runner->run(*mix, bench.operations_of(*mix));
      if (!report) return std::unexpected(std::move(report.error()));
      reports.push_back(std::move(*report));
    }
  }
  return reports;
}

std::string describe(const Bench& bench, const Targets& targets) {
  const lab::RunnerOptions& run = bench.runner;
  const bool integers = run.key_space.type() == KeyType::kInteger;
  return fmt::format(
      "{} {} keys, values of {}, {} compute node(s) with {}, {} client(s) with {} coroutine(s), "
      "{}\n",
      lab::human_count(run.keys), integers ? "integer" : "string",
      lab::human_bytes(static_cast<double>(run.value_size)), run.compute_nodes,
      lab::human_bytes(static_cast<double>(bench.pool.compute_budget)), run.clients, run.tasks,
      targets.front()->fabric());
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
  const auto targets = open_targets(*bench);
  if (!targets) return complain("bench", targets.error());
  if (!bench->quiet) fmt::print(stderr, "{}", describe(*bench, *targets));

  const auto reports = run_all(*bench, *targets);
  if (!reports) {
    fmt::print(stderr, "pando bench: {}\n", reports.error());
    return interrupted.load() ? kInterrupted : kFailure;
  }
  fmt::print("{}", lab::format_table(*reports));
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
