// The simulated machines: memory nodes and clients, the batches under way between them, and the
// Network that decides what happens to a batch and when. Internal to src/fabric/sim.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fabric/mapping.h"
#include "fabric/sim/engine.h"
#include "fabric/sim/nic.h"
#include "fabric/sim/simulation.h"
#include "fabric/verbs.h"

namespace pando::fabric::sim {

class Cluster;
class SimEndpoint;
struct ClientState;

struct MemoryNode {
  MemoryNode(std::uint64_t bytes, std::uint32_t onchip_bytes, bool huge_pages)
      : memory(bytes, huge_pages), onchip(onchip_bytes, false) {}

  std::byte* at(std::uint64_t offset) const {
    return offset < Address::kOnChip ? memory.data() + offset
                                     : onchip.data() + (offset - Address::kOnChip);
  }

  Mapping memory;
  Mapping onchip;
  Nic nic;
  bool up = true;
  std::uint32_t incarnation = 0;  // how often it has lost its memory
};

// Executes bytes [begin, end) of a READ or WRITE, or the whole of an atomic.
void execute(MemoryNode& node, Verb& verb, std::uint32_t begin, std::uint32_t end);
inline void execute(MemoryNode& node, Verb& verb) { execute(node, verb, 0, verb.length); }

// One line (or all) of a verb that is going to be executed.
struct Step {
  Time at = 0;
  std::uint32_t verb = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

// A batch under way. Kept for reuse; the serial tells events of an earlier one.
struct Flight {
  SimEndpoint* endpoint = nullptr;
  ClientState* client = nullptr;
  Batch* batch = nullptr;  // null: nobody waits for it any more
  std::uint64_t serial = 0;
  Time posted = 0;
  Time ends = 0;           // model: as far as is known; adversary: when it is to complete
  std::uint32_t left = 0;  // model: memory nodes that have yet to answer
  Time wire = 0;           // model: what the answers take of the client's link
  Time longest_wire = 0;   // model: and those of one node, at most
  // The adversary's plan, by time; the next one; what goes wrong.
  std::vector<Step> steps;
  std::size_t next_step = 0;
  Time scheduled = 0;          // of its next event
  std::vector<NodeId> broken;  // nodes whose answers will not come
  std::optional<Error> error;
  bool lost = false;           // half done, and nobody will know before a fence
  Flight* previous = nullptr;  // of the same client
  Flight* next = nullptr;
};

// What happens when a client has come so far: see Simulation::after_steps.
struct Trigger {
  std::uint64_t steps_left = 0;
  Counted counted = Counted::kAll;
  std::function<void()> action;
};

struct ClientState {
  ClientId id = 0;
  bool present = true;
  bool fenced = false;          // a fence of it has succeeded
  std::vector<bool> shut_out;   // by memory node
  std::size_t known_nodes = 0;  // memory nodes that it knows: those before this one
  bool held = false;
  std::uint64_t holds = 0;
  Nic nic;
  std::vector<task::Simulator::Seat> seats;
  std::vector<std::uint32_t> incarnations;  // of the memory nodes, when it attached
  std::vector<Time> cut_until;              // its links
  Flight* flights = nullptr;
  std::vector<Trigger> triggers;
};

// How verbs travel.
class Network {
 public:
  virtual ~Network() = default;
  // Begins. REQUIRES: the batch fits the nodes.
  virtual void post(Flight& flight) = 0;
  // The batch of a flight is about to be destroyed.
  virtual void abandon(Flight& flight) = 0;
  // The client has been shut out of the node: nothing of it takes effect there any more.
  virtual void shut_out(ClientState& client, NodeId node) = 0;
  // And of all of them that it may use.
  virtual void fence(ClientState& client) = 0;
  // How long a fence takes to a node, and how long until it is given up at one that is out of
  // reach.
  virtual Time to_fence() { return 0; }
  virtual Time to_give_up() { return 0; }
  // Some time up to `most`.
  virtual Time draw(Time most) { return most; }
  // Whether anything of the client may yet take effect somewhere that no batch waits for.
  virtual bool haunts(const ClientState&) const { return false; }
  // Faults, for networks that have them: every batch under way between the two ends with an error.
  virtual void break_link(ClientState& client, NodeId node) = 0;
  // What the client has under way stops where it is.
  virtual void drop(ClientState& client) = 0;
};

// Memory that batches under way are going to touch, asked for in advance: by the time a batch is
// executed its bytes have come. Several batches at a time, because what each waits for is the
// translation of its address, and those of neighbouring instructions overlap; not too many, because
// a core asks for so many lines at once and no more.
class Prefetches {
 public:
  void add(const std::byte* from, std::uint32_t bytes) {
    waiting_[count_++] = {from, bytes};
    bytes_ += bytes;
    if (count_ == waiting_.size() || bytes_ >= kMostBytes) issue();
  }

 private:
  static constexpr std::uint32_t kMostBytes = 4096;
  struct Piece {
    const std::byte* from;
    std::uint32_t bytes;
  };
  void issue();

  std::array<Piece, 8> waiting_;
  std::size_t count_ = 0;
  std::uint32_t bytes_ = 0;
};

class Cluster {
 public:
  explicit Cluster(const SimOptions& options, const Preset& preset);
  ~Cluster();

  Engine engine;
  const Preset& preset;
  Caps caps;
  bool instant = false;  // verbs take no time and meet no faults
  const bool grows;      // memory nodes may come
  std::deque<MemoryNode> nodes;
  std::vector<std::uint64_t> sizes;
  std::vector<std::unique_ptr<ClientState>> clients;  // by id - 1
  std::unique_ptr<Network> network;
  Prefetches prefetches;
  Time use_from = 0;  // when the cards' use was last forgotten
  Coverage coverage;
  TraceSink* trace = nullptr;

  ClientState& join();
  ClientState* find(ClientId client);
  bool reachable(const ClientState& client, NodeId node) const {
    return nodes[node].up && client.cut_until[node] <= engine.time();
  }
  void shut_out(ClientState& client, NodeId node);
  void fence(ClientState& client);
  // A further memory node, as large as the first. Clients know it a while later.
  void grow(Time noticed_within);

  Flight& take_off(SimEndpoint& endpoint, ClientState& client, Batch& batch);
  // The flight is over: its waiter goes on. REQUIRES: outcomes are set.
  void land(Flight& flight);
  void forget(Flight& flight);
  // The serial of the last batch that was posted.
  std::uint64_t last_serial() const { return flown_; }

 private:
  std::vector<std::unique_ptr<Flight>> all_flights_;
  std::vector<Flight*> free_flights_;
  std::uint64_t flown_ = 0;
};

class SimEndpoint final : public Endpoint {
 public:
  SimEndpoint(std::shared_ptr<Cluster> cluster, ClientState& client, task::Worker& worker);
  ~SimEndpoint() override;

  bool poll() override { return false; }  // the cluster schedules waiters itself
  bool pending() const override { return in_flight > 0; }
  void abandon() override { abandon_all(); }
  Task<Status> fence(ClientId client) override;
  using Endpoint::report_in_doubt;

  std::size_t in_flight = 0;

 private:
  void abandon_all();
  Task<void> wait_until(Time when);
  std::span<const std::uint64_t> memory_node_sizes() const override {
    return std::span(cluster_->sizes).first(client_.known_nodes);
  }
  bool post(Batch& batch) override;
  std::shared_ptr<Cluster> cluster_;
  ClientState& client_;
};

std::unique_ptr<Network> make_model(Cluster& cluster);
std::unique_ptr<Network> make_adversary(Cluster& cluster, const AdversaryOptions& options);

}  // namespace pando::fabric::sim
