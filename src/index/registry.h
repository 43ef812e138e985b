// The index kinds there are: the one list of them. What every kind has beside what is its own is
// added here, too: the setting `combine`.
#pragma once

#include <span>
#include <string_view>

#include "index/index.h"

namespace pando::index {

std::span<const Kind* const> kinds();
// kInvalidArgument, naming the known ones.
Result<const Kind*> find_kind(std::string_view name);

}  // namespace pando::index
