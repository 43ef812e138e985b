// The node's on-chip memory, moved into a card's own and back.
//
// What is in a card is gone with the process that put it there, while the rest of the memory may
// live on (--shm, --file). It holds locks: a node that came back without would free what clients
// hold, and forget what is to be repaired. So
//  - the header says while it is in a card, before anything is there and until all is back;
//  - who takes over memory that says so begins anew, with another life: clients hear that all is
//    lost (NodeMemory::make).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/node/memory.h"
#include <pando/result.h>

namespace pando::fabric::node {

// Where the bytes of the on-chip memory are. kAutomatic: in the card where it has room for them and
// nothing is lost by it, the memory being gone with the process anyway.
enum class OnChipPlace : std::uint8_t { kAutomatic, kCard, kHost };

// Memory of a card, as large as the node's on-chip memory.
class CardMemory {
 public:
  virtual ~CardMemory() = default;
  virtual Status fill(std::span<const std::byte> from) = 0;
  virtual Status fetch(std::span<std::byte> to) = 0;
};

// REQUIRES of both: called by the node's own process, and nobody reaches the card's memory.
// An error of the first leaves all as it was; one of the second leaves it in the card.
Status move_to_card(const NodeMemory& memory, CardMemory& card);
Status move_back(const NodeMemory& memory, CardMemory& card);

}  // namespace pando::fabric::node
