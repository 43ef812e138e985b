// Budget: what a compute node may keep in its own memory, and what it keeps.
//
// Tables that nothing works without take their share unconditionally (take), and caches give way to
// them; caches ask first (try_take). The limit is the configured budget, or kFloor where that is
// less: then no node is cached, so that the floor is the tables' alone. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace pando::pool {

enum class BudgetUse : std::uint8_t {
  kNodeCache,
  kLockTable,
  kFreeLists,
  kMembership,
  kIndexTables
};
inline constexpr std::size_t kBudgetUses = 5;
std::string_view to_string(BudgetUse use);

// What can be smaller, and can be forgotten. Thread-safe.
class Cache {
 public:
  virtual ~Cache() = default;
  // Gives up about so many bytes, if it has them. Returns how many: they count until readers are
  // gone.
  virtual std::uint64_t shrink(std::uint64_t bytes) = 0;
  // Nothing that was there before is found by an operation that begins after it.
  virtual void forget() = 0;
};

class Budget {
 public:
  static constexpr std::uint64_t kFloor = 64 << 10;

  explicit Budget(std::uint64_t configured)
      : limit_(configured < kFloor ? kFloor : configured), caches_(configured >= kFloor) {}

  std::uint64_t limit() const { return limit_; }
  // False: the configured budget is below the floor, and try_take(kNodeCache) always refuses.
  bool caches() const { return caches_; }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t used(BudgetUse use) const {
    return by_use_[static_cast<std::size_t>(use)].load(std::memory_order_relaxed);
  }

  void take(BudgetUse use, std::uint64_t bytes) {
    by_use_[static_cast<std::size_t>(use)].fetch_add(bytes, std::memory_order_relaxed);
    const std::uint64_t now = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (now > limit_) shrink_caches();
  }
  bool try_take(BudgetUse use, std::uint64_t bytes) {
    if (use == BudgetUse::kNodeCache && !caches_) return false;
    if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes > limit_) {
      used_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    by_use_[static_cast<std::size_t>(use)].fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  void give_back(BudgetUse use, std::uint64_t bytes) {
    by_use_[static_cast<std::size_t>(use)].fetch_sub(bytes, std::memory_order_relaxed);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // A cache, from when it takes anything until it has given everything back. Not within shrink().
  // Those that are added as the last are asked after the others.
  void add(Cache& cache, bool last = false);
  void remove(Cache& cache);
  // All caches.
  void forget();

 private:
  void shrink_caches();

  const std::uint64_t limit_;
  const bool caches_;
  std::atomic<std::uint64_t> used_{0};
  std::array<std::atomic<std::uint64_t>, kBudgetUses> by_use_{};
  base::Mutex mutex_;
  std::vector<Cache*> caches_to_shrink_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace pando::pool
