// Parsing of what people write: sizes, switches, numbers, lists of settings.
//
// Every error is kInvalidArgument with a sentence that quotes the text at fault; the functions that
// take a name put it in front, so that the reader knows which option to mend.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pando/result.h>

namespace pando::base {

// "65536", "64K", "64KB", "64KiB", …, T: an integer and a unit of 1024s in either case.
Result<std::uint64_t> parse_size(std::string_view text);
Result<std::uint64_t> parse_size(std::string_view name, std::string_view text);

// The shortest text that parse_size() turns into `bytes` again: "4GiB", "1536MiB", "1000B".
std::string format_size(std::uint64_t bytes);

// "on", "off", "true" or "false".
Result<bool> parse_bool(std::string_view name, std::string_view text);

// A decimal number between `least` and `most`, both included.
Result<std::uint64_t> parse_unsigned(
    std::string_view name, std::string_view text, std::uint64_t least = 0,
    std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

using Settings = std::vector<std::pair<std::string, std::string>>;

// "name=value" items between separators, in their order. No name may be empty or come twice;
// values may be empty and may hold "=". Empty text is no settings.
Result<Settings> parse_settings(std::string_view text, char separator);

}  // namespace pando::base
