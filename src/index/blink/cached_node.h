// CachedNode: an inner node as the compute side keeps it: decoded, sorted, immutable, small.
//
// One block of memory each; made and freed by make()/free_node(). Separators are whole here, also
// those that far memory keeps in items, so that routing never needs a round trip. The separator
// cells are kept as well: a child's fence cell that equals one is the same key (keys.h).
//
// Numbers lie as differences from the node's least one, in as many bytes as the node's largest
// difference needs: integer separators (random keys, 60 M of them: 7 bytes), children's places (4
// within 256 GiB) and births (0 where all are of one birth). Whatever the numbers, what comes out
// is what went in.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>

#include "index/blink/node.h"
#include "index/common/keys.h"
#include "pool/memory/budget.h"
#include "pool/memory/epochs.h"

namespace pando::index {

// An inner entry with its separator whole.
template <class K>
struct InnerEntry {
  typename K::Owned key;
  typename K::Cell cell;
  NodeRef child;
};

// How the numbers of one node are written: each as what it has above a first one, in so many bytes.
// Read as whole words: whatever holds them has kSlack bytes more.
struct NodeCoding {
  static constexpr std::size_t kSlack = 8;

  std::uint64_t first_key = 0;  // integer keys
  std::uint64_t first_place = 0;
  std::uint32_t first_birth = 0;
  std::uint8_t key_bytes = 0;
  std::uint8_t place_bytes = 0;
  std::uint8_t birth_bytes = 0;
  std::uint8_t memory_node_bits = 0;

  static std::uint8_t bytes_for(std::uint64_t most) {
    return static_cast<std::uint8_t>((std::bit_width(most) + 7) / 8);
  }
  static std::uint64_t mask(std::size_t bytes) {
    return bytes == 0 ? 0 : ~std::uint64_t{0} >> (64 - 8 * bytes);
  }
  static std::uint64_t get(const std::byte* at, std::size_t bytes) {
    return load<std::uint64_t>(at) & mask(bytes);
  }
  static void put(std::byte* at, std::size_t bytes, std::uint64_t number) {
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(at, &number, bytes);
  }

  template <class K>
  static NodeCoding of(std::span<const InnerEntry<K>> entries) {
    NodeCoding coding;
    if (entries.empty()) return coding;
    unsigned most_memory_node = 0;
    std::uint32_t most_birth = 0;
    coding.first_birth = ~std::uint32_t{0};
    for (const auto& [key, cell, child] : entries) {
      most_memory_node = std::max<unsigned>(most_memory_node, child.address.node());
      coding.first_birth = std::min(coding.first_birth, child.birth);
      most_birth = std::max(most_birth, child.birth);
    }
    coding.birth_bytes = bytes_for(most_birth - coding.first_birth);
    coding.memory_node_bits = static_cast<std::uint8_t>(std::bit_width(most_memory_node));
    std::uint64_t most_place = 0;
    coding.first_place = ~std::uint64_t{0};
    for (const auto& [key, cell, child] : entries) {
      const std::uint64_t place = coding.place_of(child.address);
      coding.first_place = std::min(coding.first_place, place);
      most_place = std::max(most_place, place);
    }
    coding.place_bytes = bytes_for(most_place - coding.first_place);
    return coding;
  }

  // A block's line and, below that, its memory node, so that few memory nodes cost few bits.
  std::uint64_t place_of(Address address) const {
    return address.offset() / kLineBytes << memory_node_bits | address.node();
  }
  Address address_of(std::uint64_t place) const {
    const std::uint64_t memory_node = place & ((std::uint64_t{1} << memory_node_bits) - 1);
    return {static_cast<fabric::NodeId>(memory_node), (place >> memory_node_bits) * kLineBytes};
  }
  std::size_t child_bytes() const { return std::size_t{place_bytes} + birth_bytes; }
  NodeRef child(const std::byte* at) const {
    const std::uint64_t place = first_place + get(at, place_bytes);
    const std::uint64_t birth = first_birth + get(at + place_bytes, birth_bytes);
    return {address_of(place), static_cast<std::uint32_t>(birth)};
  }
  void put_child(std::byte* at, const NodeRef& child) const {
    put(at, place_bytes, place_of(child.address) - first_place);
    put(at + place_bytes, birth_bytes, child.birth - first_birth);
  }
};

template <class K>
class CachedNode : public pool::Limbo::Deferred {
  static constexpr bool kIntegers = K::kType == KeyType::kInteger;

