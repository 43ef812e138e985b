// Inspection: what is looked at once a run has come to its end: histories, structure, leaks, and
// a census of all memory (scenario.h has the promises).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lab/check/run.h"

namespace pando::lab::check {

class Inspection : protected Run {
 protected:
  using Run::Run;

  // `newcomer` comes in as a compute node that was not there before; null where it cannot.
  void inspect(const std::function<ComputeNode*()>& newcomer);

 private:
  // What may be lost (allocator.h): what operations had in hand that were cut short or whose
  // outcome is unknown, and what the dead held or were taking.
  struct Losses {
    std::uint64_t in_hand = 0;   // blocks that were allocated and never freed
    std::uint64_t unknown = 0;   // runs and magazines that were perhaps taken or given
    std::uint64_t dead = 0;      // compute nodes
    std::uint64_t held = 0;      // bytes that these held free
    std::uint64_t ledgers = 0;   // of which pages may have been lost
    std::uint64_t unlisted = 0;  // bytes that those who left a full pool had no room to list

    std::uint64_t bytes() const;
    std::string describe() const;
  };

  void wait_until_declared_dead();
  void add_up_counts();
  void look_at_all(ComputeNode& inspector);
  // All keys, in parts that do not take longer than an operation may.
  void look_through(const ComputeNode& inspector, RecordedIndex& view);
  // By a plain call.
  void look(const ComputeNode& inspector, RecordedIndex& view, const Request& request);
  ComputeNode* survivor();

  void check_structure(ComputeNode& node);
  void check_history();
  void check_fences();
  // Blocks that only the dead knew of are lost; none may be freed twice.
  void check_leaks(ComputeNode& inspector);
  // With the index gone, all memory is free, once, but for what faults may cost.
  void count_memory(ComputeNode& inspector);
  void add_up_recyclings();

  Losses may_be_lost() const;
  // Whether any operation has ended in a way that may cost memory.
  bool lossy() const { return broken() || cut_short_ > 0; }
  bool broken() const;
  bool unbalanced() const;
  std::uint64_t allocated() const;
  std::uint64_t freed() const;
};

}  // namespace pando::lab::check
