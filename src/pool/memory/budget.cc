#include "pool/memory/budget.h"

#include <algorithm>

#include "base/mutex.h"

namespace pando::pool {

std::string_view to_string(BudgetUse use) {
  switch (use) {
    case BudgetUse::kNodeCache:
      return "node cache";
    case BudgetUse::kLockTable:
      return "lock table";
    case BudgetUse::kFreeLists:
      return "free lists";
    case BudgetUse::kMembership:
      return "membership";
    case BudgetUse::kIndexTables:
      return "index tables";
  }
  return "unknown";
}

void Budget::add(Cache& cache, bool last) {
  const base::MutexLock lock(mutex_);
  caches_to_shrink_.insert(last ? caches_to_shrink_.end() : caches_to_shrink_.begin(), &cache);
}

void Budget::remove(Cache& cache) {
  const base::MutexLock lock(mutex_);
  std::erase(caches_to_shrink_, &cache);
}

void Budget::forget() {
  const base::MutexLock lock(mutex_);
  for (Cache* cache : caches_to_shrink_) cache->forget();
}

void Budget::shrink_caches() {
  const base::MutexLock lock(mutex_);
  const std::uint64_t now = used();
  std::uint64_t too_much = now > limit_ ? now - limit_ : 0;
  for (Cache* cache : caches_to_shrink_) {
    if (too_much == 0) return;
    too_much -= std::min(too_much, cache->shrink(too_much));
  }
}

}  // namespace pando::pool
