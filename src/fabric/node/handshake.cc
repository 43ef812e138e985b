#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/mutants.h"
#include "base/secret.h"
#include "fabric/node/loop.h"

namespace pando::fabric::node {

bool Server::Loop::challenge(Connection& connection, std::span<const std::byte> body) {
  const auto hello = wire::parse<wire::Hello>(body);
  if (!hello || hello->magic != wire::kMagic) {
    return broken(connection, Error(ErrorCode::kCorrupt, "wire: this is no client of ours"));
  }
  if (connection.lacks_tls) {
    return refuse(connection, Error(ErrorCode::kDenied,
                                    "this memory node lets clients in by TLS alone: give tls=on "
                                    "and the cluster's key, as in ?tls=on&key_file=PATH"));
  }
  if (hello->newest < wire::kOldestVersion || hello->oldest > wire::kVersion) {
    return refuse(
        connection,
        Error(ErrorCode::kIncompatible,
              fmt::format("the client speaks versions {} to {} of the protocol, the "
                          "memory node {} to {}: bring the older one up to date",
                          hello->oldest, hello->newest, wire::kOldestVersion, wire::kVersion)));
  }
  connection.hello = *hello;
  connection.challenge.version = std::min(hello->newest, wire::kVersion);
  base::fill_random(connection.challenge.nonce);
  wire::append(connection.outbox.bytes(), Kind::kChallenge, connection.challenge);
  connection.state = Connection::State::kChallenged;
  return true;
}

bool Server::Loop::let_in(Connection& connection, std::span<const std::byte> body) {
  const auto proof = wire::parse<wire::Proof>(body);
  if (!proof) return broken(connection, Error(ErrorCode::kCorrupt, "wire: no proof"));
  const base::Digest expected =
      wire::client_proof(options_.key, connection.hello, connection.challenge, *proof);
  if (!base::same(expected, proof->digest)) {
    return refuse(connection,
                  Error(ErrorCode::kDenied,
                        options_.key.empty()
                            ? "the memory node has no key, the client has one: start the node with "
                              "--key-file, or leave the key out of the URL"
                            : "wrong key: give the cluster's own, as in ?key_file=PATH"));
  }
  const std::string_view cluster(proof->cluster, strnlen(proof->cluster, sizeof(proof->cluster)));
  if (cluster != options_.cluster) {
    return refuse(connection, Error(ErrorCode::kDenied,
                                    fmt::format("this memory node belongs to cluster '{}', not "
                                                "'{}'",
                                                options_.cluster, cluster)));
  }
  if (proof->life != 0 && proof->life != memory_.life()) {
    return refuse(connection, Error(ErrorCode::kDataLost,
                                    "the memory node has lost the memory that the client knew"));
  }
  if (Status admitted = admit(connection, *proof); !admitted) {
    return refuse(connection, admitted.error());
  }
  connection.state = Connection::State::kIn;
  --strangers_;
  connection.region_key = base::random_word();
  wire::Welcome welcome{.region_key = connection.region_key,
                        .life = memory_.life(),
                        .memory_bytes = memory_.bytes(),
                        .onchip_bytes = memory_.onchip_bytes(),
                        .client = connection.client,
                        .redo_slot = static_cast<std::uint32_t>(connection.redo_slot)};
  welcome.digest = wire::node_proof(options_.key, connection.hello, connection.challenge, welcome);
  ++counts_.connections;
  counts_.clients = static_cast<std::uint32_t>(admission_.count());
  log("let in", fmt::format("client {} for {}", connection.client,
                            connection.purpose == wire::Purpose::kVerbs     ? "verbs"
                            : connection.purpose == wire::Purpose::kMapping ? "mapping"
                            : connection.purpose == wire::Purpose::kRdma    ? "rdma"
                                                                            : "control"));
  if (connection.purpose == wire::Purpose::kMapping) {
    wire::Bytes bytes;
    wire::append(bytes, Kind::kWelcome, welcome);
    // The descriptor goes with the first byte: nothing may wait before it.
    if (!connection.outbox.flush(connection.socket) || connection.outbox.waiting() > 0 ||
        !connection.socket.send_with_descriptor(bytes, memory_.descriptor())) {
      shut(connection);
      return false;
    }
    return true;
  }
  wire::append(connection.outbox.bytes(), Kind::kWelcome, welcome);
  return true;
}

Status Server::Loop::check_purpose(const Connection& connection, wire::Purpose purpose) const {
  switch (purpose) {
    case wire::Purpose::kControl:
      return {};
    case wire::Purpose::kRdma:
      if (rdma_ != nullptr) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "this memory node serves no RDMA: start it with --rdma ADDRESS, or open tcp:");
    case wire::Purpose::kVerbs:
      if (rdma_ == nullptr) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "this memory node serves RDMA, and nothing beside it: open rdma:");
    case wire::Purpose::kMapping:
      if (rdma_ != nullptr) {
        return fail(ErrorCode::kInvalidArgument,
                    "this memory node serves RDMA, and nothing beside it: open rdma:");
      }
      if (connection.local) return {};
      return fail(ErrorCode::kInvalidArgument,
                  "memory is mapped through the node's Unix socket, as in mapped:unix:PATH");
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("wire: purpose {}, which is not known", static_cast<unsigned>(purpose)));
}

