// The model: what a batch costs, by queues at the cards it passes.
//
// A verb's way: the client's card starts it (verbs) and fetches what it needs for that (fetch), its
// request leaves (out), travels, arrives at the memory node's card (in), is served (verbs), moves
// data to or from memory (dma), and its answer goes back (out, then in at the client). Every card
// has one of each queue. What is a delay and not a limit (travelling, the latency of memory behind
// the bus, an atomic that waits for its word) is added to the verb's own time and holds nobody else
// up.
//
// Verbs are executed when they arrive, in the order of arrival, which is an order that the contract
// allows. Two events a memory node and batch: arrival there, and return.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "fabric/sim/cluster.h"

namespace pando::fabric::sim {
namespace {

// Bytes that an access moves between card and memory: whole lines.
std::uint64_t lines_bytes(const Verb& verb) {
  const std::uint64_t begin = verb.target.offset() / kLineBytes * kLineBytes;
  const std::uint64_t end = verb.target.offset() + verb.length;
  return (end - begin + kLineBytes - 1) / kLineBytes * kLineBytes;
}

class Model final : public Network, private EventHandler {
 public:
  explicit Model(Cluster& cluster)
      : cluster_(cluster),
        preset_(cluster.preset),
        slot_(preset_.verb_slot()),
        propagation_(preset_.propagation()) {}

  void post(Flight& flight) override {
    if (flight.client->fenced) return refuse(flight);
    const Batch& batch = *flight.batch;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const NodeId node = batch[i].target.node();
      if (is_first_of(batch, i)) depart(flight, node);
    }
  }

  void abandon(Flight&) override {}  // what has not arrived is dropped with it

  // The model is of a network without faults.
  void break_link(ClientState&, NodeId) override {}
  void drop(ClientState&) override {}

  // Fences take no time here: they are at all nodes at once.
  void shut_out(ClientState&, NodeId) override {}

  void fence(ClientState& client) override {
    for (Flight* flight = client.flights; flight != nullptr; flight = flight->next) {
      // Another serial, so that events that are under way find nothing.
      flight->serial = ++refusals_ | (std::uint64_t{1} << 63);
      refuse(*flight);
    }
  }

 private:
  // What an event's detail is: the place in arrivals_ of what arrives, or this for a return.
  static constexpr std::uint64_t kReturn = ~std::uint64_t{0};

  struct Arrival {
    NodeId node = 0;
    Time last = 0;  // when the last of its verbs arrives
  };

  static bool is_first_of(const Batch& batch, std::size_t i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (batch[j].target.node() == batch[i].target.node()) return false;
    }
    return true;
  }

  std::size_t new_arrival(NodeId node, Time last) {
    if (free_arrivals_.empty()) {
      free_arrivals_.push_back(arrivals_.size());
      arrivals_.emplace_back();
    }
    const std::size_t place = free_arrivals_.back();
    free_arrivals_.pop_back();
    arrivals_[place] = {.node = node, .last = last};
    return place;
  }

