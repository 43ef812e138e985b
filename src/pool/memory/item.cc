#include "pool/memory/item.h"

#include <xxhash.h>

#include <cstring>

namespace pando::pool {
namespace {

// The address is in the seed, so that an item that was copied elsewhere is told from the original;
// the incarnation is too, beside being among the bytes, so that no two lives of a place share one.
std::uint64_t checksum_of(const std::byte* bytes, std::size_t length, fabric::Address address,
                          std::uint32_t incarnation) {
  const std::uint64_t seed = address.raw() ^ (incarnation * 0x9e37'79b9'7f4a'7c15u);
  constexpr std::size_t kSkipped = sizeof(ItemHeader::checksum);
  return XXH3_64bits_withSeed(bytes + kSkipped, length - kSkipped, seed);
}

}  // namespace

std::size_t encode_item(std::byte* buffer, const Block& block, std::string_view key,
                        std::string_view value) {
  ItemHeader header{};
  header.incarnation = block.incarnation;
  header.value_length = static_cast<std::uint32_t>(value.size());
  header.key_length = static_cast<std::uint16_t>(key.size());
  std::memcpy(buffer, &header, sizeof(header));
  // Empty views may have no memory behind them, which memcpy does not take.
  if (!key.empty()) std::memcpy(buffer + sizeof(header), key.data(), key.size());
  if (!value.empty()) {
    std::memcpy(buffer + sizeof(header) + key.size(), value.data(), value.size());
  }
  const std::size_t length = item_bytes(key.size(), value.size());
  const std::uint64_t checksum = checksum_of(buffer, length, block.address, block.incarnation);
  std::memcpy(buffer, &checksum, sizeof(checksum));
  return length;
}

std::optional<ItemView> decode_item(const std::byte* bytes, ItemPointer pointer) {
  if (!pointer.plausible()) return std::nullopt;
  ItemHeader header;
  std::memcpy(&header, bytes, sizeof(header));
  // Lengths first: they say how far the checksum reads. Their sum cannot overflow.
  const std::size_t length = item_bytes(header.key_length, header.value_length);
  if (length > pointer.bytes() || header.incarnation == 0) return std::nullopt;
  if (checksum_of(bytes, length, pointer.address(), header.incarnation) != header.checksum) {
    return std::nullopt;
  }
  const char* const text = reinterpret_cast<const char*>(bytes) + sizeof(header);
  return ItemView{.key = {text, header.key_length},
                  .value = {text + header.key_length, header.value_length},
                  .incarnation = header.incarnation};
}

Block item_block(ItemPointer pointer, std::uint32_t incarnation) {
  return {.address = pointer.address(),
          .incarnation = incarnation,
          .kind = BlockKind::kItem,
          .size_class = pointer.size_class()};
}

}  // namespace pando::pool