 public:
  using View = typename K::View;
  using Cell = typename K::Cell;
  using CellView = std::conditional_t<kIntegers, Cell, const Cell&>;

  struct Header {
    NodeRef self;
    NodeRef sibling;
    std::uint8_t level = 0;
    bool has_high = false;
  };

  // `entries` ascending. `high` matters where header.has_high.
  static CachedNode* make(const Header& header, std::span<const InnerEntry<K>> entries, View high,
                          const Cell& high_cell) {
    NodeCoding coding = NodeCoding::of(entries);
    std::size_t blob = 0;
    if constexpr (kIntegers) {
      coding.first_key = entries.empty() ? high : entries.front().key;
      std::uint64_t most = entries.empty() ? 0 : entries.back().key - coding.first_key;
      if (header.has_high) most = std::max(most, high - coding.first_key);
      coding.key_bytes = NodeCoding::bytes_for(most);
    } else {
      for (const auto& entry : entries) blob += long_bytes(entry.cell);
      if (header.has_high) blob += long_bytes(high_cell);
    }
    std::size_t blob_at = end_of_children(coding, entries.size());
    const std::size_t bytes =
        round_to(std::max(blob_at + blob, blob_at + NodeCoding::kSlack), kAlignment);
    void* memory = std::aligned_alloc(kAlignment, bytes);
    if (memory == nullptr) return nullptr;
    auto* node = new (memory) CachedNode(header, coding, entries.size(), bytes);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      node->put(i, entries[i].cell, entries[i].key, blob_at);
      coding.put_child(node->child_at(i), entries[i].child);
    }
    node->put(entries.size(), header.has_high ? high_cell : Cell{}, high, blob_at);
    return node;
  }
  static void free_node(CachedNode* node) { std::free(node); }  // trivially destructible

  NodeRef self() const { return NodeRef::decode(self_, self_high_); }
  NodeRef sibling() const { return NodeRef::decode(sibling_, sibling_high_); }
  bool is(const NodeRef& ref) const { return self_ == ref.word() && self_high_ == ref.high(); }
  std::uint8_t level() const { return level_; }
  bool has_high() const { return has_high_; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }

  // i == count(): the high fence, which there must be.
  CellView cell(std::size_t i) const {
    if constexpr (kIntegers) {
      return K::cell(key(i));
    } else {
      return cells()[i];
    }
  }
  View key(std::size_t i) const {
    if constexpr (kIntegers) {
      return coding_.first_key + NodeCoding::get(key_at(i), coding_.key_bytes);
    } else {
      const Cell& at = cells()[i];
      if (!K::is_long(at)) return K::short_key(at);
      return {reinterpret_cast<const char*>(this) + offsets()[i], at.size()};
    }
  }
  NodeRef child(std::size_t i) const { return coding_.child(child_at(i)); }
  // Whether the node's range reaches `key`; strict: whether it reaches all keys below `key`.
  bool reaches(View key_to_reach, bool strict) const {
    if (!has_high()) return true;
    const View high = key(count_);
    return strict ? !(high < key_to_reach) : key_to_reach < high;
  }

  // The last entry with separator <= key (strict: < key); count() where there is none.
  std::size_t find(View wanted, bool strict = false) const {
    if constexpr (kIntegers) {
      if (strict && wanted-- == 0) return count_;
      if (count_ == 0 || wanted < coding_.first_key) return count_;
      return find_above_first(wanted - coding_.first_key);
    } else {
      return find_string(wanted, strict);
    }
  }

