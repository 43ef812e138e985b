// Admission: which clients a memory node lets in, kept in its header so that it survives with the
// memory.
//
// A client's id is given once, by the node that comes first in its pool, and never again. With it
// the client joins every node; from then on its connections are let in, until it leaves or is
// fenced. A fence must hold against a join that is still under way, so a fenced id is remembered
// where it has not joined; and when more have been fenced than can be remembered, the floor rises
// over the oldest: ids below it may not join any more, and whoever has such an id takes a new one.
//
// Used by the node's own thread alone.
#pragma once

#include <cstddef>

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
  // It goes by itself, or is shut out: in either case its connections are let in no more.
  void leave(ClientId client);
  void fence(ClientId client);

  std::size_t count() const;

 private:
  std::uint32_t* find(ClientId client) const;

  Header& header_;
};

}  // namespace pando::fabric::node
