// Sherman: the index as a whole, and its kind.
#include "index/sherman/sherman.h"

#include "index/blink/leaf_tree_impl.h"
#include "index/blink/leaf_tree_kind.h"
#include "index/sherman/erase_impl.h"
#include "index/sherman/insert_impl.h"
#include "index/sherman/search_impl.h"
#include "index/sherman/split_impl.h"

namespace pando::index::sherman {

template <class K>
Sherman<K>::Sherman(pool::ComputeNode& compute_node, const pool::IndexRecord& record,
                    const Options& options, Router<K>* router)
    : Base(compute_node, record, options, router) {}

template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

const Kind& kind() {
  static const LeafTreeKind<Sherman, Options> kKind(
      "sherman", "B-link tree with line versions and two-level locks (Sherman, SIGMOD '22)",
      kFormatVersion);
  return kKind;
}

}  // namespace pando::index::sherman
