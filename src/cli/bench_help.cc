#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "cli/bench_options.h"
#include "cli/words.h"
#include "fabric/sim/simulation.h"

namespace pando::cli {

namespace {

constexpr const char* kBenchFooter =
    R"(Workloads are YCSB's: LOAD inserts all keys; A 50 % search, 50 % update; B 95/5; C search only;
D 95 % search of the latest, 5 % insert; E 95 % scan of 1 to 100, 5 % insert; F 50 % search, 50 %
read-modify-write (one operation; by kind, one search and one update). All run on one loaded set, in
the order given but LOAD first; by default those that insert come last. The loading is always done,
and reported where LOAD is asked for. Every answer is checked: the first wrong one ends the run.

Several numbers of clients are run one after the other, on one set of data; where LOAD is among the
workloads, each on a set of its own, which it loads.

On real fabrics throughput is of this machine's clock and worth comparing only within one run. With
--fabric sim all times are those of a simulated cluster, the same on every machine: its network cards
have rates, bandwidths and queues (--preset), and what compute nodes compute is free. Round trips,
bytes and memory are exact everywhere. "bound by" names what no more clients can get past, such as a
memory node's link out; below the table stands how busy the busiest cards were, and the ceiling.
The loading is simulated only where LOAD is asked for. docs/simulation.md has the model.

Examples:
  pando bench
  pando bench --workload C,A --keys 10M --peers lmdb,rocksdb
  pando bench --pool tcp:127.0.0.1:7470 --workload C,A --tasks 64 --peers redis,memcached
  pando bench --keys string --value-size 64 --clients 2 --tasks 4 --json out.json
  pando bench --index "sherman:leaf_bytes=2048" --compute-nodes 2 --budget 1MiB --workload C
  pando bench --pool tcp:127.0.0.1:7470 --workload C,A      (see pando memnode --help)
  pando bench --fabric sim --workload C,A --compute-nodes 10 --clients 10,40,160,640
  pando bench --fabric sim --preset cxl --memory-nodes 4 --keys 10M --workload LOAD --clients 64)";

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const fabric::sim::Preset& preset : fabric::sim::presets()) names.push_back(preset.name);
  return names;
}

}  // namespace

void add_options(CLI::App& parser, BenchWords& words) {
  parser
      .add_option("--index", words.indexes,
                  "Index, with settings after a colon; several: ';' between, or again")
      ->type_name("KIND[:NAME=VALUE,...]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  parser.add_option("--workload,--workloads", words.workloads, "Workloads, with commas")
      ->type_name("LIST")
      ->capture_default_str();
  parser
      .add_option("--fabric", words.fabric,
                  "embedded: memory nodes in this process; sim: a simulated cluster")
      ->type_name("NAME")
      ->default_str("embedded");
  parser.add_option("--memory-nodes", words.memory_nodes, "Memory nodes of a fitting size in all")
      ->type_name("N")
      ->default_str("1");
  parser
      .add_option("--preset", words.preset,
                  fmt::format("sim: what network it is: {}", fmt::join(preset_names(), ", ")))
      ->type_name("NAME")
      ->default_str(fabric::sim::SimOptions().preset);
  parser
      .add_option(
          "--pool", words.pool,
          "Memory nodes by a URL instead: tcp:10.0.0.1:7470,10.0.0.2:7470, rdma:10.0.0.1:7470, "
          "tcp:?etcd=http://10.0.0.9:2379&cluster=NAME, "
          "mapped:unix:/run/pando/0.sock, embedded:4GiB?nodes=2. Without it and --fabric: "
          "$PANDO_POOL, if that is set")
      ->type_name("URL");
  parser
      .add_option("--keys", words.keys,
                  "How many, and of what type (integer, string): 10M, string or 10M,string")
      ->type_name("[N][,TYPE]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->default_str("1M,integer");
  parser.add_option("--order", words.order, "Order of insertion: random, sequential")
      ->type_name("ORDER")
      ->capture_default_str();
  parser
      .add_option("--key-space", words.key_space,
                  "Integer keys: scattered over all 64-bit integers, or dense: 0, 1, 2 ...")
      ->type_name("NAME")
      ->capture_default_str();
  parser.add_option("--value-size", words.value_size, "Bytes of a value, 0 to 1MiB")
      ->type_name("SIZE")
      ->capture_default_str();
  parser
      .add_option("--distribution", words.distribution,
                  "zipf, uniform, latest; workload: latest for D, zipf for the others")
      ->type_name("NAME")
      ->capture_default_str();
  parser.add_option("--theta", words.theta, "Skew of zipf and latest; 0 is none")
      ->type_name("NUMBER")
      ->capture_default_str();
  parser.add_option("--ops", words.operations, "Operations of a workload, of all clients together")
      ->type_name("N")
      ->default_str("1M; E: 100k");
  parser.add_option("--warmup", words.warm_up, "Operations before those that count")
      ->type_name("N")
      ->default_str("a tenth of the operations");
  parser
      .add_option("--compute-nodes", words.compute_nodes,
                  "Compute nodes, each with its own budget and caches")
      ->type_name("N")
      ->capture_default_str();
  parser
      .add_option("--clients", words.clients,
                  "Clients in all, dealt out over the compute nodes: threads, or simulated ones; "
                  "several with commas")
      ->type_name("N[,N...]")
      ->default_str("one a compute node");
  parser
      .add_option("--tasks", words.tasks,
                  "Operations that a client keeps in flight (peers: always 1)")
      ->type_name("N")
      ->default_str("8; sim: 1");
  parser.add_option("--budget", words.budget, "Memory that a compute node may use")
      ->type_name("SIZE")
      ->capture_default_str();
  parser.add_option("--seed", words.seed, "Chooses the operations")
      ->type_name("N")
      ->capture_default_str();
  parser
      .add_option(
          "--peers", words.peers,
          "Run these too and print ratios: lmdb, rocksdb; redis, memcached (servers, started here)")
      ->type_name("LIST");
  parser.add_option("--json", words.json, "Write the results there")->type_name("FILE");
  parser.add_flag("--quiet", words.quiet, "No progress");
  reject_old_name(parser, "--coroutines", "--tasks");
  parser.footer(kBenchFooter);
}

}  // namespace pando::cli
