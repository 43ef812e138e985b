#include "index/chime/hotspots.h"

#include <algorithm>

#include "base/random.h"
#include "base/spin.h"

namespace pando::index::chime {

namespace {

struct Hash {
  std::uint64_t bucket;
  std::uint16_t key_bits;
};

Hash hash_of(fabric::Address leaf, std::uint64_t key_word) {
  const std::uint64_t key = base::mix64(key_word);
  const std::uint64_t both = base::mix64(key ^ (leaf.raw() * 0x9e3779b97f4a7c15u));
  return {both >> 32, static_cast<std::uint16_t>(key)};
}

}  // namespace

class Hotspots::Guard {
 public:
  explicit Guard(Lock& lock) : lock_(lock) {
    base::Backoff backoff;
    while (lock_.exchange(true, std::memory_order_acquire)) backoff.pause();
  }
  ~Guard() { lock_.store(false, std::memory_order_release); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  Lock& lock_;
};

Hotspots::Hotspots(pool::Budget& budget, std::size_t bytes) : budget_(budget) {
  const std::uint64_t used = budget_.used();
  if (!budget_.caches() || used >= budget_.limit()) return;
  bytes = std::min<std::uint64_t>(bytes, budget_.limit() - used);
  const std::size_t buckets = bytes / (sizeof(Bucket) + sizeof(Lock));
  const std::size_t taken = buckets * (sizeof(Bucket) + sizeof(Lock));
  if (bytes < kLeastBytes || !budget_.try_take(pool::Part::kIndexTables, taken)) return;
  bytes_ = taken;
  buckets_count_ = buckets;
  buckets_ = std::make_unique<Bucket[]>(buckets);
  locks_ = std::make_unique<Lock[]>(buckets);
  budget_.add(*this, true);
}

Hotspots::~Hotspots() {
  budget_.remove(*this);
  budget_.give_back(pool::Part::kIndexTables, bytes());
}

std::uint64_t Hotspots::shrink(std::uint64_t) {
  const std::size_t left = buckets_count_ * sizeof(Lock);
  if (bytes() == left) return 0;
  // Once every lock was had, nobody is within a bucket, and whoever comes finds none.
  for (std::size_t i = 0; i < buckets_count_; ++i) {
    while (locks_[i].exchange(true, std::memory_order_acquire)) base::cpu_relax();
  }
  buckets_.reset();
  for (std::size_t i = 0; i < buckets_count_; ++i) {
    locks_[i].store(false, std::memory_order_release);
  }
  const std::uint64_t given_up = bytes_.exchange(left) - left;
  budget_.give_back(pool::Part::kIndexTables, given_up);
  return given_up;
}

void Hotspots::count_use(Bucket& bucket, Place& place) {
  if (uses(place) == kMostUses) {
    for (Place& each : bucket.places) {
      each.rest = pack(uses(each) / 2, spot(each), key_bits(each));
    }
  }
  place.rest = pack(uses(place) + 1, spot(place), key_bits(place));
}

std::optional<Hotspots::Spot> Hotspots::find(fabric::Address leaf, std::uint64_t key_word) {
  if (buckets_count_ == 0) return std::nullopt;
  const Hash hash = hash_of(leaf, key_word);
  const std::size_t at = hash.bucket * buckets_count_ >> 32;
  const Guard guard(locks_[at]);
  if (!buckets_) return std::nullopt;
  Bucket& bucket = buckets_[at];
  for (Place& place : bucket.places) {
    if (place.leaf != leaf.raw() || key_bits(place) != hash.key_bits) continue;
    count_use(bucket, place);
    return spot(place);
  }
  return std::nullopt;
}

void Hotspots::found(fabric::Address leaf, std::uint64_t key_word, Spot spot_found) {
  if (buckets_count_ == 0) return;
  const Hash hash = hash_of(leaf, key_word);
  const std::size_t at = hash.bucket * buckets_count_ >> 32;
  const Guard guard(locks_[at]);
  if (!buckets_) return;
  Bucket& bucket = buckets_[at];
  Place* least = bucket.places.data();
  for (Place& place : bucket.places) {
    if (place.leaf == leaf.raw() && key_bits(place) == hash.key_bits) {
      if (spot(place) != spot_found) {  // outdated: it starts anew
        place.rest = pack(1, spot_found, hash.key_bits);
      }
      return;
    }
    if (place.leaf == 0 && least->leaf != 0) least = &place;
    if (least->leaf != 0 && uses(place) < uses(*least)) least = &place;
  }
  *least = {leaf.raw(), pack(1, spot_found, hash.key_bits)};
}

}  // namespace pando::index::chime
