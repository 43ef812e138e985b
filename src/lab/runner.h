// Runner: takes a target through its workloads and measures.
//
// One Runner owns one target's data: load() or populate() inserts the keys, then run() may be
// called for any number of workloads and clients, in any order. D and E insert, so the set grows
// with each of them; every workload works on what is there when it begins.
//
// run(): waits until the target is idle, warms up with operations of the same mix (not
// counted), then measures. Throughput is operations by the time from the moment at which every
// client is set up to the end of the last one, by the target's clock. Costs come from the counters
// that each operation fills: they are exact.
//
// The first wrong answer or error ends the phase; the message names key and answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <string>

#include "lab/client_work.h"
#include "lab/keys.h"
#include "lab/progress.h"
#include "lab/target.h"
#include "lab/workload.h"

namespace pando::lab {

struct RunnerOptions {
  std::uint64_t keys = 1'000'000;
  std::uint64_t operations = 1'000'000;
  // Default: a tenth of the operations.
  std::optional<std::uint64_t> warm_up;
  unsigned compute_nodes = 1;  // for the report; the target has them
  unsigned tasks = 8;          // operations in flight a client
  KeySpace key_space{KeyType::kInteger, Order::kRandom};
  std::size_t value_size = 8;
  std::optional<Distribution> distribution;  // default: the workload's own
  double theta = 0.99;
  std::uint64_t seed = 1;
  // Set by a signal handler, say: the phase ends soon, with a failure.
  const std::atomic<bool>* interrupted = nullptr;
};

struct RunReport {
  std::string target;
  std::string fabric;
  bool is_peer = false;
  std::string workload;
  Distribution distribution = Distribution::kZipf;
  std::uint64_t keys = 0;
  unsigned clients = 1;
  std::uint64_t seconds_ns = 0;
  ClientResult result;
  TargetMemory memory;
  std::optional<NetworkUse> network;  // where it is simulated

  double mops() const {
    return seconds_ns == 0
               ? 0
               : static_cast<double>(result.operations) * 1e3 / static_cast<double>(seconds_ns);
  }
  // What throughput would be if the busiest part of the network were busy all the time; no more
  // clients can get past it. REQUIRES: network.
  double ceiling_mops() const;
  // Of all operations together, and the mean of an operation.
  Counters cost() const;
  double per_operation(std::uint64_t count) const;
};

class Runner {
 public:
  using Outcome = std::expected<RunReport, std::string>;

  Runner(Target& target, const RunnerOptions& options, Progress& progress)
      : target_(target), options_(options), progress_(progress) {}

  // Inserts the keys as the workload LOAD.
  Outcome load(unsigned clients);
  // Inserts the keys where nobody wants to know how fast; `clients` is how many will follow.
  std::expected<void, std::string> populate(unsigned clients);
  // REQUIRES the keys are there, a mix other than LOAD. `operations` instead of the options'.
  Outcome run(const Mix& mix, unsigned clients,
              std::optional<std::uint64_t> operations = std::nullopt);

 private:
  PhaseState make_phase(Failures& failures);
  Works divide_keys(PhaseState& phase, unsigned clients);
  Works plan(PhaseState& phase, const Mix& mix, unsigned clients, std::uint64_t operations);
  // Runs `phase`, which does the works, and meanwhile shows how far it is.
  PhaseResult watch(const Works& works, const std::string& label,
                    const std::function<PhaseResult()>& phase);
  Outcome report(const Mix& mix, const Works& works, const Failures& failures,
                 const PhaseResult& phase);
  std::uint64_t find_greatest_item() const;

  Target& target_;
  RunnerOptions options_;
  Progress& progress_;
  InsertCounter inserts_;
  std::optional<std::uint64_t> greatest_item_;
  std::uint64_t phase_number_ = 0;
};

}  // namespace pando::lab
