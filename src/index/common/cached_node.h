// CachedNode: an inner node as the compute side keeps it: decoded, sorted, immutable.
//
// One block of memory each; made and freed by make()/free_node(). Separators are whole here, also
// those that far memory keeps in items, so that routing never needs a round trip. The separator
// cells are kept as well: a child's fence cell that equals one is the same key (keys.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <type_traits>

#include "index/common/keys.h"
#include "index/common/node.h"
#include "pool/budget.h"
#include "pool/epochs.h"

namespace pando::index {

// An inner entry with its separator whole.
template <class K>
struct InnerEntry {
  typename K::Owned key;
  typename K::Cell cell;
  NodeRef child;
};

template <class K>
class CachedNode : public pool::Limbo::Deferred {
 public:
  using View = typename K::View;
  using Cell = typename K::Cell;

  struct Header {
    NodeRef self;
    NodeRef sibling;
    std::uint8_t level = 0;
    bool has_high = false;
  };

  // `entries` ascending. `high` matters where header.has_high.
  static CachedNode* make(const Header& header, std::span<const InnerEntry<K>> entries, View high,
                          const Cell& high_cell) {
    std::size_t blob = 0;
    if constexpr (kWithBlob) {
      for (const auto& entry : entries) blob += long_bytes(entry.cell);
      if (header.has_high) blob += long_bytes(high_cell);
    }
    const std::size_t slots = entries.size() + 1;  // the high fence is the last "separator"
    const std::size_t bytes = bytes_before_blob(slots) + blob;
    void* memory = std::aligned_alloc(kAlignment, round_up(bytes));
    if (memory == nullptr) return nullptr;
    auto* node = new (memory) CachedNode;
    node->header_ = header;
    node->count_ = static_cast<std::uint32_t>(entries.size());
    node->bytes_ = static_cast<std::uint32_t>(round_up(bytes));
    std::size_t blob_at = bytes_before_blob(slots);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      node->put(i, entries[i].cell, entries[i].key, blob_at);
      node->children()[i] = entries[i].child.word();
      node->child_highs()[i] = entries[i].child.high();
    }
    node->put(entries.size(), header.has_high ? high_cell : Cell{}, high, blob_at);
    return node;
  }
  static void free_node(CachedNode* node) { std::free(node); }  // trivially destructible

  const NodeRef& self() const { return header_.self; }
  const NodeRef& sibling() const { return header_.sibling; }
  std::uint8_t level() const { return header_.level; }
  bool has_high() const { return header_.has_high; }
  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }

  // i == count(): the high fence.
  const Cell& cell(std::size_t i) const { return cells()[i]; }
  View key(std::size_t i) const {
    if constexpr (kWithBlob) {
      const Cell& at = cells()[i];
      if (K::is_long(at)) {
        return {reinterpret_cast<const char*>(this) + offsets()[i], at.size()};
      }
    }
    return K::short_key(cells()[i]);
  }
  NodeRef child(std::size_t i) const { return NodeRef::decode(children()[i], child_highs()[i]); }
  // Whether the node's range reaches `key`; strict: whether it reaches all keys below `key`.
  bool reaches(View key_to_reach, bool strict) const {
    if (!has_high()) return true;
    const View high = key(count_);
    return strict ? !(high < key_to_reach) : key_to_reach < high;
  }

  // The last entry with separator <= key (strict: < key); count() where there is none.
  std::size_t find(View wanted, bool strict = false) const {
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
  static constexpr bool kWithBlob = K::kType == KeyType::kBytes;
  static constexpr std::size_t kAlignment = 16;
  static constexpr std::size_t kPrefetched = 512;

  static std::size_t round_up(std::size_t bytes) { return round_to(bytes, kAlignment); }
  static std::size_t long_bytes(const Cell& cell) {
    if constexpr (kWithBlob) return K::is_long(cell) ? cell.size() : 0;
    return 0;
  }
  // Behind the object: cells, which searching looks at, then child words, their high parts, and the
  // offsets of long keys.
  static std::size_t round_to(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  static std::size_t children_at(std::size_t slots) {
    return round_to(sizeof(CachedNode) + sizeof(Cell) * slots, 8);
  }
  static std::size_t highs_at(std::size_t slots) { return children_at(slots) + 8 * (slots - 1); }
  static std::size_t offsets_at(std::size_t slots) {
    return round_to(highs_at(slots) + 2 * (slots - 1), 4);
  }
  static std::size_t bytes_before_blob(std::size_t slots) {
    return offsets_at(slots) + (kWithBlob ? 4 * slots : 0);
  }

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(this) + offset);
  }
  std::size_t slots() const { return std::size_t{count_} + 1; }
  Cell* cells() const { return at<Cell>(sizeof(CachedNode)); }
  std::uint64_t* children() const { return at<std::uint64_t>(children_at(slots())); }
  std::uint16_t* child_highs() const { return at<std::uint16_t>(highs_at(slots())); }
  std::uint32_t* offsets() const { return at<std::uint32_t>(offsets_at(slots())); }

  void put(std::size_t i, const Cell& cell, View key, std::size_t& blob_at) {
    cells()[i] = cell;
    if constexpr (kWithBlob) {
      offsets()[i] = static_cast<std::uint32_t>(blob_at);
      if (K::is_long(cell)) {
        std::memcpy(at<char>(blob_at), key.data(), key.size());
        blob_at += key.size();
      }
    }
  }

  Header header_;
  std::uint32_t count_ = 0;
  std::uint32_t bytes_ = 0;
  mutable std::atomic<bool> touched_{true};
};

}  // namespace pando::index
