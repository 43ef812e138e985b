// Reports of runs: tables for people, JSON for programs.
//
// JSON, version 1:
//   {"version":1,"runs":[{"index","workload","fabric","keys","ops","compute_nodes","clients","mops",
//     "p50_us","p99_us","round_trips_per_op","bytes_per_op":{"read","write"},"compute_bytes",
//     "remote_bytes","operations":{"search":{"count","round_trips","p50_us","p99_us"},…}}]}
// and beside these "peer", "coroutines", "key_type", "value_bytes", "distribution", "theta",
// "seed". "operations" has the kinds that occurred; their round trips are means. A
// read-modify-write is one of "ops" and there one search and one update. A peer has no round trips
// (0), and all of its memory is "compute_bytes".
//
// On a simulated fabric every time is simulated ("virtual_time":true), the same calls give the same
// bytes on every machine, and there are also
//   "preset","nics":[{"node":"memory 0","verbs","out","in","dma","served"},…],"bound_by",
//   "ceiling_mops"
// "nics" has a card for each memory node and each compute node, with the part of the time for which
// each of its limits was in use, and the number of verbs it served (network_use.h). "bound_by"
// names the busiest limit ("memory 0 out") where that leaves no room, else it is "latency".
// "ceiling_mops" is the throughput at which the busiest limit would always be busy.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/runner.h"

namespace pando::lab {

nlohmann::ordered_json to_json(const std::vector<RunReport>& runs, const RunnerOptions& options);

// One row a run.
std::string format_table(const std::vector<RunReport>& runs);
// One row a run on a simulated fabric: its busiest cards; empty without such runs.
std::string format_network(const std::vector<RunReport>& runs);
// Throughput of each index by that of each peer, for each workload and number of clients; empty
// without peers.
std::string format_ratios(const std::vector<RunReport>& runs);

// "1.2 GiB", "64 MiB".
std::string human_bytes(double bytes);
// "850 ns", "12.3 us", "1.20 ms".
std::string human_time(double nanoseconds);
// "1 M", "100 k", "1234567".
std::string human_count(std::uint64_t count);

// Header, rule, rows. The letters of `align` say of each column: l left, r right.
std::string layout_table(const std::vector<std::vector<std::string>>& rows, std::string_view align);

}  // namespace pando::lab
