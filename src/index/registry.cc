#include "index/registry.h"

#include <fmt/format.h>

#include <array>

#include "index/chime/chime.h"
#include "index/common/combined_kind.h"
#include "index/sherman/sherman.h"

namespace pando::index {

std::span<const Kind* const> kinds() {
  static const CombinedKind kSherman(sherman::kind());
  static const CombinedKind kChime(chime::kind());
  static const std::array<const Kind*, 2> kAll = {&kSherman, &kChime};
  return kAll;
}

Result<const Kind*> find_kind(std::string_view name) {
  std::string known;
  for (const Kind* kind : kinds()) {
    if (kind->name() == name) return kind;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", kind->name());
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("there is no index kind '{}'; there is: {}", name, known));
}

}  // namespace pando::index
