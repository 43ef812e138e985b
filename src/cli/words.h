// What several commands read on their command lines. Errors are kInvalidArgument and name the
// option and the word.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <pando/result.h>

namespace pando::cli {

std::unexpected<Error> invalid(std::string_view option, std::string_view why);

// The option was called `old` once: who still does is told its name. Help does not show it.
void reject_old_name(CLI::App& parser, const std::string& old, const std::string& name);

// The pieces between separators, without the empty ones.
std::vector<std::string> split(std::string_view text, char separator);

// "10M" is ten million: k, M and G are thousands here, unlike those of sizes in bytes.
Result<std::uint64_t> parse_count(std::string_view option, std::string_view text);

// "sherman;chime", "sherman,chime", "sherman:leaf_bytes=2048,handovers=0,chime": a comma begins a
// new index unless a plain name=value follows it.
std::vector<std::string> split_indexes(std::string_view text);

// For a shell: within single quotes everything but them stands for itself.
std::string quoted_for_shell(const std::string& text);

}  // namespace pando::cli
