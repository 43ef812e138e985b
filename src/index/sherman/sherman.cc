// Sherman: the index as a whole, and its kind.
#include "index/sherman/sherman.h"

#include "index/blink/leaf_tree_impl.h"
#include "index/blink/leaf_tree_kind.h"

namespace pando::index {

// All that sherman shares, for its leaves.
template class LeafTree<IntKeys, sherman::Leaf<IntKeys>>;
template class LeafTree<ByteKeys, sherman::Leaf<ByteKeys>>;

}  // namespace pando::index

namespace pando::index::sherman {

const Kind& kind() {
  static const LeafTreeKind<Sherman, Options> kKind(
      "sherman", "B-link tree with line versions and two-level locks (Sherman, SIGMOD '22)",
      kFormatVersion);
  return kKind;
}

}  // namespace pando::index::sherman
