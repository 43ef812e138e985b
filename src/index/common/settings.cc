#include "index/common/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>

#include "base/parse.h"

namespace pando::index {

namespace {

constexpr const char* kKeys = "keys";

Status read(const SettingRow& row, std::string_view text) {
  const auto read_into = [&]<class T>(T* place) -> Status {
    if constexpr (std::same_as<T, bool>) {
      Result<bool> value = base::parse_bool(row.name, text);
      if (!value) return fail(value.error());
      *place = *value;
    } else {
      const std::uint64_t most = std::min<std::uint64_t>(row.most, std::numeric_limits<T>::max());
      Result<std::uint64_t> value = base::parse_size(row.name, text);
      if (!value) return fail(value.error());
      if (*value > most) {
        return fail(ErrorCode::kInvalidArgument, fmt::format("{}: at most {}", row.name, most));
      }
      *place = static_cast<T>(*value);
    }
    return {};
  };
  return std::visit(read_into, row.place);
}

std::string spell_value(const SettingRow& row) {
  const auto spelled = []<class T>(const T* place) -> std::string {
    if constexpr (std::same_as<T, bool>) {
      return *place ? "on" : "off";
    } else {
      return std::to_string(*place);
    }
  };
  return std::visit(spelled, row.place);
}

}  // namespace

Status check_names(std::string_view kind, const std::vector<Setting>& known,
                   const IndexOptions& given) {
  for (const auto& [name, text] : given.settings) {
    const bool found = std::ranges::find(known, name, &Setting::name) != known.end();
    if (found && name != kKeys) continue;  // IndexOptions keeps the key type apart
    std::string names;
    for (const Setting& setting : known) names += " " + setting.name;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} has no setting '{}'; it has:{}", kind, name, names));
  }
  return {};
}

Status SettingTable::parse(const IndexOptions& options) {
  if (Status known = check_names(kind_, describe(), options); !known) return known;
  key_type_ = options.key_type;
  for (const auto& [name, text] : options.settings) {
    const auto row = std::ranges::find(rows_, std::string_view(name), &SettingRow::name);
    if (Status stored = read(*row, text); !stored) return stored;
  }
  return {};
}

IndexOptions SettingTable::spell() const {
  IndexOptions spelled;
  spelled.kind = kind_;
  spelled.key_type = key_type_;
  for (const SettingRow& row : rows_) spelled.settings.emplace(row.name, spell_value(row));
  return spelled;
}

std::vector<Setting> SettingTable::describe() const {
  std::vector<Setting> all = {{kKeys, "integer", "key type: integer or bytes", true}};
  for (const SettingRow& row : rows_) {
    all.push_back({row.name, spell_value(row), row.meaning, row.format, row.trials});
  }
  return all;
}

}  // namespace pando::index
