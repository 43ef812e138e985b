// ChipMemory: memory on a card's chip, which its atomics reach without going over the bus.
//
// UNTESTED ON HARDWARE. (Sherman, SIGMOD 2022, keeps its locks there on ConnectX-5.) That a verb to
// it does not overtake one to the node's memory, in a batch or between clients, rests on both going
// through the one card: a READ of the node's memory is not answered before WRITEs that the card has
// executed are there (PCI Express: reads do not pass posted writes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "fabric/node/onchip.h"
#include "fabric/rdma/device.h"
#include <pando/result.h>

namespace pando::fabric::rdma {

class ChipMemory final : public node::CardMemory {
 public:
  // Registered with these rights. An error where the device has none, or not so much.
  static Result<std::unique_ptr<ChipMemory>> make(const Device& device, std::uint32_t bytes,
                                                  int access);

  std::uint32_t key() const { return region_->rkey; }
  Status fill(std::span<const std::byte> from) override;
  Status fetch(std::span<std::byte> to) override;

 private:
  ChipMemory() = default;

  // Destroyed in the opposite order.
  Owned<ibv_dm> memory_;
  Owned<ibv_mr> region_;
};

}  // namespace pando::fabric::rdma
