#include "cli/words.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

namespace pando::cli {

namespace {

constexpr std::uint64_t kMostItems = std::uint64_t{1} << 40;

}  // namespace

std::unexpected<Error> invalid(std::string_view option, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", option, why));
}

void reject_old_name(CLI::App& parser, const std::string& old, const std::string& name) {
  const auto refuse = [old, name](const std::string&) {
    throw CLI::ValidationError(old, "it is called " + name + " now");
  };
  parser.add_option_function<std::string>(old, refuse)->group("");
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) pieces.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return pieces;
}

Result<std::uint64_t> parse_count(std::string_view option, std::string_view text) {
  std::uint64_t number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, number);
  const std::string_view unit(rest, end);
  std::uint64_t factor = 1;
  if (unit == "k" || unit == "K") factor = 1'000;
  if (unit == "m" || unit == "M") factor = 1'000'000;
  if (unit == "g" || unit == "G") factor = 1'000'000'000;
  if (error != std::errc() || (!unit.empty() && factor == 1)) {
    return invalid(option, fmt::format("'{}' is no count, such as 500000, 500k or 10M", text));
  }
  if (number > kMostItems / factor) return invalid(option, fmt::format("'{}' is too many", text));
  return number * factor;
}

std::string quoted_for_shell(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> split_indexes(std::string_view text) {
  std::vector<std::string> indexes;
  for (const std::string& group : split(text, ';')) {
    bool first = true;
    for (const std::string& piece : split(group, ',')) {
      const std::size_t equals = piece.find('=');
      const bool setting = equals != std::string::npos && piece.find(':') > equals;
      if (setting && !first) {
        indexes.back() += "," + piece;
      } else {
        indexes.push_back(piece);
      }
      first = false;
    }
  }
  return indexes;
}

}  // namespace pando::cli
