#include "fabric/rdma/chip_memory.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/parse.h"

namespace pando::fabric::rdma {

Result<std::unique_ptr<ChipMemory>> ChipMemory::make(const Device& device, std::uint32_t bytes,
                                                     int access) {
  if (device.chip_bytes() < bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {} has {} of memory on its chip, less than {} (--onchip)",
                            device.name(), base::format_size(device.chip_bytes()),
                            base::format_size(bytes)));
  }
  constexpr std::uint32_t kLog2OfLine = 6;
  ibv_alloc_dm_attr wanted{.length = bytes, .log_align_req = kLog2OfLine, .comp_mask = 0};
  std::unique_ptr<ChipMemory> made(new ChipMemory);
  made->memory_.reset(ibv_alloc_dm(device.context(), &wanted));
  if (made->memory_ == nullptr) {
    return fail(rdma_error(fmt::format("{} of memory on the chip of device {}",
                                       base::format_size(bytes), device.name()),
                           errno));
  }
  // Such memory has no address of its own: ibv_reg_dm_mr(3) asks for one that begins with 0.
  made->region_.reset(ibv_reg_dm_mr(device.domain(), made->memory_.get(), 0, bytes,
                                    static_cast<unsigned>(access) | IBV_ACCESS_ZERO_BASED));
  if (made->region_ == nullptr) {
    return fail(rdma_error(fmt::format("memory on the chip of device {}", device.name()), errno));
  }
  return made;
}

Status ChipMemory::fill(std::span<const std::byte> from) {
  const int problem = ibv_memcpy_to_dm(memory_.get(), 0, from.data(), from.size());
  if (problem != 0) return fail(rdma_error("copying to the card's memory", problem));
  return {};
}

Status ChipMemory::fetch(std::span<std::byte> to) {
  const int problem = ibv_memcpy_from_dm(to.data(), memory_.get(), 0, to.size());
  if (problem != 0) return fail(rdma_error("copying from the card's memory", problem));
  return {};
}

}  // namespace pando::fabric::rdma
