#include "index/blink/leaf_tree_options.h"

#include <fmt/format.h>

namespace pando::index {

namespace {

constexpr std::size_t kMinNodeBytes = 256;
constexpr std::size_t kMaxNodeBytes = 64 << 10;
constexpr std::uint64_t kMaxHandovers = 1000;

}  // namespace

void add_sizes(SettingTable& table, std::size_t& inner_bytes, std::size_t& inline_value,
               std::size_t max_inline_value) {
  table.add({"inner_bytes", &inner_bytes, "size of an inner node", true, {"256", "256", "512"}});
  table.add({"inline_value", &inline_value,
             fmt::format("integer keys: values of up to this many bytes lie in the leaf ({} to {})",
                         kMinInlineValue, max_inline_value),
             true});
}

void add_cache_and_locks(SettingTable& table, BLinkOptions& tree, bool noted_words) {
  LockOptions& locks = tree.locks;
  table.add({"cache", &tree.cache, "keep inner nodes on the compute side", false});
  if (!noted_words) {
    table.add({"local_locks", &locks.local_table, "queue in the compute node before a remote lock",
               false});
  }
  table.add({"handovers",
             &locks.handovers,
             "hand a remote lock over within the compute node, at most this often in a row",
             false,
             {"0", "1", "16"},
             kMaxHandovers});
  table.add(
      {"lock_with_read", &locks.lock_with_read, "lock and read a node in one round trip", false});
  table.add({"unlock_with_write", &locks.unlock_with_write,
             "write back and unlock a node in one round trip", false});
}

void add_merge_and_scan(SettingTable& table, bool& merge, bool& parallel_scan) {
  table.add({"merge", &merge, "merge nodes that empty", false});
  table.add({"parallel_scan", &parallel_scan, "read the leaves of a scan in one batch", false});
}

Status check_node_bytes(std::string_view name, std::size_t bytes) {
  if (bytes >= kMinNodeBytes && bytes <= kMaxNodeBytes && bytes % kLineBytes == 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}={}: must be a multiple of {} from {} to {}", name, bytes, kLineBytes,
                          kMinNodeBytes, kMaxNodeBytes));
}

Status check_inline_value(KeyType key_type, std::size_t bytes, std::size_t max_inline_value) {
  if (bytes < kMinInlineValue || bytes > max_inline_value) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("inline_value={}: must be from {} to {}",
                                                         bytes, kMinInlineValue, max_inline_value));
  }
  if (key_type == KeyType::kBytes && bytes != kMinInlineValue) {
    return fail(ErrorCode::kInvalidArgument,
                "inline_value: byte-string keys keep key and value in an item; leave it at 8");
  }
  return {};
}

}  // namespace pando::index
