// Scenario: runs one CheckPlan on the simulated fabric and looks at what came of it.
//
// Compute nodes with clients work on one index through the public interface, on a simulation that
// is an adversary, while faults happen. Then the faults stop, everything that lives must come to an
// end, and a compute node that was not there before looks at what is left:
//
//  1. Every history of a key is linearizable, the newcomer's reads among them: so no key is lost
//     or comes back. Scans and multi_gets are part of the histories (history.h).
//  2. No operation answers an error that the faults do not explain, or hangs.
//  3. The structure is sound (Index::check), and every key can still be written.
//  4. Nobody is taken for dead who did not die, stand still, or lose its link to the heartbeats.
//     Who leaves has nothing under way any more, and no verb changes what others hold free.
//  5. Where nothing broke and no task was cut short, no block is lost: with the index dropped, as
//     many have been freed as were allocated, and all memory that was ever handed out is free or
//     has a page of a ledger. Else no more is lost than each fault may cost (Losses in
//     inspection.h; how much it was, lost_bytes tells). No block is free twice, whatever has
//     happened.
//  6. Further indexes (side_indexes.h) hold what was put into them, and their names are free again.
//
// A put whose outcome is unknown may take effect later, but not for ever: it is over once its
// compute node is fenced, or has nothing under way (rules 9 to 11 of fabric/verbs.h).
//
// The same plan gives the same outcome, to the bit (digest).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fabric/sim/simulation.h"
#include "lab/check/linearizability.h"
#include "lab/check/observer.h"
#include "lab/check/plan.h"
#include <pando/stats.h>

namespace pando::lab::check {

struct CheckCoverage {
  std::uint64_t runs = 0;
  std::uint64_t operations = 0;
  fabric::sim::Coverage fabric;
  std::uint64_t kills = 0;
  std::uint64_t pauses = 0;
  std::uint64_t cuts = 0;
  std::uint64_t restarts = 0;
  std::uint64_t losses = 0;
  std::uint64_t leaves = 0;
  std::uint64_t drops = 0;
  std::uint64_t joins = 0;              // of memory nodes
  std::uint64_t recoverers_killed = 0;  // who were giving back what another one had left
  std::uint64_t recyclers_killed = 0;   // in the middle of it
  std::uint64_t ended_unknown = 0;      // calls of unknown outcome whose end was known
  std::uint64_t side_indexes = 0;       // that were created
  std::uint64_t retries = 0;
  std::uint64_t undecided = 0;         // runs with a history that was too hard to judge
  std::uint64_t lost_bytes = 0;        // of far memory that nobody has at the end
  std::uint64_t recovered_blocks = 0;  // of the dead, given back
  std::uint64_t out_of_memory = 0;     // answers
  std::uint64_t recyclings = 0;
  std::uint64_t recycled_chunks = 0;
  std::vector<std::pair<std::string, std::uint64_t>> index;  // splits, merges, take-overs …

  CheckCoverage& operator+=(const CheckCoverage& other);
  void add_index_counts(const std::vector<std::pair<std::string, std::uint64_t>>& counts);
};

struct CheckOutcome {
  std::vector<std::string> problems;  // empty: all is well
  CheckCoverage coverage;
  std::uint64_t digest = 0;    // of everything that was answered
  fabric::sim::Time time = 0;  // simulated
  std::size_t history = 0;     // operations in the history
  // The first key whose history is not linearizable, and its history.
  std::optional<std::pair<std::string, KeyHistory>> suspect;

  bool failed() const { return !problems.empty(); }
};

// Many threads may run checks at once, each its own.
CheckOutcome run_check(const CheckPlan& plan, CheckObserver* observer = nullptr);

// For those who run many, so that they can be tested with runs that fail.
using RunCheck = std::function<CheckOutcome(const CheckPlan&)>;

}  // namespace pando::lab::check
