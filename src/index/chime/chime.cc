// Chime: the index as a whole, and its kind.
#include "index/chime/chime.h"

#include <algorithm>

#include "index/blink/leaf_tree_impl.h"
#include "index/blink/leaf_tree_kind.h"
#include "index/chime/erase_impl.h"
#include "index/chime/insert_impl.h"
#include "index/chime/scan_impl.h"
#include "index/chime/search_impl.h"
#include "index/chime/split_impl.h"

namespace pando::index::chime {

namespace {

std::size_t hotspot_bytes(pool::ComputeNode& compute_node, const Options& options) {
  const pool::Budget& budget = compute_node.budget();
  const std::uint64_t used = budget.used();
  if (!options.speculation || used >= budget.limit()) return 0;
  return std::min<std::size_t>(options.hotspot_bytes, (budget.limit() - used) / 4);
}

}  // namespace

template <class K>
Chime<K>::Chime(pool::ComputeNode& compute_node, const pool::IndexRecord& record,
                const Options& options, Router<K>* router)
    : Base(compute_node, record, options, router),
      options_(options),
      hotspots_(compute_node.budget(), compute_node.limbo(), LineNumbers::of(compute_node.fabric()),
                hotspot_bytes(compute_node, options)) {}

template <class K>
void Chime<K>::initialize_leaf(Leaf<K> leaf, std::uint32_t incarnation, const Cell& low) const {
  Base::initialize_leaf(leaf, incarnation, low);
  leaf.clear_entries();
}

template <class K>
Status Chime<K>::check_entries(const Leaf<K>& leaf) const {
  if (!leaf.agrees()) return fail(ErrorCode::kCorrupt, "keys do not stand where their homes say");
  for (std::size_t r = 0; r < options_.leaf.replicas(); ++r) {
    const bool good = (leaf.birth() & NodeRef::kBirthMask) == leaf.replica_birth(r) &&
                      leaf.replica_has_next(r) == leaf.has(kHasHigh) && leaf.replica_agrees(r);
    if (!good) return fail(ErrorCode::kCorrupt, "a replica differs from the header");
  }
  return {};
}

template <class K>
void Chime<K>::add_stats(IndexStats& stats) const {
  stats.counts.insert(stats.counts.end(), {{"speculative_reads", guesses_.load()},
                                           {"wrong_speculations", wrong_guesses_.load()},
                                           {"hops", hops_.load()},
                                           {"entries_at_splits", entries_at_splits_.load()},
                                           {"partial_leaf_scans", partial_leaf_scans_.load()}});
  stats.compute.parts.emplace_back("hotspots", hotspots_.bytes());
}

const Kind& kind() {
  static const LeafTreeKind<Chime, Options> kKind(
      "chime", "B-link tree with hopscotch leaves and speculative reads (CHIME, SOSP '24)",
      kFormatVersion);
  return kKind;
}

template class Chime<IntKeys>;
template class Chime<ByteKeys>;

}  // namespace pando::index::chime
