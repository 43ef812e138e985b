#include "index/chime/options.h"

#include <fmt/format.h>

namespace pando::index::chime {

namespace {

Status wrong(std::string what) { return fail(ErrorCode::kInvalidArgument, std::move(what)); }

Status check_leaf(const LeafGeometry& leaf) {
  if (leaf.span < kMinSpan || leaf.span > kMaxSpan) {
    return wrong(
        fmt::format("span={}: must be from {} to {}, as far as the vacancy map in the lock "
                    "word reaches",
                    leaf.span, kMinSpan, kMaxSpan));
  }
  if (leaf.neighbourhood < kMinNeighbourhood || leaf.neighbourhood > kMaxNeighbourhood) {
    return wrong(fmt::format("neighbourhood={}: must be from {} to {}", leaf.neighbourhood,
                             kMinNeighbourhood, kMaxNeighbourhood));
  }
  if (leaf.neighbourhood > leaf.span || leaf.span % leaf.neighbourhood != 0) {
    return wrong(
        fmt::format("span={}, neighbourhood={}: the span must be a multiple of the "
                    "neighbourhood",
                    leaf.span, leaf.neighbourhood));
  }
  return {};
}

}  // namespace

SettingTable Options::table() {
  SettingTable table("chime", key_type);
  table.add({"span", &leaf.span, "entries of a leaf", true, {"8", "16", "32", "64"}});
  table.add({"neighbourhood",
             &leaf.neighbourhood,
             fmt::format("entries from its home on in which a key may stand, at most {}",
                         kMaxNeighbourhood),
             true,
             {"2", "4", "8"}});
  add_sizes(table, tree.inner_bytes, leaf.value_bytes, kMaxInlineValue);
  table.add({"sibling_validation", &sibling_validation,
             "replicas hold the sibling, to be compared with the cached parent; off: high fences "
             "(integer keys)",
             true});
  table.add({"ordered_homes", &leaf.ordered,
             "consecutive integer keys stand side by side, so that scans read less of a leaf; off: "
             "where a hash says",
             true});
  add_cache_and_locks(table, tree, true);
  table.add({"vacancy", &vacancy, "inserts read as much as the vacancy map asks for; off: the leaf",
             false});
  table.add({"replicas", &replicas,
             "point reads check a replica of the metadata; off: they read the header too", false});
  table.add(
      {"speculation", &speculation, "read single entries of keys that are read often", false});
  table.add({"hotspot_bytes",
             &hotspot_bytes,
             "memory to remember where such keys stand; no more than a quarter of what is left of "
             "the budget",
             false,
             {"4096", "65536"}});
  add_merge_and_scan(table, merge, parallel_scan);
  table.add({"exclude", &exclude,
             "scans of integer keys leave out entries that cannot be in range, and the header "
             "(where replicas=on); off: they read whole leaves",
             false});
  return table;
}

std::vector<Setting> Options::settings() { return Options().table().describe(); }

Result<Options> Options::parse(const IndexOptions& options) {
  Options parsed;
  Status status = parsed.table().parse(options);
  if (status) status = check_leaf(parsed.leaf);
  if (status) status = check_node_bytes("inner_bytes", parsed.tree.inner_bytes);
  if (status) {
    status = check_inline_value(parsed.key_type, parsed.leaf.value_bytes, kMaxInlineValue);
  }
  if (status && !parsed.sibling_validation && parsed.key_type == KeyType::kBytes) {
    status = wrong("sibling_validation=off: the fences of byte-string keys do not fit a replica");
  }
  if (status && parsed.speculation && parsed.hotspot_bytes == 0) {
    status = wrong("hotspot_bytes=0: speculation needs some; or switch it off: speculation=off");
  }
  if (!status) return fail(status.error());
  parsed.leaf.fences = !parsed.sibling_validation;
  parsed.leaf.arrange(parsed.key_type == KeyType::kInteger ? IntKeys::kHeaderLines
                                                           : ByteKeys::kHeaderLines);
  return parsed;
}

IndexOptions Options::spell() const { return Options(*this).table().spell(); }

}  // namespace pando::index::chime
