// The index kinds there are. A new one is added in registry.cc, and nowhere else.
#pragma once

#include <span>
#include <string_view>

#include "index/index.h"

namespace pando::index {

std::span<const Kind* const> kinds();
// kInvalidArgument, naming the known ones.
Result<const Kind*> find_kind(std::string_view name);

}  // namespace pando::index