Status Server::Loop::admit(Connection& connection, const wire::Proof& proof) {
  if (Status served = check_purpose(connection, proof.purpose); !served) return served;
  connection.purpose = proof.purpose;
  connection.client = proof.client;
  connection.generation = proof.generation;
  if (proof.purpose == wire::Purpose::kControl && proof.client == 0) return {};
  if (connection.client == 0) {
    Result<ClientId> client = admission_.new_client();
    if (!client) return fail(client.error());
    connection.client = *client;
    if (Status joined = join(*client); !joined) return joined;
  } else if (proof.joins != 0) {
    if (Status joined = join(connection.client); !joined) return joined;
  } else if (!admission_.admitted(connection.client)) {
    return fail(ErrorCode::kFenced,
                fmt::format("client {} was taken for dead and shut out", connection.client));
  }
  if (Status renewed = renew(connection); !renewed) return renewed;
  alone_.erase(connection.client);
  if (proof.purpose == wire::Purpose::kMapping) {
    Result<std::size_t> slot = give_redo_slot(connection);
    if (!slot) return fail(slot.error());
    connection.redo_slot = *slot;
  }
  return {};
}

// Where there is no room, who has been alone for the longest is forgotten at once.
Status Server::Loop::join(ClientId client) {
  Status joined = admission_.join(client);
  if (joined || joined.error().code() != ErrorCode::kBusy || alone_.empty()) return joined;
  const auto longest =
      std::ranges::min_element(alone_, {}, [](const auto& each) { return each.second; });
  ++counts_.forgotten;
  admission_.leave(longest->first);
  generations_.erase(longest->first);
  alone_.erase(longest);
  return admission_.join(client);
}

// What it has sent over older connections must not happen after what comes over this one; and an
// older one that comes late must not be let in, for the same reason.
Status Server::Loop::renew(const Connection& connection) {
  if (connection.purpose == wire::Purpose::kControl) {  // of which a client has one
    for (auto& [descriptor, other] : connections_) {
      const bool control = other->purpose == wire::Purpose::kControl ||
                           (other->purpose == wire::Purpose::kVerbs && other->generation == 0) ||
                           (other->purpose == wire::Purpose::kRdma && other->generation == 0);
      if (control && other->client == connection.client && other->is_in() &&
          other.get() != &connection) {
        shut(*other);
      }
    }
  }
  if (connection.generation == 0) return {};
  std::uint32_t& newest = generations_[connection.client];
  if (connection.generation < newest && !base::mutated(base::Mutant::kOldGeneration)) {
    ++counts_.outdated;
    return fail(ErrorCode::kUnavailable,
                fmt::format("client {} has renewed its connections since this one began",
                            connection.client));
  }
  if (newest != 0 && connection.generation > newest) ++counts_.renewed;
  newest = std::max(newest, connection.generation);
  for (auto& [descriptor, other] : connections_) {
    if (other->client == connection.client && other->is_in() && other.get() != &connection &&
        other->generation != 0 && other->generation < connection.generation) {
      shut(*other);
    }
  }
  return {};
}

bool Server::Loop::refuse(Connection& connection, const Error& error) {
  ++counts_.refused;
  log("refused", error.message());
  wire::append_refusal(connection.outbox.bytes(), options_.key, connection.hello,
                       connection.challenge, error);
  connection.state = Connection::State::kClosing;
  remember_alone(connection.client);  // it may have joined before something else was wrong
  return false;
}

// The peer does not keep to the protocol: it is told nothing.
bool Server::Loop::broken(Connection& connection, const Error& error) {
  ++counts_.broken;
  log("broken", error.message());
  shut(connection);
  return false;
}

bool Server::Loop::offer_rdma(Connection& connection, const wire::Frame& frame) {
  revoke_rdma(connection);
  const RdmaAccess::Grant grant = rdma_->grant();
  connection.rdma_grant = grant.id;
  wire::append(connection.outbox.bytes(), Kind::kRdmaOffer, grant.offer, frame.tag);
  return true;
}

// When this returns, nothing that it has sent by RDMA takes effect any more.
void Server::Loop::revoke_rdma(Connection& connection) {
  if (connection.rdma_grant != 0) rdma_->revoke(std::exchange(connection.rdma_grant, 0));
}

}  // namespace pando::fabric::node
