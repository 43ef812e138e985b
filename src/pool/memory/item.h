// Items: keys and values that do not fit into a node, one format for all indexes.
//
// An item is immutable once published: an update writes a new one and retires the old. A pointer to
// it tells its size class, so that one READ fetches it whole.
//
// The checksum covers header, key and value, and is seeded with the item's address and incarnation:
// an item read by a stale pointer, half overwritten, or moved is told from the real thing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "pool/memory/allocator.h"
#include "pool/memory/block.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

struct ItemHeader {
  std::uint64_t checksum;
  std::uint32_t incarnation;
  std::uint32_t value_length;
  std::uint16_t key_length;
  std::uint8_t reserved[6];
  // key bytes, then value bytes
};
static_assert(sizeof(ItemHeader) == 24);

// {size class:6, node:16, offset/64:42}. 0 is no item.
class ItemPointer {
 public:
  constexpr ItemPointer() = default;
  static constexpr ItemPointer from_raw(std::uint64_t raw) {
    ItemPointer pointer;
    pointer.raw_ = raw;
    return pointer;
  }
  static constexpr ItemPointer to(const Block& block) {
    return from_raw((std::uint64_t{block.size_class} << 58) |
                    (std::uint64_t{block.address.node()} << 42) | (block.address.offset() / 64));
  }
  constexpr std::uint64_t raw() const { return raw_; }
  constexpr std::uint8_t size_class() const { return static_cast<std::uint8_t>(raw_ >> 58); }
  constexpr fabric::Address address() const {
    return {static_cast<fabric::NodeId>(raw_ >> 42), (raw_ & ((std::uint64_t{1} << 42) - 1)) * 64};
  }
  // A pointer read from far memory may be garbage; this says whether it can be followed.
  constexpr bool plausible() const { return raw_ != 0 && size_class() < kSizeClasses; }
  constexpr std::size_t bytes() const { return class_bytes(size_class()); }
  constexpr explicit operator bool() const { return raw_ != 0; }
  friend constexpr bool operator==(ItemPointer, ItemPointer) = default;

 private:
  std::uint64_t raw_ = 0;
};

struct ItemView {
  std::string_view key;
  std::string_view value;
  std::uint32_t incarnation = 0;
};

constexpr std::size_t item_bytes(std::size_t key_length, std::size_t value_length) {
  return sizeof(ItemHeader) + key_length + value_length;
}

// Writes the item's bytes into `buffer` (at least item_bytes). Returns how many are to be written.
std::size_t encode_item(std::byte* buffer, const Block& block, std::string_view key,
                        std::string_view value);
// nullopt: not an item that belongs at this place (torn, stale, freed).
std::optional<ItemView> decode_item(const std::byte* bytes, ItemPointer pointer);
// The block to retire. `incarnation` is the item's own.
Block item_block(ItemPointer pointer, std::uint32_t incarnation);

}  // namespace pando::pool
