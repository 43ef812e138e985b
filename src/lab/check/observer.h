// CheckObserver: is told what a run does, while it does it. For traces; nothing that it does may
// have an effect on the run. Times are simulated.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fabric/sim/simulation.h"
#include <pando/stats.h>

namespace pando::lab::check {

struct TracedOperation {
  std::uint32_t client = 0;  // as in histories
  fabric::ClientId compute_node = 0;
  const Counters* account = nullptr;  // that of its verbs (fabric::sim::TracedVerb)
  fabric::sim::Time began = 0;
  std::optional<fabric::sim::Time> ended;  // nullopt: cut short, because its compute node died
  std::string_view what;                   // "put 0x7 '12'"
  std::string_view answer;
};

class CheckObserver : public fabric::sim::TraceSink {
 public:
  // An operation that has ended, or whose client is gone for good.
  virtual void operation(const TracedOperation& operation) = 0;
  // Something goes wrong: "compute node 3 dies".
  virtual void fault(fabric::sim::Time when, std::string_view what) = 0;
};

}  // namespace pando::lab::check
