#include "pool/memory/item.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <pando/key.h>

namespace pando::pool {
namespace {

Block block_for(std::size_t key, std::size_t value, std::uint32_t incarnation = 7) {
  return {.address = {3, 64 * 1000},
          .incarnation = incarnation,
          .kind = BlockKind::kItem,
          .size_class = static_cast<std::uint8_t>(class_of(item_bytes(key, value)))};
}

std::vector<std::byte> encoded(const Block& block, std::string_view key, std::string_view value) {
  std::vector<std::byte> bytes(block.bytes(), std::byte{0x5a});
  EXPECT_EQ(encode_item(bytes.data(), block, key, value), item_bytes(key.size(), value.size()));
  return bytes;
}

std::string random_text(std::mt19937_64& random, std::size_t length) {
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(ItemPointer, TellsPlaceAndClass) {
  const Block block = block_for(100, 5000);
  const ItemPointer pointer = ItemPointer::to(block);
  EXPECT_TRUE(pointer.plausible());
  EXPECT_EQ(pointer.address(), block.address);
  EXPECT_EQ(pointer.bytes(), block.bytes());
  EXPECT_FALSE(ItemPointer().plausible());
  EXPECT_FALSE(ItemPointer::from_raw(~std::uint64_t{0}).plausible());
  const Block again = item_block(pointer, 9);
  EXPECT_EQ(again.address, block.address);
  EXPECT_EQ(again.size_class, block.size_class);
  EXPECT_EQ(again.incarnation, 9u);
  EXPECT_EQ(again.kind, BlockKind::kItem);
}

TEST(Item, RoundTripsAtEveryLength) {
  std::mt19937_64 random(1);
  const auto check = [&](std::size_t key_length, std::size_t value_length) {
    const std::string key = random_text(random, key_length);
    const std::string value = random_text(random, value_length);
    const Block block = block_for(key_length, value_length);
    const auto bytes = encoded(block, key, value);
    const auto item = decode_item(bytes.data(), ItemPointer::to(block));
    ASSERT_TRUE(item) << key_length << ' ' << value_length;
    ASSERT_EQ(item->key, key);
    ASSERT_EQ(item->value, value);
    ASSERT_EQ(item->incarnation, 7u);
  };
  for (std::size_t length = 0; length <= kMaxKeyBytes; ++length) check(length, length % 50);
  for (std::size_t length = 0; length <= 2000; ++length) check(length % 70, length);
  for (std::size_t length = 2000; length <= kMaxValueBytes; length += 30'011) check(8, length);
  check(kMaxKeyBytes, kMaxValueBytes);
  check(0, kMaxValueBytes);
}

TEST(Item, EveryFlippedBitIsDetected) {
  std::mt19937_64 random(2);
  const std::string key = random_text(random, 33);
  const std::string value = random_text(random, 150);
  const Block block = block_for(key.size(), value.size());
  auto bytes = encoded(block, key, value);
  for (std::size_t bit = 0; bit < item_bytes(key.size(), value.size()) * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_FALSE(decode_item(bytes.data(), ItemPointer::to(block))) << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_TRUE(decode_item(bytes.data(), ItemPointer::to(block)));
}

TEST(Item, LengthsBeyondTheBlockAreNotFollowed) {
  const Block block = block_for(10, 10);
  auto bytes = encoded(block, "0123456789", "0123456789");  // just the class's size: ASan watches
  for (const std::uint32_t length : {100u, 5000u, 0x7fff'ffffu, 0xffff'ffffu}) {
    std::memcpy(bytes.data() + offsetof(ItemHeader, value_length), &length, sizeof(length));
    EXPECT_FALSE(decode_item(bytes.data(), ItemPointer::to(block)));
  }
}

TEST(Item, OtherPlacesAndLivesAreToldApart) {
  const Block block = block_for(10, 10);
  auto bytes = encoded(block, "0123456789", "0123456789");
  Block elsewhere = block;
  elsewhere.address = block.address + 64;
  EXPECT_FALSE(decode_item(bytes.data(), ItemPointer::to(elsewhere)));

  // A later life whose lines have arrived in part.
  const std::string first(300, 'a');
  const std::string second(300, 'b');
  const auto old = encoded(block_for(8, 300, 7), "same key", first);
  const auto fresh = encoded(block_for(8, 300, 8), "same key", second);
  const ItemPointer pointer = ItemPointer::to(block_for(8, 300));
  for (unsigned lines = 1; lines < (1u << 6) - 1; ++lines) {
    auto torn = old;
    for (unsigned i = 0; i < 6; ++i) {
      if ((lines >> i & 1) != 0) std::memcpy(torn.data() + i * 64, fresh.data() + i * 64, 64);
    }
    const bool whole = std::memcmp(torn.data(), old.data(), item_bytes(8, 300)) == 0 ||
                       std::memcmp(torn.data(), fresh.data(), item_bytes(8, 300)) == 0;
    EXPECT_EQ(decode_item(torn.data(), pointer).has_value(), whole) << lines;
  }

  // The same bytes under another incarnation: of a writer that was late by a life.
  const std::uint32_t stale = 6;
  std::memcpy(bytes.data() + offsetof(ItemHeader, incarnation), &stale, sizeof(stale));
  EXPECT_FALSE(decode_item(bytes.data(), ItemPointer::to(block)));
}

TEST(Item, ZeroesAreNoItem) {
  const Block block = block_for(10, 10);
  const std::vector<std::byte> bytes(block.bytes());
  EXPECT_FALSE(decode_item(bytes.data(), ItemPointer::to(block)));
}

}  // namespace
}  // namespace pando::pool
