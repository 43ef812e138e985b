#include "index/sherman/options.h"

namespace pando::index::sherman {

SettingTable Options::table() {
  SettingTable table("sherman", key_type);
  table.add({"leaf_bytes", &leaf.bytes, "size of a leaf", true, {"256", "256", "512", "1024"}});
  add_sizes(table, tree.inner_bytes, leaf.value_bytes, kMaxInlineValue);
  add_cache_and_locks(table, tree);
  table.add(
      {"onchip_locks", &tree.locks.on_chip, "keep lock words in the NICs' on-chip memory", true});
  add_merge_and_scan(table, merge, parallel_scan);
  return table;
}

std::vector<Setting> Options::settings() { return Options().table().describe(); }

Result<Options> Options::parse(const IndexOptions& options) {
  Options parsed;
  Status status = parsed.table().parse(options);
  if (status) status = check_node_bytes("leaf_bytes", parsed.leaf.bytes);
  if (status) status = check_node_bytes("inner_bytes", parsed.tree.inner_bytes);
  if (status) {
    status = check_inline_value(parsed.key_type, parsed.leaf.value_bytes, kMaxInlineValue);
  }
  if (!status) return fail(status.error());
  return parsed;
}

IndexOptions Options::spell() const { return Options(*this).table().spell(); }

}  // namespace pando::index::sherman
