#include "fabric/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
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
  verb.previous = load_word(remote);
  const std::uint64_t after = verb.word_after(verb.previous);
  std::memcpy(remote, &after, sizeof(after));
}

// ---- Cluster ----

Cluster::Cluster(const SimOptions& options, const Preset& of) : preset(of), grows(options.grows) {
  constexpr std::uint64_t kPage = 4096;
  caps = {.line_atomic = true,
          .masked_cas = options.native_masked_cas,
          .completes_inline = false,
          .inline_limit = of.inline_limit,
          .onchip_bytes = options.onchip_bytes.value_or(of.onchip_bytes)};
  const std::uint64_t bytes = options.bytes / options.nodes / kPage * kPage;
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
  client.shut_out.assign(nodes.size(), false);
  client.known_nodes = nodes.size();
  for (const MemoryNode& node : nodes) client.incarnations.push_back(node.incarnation);
  return client;
}

ClientState* Cluster::find(ClientId client) {
  return client >= 1 && client <= clients.size() ? clients[client - 1].get() : nullptr;
}

void Cluster::shut_out(ClientState& client, NodeId node) {
  if (client.shut_out[node]) return;
  client.shut_out[node] = true;
  network->shut_out(client, node);
}

void Cluster::fence(ClientState& client) {
  if (client.fenced) return;
  client.fenced = true;
  network->fence(client);
}

void Cluster::grow(Time noticed_within) {
  assert(grows);
  nodes.emplace_back(sizes.front(), caps.onchip_bytes, false);
  sizes.push_back(sizes.front());
  for (const auto& client : clients) {
    client->cut_until.push_back(0);
    client->shut_out.push_back(false);
    client->incarnations.push_back(0);
    engine.at(
        engine.time() + network->draw(noticed_within),
        [&known = client->known_nodes, count = nodes.size()] { known = std::max(known, count); });
  }
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
    flight.endpoint->report_in_doubt(batch);
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
        if (changes_memory(verb.kind)) report_in_doubt(verb.target.node());
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
  // Nodes hear of it at different moments, in any order, each by itself; what is left where one
  // could not be told is a client that is shut out of the others.
  std::vector<std::pair<Time, NodeId>> moments;
  moments.reserve(client_.known_nodes);
  for (std::size_t node = 0; node < client_.known_nodes; ++node) {
    moments.emplace_back(cluster_->engine.time() + cluster_->network->to_fence(),
                         static_cast<NodeId>(node));
  }
  std::ranges::sort(moments);
  Status all;
  Time ends = 0;
  for (const auto& [moment, node] : moments) {
    co_await wait_until(moment);
    if (!cluster_->reachable(client_, node)) {
      ++cluster_->coverage.unfenced;
      ends = cluster_->engine.time() + cluster_->network->to_give_up();
      all = fail(ErrorCode::kUnavailable, fmt::format("memory node {} cannot be told", node));
    } else if (client_.shut_out[node]) {
      co_return fail(ErrorCode::kFenced, "this client has been shut out");
    } else {
      cluster_->shut_out(*target, node);
    }
  }
  if (all && !target->fenced) {
    ++cluster_->coverage.fenced;
    cluster_->fence(*target);
  }
  co_await wait_until(ends);
  co_return all;
}

Task<void> SimEndpoint::wait_until(Time when) {
  const Time now = cluster_->engine.time();
  if (cluster_->instant || when <= now) co_return;
  co_await worker().sleep_for(
      task::Duration(static_cast<std::int64_t>((when - now + kNanosecond - 1) / kNanosecond)));
}

bool SimEndpoint::post(Batch& batch) {
  if (cluster_->instant) {
    if (std::ranges::any_of(batch.verbs(), [&](const Verb& verb) {
          return client_.shut_out[verb.target.node()];
        })) {
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