  // The requests to one node leave the client's card.
  void depart(Flight& flight, NodeId node) {
    Nic& nic = flight.client->nic;
    const Batch& batch = *flight.batch;
    const Time now = cluster_.engine.time();
    Time first = 0;
    Time last = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Verb& verb = batch[i];
      if (verb.target.node() != node) continue;
      ++nic.served;
      // A card fetches work requests before it starts them. Here all that a verb has fetched is one
      // piece, behind its start: queues serve in the order of calls, and a work request that had to
      // wait for the data of a verb that has yet to start would hold up the card for nothing.
      Time at = nic.verbs.take(now, slot_);
      at = nic.fetch.take(at, preset_.to_start(verb));
      const Time fetch = preset_.fetches_data(verb) ? preset_.dma_latency : 0;
      const Time sent = nic.out.take(at, preset_.on_wire(preset_.request_bytes(verb)));
      last = std::max(last, sent + fetch + propagation_);  // a queue pair keeps the order
      if (first == 0) first = last;
    }
    ++flight.left;
    cluster_.engine.at(first, {.handler = this,
                               .subject = &flight,
                               .serial = flight.serial,
                               .detail = new_arrival(node, last)});
  }

  void happen(const Event& event) override {
    Flight& flight = *static_cast<Flight*>(event.subject);
    const bool stale = flight.serial != event.serial;
    if (event.detail == kReturn) {
      if (!stale) come_back(flight);
      return;
    }
    const Arrival arrival = arrivals_[event.detail];
    free_arrivals_.push_back(event.detail);
    if (!stale) arrive(flight, arrival);
  }

  // The requests reach the memory node, and are executed.
  void arrive(Flight& flight, const Arrival& arrival) {
    Batch& batch = *flight.batch;
    MemoryNode& node = cluster_.nodes[arrival.node];
    const Time now = cluster_.engine.time();
    std::size_t count = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) count += batch[i].target.node() == arrival.node;
    const Time gap = count > 1 ? (arrival.last - now) / (count - 1) : 0;
    Time at = now;
    Time delay = 0;  // behind an atomic that had to wait for its word
    Time answered = 0;
    Time answers = 0;
    Time last_answer = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Verb& verb = batch[i];
      if (verb.target.node() != arrival.node) continue;
      const Time wire = preset_.on_wire(preset_.response_bytes(verb));
      const Time sent = serve(node, verb, at, delay, wire);
      execute(node, verb);
      verb.outcome = Outcome::kExecuted;
      answered = std::max(answered, sent);
      answers += wire;
      last_answer = wire;
      at += gap;
    }
    flight.ends = std::max(flight.ends, answered + propagation_ + last_answer);
    // Of several nodes' answers the client's link takes all.
    flight.wire += answers;
    flight.longest_wire = std::max(flight.longest_wire, answers);
    if (--flight.left > 0) return;
    cluster_.engine.at(
        flight.ends,
        {.handler = this, .subject = &flight, .serial = flight.serial, .detail = kReturn});
  }

  // When the answer has left the memory node's card.
  Time serve(MemoryNode& node, const Verb& verb, Time at, Time& delay, Time answer) {
    Nic& nic = node.nic;
    ++nic.served;
    at = nic.in.take(at, preset_.on_wire(preset_.request_bytes(verb)));
    at = nic.verbs.take(at, slot_);
    switch (verb.kind) {
      case VerbKind::kRead: {
        Time latency = 0;
        if (!verb.target.on_chip()) {
          at = nic.fetch.take(at, preset_.on_bus(lines_bytes(verb)));
          latency = preset_.dma_latency;
        }
        return nic.out.take(at, answer) + latency + delay;
      }
      case VerbKind::kWrite:
        // Acknowledged when it is on its way to memory: nothing can overtake it there.
        if (!verb.target.on_chip()) nic.store.take(at, preset_.on_bus(lines_bytes(verb)));
        return nic.out.take(at, answer) + delay;
      default:
        break;
    }
    if (!verb.target.on_chip()) {
      nic.fetch.take(at, preset_.on_bus(kLineBytes));
      nic.store.take(at, preset_.on_bus(kLineBytes));
    }
    const Time ended = hold_word(verb, at + delay);
    delay = ended - at;
    return nic.out.take(at, answer) + delay;
  }

  // An atomic has its word to itself; so do, now and then, two words with one hash.
  Time hold_word(const Verb& verb, Time from) {
    Time& free_at = words_[(verb.target.raw() >> 3) * 0x9e3779b97f4a7c15U >> (64 - kWordBits)];
    free_at = std::max(from, free_at) +
              (verb.target.on_chip() ? preset_.onchip_atomic : preset_.host_atomic);
    return free_at;
  }

  // The answers have come in at the client's card, if its link was free for them.
  void come_back(Flight& flight) {
    const Time now = cluster_.engine.time();
    if (flight.wire > 0) {
      const Time wire = std::exchange(flight.wire, 0);
      // The last answers have been coming in for as long as one node's take.
      const Time begin = now > flight.longest_wire ? now - flight.longest_wire : 0;
      const Time in = flight.client->nic.in.take(begin, wire);
      if (in > now) {
        cluster_.engine.at(
            in, {.handler = this, .subject = &flight, .serial = flight.serial, .detail = kReturn});
        return;
      }
    }
    cluster_.land(flight);
  }

  void refuse(Flight& flight) {
    flight.error.emplace(ErrorCode::kFenced, "this client has been shut out");
    for (std::size_t i = 0; i < flight.batch->size(); ++i) {
      (*flight.batch)[i].outcome = Outcome::kIndeterminate;
    }
    flight.wire = 0;
    cluster_.engine.at(
        cluster_.engine.time() + propagation_,
        {.handler = this, .subject = &flight, .serial = flight.serial, .detail = kReturn});
  }

  static constexpr unsigned kWordBits = 16;
  Cluster& cluster_;
  const Preset& preset_;
  const Time slot_;
  const Time propagation_;
  std::vector<Arrival> arrivals_;
  std::vector<std::size_t> free_arrivals_;
  std::vector<Time> words_ = std::vector<Time>(std::size_t{1} << kWordBits);  // by hash: free at
  std::uint64_t refusals_ = 0;
};

}  // namespace

std::unique_ptr<Network> make_model(Cluster& cluster) { return std::make_unique<Model>(cluster); }

}  // namespace pando::fabric::sim
