#include "lab/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace pando::lab {

namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

double microseconds(const Histogram& latency, double q) { return latency.quantile(q) / 1e3; }

double mean_round_trips(const CallResult& calls) {
  return calls.count == 0
             ? 0
             : static_cast<double>(calls.cost.round_trips) / static_cast<double>(calls.count);
}

Json operations_json(const ClientResult& result) {
  Json operations = Json::object();
  for (std::size_t i = 0; i < kCallKinds; ++i) {
    const CallResult& calls = result.calls[i];
    if (calls.count == 0) continue;
    operations[std::string(to_string(static_cast<CallKind>(i)))] = {
        {"count", calls.count},
        {"round_trips", mean_round_trips(calls)},
        {"p50_us", microseconds(calls.latency, 0.5)},
        {"p99_us", microseconds(calls.latency, 0.99)}};
  }
  return operations;
}

void add_network(Json& json, const RunReport& run) {
  json["virtual_time"] = true;
  json["preset"] = run.network->preset;
  Json& nics = json["nics"] = Json::array();
  for (const auto* cards : {&run.network->memory_nodes, &run.network->compute_nodes}) {
    for (const CardUse& card : *cards) {
      nics.push_back({{"node", card.node},
                      {"verbs", card.use.verbs},
                      {"out", card.use.out},
                      {"in", card.use.in},
                      {"dma", card.use.dma},
                      {"served", card.use.served}});
    }
  }
  json["bound_by"] = run.network->bound_by();
  json["ceiling_mops"] = run.ceiling_mops();
}

Json run_json(const RunReport& run, const RunnerOptions& options) {
  const Counters cost = run.cost();
  Json json = {{"index", run.target},
               {"workload", run.workload},
               {"fabric", run.fabric},
               {"peer", run.is_peer},
               {"keys", run.keys},
               {"ops", run.result.operations},
               {"compute_nodes", run.is_peer ? 1 : options.compute_nodes},
               {"clients", run.clients},
               {"coroutines", run.is_peer ? 1 : options.tasks},
               {"key_type", options.key_space.type() == KeyType::kInteger ? "integer" : "string"},
               {"key_space", options.key_space.is_dense() ? "dense" : "scattered"},
               {"value_bytes", options.value_size},
               {"distribution", to_string(run.distribution)},
               {"theta", options.theta},
               {"seed", options.seed},
               {"mops", run.mops()},
               {"p50_us", microseconds(run.result.latency, 0.5)},
               {"p99_us", microseconds(run.result.latency, 0.99)},
               {"round_trips_per_op", run.per_operation(cost.round_trips)},
               {"bytes_per_op",
                {{"read", run.per_operation(cost.bytes_read)},
                 {"write", run.per_operation(cost.bytes_written)}}},
               {"compute_bytes", run.memory.compute_bytes},
               {"remote_bytes", run.memory.remote_bytes},
               {"operations", operations_json(run.result)}};
  if (run.network) add_network(json, run);
  return json;
}

std::string round_trips_by_kind(const RunReport& run) {
  std::string text;
  for (std::size_t i = 0; i < kCallKinds; ++i) {
    const CallResult& calls = run.result.calls[i];
    if (calls.count == 0) continue;
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ",
                        to_string(static_cast<CallKind>(i)), mean_round_trips(calls));
  }
  return text;
}

// What tells the runs of a table apart. Clients only where they differ: else the line above the
// table has said it.
class RunColumns {
 public:
  explicit RunColumns(const std::vector<RunReport>& runs)
      : clients_(std::ranges::any_of(
            runs, [&](const RunReport& run) { return run.clients != runs.front().clients; })) {}

  Row titles() const {
    Row row = {"index", "workload"};
    if (clients_) row.emplace_back("clients");
    return row;
  }
  Row of(const RunReport& run) const {
    Row row = {run.target, run.workload};
    if (clients_) row.push_back(fmt::format("{}", run.clients));
    return row;
  }
  std::string align() const { return clients_ ? "llr" : "ll"; }

 private:
  bool clients_;
};

void append(Row& row, const Row& more) { row.insert(row.end(), more.begin(), more.end()); }

Row measures_of(const RunReport& run) {
  const Counters cost = run.cost();
  Row row = {human_count(run.result.operations), fmt::format("{:.3f}", run.mops()),
             human_time(run.result.latency.quantile(0.5)),
             human_time(run.result.latency.quantile(0.99))};
  if (run.is_peer) {
    append(row, {"-", "-", "-"});
  } else {
    append(row, {fmt::format("{:.2f}", run.per_operation(cost.round_trips)),
                 human_bytes(run.per_operation(cost.bytes_read)),
                 human_bytes(run.per_operation(cost.bytes_written))});
  }
  row.push_back(human_bytes(static_cast<double>(run.memory.compute_bytes)));
  row.push_back(run.is_peer ? "-" : human_bytes(static_cast<double>(run.memory.remote_bytes)));
  return row;
}

Row card_row(const CardUse& card) {
  const auto percent = [](double part) { return fmt::format("{:.1f}%", 100 * part); };
  return {card.node, percent(card.use.verbs), percent(card.use.out), percent(card.use.in),
          percent(card.use.dma)};
}

bool has_network(const RunReport& run) { return run.network.has_value(); }

