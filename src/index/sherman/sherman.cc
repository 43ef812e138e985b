// Sherman: the index as a whole, and its kind.
#include "index/sherman/sherman.h"

#include "index/common/node_write.h"

namespace pando::index::sherman {

template <class K>
Sherman<K>::Sherman(pool::ComputeNode& node, const pool::IndexRecord& record,
                    const Options& options)
    : options_(options), tree_(node, record, options.tree, *this) {}

template <class K>
Task<Status> Sherman<K>::create(Operation& op) {
  Result<pool::Block> block =
      co_await tree_.node().allocator().allocate(op, pool::BlockKind::kNode, options_.leaf.bytes);
  if (!block) co_return fail(block.error());
  const fabric::Buffer buffer = op.buffer(options_.leaf.bytes);
  Leaf<K> leaf = leaf_at(buffer.data());
  leaf.initialize(tree_.index_id(), 0, block->incarnation, K::cell(K::lowest()));
  const NodeRef ref(block->address, block->incarnation);
  fabric::Batch batch(op.cost());
  write_new(batch, ref, Node<K>(leaf));
  if (Status written = co_await op.submit(batch); !written) co_return written;
  co_return co_await tree_.set_first_root(op, ref);
}

template <class K>
IndexStats Sherman<K>::stats() const {
  const BLinkCounts& counts = tree_.counts();
  IndexStats stats;
  stats.counts = {
      {"splits", counts.splits.load()},
      {"merges", counts.merges.load()},
      {"root_growths", counts.root_growths.load()},
      {"cache_hits", counts.cache_hits.load()},
      {"cache_misses", counts.cache_misses.load()},
      {"misled_by_cache", counts.misled.load()},
      {"repairs", counts.repairs.load()},
      {"helped", counts.helped.load()},
      {"lock_takeovers", tree_.locks().takeovers()},
      {"lock_handovers", tree_.locks().handed_over()},
  };
  stats.compute.parts = {{"node cache", tree_.cache_bytes()},
                         {"lock table", tree_.locks().bytes()}};
  for (const auto& [part, bytes] : stats.compute.parts) stats.compute.bytes += bytes;
  return stats;
}

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
    if (options.key_type == KeyType::kInteger) {
      return std::make_unique<Sherman<IntKeys>>(node, record, *parsed);
    }
    return std::make_unique<Sherman<ByteKeys>>(node, record, *parsed);
  }
};

}  // namespace

const Kind& kind() {
  static const ShermanKind kSherman;
  return kSherman;
}

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
