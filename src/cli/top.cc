// `pando top`: what memory nodes are doing, as they do it.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/parse.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/local_cluster.h"
#include "cli/words.h"
#include "lab/node_metrics.h"

namespace pando::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr const char* kTopFooter =
    R"(Shows each memory node's verbs and bytes a second, its memory, clients and connections, until
Ctrl-C. What processes of the node's own machine do to mapped memory is theirs alone and not counted.

Examples:
  pando top                                        the nodes of 'pando cluster up'
  pando top 10.0.0.1:9470 10.0.0.2:9470            those with --http there
  pando top --count 1 --json 10.0.0.1:9470         one second, for a program)";

constexpr std::chrono::milliseconds kAnswerTime{1000};

struct TopWords {
  std::vector<std::string> nodes;
  std::string folder = default_cluster_folder();
  double every = 1.0;
  std::uint64_t count = 0;
  bool json = false;
};

// One node over one interval.
struct Row {
  std::string name;
  std::string problem;                                              // empty: it answers
  double reads = 0, writes = 0, compare_swaps = 0, fetch_adds = 0;  // a second
  double bytes_read = 0, bytes_written = 0;                         // a second
  std::uint64_t memory = 0, clients = 0, connections = 0;
};

class Watched {
 public:
  explicit Watched(fabric::wire::Place place) : place_(std::move(place)) {}

  Row look() {
    Row row{.name = place_.to_string(), .problem = {}};
    auto metrics = lab::fetch_metrics(place_, kAnswerTime);
    const auto now = SteadyClock::now();
    if (!metrics) {
      row.problem = metrics.error().detail();
      last_.reset();
      return row;
    }
    const auto value = [](const lab::NodeMetrics& from, std::string_view name) {
      const auto at = from.find(name);
      return at == from.end() ? 0 : at->second;
    };
    const double seconds = std::chrono::duration<double>(now - looked_).count();
    const auto rate = [&](std::string_view name) {
      if (!last_ || seconds <= 0) return 0.0;
      const std::uint64_t before = value(*last_, name);
      const std::uint64_t after = value(*metrics, name);
      return after < before ? 0.0 : static_cast<double>(after - before) / seconds;
    };
    row.reads = rate(R"(pando_node_verbs_total{kind="read"})");
    row.writes = rate(R"(pando_node_verbs_total{kind="write"})");
    row.compare_swaps = rate(R"(pando_node_verbs_total{kind="compare_swap"})");
    row.fetch_adds = rate(R"(pando_node_verbs_total{kind="fetch_add"})");
    row.bytes_read = rate(R"(pando_node_bytes_total{direction="read"})");
    row.bytes_written = rate(R"(pando_node_bytes_total{direction="written"})");
    row.memory = value(*metrics, "pando_node_memory_bytes");
    row.clients = value(*metrics, "pando_node_clients");
    row.connections = value(*metrics, "pando_node_connections");
    last_ = std::move(*metrics);
    looked_ = now;
    return row;
  }

 private:
  fabric::wire::Place place_;
  std::optional<lab::NodeMetrics> last_;
  SteadyClock::time_point looked_;
};

// 1234567 as 1.23M, in four places.
std::string short_number(double number) {
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (number >= 999.5 && unit + 1 < std::size(kUnits)) {
    number /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", number, digits, kUnits[unit]);
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:24}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>9}{:>8}{:>7}\n", "memory node", "READ/s",
             "WRITE/s", "CAS/s", "FAA/s", "B read/s", "B wrtn/s", "memory", "clients", "links");
  for (const Row& row : rows) {
    if (!row.problem.empty()) {
      fmt::print("{:24}{}\n", row.name, row.problem);
      continue;
    }
    fmt::print("{:24}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>9}{:>8}{:>7}\n", row.name,
               short_number(row.reads), short_number(row.writes), short_number(row.compare_swaps),
               short_number(row.fetch_adds), short_number(row.bytes_read),
               short_number(row.bytes_written), base::format_size(row.memory), row.clients,
               row.connections);
  }
}

void print_json(const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    if (!row.problem.empty()) {
      all.push_back({{"node", row.name}, {"error", row.problem}});
      continue;
    }
    all.push_back({{"node", row.name},
                   {"reads_per_second", row.reads},
                   {"writes_per_second", row.writes},
                   {"compare_swaps_per_second", row.compare_swaps},
                   {"fetch_adds_per_second", row.fetch_adds},
                   {"bytes_read_per_second", row.bytes_read},
                   {"bytes_written_per_second", row.bytes_written},
                   {"memory_bytes", row.memory},
                   {"clients", row.clients},
                   {"connections", row.connections}});
  }
  fmt::print("{}\n", all.dump());
}

Result<std::vector<Watched>> nodes_of(const TopWords& words) {
  std::vector<std::string> names = words.nodes;
  if (names.empty()) {
    const auto cluster = find_cluster(words.folder);
    if (!cluster) {
      return invalid("nodes", cluster.error().detail() + ", or name the nodes' --http addresses");
    }
    names.reserve(cluster->memory_nodes.size());
    for (const LocalCluster::Process& node : cluster->memory_nodes) names.push_back(node.http);
  }
  std::vector<Watched> nodes;
  nodes.reserve(names.size());
  for (const std::string& name : names) {
    auto place = fabric::wire::parse_place(name);
    if (!place) return invalid("nodes", place.error().detail());
    nodes.emplace_back(std::move(*place));
  }
  return nodes;
}

int run(const TopWords& words) {
  auto nodes = nodes_of(words);
  if (!nodes) return complain("top", nodes.error());
  const auto& stopped = stop_on_signals();
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  bool any = false;
  for (Watched& node : *nodes) node.look();  // rates need two looks
  auto next = SteadyClock::now();
  for (std::uint64_t round = 0; words.count == 0 || round < words.count; ++round) {
    next += std::chrono::duration_cast<SteadyClock::duration>(
        std::chrono::duration<double>(words.every));
    while (!stopped && SteadyClock::now() < next) {
      std::this_thread::sleep_for(std::min<SteadyClock::duration>(std::chrono::milliseconds(50),
                                                                  next - SteadyClock::now()));
    }
    if (stopped) break;
    std::vector<Row> rows;
    rows.reserve(nodes->size());
    for (Watched& node : *nodes) rows.push_back(node.look());
    any = std::ranges::any_of(rows, [](const Row& row) { return row.problem.empty(); });
    if (words.json) {
      print_json(rows);
    } else {
      if (terminal) fmt::print("\x1b[H\x1b[2J");  // to the top of an empty screen
      print_table(rows);
      if (!terminal) fmt::print("\n");
    }
    std::fflush(stdout);
  }
  return any || stopped ? kSuccess : kFailure;
}

}  // namespace

Command add_top(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("top", "Show what memory nodes are doing.");
  auto words = std::make_shared<TopWords>();
  parser->add_option("nodes", words->nodes, "HOST:PORT that a node was given as --http")
      ->type_name("PLACE");
  parser->add_option("--dir", words->folder, "Without nodes: the folder of 'pando cluster up'")
      ->type_name("PATH")
      ->capture_default_str();
  parser->add_option("--every", words->every, "Seconds between looks")
      ->type_name("S")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  parser->add_option("--count", words->count, "Looks; 0: until Ctrl-C")
      ->type_name("N")
      ->capture_default_str();
  parser->add_flag("--json", words->json, "An array of objects a line");
  parser->footer(kTopFooter);
  return {parser, [words] { return run(*words); }};
}

}  // namespace pando::cli
