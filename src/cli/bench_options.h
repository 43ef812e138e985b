// The options of `pando bench`: what the user wrote, and what is meant by it.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fabric/sim/simulation.h"
#include "lab/runner.h"
#include "lab/workload.h"
#include <pando/options.h>

namespace pando::cli {

// As written. Defaults are those that --help shows.
struct BenchWords {
  std::vector<std::string> indexes = {"sherman", "chime"};
  std::string workloads = "LOAD,A,B,C,F,D,E";
  std::string fabric;  // empty: embedded
  std::string preset;  // empty: that of SimOptions
  std::optional<unsigned> memory_nodes;
  std::string pool;  // a URL, in place of the three above
  std::vector<std::string> keys;
  std::string order = "random";
  std::string key_space = "scattered";
  std::string value_size = "8";
  std::string distribution = "workload";
  double theta = 0.99;
  std::string operations;
  std::string warm_up;
  unsigned compute_nodes = 1;
  std::string clients;            // empty: one for each compute node
  std::optional<unsigned> tasks;  // of each client: 8; 1 where it is simulated
  std::string budget = "64MiB";
  std::uint64_t seed = 1;
  std::string peers;
  std::string json;
  bool quiet = false;
};

struct BenchIndex {
  std::string text;
  IndexOptions options;
};

struct Bench {
  std::vector<BenchIndex> indexes;
  std::vector<std::string> peers;
  std::vector<const lab::Mix*> workloads;  // LOAD, where there is one, first
  // A real fabric by its URL, or a simulated one, whose size is yet to be chosen.
  std::string pool_url;
  std::optional<fabric::sim::SimOptions> simulation;
  PoolOptions pool;
  lab::RunnerOptions runner;
  std::vector<unsigned> clients;  // each workload is run with each of these
  // Whether the user chose the number: if not, scans get fewer.
  bool operations_given = false;
  std::string json;
  bool quiet = false;

  bool reports_load() const { return !workloads.empty() && workloads.front()->is_load(); }
  std::uint64_t operations_of(const lab::Mix& mix) const;
  // Keys loaded, and those that the workloads may insert at most, in one store.
  std::uint64_t items_at_end() const;
};

void add_options(CLI::App& parser, BenchWords& words);

// kInvalidArgument names the option and the word, and what is valid instead.
Result<Bench> understand(const BenchWords& words);

}  // namespace pando::cli
