// The client's side of coming in (messages.h), message by message, for those that wait for the
// answers and those that do not.
#pragma once

#include <span>
#include <string>

#include "fabric/wire/messages.h"
#include <pando/result.h>

namespace pando::fabric::wire {

class ClientHandshake {
 public:
  // `wanted` is all but its digest and cluster.
  ClientHandshake(std::string key, std::string_view cluster, const Proof& wanted);

  // Appends the first message.
  void begin(Bytes& out);
  // The node's next message; appends the answer to it, if it needs one. True: let in. An error:
  // refused, or the node does not know the key.
  Result<bool> take(const Frame& frame, std::span<const std::byte> body, Bytes& out);

  // REQUIRES: let in.
  const Welcome& welcome() const { return welcome_; }
  // What a Refusal says, then or later (parse_refusal).
  Error refusal(std::span<const std::byte> body) const {
    return parse_refusal(body, key_, hello_, challenge_);
  }

 private:
  std::string key_;
  Hello hello_;
  Challenge challenge_;
  Proof proof_;
  Welcome welcome_;
  bool challenged_ = false;
};

}  // namespace pando::fabric::wire
