// Arena: memory that is registered with a device, handed out piece by piece and given back all at
// once. For one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/rdma/device.h"

namespace pando::fabric::rdma {

class Arena {
 public:
  explicit Arena(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Aligned to a line. Where it cannot be registered it is plain memory, which has no key.
  std::byte* allocate(std::size_t bytes);
  // The key for the device; nullopt where these bytes are not registered.
  std::optional<std::uint32_t> key_of(const std::byte* memory, std::size_t bytes) const;
  // Why the last memory could not be registered.
  const std::optional<Error>& problem() const { return problem_; }

 private:
  struct Block {
    std::byte* memory;
    std::size_t bytes;
    std::size_t used;
    Owned<ibv_mr> region;
  };
  Block& add_block(std::size_t bytes);

  std::shared_ptr<Device> device_;
  std::vector<Block> blocks_;     // by address
  std::byte* current_ = nullptr;  // the block that small pieces are cut from
  std::optional<Error> problem_;
};

}  // namespace pando::fabric::rdma
