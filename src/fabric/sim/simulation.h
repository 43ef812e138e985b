// Simulation: a cluster in one thread, for two uses.
//
//  - As a model, it tells how long things take: cards with verb rates, bandwidths and queues
//    (nic.h), in simulated time. `sim:4GiB?nodes=2&preset=connectx6-100g`
//  - As an adversary, it tries to break things: lines of READs and WRITEs in any order and
//    interleaved with everyone else's, delays, reordering, cut links, dead and paused clients,
//    memory nodes that go and come back. All of it within the contract of verbs.h, all of it drawn
//    from one seed. `sim:64MiB?adversary=42`
//
// The same seed and the same calls give the same run on every machine. One thread uses a
// simulation, its fabrics, and the workers on its clock; see engine.h for what that means to them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/sim/engine.h"
#include "fabric/sim/nic.h"
#include "fabric/sim/sockets.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::sim {

class Cluster;

// How rough the adversary is. Chances in percent.
struct AdversaryOptions {
  std::uint64_t seed = 1;
  unsigned tear = 50;                      // a verb of several lines goes line by line
  Time spread = 3 * kMicrosecond;          // within up to this time
  Time latency = 1 * kMicrosecond;         // one way, at least; up to twice as much
  unsigned delay = 5;                      // a batch is held up on its way
  Time longest_delay = 50 * kMicrosecond;  // for up to this long
  // What outlives its batch is mostly over within longest_delay; some of it, within this time.
  Time longest_ghost = 100 * kMicrosecond;
  // Until a memory node has heard of a fence, and until one is given up that cannot be told.
  Time longest_fence = 4 * kMicrosecond;
  Time fence_timeout = 100 * kMicrosecond;
  // An atomic's store comes up to so much later than its load: WRITEs between the two are lost,
  // which rule 7 of verbs.h allows. 0: it is one moment.
  Time atomic_gap = 0;
};

struct SimOptions {
  std::uint64_t bytes = 0;  // of all nodes together
  std::uint32_t nodes = 1;
  bool native_masked_cas = true;
  bool huge_pages = true;
  std::string preset = "connectx6-100g";
  std::optional<std::uint32_t> onchip_bytes;  // default: the preset's
  std::optional<AdversaryOptions> adversary;  // default: the model
  bool grows = false;                         // memory nodes may be added (Fabric::may_grow)

  static constexpr std::uint32_t kMaxNodes = 1024;
  static constexpr std::uint64_t kMinNodeBytes = std::uint64_t{1} << 20;
};

// What a simulation has been through.
struct Coverage {
  std::uint64_t batches = 0;
  std::uint64_t verbs = 0;
  std::uint64_t torn = 0;  // verbs whose lines were executed one by one
  std::uint64_t delayed = 0;
  std::uint64_t failed = 0;  // batches that ended with an error
  std::uint64_t late = 0;    // verbs that took effect after their batch had failed
  std::uint64_t fenced = 0;
  std::uint64_t unfenced = 0;         // memory nodes that a fence could not reach
  std::uint64_t split_atomics = 0;    // that stored a while after they had loaded
  std::uint64_t lost_to_atomics = 0;  // WRITEs between an atomic's load and its store
  std::uint64_t unknown_atomics = 0;  // whose client was not told whether they happened
  // Where clients and memory nodes are the real ones (tcp_simulation.h).
  SocketCoverage sockets;
  std::uint64_t generations = 0;  // of clients' connections, beyond the first
  std::uint64_t outdated = 0;     // connections that were refused for being of an older one
  std::uint64_t forgotten = 0;    // clients

  Coverage& operator+=(const Coverage& other);
};

// One verb, as it was executed. Times in simulated time.
struct TracedVerb {
  ClientId client = 0;
  std::uint32_t worker = 0;
  std::uint64_t batch = 0;  // a number of its own
  Time posted = 0;
  Time ended = 0;
  const Verb* verb = nullptr;
  const Counters* account = nullptr;  // whose operation it is part of, if anyone's: Batch::cost()
};

