// Campaign: many seeds, each a simulation of its own, on many threads.
//
// Runs are numbered: the first seed with each index, then the second seed with each, and so on.
// They are begun in that order and their results are put together in that order, so what comes of
// a range of seeds does not depend on the number of threads, on their timing, or on the machine.
// A campaign that stops early (at a failure, when its time is over, when it is interrupted) reports
// the runs up to there, and none of those that others had begun beyond.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/check/plan.h"
#include "lab/check/scenario.h"
#include "lab/progress.h"

namespace pando::lab::check {

struct CampaignOptions {
  std::vector<std::string> indexes;  // as draw_plan() takes them
  std::uint64_t first_seed = 1;
  std::uint64_t last_seed = 1;  // included
  FaultSet faults = FaultSet::all();
  CheckSizes sizes;
  CheckedFabric fabric = CheckedFabric::kSim;
  unsigned jobs = 1;
  // Goes on with the seeds after the last until this long after its beginning.
  std::optional<std::chrono::nanoseconds> lasts;
  bool keep_going = false;  // after a failure
  const std::atomic<bool>* interrupted = nullptr;

  static constexpr std::uint64_t kMaxSeed = std::uint64_t{1} << 62;
  static constexpr unsigned kMaxJobs = 1024;
};

// kInvalidArgument: what draw_plan() would refuse.
Status validate(const CampaignOptions& options);

struct CheckFailure {
  CheckPlan plan;
  CheckOutcome outcome;
};

struct CampaignReport {
  std::uint64_t runs = 0;
  std::uint64_t last_seed = 0;          // that was run; nothing is said by it where runs is 0
  std::vector<CheckCoverage> coverage;  // by index
  std::uint64_t digest = 0;             // of all runs' digests
  std::vector<CheckFailure> failures;   // in the order of runs
  bool interrupted = false;
};

// REQUIRES: validate(options).
CampaignReport run_campaign(const CampaignOptions& options, const RunCheck& run,
                            Progress& progress);

}  // namespace pando::lab::check
