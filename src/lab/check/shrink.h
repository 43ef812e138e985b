// Shrinking: of a plan that fails, a smaller one that fails too.
//
// Smaller is: fewer kinds of faults, compute nodes, clients, tasks, operations, memory nodes, keys.
// The seed stays, so that CheckPlan::command() replays what was found. Whether a smaller plan fails
// is a matter of luck: its clients meet at other moments. So the smallest sizes are tried first,
// again and again until none of them fails, or `most_runs` have been made. The failure need not be
// the one that the shrinking began with; a smaller way to see that something is wrong is welcome.
// But one that shows in the history of a key stays such a one: no other tells as much.
#pragma once

#include <atomic>

#include "lab/check/campaign.h"
#include "lab/check/scenario.h"
#include "lab/progress.h"

namespace pando::lab::check {

struct ShrinkOptions {
  unsigned most_runs = 300;
  const std::atomic<bool>* interrupted = nullptr;  // what has been found by then will do
};

struct Shrunk {
  CheckFailure smallest;
  unsigned runs = 0;
};

Shrunk shrink(CheckFailure failure, const RunCheck& run, const ShrinkOptions& options,
              Progress& progress);

}  // namespace pando::lab::check