// A WRITE or an atomic, or a part of it, that took effect though its batch had ended.
struct LateVerb {
  ClientId client = 0;
  const Verb* verb = nullptr;
  Address at;  // where the part begins
  std::uint32_t length = 0;
  // The word there, where it is just one: what it was and what it is now.
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  std::uint64_t note = 0;  // what doubted() said of it
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // The verbs of a batch, in order, when it ends.
  virtual void verb(const TracedVerb& verb) = 0;
  // Verbs of a client may come late from now on: who posted them is still there. To be noted.
  virtual std::uint64_t doubted(ClientId /*client*/) { return 0; }
  // When one has taken effect.
  virtual void late(const LateVerb& /*late*/) {}
};

// Which steps count. WRITEs of several lines are new nodes, splits and merges.
enum class Counted : std::uint8_t { kAll, kWrites, kLongWrites };

class Simulation {
 public:
  // kInvalidArgument: an impossible cluster, an unknown preset.
  static Result<std::unique_ptr<Simulation>> make(const SimOptions& options);
  virtual ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // A client. The memory nodes live as long as any of their fabrics and endpoints.
  std::unique_ptr<Fabric> attach();
  // The same where it may fail: it takes time, and meets faults.
  virtual Result<std::unique_ptr<Fabric>> open_client() { return attach(); }
  virtual Engine& engine();
  Time time() { return engine().time(); }

  // ---- Populating: verbs complete at once and no time passes.
  virtual void set_instant(bool instant);
  // What one client does now, nobody else interferes with.
  virtual void set_alone(bool /*alone*/) {}

  // ---- The model's cards: how busy they were since the last reset_use().
  void reset_use();
  NicUse use_of_memory_node(NodeId node) const;
  NicUse use_of_client(ClientId client) const;
  const Preset& preset() const;

  // ---- The adversary's faults. Times count from now.
  // A client that stands still for a while, or (no time) for good. With `drop`, what it has under
  // way is lost half done; else it goes on until the client is fenced.
  virtual void hold(ClientId client, std::optional<Time> time, bool drop = false);
  // For taking things down in order: a held client goes on, fenced.
  virtual void release(ClientId client);
  // Calls `action` when `steps` more steps of the client have been executed, of those that count.
  virtual void after_steps(ClientId client, std::uint64_t steps, Counted counted,
                           std::function<void()> action);
  // No verb gets through, and the outcome of those under way is unknown.
  virtual void cut_link(ClientId client, NodeId node, Time time);
  virtual void stop_memory_node(NodeId node, Time time, bool lose_memory);
  // A further memory node, which clients notice within that time. REQUIRES: SimOptions::grows.
  virtual void add_memory_node(Time noticed_within);
  virtual std::size_t memory_nodes() const;
  // At every memory node that it may use; where some could not be told it is not fenced yet.
  virtual bool is_fenced(ClientId client) const;
  // Stands still, for a while or for good.
  virtual bool is_held(ClientId client) const;
  // Nothing of the client can take effect any more at any memory node, but what it posts from now
  // on.
  virtual bool nothing_under_way(ClientId client) const;
  // A memory node where the client has a WRITE or an atomic under way, if there is any.
  virtual std::optional<NodeId> busy_memory_node(ClientId client) const;
  // Something of the client may yet take effect that it does not wait for any more.
  virtual bool haunts(ClientId client) const;

  // A client comes in and dies on its way, or when it has. REQUIRES: called outside of events.
  virtual void visit(std::uint64_t /*steps*/) {}
  // With all clients gone: what the memory nodes have not got over.
  virtual std::vector<std::string> left_behind() { return {}; }

  virtual const Coverage& coverage() const;
  virtual void set_trace(TraceSink* sink);

 protected:
  Simulation();

 private:
  explicit Simulation(std::shared_ptr<Cluster> cluster);
  std::shared_ptr<Cluster> cluster_;
};

// `sim:SIZE?…`: a simulation of its own.
Result<std::unique_ptr<Fabric>> open_sim(const SimOptions& options);

}  // namespace pando::fabric::sim
