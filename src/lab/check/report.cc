#include "lab/check/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/check/history.h"
#include "lab/keys.h"
#include "lab/report.h"

namespace pando::lab::check {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::vector<std::pair<std::string, std::uint64_t>>;

constexpr std::size_t kShownOperations = 60;
constexpr std::size_t kShownProblems = 10;

// Of each fabric, what it has: the real client and server tear nothing, the simulated one has no
// connections.
void add_fabric_counts(const CheckCoverage& coverage, Counts& to) {
  const fabric::sim::Coverage& fabric = coverage.fabric;
  to.insert(to.end(), {{"batches", fabric.batches}, {"verbs", fabric.verbs}});
  const fabric::sim::SocketCoverage& sockets = fabric.sockets;
  if (sockets.connections == 0) {
    to.insert(to.end(), {{"torn_verbs", fabric.torn},
                         {"delayed_batches", fabric.delayed},
                         {"failed_batches", fabric.failed},
                         {"late_verbs", fabric.late},
                         {"unfenced_nodes", fabric.unfenced},
                         {"joins", coverage.joins},
                         {"split_atomics", fabric.split_atomics}});
    return;
  }
  to.insert(to.end(), {{"connections", sockets.connections},
                       {"segments", sockets.segments},
                       {"held_segments", sockets.held_segments},
                       {"hung_connects", sockets.hung_connects},
                       {"resets", sockets.resets},
                       {"half_closes", sockets.half_closes},
                       {"silent_ends", sockets.silent_ends},
                       {"failed_batches", fabric.failed},
                       {"generations", fabric.generations},
                       {"outdated", fabric.outdated},
                       {"forgotten", fabric.forgotten}});
}

Counts counts_of(const CheckCoverage& coverage) {
  const fabric::sim::Coverage& fabric = coverage.fabric;
  Counts counts = {{"runs", coverage.runs}, {"operations", coverage.operations}};
  add_fabric_counts(coverage, counts);
  counts.insert(counts.end(), {{"kills", coverage.kills},
                               {"pauses", coverage.pauses},
                               {"fenced", fabric.fenced},
                               {"recoverers_killed", coverage.recoverers_killed},
                               {"recyclers_killed", coverage.recyclers_killed},
                               {"leaves", coverage.leaves},
                               {"drops", coverage.drops},
                               {"side_indexes", coverage.side_indexes},
                               {"unknown_atomics", fabric.unknown_atomics},
                               {"ended_unknown", coverage.ended_unknown},
                               {"cut_links", coverage.cuts},
                               {"restarts", coverage.restarts},
                               {"lost_memories", coverage.losses},
                               {"retries", coverage.retries},
                               {"undecided", coverage.undecided},
                               {"lost_bytes", coverage.lost_bytes},
                               {"recovered_blocks", coverage.recovered_blocks},
                               {"out_of_memory", coverage.out_of_memory},
                               {"recyclings", coverage.recyclings},
                               {"recycled_chunks", coverage.recycled_chunks}});
  counts.insert(counts.end(), coverage.index.begin(), coverage.index.end());
  return counts;
}

std::string digits(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string indented(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    result += fmt::format("  {}\n", line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return result;
}

std::string format_problems(const std::vector<std::string>& problems) {
  std::string text;
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    text += indented(problems[i]);
  }
  if (problems.size() > kShownProblems) {
    text += fmt::format("  and {} more\n", problems.size() - kShownProblems);
  }
  return text;
}

std::string format_start(const KeyHistory& history) {
  if (history.any_initial) return "absent or any value written before";
  return history.initial ? fmt::format("'{:.40}'", *history.initial) : "absent";
}

std::string format_history(const CheckPlan& plan, const std::string& key,
                           const KeyHistory& history) {
  const KeyHistory core = shortest_contradiction(history);
  std::string text = fmt::format(
      "Key {}: {} of its {} operations, which no order explains; [begin, end] by a common counter\n"
      "  at first: {}\n",
      lab::describe(from_order_bytes(plan.index.key_type, key)), core.operations.size(),
      history.operations.size(), format_start(core));
  // The contradiction is at the end.
  const std::size_t first =
      core.operations.size() - std::min(core.operations.size(), kShownOperations);
  if (first > 0) text += fmt::format("  ({} earlier ones are not shown)\n", first);
  for (std::size_t i = first; i < core.operations.size(); ++i) {
    text += fmt::format("  {}\n", to_string(core.operations[i]));
  }
  return text;
}

Json describe_json(const CheckFailure& failure) {
  return {{"problems", failure.outcome.problems}, {"command", failure.plan.command()}};
}

}  // namespace

std::string format_coverage(const CampaignOptions& options, const CampaignReport& report) {
  std::vector<std::vector<std::string>> rows = {{"covered"}};
  std::vector<Counts> columns;
  for (std::size_t i = 0; i < options.indexes.size(); ++i) {
    rows.front().push_back(options.indexes[i]);
    columns.push_back(counts_of(report.coverage[i]));
    for (const auto& [name, count] : columns.back()) {
      if (std::ranges::find(rows, name, [](const auto& row) { return row.front(); }) ==
          rows.end()) {
        rows.push_back({name});
      }
    }
  }
  for (std::size_t row = 1; row < rows.size(); ++row) {
    for (const Counts& column : columns) {
      const auto found = std::ranges::find(column, rows[row].front(), &Counts::value_type::first);
      rows[row].push_back(found == column.end() ? "-" : fmt::format("{}", found->second));
    }
  }
  const std::string seeds = report.runs == 0
                                ? "no seed"
                                : fmt::format("seeds {}..{}", options.first_seed, report.last_seed);
  return fmt::format("{}\n{}, faults {}: {} runs, {} failed, digest {}\n",
                     layout_table(rows, "l" + std::string(columns.size(), 'r')), seeds,
                     options.faults.to_string(), report.runs, report.failures.size(),
                     digits(report.digest));
}

std::string format_failure(const CheckFailure& first, const Shrunk& shrunk) {
  const CheckPlan& plan = shrunk.smallest.plan;
  std::string text = fmt::format("FAILED: seed {} of {}\n{}", first.plan.seed,
                                 first.plan.index_words, format_problems(first.outcome.problems));
  text += fmt::format("  {}\n", first.plan.command());
  text += fmt::format("\nThe smallest of {} plans that fails:\n{}{}", shrunk.runs + 1,
                      indented(plan.describe()), format_problems(shrunk.smallest.outcome.problems));
  if (const auto& suspect = shrunk.smallest.outcome.suspect) {
    text += "\n" + format_history(plan, suspect->first, suspect->second);
  }
  return text + fmt::format("\nReplay:\n  {}\n", plan.command());
}

std::string format_further_failure(const CheckFailure& failure) {
  const std::string& problem = failure.outcome.problems.front();
  return fmt::format("FAILED: seed {} of {}: {}\n  {}\n", failure.plan.seed,
                     failure.plan.index_words, problem.substr(0, problem.find('\n')),
                     failure.plan.command());
}

Json to_json(const CampaignOptions& options, const CampaignReport& report,
             const std::optional<Shrunk>& shrunk) {
  Json coverage = Json::array();
  for (std::size_t i = 0; i < options.indexes.size(); ++i) {
    Json counts = Json::object();
    for (const auto& [name, count] : counts_of(report.coverage[i])) counts[name] = count;
    coverage.push_back({{"index", options.indexes[i]}, {"counts", std::move(counts)}});
  }
  Json failures = Json::array();
  for (const CheckFailure& failure : report.failures) {
    Json entry = {{"seed", failure.plan.seed}, {"index", failure.plan.index_words}};
    entry.update(describe_json(failure));
    if (failures.empty() && shrunk) entry["smallest"] = describe_json(shrunk->smallest);
    failures.push_back(std::move(entry));
  }
  return {{"version", 1},
          {"indexes", options.indexes},
          {"faults", options.faults.to_string()},
          {"seeds", {{"first", options.first_seed}, {"last", report.last_seed}}},
          {"runs", report.runs},
          {"interrupted", report.interrupted},
          {"digest", digits(report.digest)},
          {"coverage", std::move(coverage)},
          {"failures", std::move(failures)}};
}

}  // namespace pando::lab::check
