#include "fabric/rdma/arena.h"

#include <algorithm>
#include <new>

#include "fabric/verbs.h"

namespace pando::fabric::rdma {
namespace {

// So much is registered at a time: a registration costs some microseconds and an entry of the
// card's tables, and plain users may lock few megabytes.
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr std::align_val_t kPage{4096};

}  // namespace

Arena::~Arena() {
  for (Block& block : blocks_) {
    block.region.reset();
    ::operator delete(block.memory, block.bytes, kPage);
  }
}

std::byte* Arena::allocate(std::size_t bytes) {
  bytes = (std::max<std::size_t>(bytes, 1) + kLineBytes - 1) / kLineBytes * kLineBytes;
  auto at = std::ranges::find(blocks_, current_, &Block::memory);
  if (at == blocks_.end() || at->bytes - at->used < bytes) {
    Block& fresh = add_block(std::max(bytes, kBlockBytes));
    if (bytes < kBlockBytes) current_ = fresh.memory;
    fresh.used = bytes;
    return fresh.memory;
  }
  std::byte* const piece = at->memory + at->used;
  at->used += bytes;
  return piece;
}

Arena::Block& Arena::add_block(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, kPage));
  Result<Owned<ibv_mr>> region = device_->reg(memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (!region) problem_ = region.error();
  const auto place = std::ranges::lower_bound(blocks_, memory, {}, &Block::memory);
  return *blocks_.insert(place,
                         Block{memory, bytes, 0, region ? std::move(*region) : Owned<ibv_mr>()});
}

std::optional<std::uint32_t> Arena::key_of(const std::byte* memory, std::size_t bytes) const {
  auto after = std::ranges::upper_bound(blocks_, memory, {}, &Block::memory);
  if (after == blocks_.begin()) return std::nullopt;
  const Block& block = *--after;
  const auto offset = static_cast<std::size_t>(memory - block.memory);
  if (block.region == nullptr || offset > block.bytes || bytes > block.bytes - offset) {
    return std::nullopt;
  }
  return block.region->lkey;
}

}  // namespace pando::fabric::rdma
