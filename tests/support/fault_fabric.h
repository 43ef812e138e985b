// A fabric with faults: another fabric, seen through a client that can be stopped at any verb.
//
// The client's verbs are counted, executed one by one in the order of their batch, and at the one
// asked for the client dies or is held up. A WRITE of several lines can be cut short: the contract
// lets its lines land in any order, so the order is drawn from a seed and the first few land. A
// line is never torn. A dead client's batches answer kFenced and execute nothing.
//
// Its link to a memory node can be cut: what it posts there then ends with an unknown outcome, and
// happens at once, later, or never, as the test says; later ones never, once something has got
// through again (rule 9 of verbs.h).
//
// The memory nodes believe that a client is dead once its Fabric is destroyed: destroy it (sessions
// first) for its peers to be able to fence it.
//
// Faults is thread-safe. Endpoints complete inline; a client that is held up blocks its thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fabric/verbs.h"

namespace pando::testing {

// What is counted. Those who wait for a lock send as many READs and compare-and-swaps as time
// allows; the WRITEs are the same in every run.
enum class Counted { kVerbs, kWrites };

// Where a client stops: before verb number `verb` (counted from 0 since Faults::count_from_here),
// but for the first `lines` lines of it, in the order that `line_order` stands for.
struct StopAt {
  std::uint64_t verb = 0;
  std::size_t lines = 0;
  std::uint64_t line_order = 0;
};

// What becomes of WRITEs and atomics over a link that is cut.
enum class Fate { kHappensUnheard, kHappensLater, kNever };

class Faults {
 public:
  // Forgets the verbs so far.
  void count_from_here(Counted what = Counted::kVerbs);
  // How many lines each verb since then touched; atomics and READs count as one.
  std::vector<std::size_t> verbs() const;

  void die_at(const StopAt& where);
  void die_now();
  bool dead() const;

  // Holds the client up before this verb (all its threads, as a paused process is).
  void hold_up_at(std::uint64_t verb);
  // False: it has not come to that within the time.
  bool wait_until_held_up(std::chrono::milliseconds at_most);
  void go_on();

  // From now on, until it is mended.
  void cut(fabric::NodeId node, Fate fate);
  void mend(fabric::NodeId node);
  // For the fabric. None: the link is there.
  std::optional<Fate> cut_off(fabric::NodeId node) const;

  // For the fabric: what to do with the next verb. `lines`: of a WRITE; 0 where it is none.
  enum class Permission { kExecute, kCutShort, kDead };
  Permission next(std::size_t lines, StopAt& cut);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Counted counted_ = Counted::kVerbs;
  std::vector<std::size_t> verbs_;
  std::optional<StopAt> death_;
  std::optional<std::uint64_t> hold_up_;
  bool held_up_ = false;
  bool dead_ = false;
  std::map<fabric::NodeId, Fate> cut_;
};

// Lets what was posted over links that were cut, and is still to happen, happen now. Of an endpoint
// that with_faults() made.
void deliver(fabric::Endpoint& endpoint);

std::unique_ptr<fabric::Fabric> with_faults(std::unique_ptr<fabric::Fabric> inner,
                                            std::shared_ptr<Faults> faults);

}  // namespace pando::testing
