// Run: what a run of a plan is made of while it lasts and while it is inspected (scenario.cc,
// inspection.cc). Used by one thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/state.h"
#include "base/random.h"
#include "fabric/sim/simulation.h"
#include "lab/check/history.h"
#include "lab/check/request.h"
#include "lab/check/scenario.h"
#include "lab/check/side_indexes.h"
#include "lab/check/verb_watch.h"
#include <pando/pando.h>

namespace pando::lab::check {

inline constexpr std::string_view kCheckedIndex = "checked";
inline constexpr std::chrono::milliseconds kLease{4};
inline constexpr fabric::sim::Time kLeaseTime =
    static_cast<fabric::sim::Time>(kLease.count()) * fabric::sim::kMillisecond;
// From a death until it is declared, at most: the lease is over, some look, and a fence may be
// slow.
inline constexpr fabric::sim::Time kBuried = 8 * kLeaseTime;

class Run {
 public:
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

 protected:
  using Time = fabric::sim::Time;

  // `excused`: the errors that some fault explains.
  Run(const CheckPlan& plan, CheckObserver* observer, std::function<bool(ErrorCode)> excused);
  ~Run() = default;

  // A worker with its tasks, and the views that these use.
  struct Crew {
    explicit Crew(Worker made) : worker(std::move(made)) {}
    Worker worker;
    std::vector<RecordedIndex*> views;
  };

  struct ComputeNode {
    ComputeNode(Pool opened, Index of) : pool(std::move(opened)), index(std::move(of)) {}

    // Not any more: dead, or gone by itself.
    bool absent() const { return held || left; }
    const pool::Allocator& allocator() const {
      return api::Internals::of(*pool).compute_node.allocator();
    }
    // The global one, as far as it has seen it; 0 where it has left.
    std::uint64_t epoch() const {
      return pool ? api::Internals::of(*pool).compute_node.epochs().current() : 0;
    }

    std::optional<Pool> pool;
    std::optional<Index> index;
    fabric::ClientId client = 0;
    pool::OwnerId owner = 0;  // what its lock words name
    std::deque<RecordedIndex> views;
    std::deque<Crew> crews;       // their tasks use the views
    std::deque<Worker> builders;  // whose tasks are at side indexes
    unsigned running = 0;         // tasks
    bool held = false;            // dead
    bool left = false;
    bool retires = false;  // leaves when its clients have come to their end
    bool over = false;     // it can do nothing any more, and the recorder knows
    bool struck = false;   // by something that explains why it is taken for dead
    // Of one that has left, what its allocator said last.
    std::uint64_t allocated = 0;
    std::uint64_t freed = 0;
    std::uint64_t recovered = 0;
    std::uint64_t held_bytes = 0;
    std::shared_ptr<const std::uint64_t> left_behind;  // what it could not list
  };

  void problem(std::string what) { outcome_.problems.push_back(std::move(what)); }
  bool short_of_memory() const { return plan_.recyclings > 0; }
  void let_time_pass(Time time);
  // Calls of unknown outcome are over where nothing of their compute node can happen any more.
  void note_ends();
  static void dismiss_all(ComputeNode& node);
  static std::uint64_t held_bytes(const pool::Allocator& allocator);

  const CheckPlan& plan_;
  base::Random random_;
  RequestSource requests_{plan_, random_};
  CheckObserver* const observer_;
  VerbWatch watch_;
  CheckOutcome outcome_;
  HistoryRecorder recorder_;
  std::unique_ptr<fabric::sim::Simulation> simulation_;
  std::optional<SideIndexes> side_indexes_;
  std::deque<ComputeNode> nodes_;
  std::uint64_t cut_short_ = 0;  // tasks that were destroyed
  bool lost_memory_ = false;
  bool faults_over_ = true;  // until they are scheduled
  Time last_fault_ = 0;
};

}  // namespace pando::lab::check
