// Budget: what a compute node may keep in its own memory, and what it keeps.
//
// Tables that nothing works without take their share unconditionally (take); caches ask first
// (try_take). The limit is the configured budget, or kFloor where that is less: then no node is
// cached, so that the floor is the tables' alone. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pando::pool {

enum class Part : std::uint8_t { kNodeCache, kLockTable, kFreeLists, kMembership, kIndexTables };
inline constexpr std::size_t kParts = 5;
std::string_view to_string(Part part);

class Budget {
 public:
  static constexpr std::uint64_t kFloor = 64 << 10;

  explicit Budget(std::uint64_t configured)
      : limit_(configured < kFloor ? kFloor : configured), caches_(configured >= kFloor) {}

  std::uint64_t limit() const { return limit_; }
  // False: the configured budget is below the floor, and try_take(kNodeCache) always refuses.
  bool caches() const { return caches_; }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t used(Part part) const {
    return parts_[static_cast<std::size_t>(part)].load(std::memory_order_relaxed);
  }

  void take(Part part, std::uint64_t bytes) {
    parts_[static_cast<std::size_t>(part)].fetch_add(bytes, std::memory_order_relaxed);
    used_.fetch_add(bytes, std::memory_order_relaxed);
  }
  bool try_take(Part part, std::uint64_t bytes) {
    if (part == Part::kNodeCache && !caches_) return false;
    if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes > limit_) {
      used_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    parts_[static_cast<std::size_t>(part)].fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  void give_back(Part part, std::uint64_t bytes) {
    parts_[static_cast<std::size_t>(part)].fetch_sub(bytes, std::memory_order_relaxed);
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  const std::uint64_t limit_;
  const bool caches_;
  std::atomic<std::uint64_t> used_{0};
  std::array<std::atomic<std::uint64_t>, kParts> parts_{};
};

}  // namespace pando::pool
