// The adversary: everything that the contract allows, at the worst moment that a seed finds.
//
// A batch is a list of steps, each a line (or the whole) of a verb, at times that are drawn when it
// is posted. Verbs behind a WRITE or an atomic come after all of its steps; READs order nothing. So
// lines come in any order and between everyone else's.
//
// Where a link breaks, the steps to come at that node are dropped, or become a ghost: they may
// still be executed, one by one, until a verb that the client has posted there later is executed,
// or the client is shut out of the node. A post that does not get through ends nothing. Either
// way the client learns of it a while later, and of each verb no more than that it may have been
// executed.
//
// Where atomics have a gap, one loads its word, and stores what becomes of it a while later; other
// atomics of that word wait, WRITEs do not and are lost.
//
// What came to be drawn later than the rest has a stream of random numbers of its own.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/sim/cluster.h"

namespace pando::fabric::sim {
namespace {

constexpr Time kLongestTimeout = 100 * kMicrosecond;  // until a client notices a broken link
constexpr std::byte kScribble{0xdb};

// A WRITE's lines or an atomic that outlived their batch.
struct Ghost {
  struct Remains {
    Verb verb;  // `local` is not used
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::vector<std::byte> bytes;
  };
  ClientState* client = nullptr;
  NodeId node = 0;
  std::uint64_t serial = 0;
  std::uint64_t flight = 0;    // its serial
  std::uint64_t left = 0;      // when it was left: the serial of the last flight by then
  bool lasting = false;        // lives long
  std::uint64_t note = 0;      // the trace's
  std::vector<Remains> steps;  // in order
  std::size_t next = 0;
};

// An atomic that has loaded its word and not stored it yet.
struct Pending {
  std::uint64_t serial = 0;
  std::uint64_t flight = 0;  // its serial
  const ClientState* client = nullptr;
  NodeId node = 0;
  std::uint64_t offset = 0;
  std::uint32_t incarnation = 0;  // of the memory node
  std::uint64_t before = 0;
  std::uint64_t after = 0;
};

class Adversary final : public Network, private EventHandler {
 public:
  Adversary(Cluster& cluster, const AdversaryOptions& options)
      : cluster_(cluster),
        options_(options),
        random_(options.seed),
        fates_(base::mix64(options.seed, 1)) {}

  void post(Flight& flight) override {
    plan(flight);
    Batch& batch = *flight.batch;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const NodeId node = batch[i].target.node();
      if (is_broken(flight, node)) continue;
      const ClientState& client = *flight.client;
      if (client.shut_out[node]) {
        break_off(flight, node, ErrorCode::kFenced);
      } else if (!cluster_.reachable(client, node)) {
        break_off(flight, node, ErrorCode::kUnavailable);
      } else if (lost_its_memory(client, node)) {
        break_off(flight, node, ErrorCode::kDataLost);
      }
    }
    schedule(flight);
  }

  void abandon(Flight& flight) override {
    std::vector<NodeId> nodes;
    for (std::size_t i = flight.next_step; i < flight.steps.size(); ++i) {
      nodes.push_back(node_of(flight, flight.steps[i]));
    }
    std::ranges::sort(nodes);
    nodes.erase(std::ranges::unique(nodes).begin(), nodes.end());
    for (const NodeId node : nodes) leave_ghost(flight, node);
    store_pending([&](const Pending& each) { return each.flight == flight.serial; });
  }

  void shut_out(ClientState& client, NodeId node) override {
    store_pending([&](const Pending& each) { return each.client == &client && each.node == node; });
    ghosts_.remove_if(
        [&](const Ghost& ghost) { return ghost.client == &client && ghost.node == node; });
    break_flights(client, node, ErrorCode::kFenced);
  }

