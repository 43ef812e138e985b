#include "index/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <vector>

#include "base/mutex.h"
#include "index/chime/chime.h"
#include "index/common/combined_kind.h"
#include "index/sherman/sherman.h"

namespace pando::index {
namespace {

// Those that programs have added, with what they were added for. They stay where they are.
class AddedKinds {
 public:
  static AddedKinds& all() {
    static AddedKinds kinds;
    return kinds;
  }

  Status add(const Kind& kind) {
    const base::MutexLock guard(mutex_);
    for (const Added& each : added_) {
      if (&each.own == &kind) return {};
      if (each.own.name() == kind.name()) return taken(kind);
    }
    for (const Kind* each : kinds()) {
      if (each->name() == kind.name()) return taken(kind);
    }
    added_.emplace_back(kind);
    return {};
  }

  std::vector<const Kind*> list() {
    const base::MutexLock guard(mutex_);
    std::vector<const Kind*> kinds;
    kinds.reserve(added_.size());
    for (const Added& each : added_) kinds.push_back(&each.combined);
    return kinds;
  }

 private:
  struct Added {
    explicit Added(const Kind& kind) : own(kind), combined(kind) {}
    const Kind& own;
    const CombinedKind combined;
  };

  static std::unexpected<Error> taken(const Kind& kind) {
    return fail(ErrorCode::kExists, fmt::format("an index kind '{}'", kind.name()));
  }

  base::Mutex mutex_;
  std::deque<Added> added_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace

std::span<const Kind* const> kinds() {
  static const CombinedKind kSherman(sherman::kind());
  static const CombinedKind kChime(chime::kind());
  static const std::array<const Kind*, 2> kAll = {&kSherman, &kChime};
  return kAll;
}

Result<const Kind*> find_kind(std::string_view name) {
  std::vector<const Kind*> all(kinds().begin(), kinds().end());
  std::ranges::copy(AddedKinds::all().list(), std::back_inserter(all));
  std::string known;
  for (const Kind* kind : all) {
    if (kind->name() == name) return kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", kind->name());
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no index kind '{}'; there is: {}", name, known));
}

Status add_kind(const Kind& kind) { return AddedKinds::all().add(kind); }

}  // namespace pando::index
