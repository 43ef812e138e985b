// The settings of an index kind, listed once: reading, spelling and describing them all follow from
// the list.
//
// A table is for one moment: it names places in an options object, which must outlive it and stay
// where it is. What the places hold is what the table tells: in a fresh object, the defaults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "index/index.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::index {

struct SettingRow {
  const char* name;
  // On or off, or a size ("64K" is one).
  std::variant<bool*, std::uint32_t*, std::size_t*> place;
  std::string meaning;
  bool format;                           // see Setting
  std::vector<std::string> trials = {};  // see Setting
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
};

// Whether `known` has all settings that are given. The error names the others, and what there is.
Status check_names(std::string_view kind, const std::vector<Setting>& known,
                   const IndexOptions& given);

class SettingTable {
 public:
  // The key type is described as a setting, for in text it is one; IndexOptions keeps it apart.
  SettingTable(std::string_view kind, KeyType& key_type) : kind_(kind), key_type_(key_type) {}
  // They are described in the order in which they came.
  void add(SettingRow row) { rows_.push_back(std::move(row)); }

  // Stores what the options say; the rest stays. Errors name the setting.
  Status parse(const IndexOptions& options);
  // All settings spelled out.
  IndexOptions spell() const;
  std::vector<Setting> describe() const;

 private:
  std::string_view kind_;
  KeyType& key_type_;
  std::vector<SettingRow> rows_;
};

}  // namespace pando::index
