#include "fabric/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace pando::fabric::sim {
namespace {

// Of a verb. A READ of 1 KiB gains nothing before most of its lines are asked for.
constexpr std::uint32_t kPrefetched = 2048;

std::uint64_t load_word(const std::byte* from) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

}  // namespace

void execute(MemoryNode& node, Verb& verb, std::uint32_t begin, std::uint32_t end) {
  std::byte* const remote = node.at(verb.target.offset());
  switch (verb.kind) {
    case VerbKind::kRead:
      std::memcpy(verb.local + begin, remote + begin, end - begin);
      return;
    case VerbKind::kWrite:
      std::memcpy(remote + begin, verb.local + begin, end - begin);
      return;
    default:
      break;
  }
  const std::uint64_t before = load_word(remote);
  std::uint64_t after = before;
  if (verb.kind == VerbKind::kFetchAdd) {
    after = before + verb.swap;
  } else if (verb.kind == VerbKind::kCompareSwap) {
    if (before == verb.compare) after = verb.swap;
  } else if (verb.emulated) {
    if (before == verb.guess) after = verb.swapped(verb.guess);
  } else if ((before & verb.compare_mask) == (verb.compare & verb.compare_mask)) {
    after = verb.swapped(before);
  }
  verb.previous = before;
  std::memcpy(remote, &after, sizeof(after));
}

// ---- Cluster ----

Cluster::Cluster(const SimOptions& options, const Preset& of) : preset(of) {
  constexpr std::uint64_t kPage = 4096;
  caps = {.line_atomic = true,
          .write_in_order = false,
          .masked_cas = options.native_masked_cas,
          .completes_inline = false,
          .inline_limit = of.inline_limit,
          .onchip_bytes = options.onchip_bytes.value_or(of.onchip_bytes)};
  const std::uint64_t bytes = options.bytes / options.nodes / kPage * kPage;
  nodes.reserve(options.nodes);
  for (std::uint32_t i = 0; i < options.nodes; ++i) {
    nodes.emplace_back(bytes, caps.onchip_bytes, options.huge_pages);
  }
  sizes.assign(options.nodes, bytes);
}

Cluster::~Cluster() = default;

ClientState& Cluster::join() {
  clients.push_back(std::make_unique<ClientState>());
  ClientState& client = *clients.back();
  client.id = static_cast<ClientId>(clients.size());
  client.cut_until.assign(nodes.size(), 0);
  for (const MemoryNode& node : nodes) client.incarnations.push_back(node.incarnation);
  return client;
}

ClientState* Cluster::find(ClientId client) {
  return client >= 1 && client <= clients.size() ? clients[client - 1].get() : nullptr;
}

Flight& Cluster::take_off(SimEndpoint& endpoint, ClientState& client, Batch& batch) {
  if (free_flights_.empty()) {
    all_flights_.push_back(std::make_unique<Flight>());
    free_flights_.push_back(all_flights_.back().get());
  }
  Flight& flight = *free_flights_.back();
  free_flights_.pop_back();
  flight.endpoint = &endpoint;
  flight.client = &client;
  flight.batch = &batch;
  flight.serial = ++flown_;
  flight.posted = flight.ends = engine.time();
  flight.left = 0;
  flight.wire = 0;
  flight.longest_wire = 0;
  flight.previous = nullptr;
  flight.next = client.flights;
  if (flight.next != nullptr) flight.next->previous = &flight;
  client.flights = &flight;
  ++endpoint.in_flight;
  ++coverage.batches;
  coverage.verbs += batch.size();
  return flight;
}

void Cluster::land(Flight& flight) {
  Batch& batch = *flight.batch;
  if (flight.error) {
    ++coverage.failed;
    flight.endpoint->tell_unsettled(batch);
    batch.complete(std::move(*flight.error));
  } else {
    batch.complete();
  }
  if (trace != nullptr) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      trace->verb({.client = flight.client->id,
                   .worker = flight.endpoint->worker().seat(),
                   .batch = flight.serial,
                   .posted = flight.posted,
                   .ended = engine.time(),
                   .verb = &batch[i],
                   .account = batch.cost()});
    }
  }
  flight.endpoint->worker().schedule(batch.waiter);
  forget(flight);
}

void Cluster::forget(Flight& flight) {
  --flight.endpoint->in_flight;
  (flight.previous != nullptr ? flight.previous->next : flight.client->flights) = flight.next;
  if (flight.next != nullptr) flight.next->previous = flight.previous;
  flight.batch = nullptr;
  flight.serial = 0;
  flight.steps.clear();
  flight.next_step = 0;
  flight.broken.clear();
  flight.error.reset();
  flight.lost = false;
  free_flights_.push_back(&flight);
}

// ---- SimEndpoint ----

SimEndpoint::SimEndpoint(std::shared_ptr<Cluster> cluster, ClientState& client,
                         task::Worker& worker)
    : Endpoint(cluster->caps, worker), cluster_(std::move(cluster)), client_(client) {
  client_.seats.push_back(worker.seat());
}

SimEndpoint::~SimEndpoint() {
  abandon_all();
  // One of them: a worker may have several endpoints.
  client_.seats.erase(std::ranges::find(client_.seats, worker().seat()));
}

void SimEndpoint::abandon_all() {
  for (Flight* flight = client_.flights; flight != nullptr && in_flight > 0;) {
    Flight* const next = flight->next;
    if (flight->endpoint == this) {
      for (const Verb& verb : flight->batch->verbs()) {
        if (verb.kind != VerbKind::kRead) tell_unsettled(verb.target.node());
      }
      cluster_->network->abandon(*flight);
      cluster_->forget(*flight);
    }
    flight = next;
  }
}

Task<Status> SimEndpoint::fence(ClientId id) {
  ClientState* const target = cluster_->find(id);
  if (target == nullptr) {
    co_return fail(ErrorCode::kInvalidArgument,
                   fmt::format("there is no client {}: the last that came in is {}", id,
                               cluster_->clients.size()));
  }
  if (target->fenced) co_return Status{};
  for (std::size_t node = 0; node < cluster_->nodes.size(); ++node) {
    const bool cut = client_.cut_until[node] > cluster_->engine.time();
    if (cluster_->nodes[node].up && !cut) continue;
    co_return fail(ErrorCode::kBusy, fmt::format("memory node {} cannot be told", node));
  }
  target->fenced = true;
  ++cluster_->coverage.fenced;
  cluster_->network->shut_out(*target);
  co_return Status{};
}

bool SimEndpoint::post(Batch& batch) {
  if (cluster_->instant) {
    if (client_.fenced) {
      batch.refuse(Error(ErrorCode::kFenced, "this client has been shut out"));
      return true;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      execute(cluster_->nodes[batch[i].target.node()], batch[i]);
      batch[i].outcome = Outcome::kExecuted;
    }
    batch.complete();
    return true;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Verb& verb = batch[i];
    const bool read = verb.kind == VerbKind::kRead;
    cluster_->prefetches.add(cluster_->nodes[verb.target.node()].at(verb.target.offset()),
                             read ? std::min(verb.length, kPrefetched) : 1);
  }
  cluster_->network->post(cluster_->take_off(*this, client_, batch));
  return false;
}

void Prefetches::issue() {
  const std::span pieces(waiting_.data(), count_);
  for (const Piece& piece : pieces) __builtin_prefetch(piece.from);
  for (const Piece& piece : pieces) {
    for (std::uint32_t at = kLineBytes; at < piece.bytes; at += kLineBytes) {
      __builtin_prefetch(piece.from + at);
    }
  }
  count_ = 0;
  bytes_ = 0;
}

}  // namespace pando::fabric::sim