  // Fetches what find() will look at, all lines at once instead of one after the other.
  void prefetch() const {
    for (std::size_t offset = 0; offset < kPrefetched; offset += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(this) + offset);
    }
  }

  // For the cache's second chance.
  void touch() const {
    if (!touched_.load(std::memory_order_relaxed)) touched_.store(true, std::memory_order_relaxed);
  }
  bool forget_touch() const { return touched_.exchange(false, std::memory_order_relaxed); }

  pool::Budget* budget = nullptr;  // whom the cache that holds it has charged

 private:
  static constexpr std::size_t kAlignment = 16;
  static constexpr std::size_t kPrefetched = 512;

  CachedNode(const Header& header, const NodeCoding& coding, std::size_t count, std::size_t bytes)
      : coding_(coding),
        self_(header.self.word()),
        sibling_(header.sibling.word()),
        count_(static_cast<std::uint32_t>(count)),
        bytes_(static_cast<std::uint32_t>(bytes)),
        self_high_(header.self.high()),
        sibling_high_(header.sibling.high()),
        level_(header.level),
        has_high_(header.has_high) {}

  static std::size_t round_to(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  static std::size_t long_bytes(const Cell& cell) { return K::is_long(cell) ? cell.size() : 0; }

  // Behind the object: separators, which searching looks at, the last of them the high fence; for
  // byte strings the offsets of long ones; then children; then long ones.
  static std::size_t end_of_separators(const NodeCoding& coding, std::size_t count) {
    const std::size_t slots = count + 1;
    if (kIntegers) return sizeof(CachedNode) + coding.key_bytes * slots;
    return offsets_at(slots) + sizeof(std::uint32_t) * slots;
  }
  static std::size_t offsets_at(std::size_t slots) {
    return round_to(sizeof(CachedNode) + sizeof(Cell) * slots, sizeof(std::uint32_t));
  }
  static std::size_t end_of_children(const NodeCoding& coding, std::size_t count) {
    return end_of_separators(coding, count) + coding.child_bytes() * count;
  }

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(this) + offset);
  }
  Cell* cells() const { return at<Cell>(sizeof(CachedNode)); }
  std::uint32_t* offsets() const { return at<std::uint32_t>(offsets_at(std::size_t{count_} + 1)); }
  std::byte* key_at(std::size_t i) const {
    return at<std::byte>(sizeof(CachedNode) + i * coding_.key_bytes);
  }
  std::byte* child_at(std::size_t i) const {
    return at<std::byte>(end_of_separators(coding_, count_) + i * coding_.child_bytes());
  }

  void put(std::size_t i, const Cell& cell, View key, std::size_t& blob_at) {
    if constexpr (kIntegers) {
      NodeCoding::put(key_at(i), coding_.key_bytes, key - coding_.first_key);
    } else {
      cells()[i] = cell;
      offsets()[i] = static_cast<std::uint32_t>(blob_at);
      if (!K::is_long(cell)) return;
      std::memcpy(at<char>(blob_at), key.data(), key.size());
      blob_at += key.size();
    }
  }

  // The last entry that is at most `wanted` above the first, which one at least is. How far a step
  // goes does not hang on what the step before it found.
  std::size_t find_above_first(std::uint64_t wanted) const {
    const std::size_t key_bytes = coding_.key_bytes;
    const std::uint64_t mask = NodeCoding::mask(key_bytes);
    const std::byte* place = key_at(0);
    std::size_t base = 0;
    for (std::size_t left = count_; left > 1;) {
      const std::size_t half = left / 2;
      const std::byte* const middle = place + half * key_bytes;
      const bool qualifies = (load<std::uint64_t>(middle) & mask) <= wanted;
      place = qualifies ? middle : place;
      base = qualifies ? base + half : base;
      left -= half;
    }
    return base;
  }
  std::size_t find_string(View wanted, bool strict) const {
    std::size_t base = 0;
    std::size_t left = count_;
    while (left > 0) {  // entries before `base` qualify
      const std::size_t half = (left + 1) / 2;
      const View middle = key(base + half - 1);
      const bool qualifies = strict ? middle < wanted : !(wanted < middle);
      base = qualifies ? base + half : base;
      left = qualifies ? left - half : half - 1;
    }
    return base == 0 ? count_ : base - 1;
  }

  const NodeCoding coding_;
  const std::uint64_t self_;
  const std::uint64_t sibling_;
  const std::uint32_t count_;
  const std::uint32_t bytes_;
  const std::uint16_t self_high_;
  const std::uint16_t sibling_high_;
  const std::uint8_t level_;
  const bool has_high_;
  mutable std::atomic<bool> touched_{true};
};
static_assert(sizeof(CachedNode<IntKeys>) == 88);

}  // namespace pando::index
