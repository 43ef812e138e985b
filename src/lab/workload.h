// Workloads: YCSB's LOAD and A–F as streams of operations, the same for everything under test.
//
//   LOAD  inserts every key      C  100 search          E  95 scan of 1–100, 5 insert
//   A  50 search, 50 update      D  95 search of the    F  50 search, 50 read-modify-write
//   B  95 search, 5 update          latest, 5 insert
//
// Which item: Zipf over the items present when the phase began, scrambled by a permutation so that
// hot items lie anywhere; or uniform; or latest, Zipf over how long ago the item was inserted.
//
// Operations are drawn before the clock starts (Plan), so that no figure contains the generator.
// What depends on the moment is resolved while running: the item of an insert, and the newest item
// that `latest` counts back from. A plan depends on seed, phase and client alone.
//
// An insert takes the next number from InsertCounter and acknowledges it when it is done. Readers
// choose among acknowledged() items only, all of which must be found.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <pando/result.h>

namespace pando::lab {

enum class OperationKind : std::uint8_t { kSearch, kInsert, kUpdate, kScan, kReadModifyWrite };

enum class Distribution : std::uint8_t { kZipf, kUniform, kLatest };
std::string_view to_string(Distribution distribution);

struct Mix {
  std::string_view name;
  // Percentages; the sum is 100.
  unsigned search = 0;
  unsigned insert = 0;
  unsigned update = 0;
  unsigned scan = 0;
  unsigned read_modify_write = 0;
  Distribution distribution = Distribution::kZipf;

  bool is_load() const { return insert == 100; }
};

inline constexpr unsigned kMaxScan = 100;

// LOAD first, then in the order in which YCSB would have them run on one set of data: those that
// insert come last.
std::span<const Mix> all_mixes();
// nullptr where there is none of that name; case does not matter.
const Mix* find_mix(std::string_view name);

// One operation, packed: a plan holds many.
class Operation {
 public:
  // `item`: its number, or how far it lies behind the newest where the plan is by `latest`.
  Operation(OperationKind kind, std::uint64_t item, unsigned scan_length)
      : bits_(item << 11 | std::uint64_t{scan_length} << 3 | static_cast<std::uint64_t>(kind)) {}

  OperationKind kind() const { return static_cast<OperationKind>(bits_ & 7); }
  unsigned scan_length() const { return static_cast<unsigned>(bits_ >> 3 & 0xff); }
  std::uint64_t item() const { return bits_ >> 11; }

 private:
  std::uint64_t bits_;
};

struct PlanOptions {
  const Mix* mix = nullptr;
  Distribution distribution = Distribution::kZipf;
  double theta = 0.99;
  std::uint64_t items = 0;       // present when the phase begins; > 0
  std::uint64_t operations = 0;  // of this client
  std::uint64_t seed = 0;
  std::uint64_t phase = 0;
  std::uint64_t client = 0;
};

// REQUIRES a mix other than LOAD.
std::vector<Operation> make_plan(const PlanOptions& options);

// Numbers for concurrent inserts, and how many of them are done without a gap. Thread-safe,
// lock-free.
class InsertCounter {
 public:
  InsertCounter();

  // All items below `items` are there. Not while others use the counter.
  void reset(std::uint64_t items);
  // nullopt while the oldest unacknowledged insert lies kWindow behind: do something else.
  std::optional<std::uint64_t> try_next();
  // `item` has been inserted. REQUIRES that try_next gave it.
  void acknowledge(std::uint64_t item);
  // Every item below this one has been acknowledged.
  std::uint64_t acknowledged() const { return acknowledged_.load(); }

 private:
  static constexpr std::uint64_t kWindow = std::uint64_t{1} << 16;

  std::atomic<std::uint64_t>& slot(std::uint64_t item) { return done_[item % kWindow]; }

  // done_[i % kWindow] is i + 1 once i is acknowledged: never to be cleared.
  std::unique_ptr<std::atomic<std::uint64_t>[]> done_;
  alignas(64) std::atomic<std::uint64_t> next_{0};
  alignas(64) std::atomic<std::uint64_t> acknowledged_{0};
};

}  // namespace pando::lab