  // What was lost half done ends now.
  void fence(ClientState& client) override {
    for (Flight* flight = client.flights; flight != nullptr; flight = flight->next) {
      if (!std::exchange(flight->lost, false)) continue;
      for (const Verb& verb : flight->batch->verbs()) {
        const NodeId node = verb.target.node();
        if (!is_broken(*flight, node)) break_off(*flight, node, ErrorCode::kFenced);
      }
      schedule(*flight);
    }
  }

  void break_link(ClientState& client, NodeId node) override {
    break_flights(client, node, ErrorCode::kUnavailable);
  }

  Time to_fence() override { return 1 + draw(options_.longest_fence >> (2 * fates_.below(4))); }
  Time to_give_up() override { return 1 + draw(options_.fence_timeout); }
  Time draw(Time most) override { return fates_.below(most + 1); }

  bool haunts(const ClientState& client) const override {
    return std::ranges::find(ghosts_, &client, &Ghost::client) != ghosts_.end() ||
           std::ranges::find(pending_, &client, &Pending::client) != pending_.end();
  }

  void drop(ClientState& client) override {
    for (Flight* flight = client.flights; flight != nullptr; flight = flight->next) {
      flight->steps.clear();
      flight->next_step = 0;
      flight->lost = true;
    }
  }

 private:
  bool chance(unsigned percent) { return random_.below(100) < percent; }
  Time up_to(Time most) { return random_.below(most + 1); }
  Time now() const { return cluster_.engine.time(); }
  Time one_way() { return options_.latency + up_to(options_.latency); }

  bool lost_its_memory(const ClientState& client, NodeId node) const {
    return client.incarnations[node] != cluster_.nodes[node].incarnation;
  }
  static bool is_broken(const Flight& flight, NodeId node) {
    return std::ranges::find(flight.broken, node) != flight.broken.end();
  }
  static NodeId node_of(const Flight& flight, const Step& step) {
    return (*flight.batch)[step.verb].target.node();
  }

  // ---- Drawing the steps of a batch

  void plan(Flight& flight) {
    const Batch& batch = *flight.batch;
    const Time begin = now() + one_way();
    barriers_.clear();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Verb& verb = batch[i];
      Time& barrier = barrier_of(verb.target.node(), begin);
      const Time last = plan_verb(flight, static_cast<std::uint32_t>(i), verb, barrier);
      if (changes_memory(verb.kind)) barrier = last;
    }
    // A verb that comes at the moment of its barrier comes behind it.
    std::ranges::sort(flight.steps, {},
                      [](const Step& step) { return std::tuple(step.at, step.verb, step.begin); });
  }

  Time& barrier_of(NodeId node, Time begin) {
    for (auto& [id, barrier] : barriers_) {
      if (id == node) return barrier;
    }
    Time arrives = begin + up_to(options_.latency);
    if (chance(options_.delay)) {  // on its way to this node, whatever becomes of the others
      arrives += up_to(options_.longest_delay);
      ++cluster_.coverage.delayed;
    }
    return barriers_.emplace_back(node, arrives).second;
  }

