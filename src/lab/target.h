// Target: a thing under test, an index of Pando's or a peer's library.
//
// Operations do not go through virtual calls. A target hands each client's work to the loop in
// client_loop.h, compiled for the target's own client type; that loop, with its checks, is the same
// for all, so that figures can be compared. How clients are run, and by which clock, is the
// target's business: on threads of their own in real time (threaded_target.h), or all on one thread
// in simulated time.
//
// Threads: all is called by one thread at a time, run() and populate() by another one than the
// rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/client_work.h"
#include "lab/network_use.h"
#include <pando/result.h>

namespace pando::lab {

struct TargetMemory {
  std::uint64_t compute_bytes = 0;  // on compute nodes, all of them together
  std::uint64_t remote_bytes = 0;   // on memory nodes
};

// What the clients of a phase have to do: one each.
using Works = std::vector<std::unique_ptr<ClientWork>>;

// How a phase went, beside what its clients found.
struct PhaseResult {
  // From the moment at which every client was set up to the end of the last one.
  std::chrono::nanoseconds time{};
  std::optional<NetworkUse> network;  // where it is simulated
};

class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  // As the user named it: "sherman:leaf_bytes=2048", "lmdb".
  virtual std::string name() const = 0;
  // "embedded", "sim"…; "local" for a library that is no disaggregated index.
  virtual std::string fabric() const = 0;
  virtual bool is_peer() const = 0;
  // What latencies and throughput are measured by.
  virtual Now clock() const { return steady_now(); }

  // Runs all of the works, client i's being works[i]. What goes wrong, their failures() are told.
  virtual PhaseResult run(const Works& works) = 0;
  // The same for works that insert, by the quickest way there is; nothing is measured.
  virtual void populate(const Works& works) { run(works); }
  // How many works populate() wants the keys divided into, if `clients` come after it.
  virtual unsigned populating_clients(unsigned clients) const { return clients; }

  // Waits for work that the target does in the background, before a phase that is measured.
  virtual void wait_until_idle() {}
  virtual Result<TargetMemory> memory() = 0;
};

}  // namespace pando::lab
