// Admission: which clients a memory node lets in, kept in its header so that it survives with the
// memory.
//
// A client's id is given once, by the node that comes first in its pool, and never again. With it
// the client joins every node; from then on its connections are let in, until it leaves or is
// fenced. A fence must hold against a join that is still under way, so a fenced id is remembered
// where it has not joined; and when more have been fenced than can be remembered, the floor rises
// over the oldest: ids below it may not join any more, and whoever has such an id takes a new one.
//
// A client that stays has a place among the compute nodes of its pool: when it dies, others find
// out and fence it. Nobody looks after one that does not: it is forgotten when its connections have
// ended (server.cc says when), so that those who die on their way in do not take up all room.
//
// Used by the node's own thread alone.
#pragma once

#include <cstddef>
#include <vector>

#include "fabric/node/layout.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::node {

class Admission {
 public:
  explicit Admission(Header& header) : header_(header) {}

  // A new id. kOutOfMemory once all have been given.
  Result<ClientId> new_client();
  // Lets the client in. kFenced where it was fenced or its id is too old; kBusy where there are too
  // many.
  Status join(ClientId client);
  bool admitted(ClientId client) const;
  // kFenced where it is not let in.
  Status stay(ClientId client, bool stays);
  bool stays(ClientId client) const;
  // It goes by itself, or is forgotten, or is shut out: its connections are let in no more.
  void leave(ClientId client);
  // kInvalidArgument where this node gives ids and has not given this one.
  Status fence(ClientId client);

  std::size_t count() const;
  // Those that do not stay.
  std::vector<ClientId> passing() const;

 private:
  std::uint32_t* find(ClientId client) const;
  std::uint8_t& stays_at(const std::uint32_t* place) const;

  Header& header_;
};

}  // namespace pando::fabric::node
