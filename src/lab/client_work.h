// What one client has to do in one phase, and what it found: the runner's side of the loop in
// client_loop.h.
//
// Threads: a ClientWork belongs to its client's thread; done() alone may be read by others.
// Failures and StartLine are shared by all clients of a phase.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "lab/histogram.h"
#include "lab/keys.h"
#include "lab/workload.h"
#include <pando/stats.h>

namespace pando::lab {

// Where time comes from. It is asked twice an operation.
using Now = std::function<std::chrono::nanoseconds()>;
Now steady_now();

// What is asked of an index, and what costs are told apart by. A read-modify-write is one operation
// of the workload and two calls: a search and an update.
enum class CallKind : std::uint8_t { kSearch, kInsert, kUpdate, kScan };
inline constexpr std::size_t kCallKinds = 4;
std::string_view to_string(CallKind kind);

struct CallResult {
  std::uint64_t count = 0;
  Counters cost;
  Histogram latency;

  void merge(const CallResult& other) {
    count += other.count;
    cost += other.cost;
    latency.merge(other.latency);
  }
};

struct ClientResult {
  std::uint64_t operations = 0;
  Histogram latency;  // of whole operations
  std::array<CallResult, kCallKinds> calls;

  CallResult& calls_of(CallKind kind) { return calls[static_cast<std::size_t>(kind)]; }
  const CallResult& calls_of(CallKind kind) const { return calls[static_cast<std::size_t>(kind)]; }
  void merge(const ClientResult& other) {
    operations += other.operations;
    latency.merge(other.latency);
    for (std::size_t i = 0; i < kCallKinds; ++i) calls[i].merge(other.calls[i]);
  }
};

// Wrong answers and errors. The first one stops every client of the phase.
class Failures {
 public:
  void add(std::string message);
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  std::uint64_t count() const { return count_.load(); }
  // The first few.
  std::vector<std::string> messages() const;

 private:
  std::atomic<std::uint64_t> count_{0};
  mutable base::Mutex mutex_;
  std::vector<std::string> messages_ PANDO_GUARDED_BY(mutex_);
};

// What all clients of a phase share.
struct PhaseState {
  KeySpace keys{KeyType::kInteger, Order::kRandom};
  std::size_t value_size = 8;
  bool latest = false;  // items of the plan are distances from the newest
  // The greatest key of those loaded: a scan that ends early must have come this far.
  std::optional<std::uint64_t> greatest_item;
  InsertCounter* inserts = nullptr;
  Failures* failures = nullptr;
  Now now;
};

class ClientWork {
 public:
  // Either a plan, or a share of LOAD: the items first, first + stride … below end.
  ClientWork(PhaseState& phase, std::vector<Operation> plan, std::uint64_t version_seed,
             unsigned tasks)
      : phase_(phase),
        plan_(std::move(plan)),
        total_(plan_.size()),
        version_seed_(version_seed),
        tasks_(tasks) {}
  ClientWork(PhaseState& phase, std::uint64_t first, std::uint64_t stride, std::uint64_t end,
             unsigned tasks)
      : phase_(phase),
        load_(true),
        load_first_(first),
        load_stride_(stride),
        total_(first < end ? (end - first + stride - 1) / stride : 0),
        tasks_(tasks) {}

  PhaseState& phase() { return phase_; }
  Failures& failures() { return *phase_.failures; }
  ClientResult& result() { return result_; }
  // How many operations the client keeps in flight, if its target can.
  unsigned tasks() const { return tasks_; }
  bool is_load() const { return load_; }
  std::uint64_t total() const { return total_; }
  std::uint64_t done() const { return done_.load(std::memory_order_relaxed); }

  // The client is set up; returns when all are, and the clock has started.
  void ready() {
    if (start_ != nullptr) start_->arrive_and_wait();
    started_ = true;
  }
  bool started() const { return started_; }
  using StartLine = std::barrier<std::function<void()>>;
  void set_start(StartLine* start) { start_ = start; }

  // The position of the next operation, or nullopt at the end.
  std::optional<std::uint64_t> next() {
    if (position_ == total_ || failures().any()) return std::nullopt;
    return position_++;
  }
  Operation planned(std::uint64_t position) const { return plan_[position]; }
  std::uint64_t load_item(std::uint64_t position) const {
    return load_first_ + position * load_stride_;
  }
  // Updates write versions that differ; LOAD writes version 0.
  std::uint64_t version(std::uint64_t position) const {
    return base::mix64(version_seed_ + position);
  }
  // Only this thread writes: no read-modify-write is needed.
  void count_done() { done_.store(done() + 1, std::memory_order_relaxed); }

 private:
  PhaseState& phase_;
  std::vector<Operation> plan_;
  bool load_ = false;
  std::uint64_t load_first_ = 0;
  std::uint64_t load_stride_ = 1;
  std::uint64_t total_;
  std::uint64_t version_seed_ = 0;
  unsigned tasks_;
  StartLine* start_ = nullptr;
  bool started_ = false;
  std::uint64_t position_ = 0;
  ClientResult result_;
  alignas(64) std::atomic<std::uint64_t> done_{0};
};

}  // namespace pando::lab
