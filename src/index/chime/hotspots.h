// Hotspots: where the keys stand that are read most, so that a READ can fetch one entry instead of
// a neighbourhood (the paper's hotspot buffer).
//
// A table of fixed size, within the compute node's budget. A place is one word: uses, the key's
// distance from its home, 14 bits of the leaf's version, the leaf, and what room is left of the
// key. Eight places are a bucket, one line of memory, by the key alone: it can be fetched before
// the leaf is known. The least frequently used makes room for a new one. Leaves beyond 64 TiB (all
// memory nodes together) have no number that fits, and are never hot.
//
// Uses are counted one by one up to kExact, then the more seldom the more there are: four steps on
// stand for twice as many. A full count takes four steps from all in its bucket, so that what was
// hot once does not stay for ever.
//
// Where the compute node's tables need the memory and its other caches have none left to give, it
// is given up, whole and for good.
//
// What it says is a guess: the reader checks that the entry it gets has the key and the version
// (see Leaf). That it is the version that *this leaf* had while it was the key's is not: so the
// leaf is compared whole, and a place is read and written as one word. Thread-safe; find() and
// found() within operations, as readers are not waited for when the table is given up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fabric/verbs.h"
#include "pool/memory/budget.h"
#include "pool/memory/epochs.h"

namespace pando::index::chime {

// The lines of all memory nodes, numbered: a line's number in its node and, below that, the node.
struct LineNumbers {
  unsigned memory_node_bits = 0;
  unsigned bits = 0;  // of the largest number

  static LineNumbers of(const fabric::Fabric& fabric);
  std::uint64_t number(fabric::Address address) const {
    return address.offset() / fabric::kLineBytes << memory_node_bits | address.node();
  }
};

class Hotspots final : public pool::Cache {
 public:
  struct Spot {
    std::size_t distance = 0;   // from the key's home; below kMaxNeighbourhood
    std::uint16_t version = 0;  // of the leaf; 14 bits
    friend bool operator==(const Spot&, const Spot&) = default;
  };
  static constexpr std::size_t kLeastBytes = 4096;
  static constexpr std::size_t kPlaces = 8;

  // Takes at most `bytes`: less where the budget has less, nothing where it has no kLeastBytes.
  Hotspots(pool::Budget& budget, pool::Limbo& limbo, LineNumbers lines, std::size_t bytes);
  ~Hotspots() override;
  Hotspots(const Hotspots&) = delete;
  Hotspots& operator=(const Hotspots&) = delete;

  // find() of that key will come.
  void prefetch(std::uint64_t key_word) const;
  // Where the key may stand; counts as a use.
  std::optional<Spot> find(fabric::Address leaf, std::uint64_t key_word);
  // The key was found there, which find() did not know, or had wrong.
  void found(fabric::Address leaf, std::uint64_t key_word, Spot spot);

  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t shrink(std::uint64_t bytes) override;
  void forget() override;

 private:
  // A place, from the top: {uses:6, distance:4, version:14, leaf and key:40}. 0: none.
  static constexpr unsigned kOwnerBits = 40;
  static constexpr std::uint64_t kOwnerMask = (std::uint64_t{1} << kOwnerBits) - 1;
  static constexpr unsigned kExact = 8;
  static constexpr unsigned kStep = 4;
  static constexpr unsigned kMostUses = 63;
  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, kPlaces> places{};
  };
  static_assert(sizeof(Bucket) == 64);
  struct Table : pool::Limbo::Deferred {
    Table(pool::Budget& charged, std::size_t count) : budget(charged), buckets(count) {}

    static std::size_t bytes(std::size_t count) { return sizeof(Table) + count * sizeof(Bucket); }

    pool::Budget& budget;
    std::vector<Bucket> buckets;
  };

  static unsigned uses(std::uint64_t word) { return static_cast<unsigned>(word >> 58); }
  static Spot spot(std::uint64_t word) {
    return {static_cast<std::size_t>(word >> 54 & 0xf),
            static_cast<std::uint16_t>(word >> kOwnerBits & 0x3fff)};
  }
  static std::uint64_t pack(unsigned uses, Spot spot, std::uint64_t owner) {
    return std::uint64_t{uses} << 58 | std::uint64_t{spot.distance} << 54 |
           std::uint64_t{spot.version} << kOwnerBits | owner;
  }
  static std::uint64_t with_uses(std::uint64_t word, unsigned uses) {
    return pack(uses, spot(word), word & kOwnerMask);
  }
  static void free_table(Table* table);

  std::uint64_t owner(fabric::Address leaf, std::uint64_t key_hash) const;
  void count_use(Bucket& bucket, std::atomic<std::uint64_t>& place, std::uint64_t word);
  bool counts_now(unsigned uses);

  pool::Budget& budget_;
  pool::Limbo& limbo_;
  const LineNumbers lines_;
  std::atomic<std::size_t> bytes_{0};
  std::atomic<Table*> table_{nullptr};  // none after shrink()
  std::atomic<std::uint64_t> seldom_{0};
};

}  // namespace pando::index::chime
