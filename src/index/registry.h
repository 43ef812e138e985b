// The index kinds there are: the one list of them. What every kind has beside what is its own is
// added here, too: the setting `combine`.
//
// A program may bring a kind of its own; `pando` lists only Pando's.
//
// Thread-safe.
#pragma once

#include <span>
#include <string_view>

#include "index/index.h"

namespace pando::index {

// Pando's own.
std::span<const Kind* const> kinds();
// Of all. kInvalidArgument, naming the known ones.
Result<const Kind*> find_kind(std::string_view name);
// For good: from now on find_kind() knows it. kExists: there is one of that name, which stays; to
// add the same kind again changes nothing. REQUIRES: `kind` lives as long as the program. Before
// anyone opens, drops or recovers an index of it: whoever does not know its kind loses its blocks.
Status add_kind(const Kind& kind);

}  // namespace pando::index
