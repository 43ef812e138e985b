// What several commands read on their command lines. Errors are kInvalidArgument and name the
// option and the word.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <pando/result.h>

namespace pando::cli {

std::unexpected<Error> invalid(std::string_view option, std::string_view why);

// The pieces between separators, without the empty ones.
std::vector<std::string> split(std::string_view text, char separator);

// "10M" is ten million: k, M and G are thousands here, unlike those of sizes in bytes.
Result<std::uint64_t> parse_count(std::string_view option, std::string_view text);

// "sherman;chime", "sherman,chime", "sherman:leaf_bytes=2048,handover=off,chime": a comma begins a
// new index unless a plain name=value follows it.
std::vector<std::string> split_indexes(std::string_view text);

// For a shell: within single quotes everything but them stands for itself.
std::string quoted_for_shell(const std::string& text);

}  // namespace pando::cli
