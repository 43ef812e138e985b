// Requests of a check: what its clients ask of the index, and how that is drawn from the plan.
//
// The same plan and the same order of calls give the same requests. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/sim/simulation.h"
#include "lab/check/history.h"
#include "lab/check/observer.h"
#include "lab/check/plan.h"
#include <pando/pando.h>

namespace pando::lab::check {

// In the order of CheckPlan::weights.
enum class RequestKind : std::uint8_t { kGet, kPut, kInsert, kUpdate, kErase, kMultiGet, kScan };

// What a client is about to do.
struct Request {
  RequestKind kind = RequestKind::kGet;
  OwnedKey key;
  std::string value = {};           // put, insert, update
  std::vector<OwnedKey> keys = {};  // multi_get
  std::size_t limit = 0;            // scan

  bool writes_value() const {
    return kind == RequestKind::kPut || kind == RequestKind::kInsert ||
           kind == RequestKind::kUpdate;
  }
};

std::string describe(const Request& request);

// Draws requests for all clients. Plan and random numbers outlive it.
class RequestSource {
 public:
  // `random`: the run's own; it is drawn from for the keys, now, and for values as they are needed.
  RequestSource(const CheckPlan& plan, base::Random& random);

  // Every key there is, in order.
  std::span<const OwnedKey> universe() const { return universe_; }
  // No two are the same, but for empty ones.
  std::string new_value();
  // `random`: the client's.
  Request draw(base::Random& random);

 private:
  std::string byte_key(std::uint64_t i) const;
  const OwnedKey& draw_key(base::Random& random) const;
  RequestKind draw_kind(base::Random& random) const;
  std::pair<OwnedKey, RequestKind> draw_what(base::Random& random);

  const CheckPlan& plan_;
  base::Random& random_;
  std::vector<OwnedKey> universe_;  // in order
  std::uint64_t values_ = 0;
  std::uint64_t wave_ = 0;
};

// A request under way, for the observer (none: null): told of when it ends, or is destroyed with
// its coroutine.
class RequestSpan {
 public:
  RequestSpan(CheckObserver* observer, fabric::sim::Simulation& simulation,
              fabric::ClientId compute_node, const RecordedIndex& index, const Request& request);
  ~RequestSpan();
  RequestSpan(const RequestSpan&) = delete;
  RequestSpan& operator=(const RequestSpan&) = delete;

  void end(const Status& status);
  void end(const Result<std::string>& found);
  void end(const Result<std::vector<Entry>>& found);

 private:
  void end_with(std::string answer);

  CheckObserver* const observer_;
  fabric::sim::Simulation& simulation_;
  TracedOperation operation_;
  std::string what_;
  std::string answer_;
};

}  // namespace pando::lab::check
