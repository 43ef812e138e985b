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

}  // namespace pando::pool
