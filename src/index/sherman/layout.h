// The bytes of a sherman leaf. docs/formats/sherman.md draws them.
//
// A leaf is a node (index/blink/node.h) whose lines after the header hold entries, in no order:
//
//     0               8n              8n+nv             8n+nv+n       56
//     | n key words   | n values of v | n tags          | unused      |
//
// with v the index's inline_value and n = 56 / (8 + v + 1). An entry lies within one line, so that
// writing it is one atomic line. A key word is the integer key, or a hash of the byte-string key
// whose item (pool/memory/item.h) holds it whole. Tag 0 is an empty place, 1 + length an inline
// value, kItemTag an item pointer in the value's place.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "index/blink/node.h"
#include "pool/memory/item.h"

namespace pando::index::sherman {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::size_t kMaxInlineValue = kPayloadBytes - 8 - 1;
inline constexpr std::uint8_t kItemTag = 255;
static_assert(kMaxInlineValue + 1 < kItemTag);

struct LeafGeometry {
  std::size_t bytes = 1024;
  std::size_t value_bytes = 8;

  std::size_t per_line() const { return kPayloadBytes / (8 + value_bytes + 1); }
};

template <class K>
class Leaf : public Node<K> {
 public:
  using Geometry = LeafGeometry;

  Leaf(std::byte* bytes, const LeafGeometry& geometry)
      : Node<K>(bytes, geometry.bytes),
        per_line_(geometry.per_line()),
        value_bytes_(geometry.value_bytes) {}

  std::size_t capacity() const { return (this->lines() - K::kHeaderLines) * per_line_; }
  std::size_t line_of(std::size_t slot) const { return K::kHeaderLines + slot / per_line_; }

  std::uint64_t key_word(std::size_t slot) const {
    return load<std::uint64_t>(line_at(slot) + slot % per_line_ * 8);
  }
  std::uint8_t tag(std::size_t slot) const { return load<std::uint8_t>(tag_at(slot)); }
  bool empty(std::size_t slot) const { return tag(slot) == 0; }
  bool is_item(std::size_t slot) const { return tag(slot) == kItemTag; }
  // REQUIRES: is_item(slot).
  pool::ItemPointer item(std::size_t slot) const {
    assert(is_item(slot));
    return pool::ItemPointer::from_raw(load<std::uint64_t>(value_at(slot)));
  }
  // REQUIRES: neither empty nor an item.
  std::string_view value(std::size_t slot) const {
    assert(!empty(slot) && !is_item(slot));
    const std::size_t length = std::min<std::size_t>(tag(slot) - 1u, value_bytes_);
    return {reinterpret_cast<const char*>(value_at(slot)), length};
  }
  std::size_t live() const {
    std::size_t count = 0;
    for (std::size_t i = K::kHeaderLines; i < this->lines(); ++i) {
      const std::byte* tags = this->line(i) + per_line_ * (8 + value_bytes_);
      for (std::size_t j = 0; j < per_line_; ++j) count += tags[j] != std::byte{0} ? 1u : 0u;
    }
    return count;
  }
  std::size_t free_slot() const {  // capacity() where full
    std::size_t slot = 0;
    for (std::size_t i = K::kHeaderLines; i < this->lines(); ++i) {
      const std::byte* tags = this->line(i) + per_line_ * (8 + value_bytes_);
      for (std::size_t j = 0; j < per_line_; ++j, ++slot) {
        if (tags[j] == std::byte{0}) return slot;
      }
    }
    return slot;
  }
  // The first entry from `from` on with this key word; capacity() where there is none.
  std::size_t find(std::uint64_t word, std::size_t from = 0) const {
    std::size_t slot = 0;
    for (std::size_t i = K::kHeaderLines; i < this->lines(); ++i) {
      const std::byte* words = this->line(i);
      for (std::size_t j = 0; j < per_line_; ++j, ++slot) {
        if (load<std::uint64_t>(words + 8 * j) == word && slot >= from && !empty(slot)) return slot;
      }
    }
    return slot;
  }

  void set_item(std::size_t slot, std::uint64_t word, pool::ItemPointer item) {
    store(line_at(slot) + slot % per_line_ * 8, word);
    store(value_at(slot), item.raw());
    store(tag_at(slot), kItemTag);
  }
  // REQUIRES: value.size() <= inline_value.
  void set_value(std::size_t slot, std::uint64_t word, std::string_view value) {
    assert(value.size() <= value_bytes_);
    store(line_at(slot) + slot % per_line_ * 8, word);
    std::memset(value_at(slot), 0, value_bytes_);
    std::ranges::copy(std::as_bytes(std::span(value)), value_at(slot));
    store(tag_at(slot), static_cast<std::uint8_t>(value.size() + 1));
  }
  // REQUIRES: same geometry.
  void copy(std::size_t slot, const Leaf& from, std::size_t from_slot) {
    assert(from.per_line_ == per_line_ && from.value_bytes_ == value_bytes_);
    store(line_at(slot) + slot % per_line_ * 8, from.key_word(from_slot));
    std::memcpy(value_at(slot), from.value_at(from_slot), value_bytes_);
    store(tag_at(slot), from.tag(from_slot));
  }
  void clear(std::size_t slot) { store(tag_at(slot), std::uint8_t{0}); }

 private:
  std::byte* line_at(std::size_t slot) const { return this->line(line_of(slot)); }
  std::byte* value_at(std::size_t slot) const {
    return line_at(slot) + per_line_ * 8 + slot % per_line_ * value_bytes_;
  }
  std::byte* tag_at(std::size_t slot) const {
    return line_at(slot) + per_line_ * (8 + value_bytes_) + slot % per_line_;
  }

  std::size_t per_line_;
  std::size_t value_bytes_;
};

}  // namespace pando::index::sherman
