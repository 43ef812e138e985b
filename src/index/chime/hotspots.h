// Hotspots: where the keys stand that are read most, so that a READ can fetch one entry instead of
// a neighbourhood (the paper's hotspot buffer).
//
// A table of fixed size, within the compute node's budget. A place takes 16 bytes: leaf, entry, 14
// bits of the leaf's version, 16 bits of the key, a count of uses. Eight places share a bucket; the
// least frequently used makes room for a new one. Counts are halved when one is full, so that what
// was hot once does not stay for ever.
//
// Where the compute node's tables need the memory and its other caches have none left to give, it
// is given up, whole and for good.
//
// What it says is a guess: the reader checks that the entry it gets has the key and the version
// (see Leaf). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "fabric/verbs.h"
#include "pool/budget.h"

namespace pando::index::chime {

class Hotspots final : public pool::Cache {
 public:
  struct Spot {
    std::size_t entry = 0;      // in its leaf; below 256
    std::uint16_t version = 0;  // of the leaf; 14 bits
    friend bool operator==(const Spot&, const Spot&) = default;
  };
  static constexpr std::size_t kLeastBytes = 4096;

  // Takes at most `bytes`: less where the budget has less, nothing where it has no kLeastBytes.
  Hotspots(pool::Budget& budget, std::size_t bytes);
  ~Hotspots() override;
  Hotspots(const Hotspots&) = delete;
  Hotspots& operator=(const Hotspots&) = delete;

  // Where the key may stand; counts as a use.
  std::optional<Spot> find(fabric::Address leaf, std::uint64_t key_word);
  // The key was found there, which find() did not know, or had wrong.
  void found(fabric::Address leaf, std::uint64_t key_word, Spot spot);

  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t shrink(std::uint64_t bytes) override;

 private:
  static constexpr std::size_t kPlaces = 8;
  static constexpr std::uint64_t kMostUses = (1u << 20) - 1;
  struct Place {
    std::uint64_t leaf = 0;  // 0: none
    std::uint64_t rest = 0;  // {uses:20, entry:8, version:14, key:16}, from the top, 6 bits unused
  };
  struct alignas(64) Bucket {
    std::array<Place, kPlaces> places;
  };
  using Lock = std::atomic<bool>;
  class Guard;

  static std::uint64_t uses(const Place& place) { return place.rest >> 44; }
  static std::uint16_t key_bits(const Place& place) {
    return static_cast<std::uint16_t>(place.rest);
  }
  static Spot spot(const Place& place) {
    return {static_cast<std::size_t>(place.rest >> 36 & 0xff),
            static_cast<std::uint16_t>(place.rest >> 22 & 0x3fff)};
  }
  static std::uint64_t pack(std::uint64_t uses, Spot spot, std::uint16_t key_bits) {
    return uses << 44 | std::uint64_t{spot.entry} << 36 | std::uint64_t{spot.version} << 22 |
           key_bits;
  }
  static void count_use(Bucket& bucket, Place& place);

  pool::Budget& budget_;
  std::atomic<std::size_t> bytes_{0};  // of locks and buckets
  std::size_t buckets_count_ = 0;
  std::unique_ptr<Lock[]> locks_;
  std::unique_ptr<Bucket[]> buckets_;  // gone after shrink(); under each bucket's lock
};

}  // namespace pando::index::chime
