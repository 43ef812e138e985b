// BLink as a whole, for both types of keys. Its members stand in a file for each step.
#include "index/blink/blink.h"

#include "index/blink/blink_find_impl.h"
#include "index/blink/blink_keys_impl.h"
#include "index/blink/blink_merge_impl.h"
#include "index/blink/blink_post_impl.h"
#include "index/blink/blink_route_impl.h"

namespace pando::index {

template <class K>
BLink<K>::BLink(pool::ComputeNode& compute_node, const pool::IndexRecord& record,
                const BLinkOptions& options, Leaves<K>& leaves)
    : compute_node_(compute_node),
      record_(record),
      options_(options),
      leaves_(leaves),
      locks_(compute_node, options.locks),
      cache_(compute_node, options.cache) {}

template class BLink<IntKeys>;
template class BLink<ByteKeys>;

}  // namespace pando::index
