#include "lab/check/shrink.h"

#include <array>
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pando::lab::check {
namespace {

using Clock = std::chrono::steady_clock;
using Size = std::optional<unsigned> CheckSizes::*;

// Those that say how much is done come first: they make runs short, and the rest quick to try.
constexpr std::array<Size, 6> kSizes = {&CheckSizes::compute_nodes, &CheckSizes::clients,
                                        &CheckSizes::tasks,         &CheckSizes::operations,
                                        &CheckSizes::keys,          &CheckSizes::memory_nodes};

CheckSizes sizes_of(const CheckPlan& plan) {
  return {.memory_nodes = plan.memory_nodes,
          .compute_nodes = plan.compute_nodes,
          .clients = plan.clients,
          .tasks = plan.tasks,
          .operations = plan.operations,
          .keys = plan.keys};
}

// What to try instead of `size`: steps that widen from below, and small ones from above.
std::vector<unsigned> smaller_than(unsigned size) {
  std::set<unsigned> sizes;
  for (unsigned step = 1; step < size; step *= 2) sizes.insert(step);
  for (const unsigned part : {3u, 7u}) {
    const unsigned most = size * part / (part + 1);
    if (most > 0 && most < size) sizes.insert(most);
  }
  if (size > 1) sizes.insert(size - 1);
  return {sizes.begin(), sizes.end()};
}

class Shrinker {
 public:
  Shrinker(CheckFailure failure, const RunCheck& run, const ShrinkOptions& options,
           Progress& progress)
      : run_(run),
        options_(options),
        progress_(progress),
        shrunk_{.smallest = std::move(failure)} {}

  Shrunk shrink() {
    bool smaller = true;
    while (smaller && !over()) {
      smaller = drop_faults();
      for (const Size size : kSizes) smaller |= reduce(size);
    }
    progress_.clear();
    return std::move(shrunk_);
  }

 private:
  const CheckPlan& plan() const { return shrunk_.smallest.plan; }

  bool over() const {
    const bool interrupted = options_.interrupted != nullptr && *options_.interrupted;
    return interrupted || shrunk_.runs >= options_.most_runs;
  }

  bool drop_faults() {
    if (!plan().faults.empty() && try_plan(FaultSet(), sizes_of(plan()))) return true;
    bool smaller = false;
    for (std::size_t i = 0; i < kFaults; ++i) {
      FaultSet fewer = plan().faults;
      if (!fewer.has(static_cast<Fault>(i))) continue;
      fewer.set(static_cast<Fault>(i), false);
      smaller |= try_plan(fewer, sizes_of(plan()));
    }
    return smaller;
  }

  bool reduce(Size size) {
    CheckSizes sizes = sizes_of(plan());
    for (const unsigned smaller : smaller_than(*(sizes.*size))) {
      sizes.*size = smaller;
      if (try_plan(plan().faults, sizes)) return true;
    }
    return false;
  }

  // True where it fails as well: it is the smallest now.
  bool try_plan(FaultSet faults, const CheckSizes& sizes) {
    auto candidate = draw_plan(plan().seed, plan().index_words, faults, sizes, plan().fabric);
    if (!candidate || over() || !tried_.insert(candidate->command()).second) return false;
    ++shrunk_.runs;
    progress_.show("shrinking", shrunk_.runs, options_.most_runs, Clock::now() - began_);
    CheckOutcome outcome = run_(*candidate);
    const bool shows_less = shrunk_.smallest.outcome.suspect && !outcome.suspect;
    if (!outcome.failed() || shows_less) return false;
    shrunk_.smallest = {std::move(*candidate), std::move(outcome)};
    return true;
  }

  const RunCheck& run_;
  const ShrinkOptions options_;
  Progress& progress_;
  const Clock::time_point began_ = Clock::now();
  std::set<std::string> tried_;
  Shrunk shrunk_;
};

}  // namespace

Shrunk shrink(CheckFailure failure, const RunCheck& run, const ShrinkOptions& options,
              Progress& progress) {
  return Shrinker(std::move(failure), run, options, progress).shrink();
}

}  // namespace pando::lab::check
