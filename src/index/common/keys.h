// Key policies: what differs between integer and byte-string keys in the nodes of a tree.
//
// A node holds keys (separators and fences) as cells of fixed size. An integer is its own cell. A
// byte string of up to 16 bytes lies in its cell; a longer one lies in an item
// (pool/memory/item.h), and the cell has the pointer, the length and a seeded hash. Cells that are
// equal byte by byte stand for the same key, which decides most comparisons of long keys without
// fetching them.
//
// One separator has one item: the cell is copied wherever the separator stands (the right node's
// low fence, the left node's high fence, its one entry in an inner node), and the item is retired
// when the two leaves it separates become one.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "pool/memory/item.h"
#include <pando/key.h>

namespace pando::index {

struct IntKeys {
  using View = std::uint64_t;
  using Owned = std::uint64_t;
  static constexpr KeyType kType = KeyType::kInteger;
  static constexpr std::size_t kCellBytes = 8;
  static constexpr std::size_t kInnerPerLine = 3;
  static constexpr std::size_t kHeaderLines = 1;

  struct Cell {
    std::uint64_t key = 0;
    friend bool operator==(const Cell&, const Cell&) = default;
  };
  static_assert(sizeof(Cell) == kCellBytes);

  static View view(const Key& key) { return key.integer(); }
  static constexpr View lowest() { return 0; }
  static bool fits_cell(View) { return true; }
  static Cell cell(View key) { return {key}; }
  static bool is_long(const Cell&) { return false; }
  static pool::ItemPointer item(const Cell&) { return {}; }
  static View short_key(const Cell& cell) { return cell.key; }
  // The shortest key s with a < s <= b.
  static Owned separator(View, View b) { return b; }
};

struct ByteKeys {
  using View = std::string_view;
  using Owned = std::string;
  static constexpr KeyType kType = KeyType::kBytes;
  static constexpr std::size_t kCellBytes = 18;
  static constexpr std::size_t kInnerPerLine = 2;
  static constexpr std::size_t kHeaderLines = 2;
  static constexpr std::size_t kShort = 16;

  struct Cell {
    char bytes[kShort] = {};  // short: the key, zero-padded; long: item pointer, hash
    std::uint8_t length[2] = {};

    std::size_t size() const { return std::size_t{length[0]} | (std::size_t{length[1]} << 8); }
    friend bool operator==(const Cell& a, const Cell& b) {
      return std::memcmp(&a, &b, sizeof(Cell)) == 0;
    }
  };
  static_assert(sizeof(Cell) == kCellBytes);

  static View view(const Key& key) { return key.bytes(); }
  static View lowest() { return {}; }
  static bool fits_cell(View key) { return key.size() <= kShort; }
  // REQUIRES: fits_cell(key).
  static Cell cell(View key) {
    assert(fits_cell(key));
    Cell cell;
    std::ranges::copy(key, cell.bytes);
    cell.length[0] = static_cast<std::uint8_t>(key.size());
    return cell;
  }
  static Cell long_cell(std::size_t length, pool::ItemPointer item, std::uint64_t hash) {
    Cell cell;
    const std::uint64_t raw = item.raw();
    std::memcpy(cell.bytes, &raw, 8);
    std::memcpy(cell.bytes + 8, &hash, 8);
    cell.length[0] = static_cast<std::uint8_t>(length & 0xff);
    cell.length[1] = static_cast<std::uint8_t>(length >> 8);
    return cell;
  }
  static bool is_long(const Cell& cell) { return cell.size() > kShort; }
  static pool::ItemPointer item(const Cell& cell) {
    std::uint64_t raw = 0;
    std::memcpy(&raw, cell.bytes, 8);
    return pool::ItemPointer::from_raw(raw);
  }
  // REQUIRES: !is_long(cell). A view into the cell.
  static View short_key(const Cell& cell) {
    assert(!is_long(cell));
    return {cell.bytes, cell.size()};
  }
  static Owned separator(View a, View b) {
    std::size_t common = 0;
    while (common < a.size() && common < b.size() && a[common] == b[common]) ++common;
    return Owned(b.substr(0, common + 1));
  }
};

}  // namespace pando::index
