// Sherman: the index as a whole, and its kind.
#include "index/sherman/sherman.h"

#include "index/common/combining.h"
#include "index/common/leaf_tree_impl.h"

namespace pando::index {

// All that sherman shares, for its leaves.
template class LeafTree<IntKeys, sherman::Leaf<IntKeys>>;
template class LeafTree<ByteKeys, sherman::Leaf<ByteKeys>>;

}  // namespace pando::index

namespace pando::index::sherman {

namespace {

class ShermanKind final : public Kind {
 public:
  std::string_view name() const override { return "sherman"; }
  std::string_view summary() const override {
    return "B-link tree with line versions and two-level locks (Sherman, SIGMOD '22)";
  }
  std::uint32_t format_version() const override { return kFormatVersion; }
  std::vector<Setting> settings() const override { return Options::settings(); }
  Result<IndexOptions> normalize(const IndexOptions& options) const override {
    Result<Options> parsed = Options::parse(options);
    if (!parsed) return fail(parsed.error());
    return parsed->spell();
  }
  Result<std::unique_ptr<Tree>> make(pool::ComputeNode& node, const pool::IndexRecord& record,
                                     const IndexOptions& options) const override {
    Result<Options> parsed = Options::parse(options);
    if (!parsed) return fail(parsed.error());
    const fabric::Caps& caps = node.fabric().caps();
    if (!caps.line_atomic) {
      return fail(ErrorCode::kIncompatible, "sherman needs a fabric that never tears a line");
    }
    if (parsed->tree.locks.on_chip && caps.onchip_bytes == 0) {
      return fail(ErrorCode::kIncompatible,
                  "onchip_locks: the memory nodes have no on-chip memory");
    }
    std::unique_ptr<Tree> tree;
    if (options.key_type == KeyType::kInteger) {
      tree = std::make_unique<Sherman<IntKeys>>(node, record, *parsed);
    } else {
      tree = std::make_unique<Sherman<ByteKeys>>(node, record, *parsed);
    }
    if (parsed->combine) tree = std::make_unique<Combined>(node, std::move(tree));
    return tree;
  }
};

}  // namespace

const Kind& kind() {
  static const ShermanKind kSherman;
  return kSherman;
}

}  // namespace pando::index::sherman
