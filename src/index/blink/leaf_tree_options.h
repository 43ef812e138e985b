// What a LeafTree can be told, and the settings by which its users tell it. An index with settings
// of its own adds them to the same table (settings.h).
#pragma once

#include <cstddef>
#include <string_view>

#include "index/blink/blink.h"
#include "index/common/settings.h"
#include <pando/key.h>
#include <pando/result.h>

namespace pando::index {

inline constexpr std::size_t kMinInlineValue = 8;  // an item pointer must fit

// G, the geometry of a leaf: `bytes`, and `value_bytes` for a value in it.
template <class G>
struct LeafTreeOptions {
  // Of the format.
  KeyType key_type = KeyType::kInteger;
  G leaf;
  // Of this compute node's handle. BLinkOptions::inner_bytes is of the format too.
  BLinkOptions tree;
  bool merge = true;          // leaves and inner nodes that empty become one with a neighbour
  bool parallel_scan = true;  // leaves of a scan are read in one batch
};

// In groups, so that an index's own settings may stand between them.
void add_sizes(SettingTable& table, std::size_t& inner_bytes, std::size_t& inline_value,
               std::size_t max_inline_value);
// Noted lock words (node_locks.h) need the local queue: it cannot be switched off.
void add_cache_and_locks(SettingTable& table, BLinkOptions& tree, bool noted_words = false);
void add_merge_and_scan(SettingTable& table, bool& merge, bool& parallel_scan);

// What a row of the table cannot judge. Errors name the setting.
Status check_node_bytes(std::string_view name, std::size_t bytes);
Status check_inline_value(KeyType key_type, std::size_t bytes, std::size_t max_inline_value);

}  // namespace pando::index
