#include <fmt/format.h>

#include "base/parse.h"
#include <pando/options.h>

namespace pando {

Result<IndexOptions> IndexOptions::parse(std::string_view text) {
  IndexOptions options;
  const std::size_t colon = text.find(':');
  options.kind = std::string(text.substr(0, colon));
  if (options.kind.empty()) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' names no index kind", text));
  }
  if (colon == std::string_view::npos) return options;
  Result<base::Settings> settings = base::parse_settings(text.substr(colon + 1), ',');
  if (!settings) return fail(settings.error());
  for (auto& [name, value] : *settings) {
    if (name != "keys") {
      options.settings.emplace(std::move(name), std::move(value));
    } else if (value == "bytes" || value == "integer") {
      options.key_type = value == "bytes" ? KeyType::kBytes : KeyType::kInteger;
    } else {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("keys={}: must be integer or bytes", value));
    }
  }
  return options;
}

std::string IndexOptions::to_string() const {
  std::string text = kind;
  text += key_type == KeyType::kBytes ? ":keys=bytes" : ":keys=integer";
  for (const auto& [name, value] : settings) text += fmt::format(",{}={}", name, value);
  return text;
}

}  // namespace pando
