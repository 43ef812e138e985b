// LeafTreeKind: the kind, for the registry, of an index on LeafTree.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <vector>

#include "index/common/keys.h"
#include "index/index.h"

namespace pando::index {

// Index<K>: a Tree, made as Index<K>(compute_node, record, options). Options: derived from
// LeafTreeOptions, with parse(), spell() and settings().
template <template <class K> class Index, class Options>
class LeafTreeKind final : public Kind {
 public:
  LeafTreeKind(std::string_view name, std::string_view summary, std::uint32_t format_version)
      : name_(name), summary_(summary), format_version_(format_version) {}

  std::string_view name() const override { return name_; }
  std::string_view summary() const override { return summary_; }
  std::uint32_t format_version() const override { return format_version_; }
  std::vector<Setting> settings() const override { return Options::settings(); }
  // An item, a node, a separator.
  std::size_t blocks_linked_at_once() const override { return 3; }
  Result<IndexOptions> normalize(const IndexOptions& options) const override {
    Result<Options> parsed = Options::parse(options);
    if (!parsed) return fail(parsed.error());
    return parsed->spell();
  }
  Result<std::unique_ptr<Tree>> make(pool::ComputeNode& compute_node,
                                     const pool::IndexRecord& record,
                                     const IndexOptions& options) const override {
    Result<Options> parsed = Options::parse(options);
    if (!parsed) return fail(parsed.error());
    const fabric::Caps& caps = compute_node.fabric().caps();
    if (!caps.line_atomic) {
      return fail(ErrorCode::kIncompatible,
                  fmt::format("{} needs a fabric that never tears a line", name_));
    }
    if (parsed->tree.locks.on_chip && caps.onchip_bytes == 0) {
      return fail(ErrorCode::kIncompatible,
                  "onchip_locks: the memory nodes have no on-chip memory");
    }
    if (options.key_type == KeyType::kInteger) {
      return std::make_unique<Index<IntKeys>>(compute_node, record, *parsed);
    }
    return std::make_unique<Index<ByteKeys>>(compute_node, record, *parsed);
  }

 private:
  const std::string_view name_;
  const std::string_view summary_;
  const std::uint32_t format_version_;
};

}  // namespace pando::index
