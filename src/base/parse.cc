#include "base/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace pando::base {
namespace {

constexpr std::string_view kUnits = "KMGT";

// How many times 1024 the unit is; -1 where it is none.
int unit_power(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 0;
  const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0])));
  const std::size_t power = kUnits.find(letter);
  if (power == std::string_view::npos) return -1;
  std::string rest(unit.substr(1));
  std::ranges::transform(rest, rest.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (rest.empty() || rest == "b" || rest == "ib") return static_cast<int>(power) + 1;
  return -1;
}

struct Digits {
  std::uint64_t number = 0;
  std::errc problem{};
  std::string_view rest;  // what follows the digits
};

Digits parse_digits(std::string_view text) {
  Digits digits;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [stop, problem] = std::from_chars(begin, end, digits.number);
  digits.problem = problem;
  digits.rest = text.substr(static_cast<std::size_t>(stop - begin));
  return digits;
}

Error named(std::string_view name, const Error& error) {
  return Error(error.code(), fmt::format("{}: {}", name, error.detail()));
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto too_large = [&] {
    return fail(ErrorCode::kInvalidArgument, fmt::format("the size '{}' is too large", text));
  };
  const Digits digits = parse_digits(text);
  if (digits.problem == std::errc::result_out_of_range) return too_large();
  const int power = digits.problem == std::errc() ? unit_power(digits.rest) : -1;
  if (power < 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is not a size: write an integer with K, M, G or T, as in 64MiB", text));
  }
  const auto shift = static_cast<unsigned>(power) * 10;
  if (digits.number > (std::numeric_limits<std::uint64_t>::max() >> shift)) return too_large();
  return digits.number << shift;
}

Result<std::uint64_t> parse_size(std::string_view name, std::string_view text) {
  auto size = parse_size(text);
  if (!size) return fail(named(name, size.error()));
  return size;
}

std::string format_size(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (unit < kUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}B", bytes);
  return fmt::format("{}{}iB", bytes, kUnits[unit - 1]);
}

Result<bool> parse_bool(std::string_view name, std::string_view text) {
  if (text == "on" || text == "true") return true;
  if (text == "off" || text == "false") return false;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' is neither on nor off (nor true nor false)", name, text));
}

Result<std::uint64_t> parse_unsigned(std::string_view name, std::string_view text,
                                     std::uint64_t least, std::uint64_t most) {
  const Digits digits = parse_digits(text);
  if (digits.problem == std::errc::invalid_argument || !digits.rest.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is not an unsigned integer", name, text));
  }
  if (digits.problem != std::errc() || digits.number < least || digits.number > most) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} is not between {} and {}", name, text, least, most));
  }
  return digits.number;
}

Result<Settings> parse_settings(std::string_view text, char separator) {
  Settings settings;
  std::size_t begin = 0;
  while (!text.empty() && begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    begin = end + 1;

    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is not a setting of the form name=value", item));
    }
    const std::string_view name = item.substr(0, equals);
    if (std::ranges::any_of(settings, [&](const auto& known) { return known.first == name; })) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is set twice", name));
    }
    settings.emplace_back(name, item.substr(equals + 1));
  }
  return settings;
}

}  // namespace pando::base