  // When its last step is.
  Time plan_verb(Flight& flight, std::uint32_t number, const Verb& verb, Time from) {
    const std::uint32_t length = is_atomic(verb.kind) ? 0 : verb.length;
    const auto first_line = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(length, kLineBytes - verb.target.offset() % kLineBytes));
    if (first_line == length || !chance(options_.tear)) {
      const Time at = from + up_to(options_.latency / 4);
      flight.steps.push_back({at, number, 0, length});
      return at;
    }
    ++cluster_.coverage.torn;
    // Some take many times longer than others, so that much happens meanwhile.
    const Time spread = options_.spread >> random_.below(7);
    Time last = from;
    for (std::uint32_t begin = 0, end = first_line; begin < length;) {
      const Time at = from + up_to(spread);
      flight.steps.push_back({at, number, begin, end});
      last = std::max(last, at);
      begin = end;
      end = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, end + kLineBytes));
    }
    return last;
  }

  // ---- Executing them

  void schedule(Flight& flight) {
    if (flight.lost) return;
    Time at = flight.ends;
    if (flight.next_step < flight.steps.size()) at = flight.steps[flight.next_step].at;
    at = std::max(at, now());
    cluster_.engine.at(at, {.handler = this, .subject = &flight, .serial = flight.serial});
    flight.scheduled = at;
  }

  void happen(const Event& event) override {
    if (event.detail != 0) return haunt(event.detail);
    Flight& flight = *static_cast<Flight*>(event.subject);
    // Events of earlier plans of this flight are told by their time.
    if (flight.serial != event.serial || flight.scheduled != now() || flight.lost) return;
    if (flight.next_step < flight.steps.size()) {
      const Step step = flight.steps[flight.next_step];
      if (step.at <= now()) {
        ++flight.next_step;
        take(flight, step);
        if (flight.serial != event.serial) return;
        if (flight.next_step == flight.steps.size()) {
          flight.ends = std::max(flight.ends, now() + one_way());
        }
      }
      schedule(flight);
    } else if (now() < flight.ends) {
      schedule(flight);
    } else {
      complete(flight);
    }
  }

  void take(Flight& flight, const Step& step) {
    Verb& verb = (*flight.batch)[step.verb];
    const NodeId node = verb.target.node();
    expire_ghosts(*flight.client, node, flight.serial);
    // Verbs of a batch wait for an atomic before them.
    store_pending([&](const Pending& each) { return each.flight == flight.serial; });
    if (is_atomic(verb.kind)) {
      execute_atomic(*flight.client, flight.serial, verb);
    } else {
      execute(cluster_.nodes[node], verb, step.begin, step.end);
    }
    verb.outcome = Outcome::kIndeterminate;  // until the client has heard of it
    if (!flight.client->triggers.empty()) pull_triggers(*flight.client, verb);
  }

  // ---- Atomics as load and store

  void execute_atomic(const ClientState& client, std::uint64_t flight, Verb& verb) {
    const NodeId node = verb.target.node();
    MemoryNode& memory = cluster_.nodes[node];
    if (options_.atomic_gap == 0) return execute(memory, verb);
    const std::uint64_t offset = verb.target.offset();
    store_pending([&](const Pending& each) { return each.node == node && each.offset == offset; });
    Pending pending{.serial = ++pendings_,
                    .flight = flight,
                    .client = &client,
                    .node = node,
                    .offset = offset,
                    .incarnation = memory.incarnation};
    std::memcpy(&pending.before, memory.at(offset), sizeof(pending.before));
    execute(memory, verb);
    std::memcpy(&pending.after, memory.at(offset), sizeof(pending.after));
    if (pending.after == pending.before) return;
    std::memcpy(memory.at(offset), &pending.before, sizeof(pending.before));
    pending_.push_back(pending);
    ++cluster_.coverage.split_atomics;
    cluster_.engine.at(now() + draw(options_.atomic_gap), [this, serial = pending.serial] {
      store_pending([serial](const Pending& each) { return each.serial == serial; });
    });
  }

  template <class Chosen>
  void store_pending(Chosen chosen) {
    if (pending_.empty()) return;
    std::erase_if(pending_, [&](const Pending& each) {
      if (!chosen(each)) return false;
      MemoryNode& memory = cluster_.nodes[each.node];
      if (memory.incarnation != each.incarnation) return true;
      std::uint64_t found = 0;
      std::memcpy(&found, memory.at(each.offset), sizeof(found));
      if (found != each.before) ++cluster_.coverage.lost_to_atomics;
      std::memcpy(memory.at(each.offset), &each.after, sizeof(each.after));
      return true;
    });
  }

  static void pull_triggers(ClientState& client, const Verb& verb) {
    Counted most = Counted::kAll;
    if (verb.kind == VerbKind::kWrite) {
      most = verb.length > kLineBytes ? Counted::kLongWrites : Counted::kWrites;
    }
    std::vector<std::function<void()>> due;
    for (Trigger& trigger : client.triggers) {
      if (trigger.counted > most || --trigger.steps_left > 0) continue;
      due.push_back(std::move(trigger.action));
    }
    std::erase_if(client.triggers, [](const Trigger& trigger) { return trigger.steps_left == 0; });
    for (const auto& action : due) action();
  }

  void complete(Flight& flight) {
    Batch& batch = *flight.batch;
    store_pending([&](const Pending& each) { return each.flight == flight.serial; });
    bool atomic_unknown = false;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Verb& verb = batch[i];
      if (!is_broken(flight, verb.target.node())) {
        verb.outcome = Outcome::kExecuted;
        continue;
      }
      if (verb.outcome == Outcome::kPending) {
        verb.outcome = chance(50) ? Outcome::kNotExecuted : Outcome::kIndeterminate;
      }
      if (verb.kind == VerbKind::kRead)
        std::memset(verb.local, static_cast<int>(kScribble), verb.length);
      if (is_atomic(verb.kind)) {
        verb.previous = random_.next();
        if (verb.outcome == Outcome::kIndeterminate) {
          atomic_unknown = true;
          ++cluster_.coverage.unknown_atomics;
        }
      }
    }
    if (flight.error && flight.error->code() == ErrorCode::kUnavailable && atomic_unknown) {
      flight.error.emplace(ErrorCode::kIndeterminate, "the link broke; it may have happened");
    }
    cluster_.land(flight);
  }

  // ---- Going wrong

  void break_flights(ClientState& client, NodeId node, ErrorCode why) {
    for (Flight* flight = client.flights; flight != nullptr; flight = flight->next) {
      const Batch& batch = *flight->batch;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        if (batch[i].target.node() != node || is_broken(*flight, node)) continue;
        break_off(*flight, node, why);
        schedule(*flight);
        break;
      }
    }
  }

  static std::string_view text_of(ErrorCode why) {
    if (why == ErrorCode::kFenced) return "this client has been shut out";
    if (why == ErrorCode::kDataLost) return "the memory node lost its memory";
    return "the memory node cannot be reached";
  }

  void break_off(Flight& flight, NodeId node, ErrorCode why) {
    flight.broken.push_back(node);
    store_pending(
        [&](const Pending& each) { return each.flight == flight.serial && each.node == node; });
    if (why == ErrorCode::kFenced) {
      flight.ends = std::max(flight.ends, now() + one_way());
    } else {
      flight.ends = std::max(flight.ends, now() + 1 + up_to(kLongestTimeout));
      leave_ghost(flight, node);
    }
    // To be shut out is for good: of several errors, that one.
    if (!flight.error || flight.error->code() != ErrorCode::kFenced) {
      flight.error.emplace(why, std::string(text_of(why)));
    }
    const auto rest = flight.steps.begin() + static_cast<std::ptrdiff_t>(flight.next_step);
    flight.steps.erase(
        std::remove_if(rest, flight.steps.end(),
                       [&](const Step& step) { return node_of(flight, step) == node; }),
        flight.steps.end());
  }

  // What is still to be executed at the node lives on without its batch, or does not.
  void leave_ghost(Flight& flight, NodeId node) {
    if (!cluster_.nodes[node].up || lost_its_memory(*flight.client, node) || chance(50)) return;
    Ghost ghost{.client = flight.client,
                .node = node,
                .serial = ++ghosts_seen_,
                .flight = flight.serial,
                .left = cluster_.last_serial(),
                .lasting = fates_.below(2) == 0,
                .note = cluster_.trace != nullptr ? cluster_.trace->doubted(flight.client->id) : 0};
    for (std::size_t i = flight.next_step; i < flight.steps.size(); ++i) {
      const Step& step = flight.steps[i];
      Verb& verb = (*flight.batch)[step.verb];
      if (verb.target.node() != node || !changes_memory(verb.kind)) continue;
      verb.outcome = Outcome::kIndeterminate;
      Ghost::Remains remains{.verb = verb, .begin = step.begin, .end = step.end, .bytes = {}};
      if (verb.kind == VerbKind::kWrite) {
        remains.bytes.assign(verb.local + step.begin, verb.local + step.end);
      }
      ghost.steps.push_back(std::move(remains));
    }
    if (ghost.steps.empty()) return;
    ghosts_.push_back(std::move(ghost));
    haunt_later(ghosts_.back());
  }

  void haunt_later(const Ghost& ghost) {
    const Time later = ghost.lasting ? draw(options_.longest_ghost) : up_to(options_.longest_delay);
    cluster_.engine.at(now() + 1 + later, {.handler = this, .detail = ghost.serial});
  }

  // One more step of a ghost.
  void haunt(std::uint64_t serial) {
    const auto ghost = std::ranges::find(ghosts_, serial, &Ghost::serial);
    if (ghost == ghosts_.end()) return;
    if (!cluster_.nodes[ghost->node].up || lost_its_memory(*ghost->client, ghost->node)) {
      ghosts_.erase(ghost);
      return;
    }
    expire_ghosts(*ghost->client, ghost->node, ghost->flight);
    take_ghostly(*ghost);
    if (ghost->next == ghost->steps.size()) {
      ghosts_.erase(ghost);
    } else {
      haunt_later(*ghost);
    }
  }

  void take_ghostly(Ghost& ghost) {
    Ghost::Remains& step = ghost.steps[ghost.next++];
    MemoryNode& node = cluster_.nodes[ghost.node];
    ++cluster_.coverage.late;
    const bool atomic = is_atomic(step.verb.kind);
    LateVerb late{.client = ghost.client->id,
                  .verb = &step.verb,
                  .at = step.verb.target + step.begin,
                  .length = atomic ? step.verb.length : step.end - step.begin,
                  .note = ghost.note};
    std::byte* const place = node.at(late.at.offset());
    const bool word = late.length == sizeof(late.before);
    if (!atomic) {
      if (word) std::memcpy(&late.before, place, sizeof(late.before));
      std::memcpy(place, step.bytes.data(), step.bytes.size());
    } else {
      // At one moment: a gap would outlive the verb that ends it.
      store_pending([&](const Pending& each) {
        return each.node == ghost.node && each.offset == step.verb.target.offset();
      });
      execute(node, step.verb);
      late.before = step.verb.previous;
    }
    if (word) std::memcpy(&late.after, place, sizeof(late.after));
    if (cluster_.trace != nullptr) cluster_.trace->late(late);
  }

  // A verb of that flight is about to be executed at the node: what its client had left there when
  // it was posted is over, as far as it may have got. The oldest first.
  void expire_ghosts(const ClientState& client, NodeId node, std::uint64_t flight) {
    for (auto ghost = ghosts_.begin(); ghost != ghosts_.end();) {
      if (ghost->client != &client || ghost->node != node || ghost->left >= flight) {
        ++ghost;
        continue;
      }
      const bool alive = cluster_.nodes[node].up && !lost_its_memory(client, node);
      const std::size_t more = random_.below(ghost->steps.size() - ghost->next + 1);
      for (std::size_t i = 0; alive && i < more; ++i) take_ghostly(*ghost);
      ghost = ghosts_.erase(ghost);
    }
  }

  Cluster& cluster_;
  const AdversaryOptions options_;
  base::Random random_;
  std::vector<std::pair<NodeId, Time>> barriers_;
  base::Random fates_;
  std::list<Ghost> ghosts_;
  std::vector<Pending> pending_;
  std::uint64_t pendings_ = 0;
  std::uint64_t ghosts_seen_ = 0;
};

}  // namespace

std::unique_ptr<Network> make_adversary(Cluster& cluster, const AdversaryOptions& options) {
  return std::make_unique<Adversary>(cluster, options);
}

}  // namespace pando::fabric::sim