// Columns are counted by code points, good enough for what we print.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & '\xc0') != '\x80'; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - width_of(text), ' ');
  return left ? text + space : space + text;
}

const RunReport* find_run(const std::vector<RunReport>& runs, std::string_view target,
                          const RunReport& like) {
  const auto found = std::ranges::find_if(runs, [&](const RunReport& run) {
    return run.target == target && run.workload == like.workload && run.clients == like.clients;
  });
  return found == runs.end() ? nullptr : &*found;
}

std::vector<std::string> peers_of(const std::vector<RunReport>& runs) {
  std::vector<std::string> peers;
  for (const RunReport& run : runs) {
    if (run.is_peer && std::ranges::find(peers, run.target) == peers.end()) {
      peers.push_back(run.target);
    }
  }
  return peers;
}

}  // namespace

Json to_json(const std::vector<RunReport>& runs, const RunnerOptions& options) {
  Json list = Json::array();
  for (const RunReport& run : runs) list.push_back(run_json(run, options));
  return {{"version", 1}, {"runs", std::move(list)}};
}

std::string format_table(const std::vector<RunReport>& runs) {
  const RunColumns columns(runs);
  const bool network = std::ranges::any_of(runs, has_network);
  std::vector<Row> rows = {columns.titles()};
  append(rows[0],
         {"ops", "Mops/s", "p50", "p99", "trips/op", "read/op", "written/op", "compute", "remote"});
  std::string align = columns.align() + "rrrrrrrrr";
  if (network) {
    rows[0].emplace_back("bound by");
    align += 'l';
  }
  rows[0].emplace_back("round trips by kind");
  align += 'l';
  for (const RunReport& run : runs) {
    Row row = columns.of(run);
    append(row, measures_of(run));
    if (network) row.push_back(run.network ? run.network->bound_by() : "-");
    row.push_back(run.is_peer ? "-" : round_trips_by_kind(run));
    rows.push_back(std::move(row));
  }
  return layout_table(rows, align);
}

std::string format_network(const std::vector<RunReport>& runs) {
  if (std::ranges::none_of(runs, has_network)) return {};
  const RunColumns columns(runs);
  std::vector<Row> rows = {columns.titles()};
  append(rows[0], {"ceiling Mops/s", "memory node", "verbs", "out", "in", "dma", "compute node",
                   "verbs", "out", "in", "dma"});
  for (const RunReport& run : runs) {
    if (!run.network) continue;
    Row row = columns.of(run);
    row.push_back(fmt::format("{:.3f}", run.ceiling_mops()));
    append(row, card_row(busiest_card(run.network->memory_nodes)));
    append(row, card_row(busiest_card(run.network->compute_nodes)));
    rows.push_back(std::move(row));
  }
  return layout_table(rows, columns.align() + "rlrrrrlrrrr");
}

std::string format_ratios(const std::vector<RunReport>& runs) {
  const std::vector<std::string> peers = peers_of(runs);
  if (peers.empty()) return {};
  const RunColumns columns(runs);
  std::vector<Row> rows = {columns.titles()};
  const std::size_t first_number = rows[0].size();
  rows[0].emplace_back("Mops/s");
  for (const std::string& peer : peers) {
    rows[0].push_back(peer + " Mops/s");
    rows[0].push_back("ratio to " + peer);
  }
  for (const RunReport& run : runs) {
    if (run.is_peer) continue;
    Row row = columns.of(run);
    row.push_back(fmt::format("{:.3f}", run.mops()));
    for (const std::string& peer : peers) {
      const RunReport* other = find_run(runs, peer, run);
      const bool known = other != nullptr && other->mops() > 0;
      row.push_back(known ? fmt::format("{:.3f}", other->mops()) : "-");
      row.push_back(known ? fmt::format("{:.2f}x", run.mops() / other->mops()) : "-");
    }
    rows.push_back(std::move(row));
  }
  return layout_table(rows, columns.align() + std::string(rows[0].size() - first_number, 'r'));
}

std::string layout_table(const std::vector<Row>& rows, std::string_view align) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      line += (i == 0 ? "" : "  ") + padded(rows[r][i], widths[i], align[i] == 'l');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
    if (r == 0) {
      std::size_t total = 2 * (widths.size() - 1);
      for (const std::size_t width : widths) total += width;
      text += std::string(total, '-') + '\n';
    }
  }
  return text;
}

std::string human_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || bytes >= 100 ? 0 : 1, kUnits[unit]);
}

std::string human_time(double nanoseconds) {
  if (nanoseconds < 1e3) return fmt::format("{:.0f} ns", nanoseconds);
  constexpr std::array kUnits = {"us", "ms", "s"};
  std::size_t unit = 0;
  double amount = nanoseconds / 1e3;
  while (amount >= 1e3 && unit + 1 < kUnits.size()) {
    amount /= 1e3;
    ++unit;
  }
  return fmt::format("{:.3g} {}", amount, kUnits[unit]);
}

std::string human_count(std::uint64_t count) {
  if (count >= 1'000'000 && count % 100'000 == 0) {
    return fmt::format("{:g} M", static_cast<double>(count) / 1e6);
  }
  if (count >= 1'000 && count % 100 == 0) {
    return fmt::format("{:g} k", static_cast<double>(count) / 1e3);
  }
  return fmt::format("{}", count);
}

}  // namespace pando::lab
