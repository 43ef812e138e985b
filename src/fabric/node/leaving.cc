#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/mutants.h"
#include "fabric/node/loop.h"

namespace pando::fabric::node {

bool Server::Loop::fence(Connection& connection, const wire::Frame& frame,
                         std::span<const std::byte> body) {
  const auto client = wire::parse<std::uint64_t>(body);
  if (!client) return broken(connection, Error(ErrorCode::kCorrupt, "wire: no fence"));
  Status done;
  if (*client > std::numeric_limits<ClientId>::max()) {
    done = fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no client {}: ids have 32 bits", *client));
  } else {
    done = fence(static_cast<ClientId>(*client));
  }
  if (!connection.is_in()) return false;  // it has shut itself out
  wire::append_done(connection.outbox.bytes(), done, frame.tag);
  return true;
}

Status Server::Loop::fence(ClientId client) {
  // Some may have ended without anyone having looked.
  for (auto& [descriptor, other] : connections_) {
    if (other->client == client && other->redo_slot != kMaxRedoSlots && other->socket.ended())
      shut(*other);
  }
  look_at_redo_slots();
  for (std::size_t i = 0; i < kMaxRedoSlots; ++i) {
    const RedoSlot& slot = memory_.redo_slot(i);
    if (slot.client != client || client == 0) continue;
    return fail(ErrorCode::kBusy, fmt::format("client {} still maps the memory, in process {}",
                                              client, slot.process));
  }
  const bool admitted = admission_.admitted(client);
  // Whether it is let in now or not: it may be on its way.
  if (Status fenced = admission_.fence(client); !fenced) return fenced;
  for (auto& [descriptor, other] : connections_) {
    if (base::mutated(base::Mutant::kEarlyFence)) break;
    if (other->client == client && other->is_in()) shut_out(*other);
  }
  generations_.erase(client);
  alone_.erase(client);
  if (!admitted) return {};
  ++counts_.fenced;
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  log("fenced", fmt::format("client {}", client));
  return {};
}

bool Server::Loop::stay(Connection& connection, const wire::Frame& frame,
                        std::span<const std::byte> body) {
  const auto stays = wire::parse<std::uint64_t>(body);
  if (!stays || *stays > 1) {
    return broken(connection, Error(ErrorCode::kCorrupt, "wire: no word of staying"));
  }
  const Status done = admission_.stay(connection.client, *stays == 1);
  wire::append_done(connection.outbox.bytes(), done, frame.tag);
  return true;
}

bool Server::Loop::leave(Connection& connection, const wire::Frame& frame) {
  const Status left = leave(connection);
  if (left) {
    // Nothing comes over this one either, but questions.
    connection.purpose = wire::Purpose::kControl;
    revoke_rdma(connection);
  }
  wire::append_done(connection.outbox.bytes(), left, frame.tag);
  return true;
}

// When this has succeeded, nothing of the client takes effect here any more.
Status Server::Loop::leave(const Connection& connection) {
  const ClientId client = connection.client;
  if (client == 0) return fail(ErrorCode::kInvalidArgument, "client 0 is nobody");
  for (auto& [descriptor, other] : connections_) {
    if (other->client != client || other.get() == &connection || !other->is_in()) continue;
    if (base::mutated(base::Mutant::kLeaveClosesNothing)) break;
    if (other->redo_slot != kMaxRedoSlots && !other->socket.ended()) {
      return fail(ErrorCode::kBusy, fmt::format("client {} still maps the memory", client));
    }
    shut(*other);
  }
  admission_.leave(client);
  generations_.erase(client);
  alone_.erase(client);
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  return {};
}

// The last connection of a client that does not stay has ended.
void Server::Loop::remember_alone(ClientId client) {
  if (client == 0 || !admission_.admitted(client) || admission_.stays(client)) return;
  const bool connected = std::ranges::any_of(connections_, [client](const auto& each) {
    return each.second->client == client && each.second->is_in() && !each.second->closed;
  });
  if (!connected) alone_.try_emplace(client, now());
}

void Server::Loop::forget_alone() {
  const auto before = now() - options_.remembered;
  for (auto each = alone_.begin(); each != alone_.end();) {
    if (each->second > before) {
      ++each;
      continue;
    }
    if (!admission_.stays(each->first) && !base::mutated(base::Mutant::kNeverForgotten)) {
      ++counts_.forgotten;
      admission_.leave(each->first);
      generations_.erase(each->first);
    }
    each = alone_.erase(each);
  }
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
}

std::vector<std::string> Server::Loop::audit() const {
  std::vector<std::string> problems;
  for (const auto& [descriptor, each] : connections_) {
    // Who has left, or is nobody, may still ask.
    const bool works = each->is_in() && !each->closed && each->purpose != wire::Purpose::kControl;
    if (!works) continue;
    if (!admission_.admitted(each->client)) {
      problems.push_back(
          fmt::format("client {} is not let in, and its verbs are executed", each->client));
    }
    const auto newest = generations_.find(each->client);
    if (each->generation != 0 && newest != generations_.end() &&
        each->generation < newest->second) {
      problems.push_back(fmt::format("client {} has connections of generations {} and {}",
                                     each->client, each->generation, newest->second));
    }
  }
  return problems;
}

}  // namespace pando::fabric::node
