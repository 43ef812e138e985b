#include "pool/budget.h"

namespace pando::pool {

std::string_view to_string(Part part) {
  switch (part) {
    case Part::kNodeCache:
      return "node cache";
    case Part::kLockTable:
      return "lock table";
    case Part::kFreeLists:
      return "free lists";
    case Part::kMembership:
      return "membership";
    case Part::kIndexTables:
      return "index tables";
  }
  return "unknown";
}

void Budget::add(Cache& cache, bool last) {
  const std::scoped_lock lock(mutex_);
  caches_to_shrink_.insert(last ? caches_to_shrink_.end() : caches_to_shrink_.begin(), &cache);
}

void Budget::remove(Cache& cache) {
  const std::scoped_lock lock(mutex_);
  std::erase(caches_to_shrink_, &cache);
}

void Budget::shrink_caches() {
  const std::scoped_lock lock(mutex_);
  for (Cache* cache : caches_to_shrink_) {
    const std::uint64_t now = used();
    if (now <= limit_) return;
    cache->shrink(now - limit_);
  }
}

}  // namespace pando::pool
