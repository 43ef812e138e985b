#include "fabric/wire/handshake.h"

#include <fmt/format.h>

#include <algorithm>

namespace pando::fabric::wire {

ClientHandshake::ClientHandshake(std::string key, std::string_view cluster, const Proof& wanted)
    : key_(std::move(key)), proof_(wanted) {
  std::ranges::copy(cluster.substr(0, sizeof(proof_.cluster) - 1), proof_.cluster);
}

void ClientHandshake::begin(Bytes& out) {
  base::fill_random(hello_.nonce);
  append(out, Kind::kHello, hello_);
}

Result<bool> ClientHandshake::take(const Frame& frame, std::span<const std::byte> body,
                                   Bytes& out) {
  if (frame.kind == Kind::kRefusal) return fail(refusal(body));
  if (frame.kind == Kind::kChallenge && !challenged_) {
    const auto challenge = parse<Challenge>(body);
    if (challenge && challenge->magic == kMagic && challenge->version >= kOldestVersion &&
        challenge->version <= kVersion) {
      challenged_ = true;
      challenge_ = *challenge;
      proof_.digest = client_proof(key_, hello_, challenge_, proof_);
      append(out, Kind::kProof, proof_);
      return false;
    }
  }
  if (frame.kind == Kind::kWelcome && challenged_) {
    const auto welcome = parse<Welcome>(body);
    if (welcome && base::same(welcome->digest, node_proof(key_, hello_, challenge_, *welcome))) {
      welcome_ = *welcome;
      return true;
    }
    if (welcome) {
      return fail(ErrorCode::kDenied, "what answers there does not know the cluster's key");
    }
  }
  return fail(ErrorCode::kIncompatible, "what answers there is no memory node of ours");
}

}  // namespace pando::fabric::wire
