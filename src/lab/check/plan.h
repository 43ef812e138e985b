// CheckPlan: what one seed stands for. Everything about a run that is not decided by the code under
// test is drawn here or from the same seed: who there is, what they do, what goes wrong.
//
// Each part is drawn from a stream of its own, so that changing one by hand (a replay with fewer
// operations) leaves the others as they were.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/sim/simulation.h"
#include "fabric/sim/sockets.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::lab::check {

enum class Fault : std::uint8_t {
  kTear,     // lines of READs and WRITEs interleave with everyone else's
  kDelay,    // batches are held up, and overtaken by others
  kKill,     // compute nodes die, at any line of any verb
  kPause,    // compute nodes stand still, sometimes for longer than their lease
  kCut,      // links break: the outcome of what is under way is unknown
  kRestart,  // memory nodes go away and come back with their memory
  kLose,     // and without
  kLeave,    // compute nodes close their pool in the middle of what their clients do
  kDrop,     // workers are destroyed with their tasks in flight
  kIndexes,  // further indexes are created, opened and dropped by several at once
  kJoin,     // memory nodes are added
  kAtomics,  // an atomic's store comes a while after its load, and WRITEs between the two are lost
};
inline constexpr std::size_t kFaults = 12;

class FaultSet {
 public:
  static FaultSet all() { return FaultSet((1u << kFaults) - 1); }
  FaultSet() = default;

  bool has(Fault fault) const { return (bits_ >> static_cast<unsigned>(fault) & 1u) != 0; }
  void set(Fault fault, bool on);
  bool empty() const { return bits_ == 0; }
  // Whether healthy compute nodes may see errors: some die, stand still, or cannot be reached.
  bool breaks() const;
  bool operator==(const FaultSet&) const = default;

  // "all", "none", or names with commas: "tear,kill".
  static Result<FaultSet> parse(std::string_view text);
  std::string to_string() const;

 private:
  explicit FaultSet(unsigned bits) : bits_(bits) {}
  unsigned bits_ = 0;
};

// What a run is on: the simulated fabric, or the real tcp client and memory-node server on
// simulated sockets. On the latter, tearing cuts what is sent and received into pieces, delays hold
// segments up, and cuts are all that may happen to a connection.
enum class CheckedFabric : std::uint8_t { kSim, kTcp };
Result<CheckedFabric> parse_checked_fabric(std::string_view text);

// What a user may fix by hand; the rest is drawn.
struct CheckSizes {
  std::optional<unsigned> memory_nodes;
  std::optional<unsigned> compute_nodes;
  std::optional<unsigned> clients;     // of each compute node
  std::optional<unsigned> tasks;       // of each client, at the same time
  std::optional<unsigned> operations;  // of each task
  std::optional<unsigned> keys;
};

struct CheckPlan {
  std::uint64_t seed = 0;
  std::string index_words;  // as the user named it
  IndexOptions index;       // with the settings that were drawn
  FaultSet faults;
  CheckedFabric fabric = CheckedFabric::kSim;
  fabric::sim::AdversaryOptions adversary;
  // On kTcp.
  fabric::sim::SocketOptions sockets;
  std::chrono::milliseconds timeout{0};  // of clients, for an answer

  unsigned memory_nodes = 1;
  unsigned compute_nodes = 1;
  unsigned clients = 1;
  unsigned tasks = 1;
  unsigned operations = 1;
  unsigned keys = 1;
  unsigned preloaded = 0;  // in percent of the keys
  std::vector<std::size_t> value_sizes;
  std::uint64_t compute_budget = 0;
  // Chunks on each memory node: few, so that memory runs out and is recycled; or more than are ever
  // needed.
  unsigned chunks = 0;
  unsigned recyclings = 0;  // that are asked for, whether memory has run out or not
  bool native_masked_cas = true;
  // Counters in far memory begin so close to where they wrap around.
  bool near_wrap = false;
  // All clients together fill the index and empty it again, in order, so that it grows and shrinks.
  bool waves = false;
  // Weights of get, put, insert, update, erase, multi_get, scan.
  std::vector<unsigned> weights;

  // The options of `pando check` that give this plan again.
  std::string command() const;
  std::string describe() const;
};

// `index`: a kind, with those settings that are not to be drawn. kInvalidArgument names what is
// wrong.
Result<CheckPlan> draw_plan(std::uint64_t seed, const std::string& index, FaultSet allowed,
                            const CheckSizes& sizes, CheckedFabric fabric = CheckedFabric::kSim);

}  // namespace pando::lab::check
