// Router: how an index gets from a key to the reference of the leaf that covers it. The inner nodes
// that the compute side keeps (BLink) are one; a switch on the way, or a model of where keys lie,
// may be another.
//
// A route is a hint. Whoever follows it finds out at the leaf whether it was right (node.h), tells
// the router where it was not (misled()), and goes the tree's own way then (BLink::read, lock). So
// a router that is wrong costs round trips, never a wrong answer, if it keeps four promises:
//  1. A reference that it names is, or once was, a leaf's of the index: locks are taken by it.
//  2. No leaf that has the reference begins above the key. Readers look at the high fence alone: a
//     B-link tree leads too far left, never too far right. A model has to know where leaves begin.
//  3. Where next_leaf() names a leaf for a key, the key lies below that leaf's low fence.
//  4. A leaf that has a route's reference has the low fence that extent() says, and no other.
//
// Thread-safe. A route is used within the operation that asked for it, whose epoch holds what the
// router knows it by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "index/blink/cached_node.h"
#include "index/blink/node.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::index {

// An inner node in use: the cache's (held by the operation's epoch), or the user's own.
template <class K>
class NodeHandle {
 public:
  NodeHandle() = default;
  NodeHandle(const CachedNode<K>* node, bool owned) : node_(node), owned_(owned) {}
  NodeHandle(NodeHandle&& other) noexcept { *this = std::move(other); }
  NodeHandle& operator=(NodeHandle&& other) noexcept {
    reset();
    node_ = std::exchange(other.node_, nullptr);
    owned_ = std::exchange(other.owned_, false);
    return *this;
  }
  ~NodeHandle() { reset(); }

  const CachedNode<K>* operator->() const { return node_; }
  const CachedNode<K>* get() const { return node_; }
  explicit operator bool() const { return node_ != nullptr; }

 private:
  void reset() {
    if (owned_) CachedNode<K>::free_node(const_cast<CachedNode<K>*>(node_));
  }
  const CachedNode<K>* node_ = nullptr;
  bool owned_ = false;
};

// How one came to a node. All but the node's reference, and whether a split was found unposted on
// the way, is the router's own.
template <class K>
struct Route {
  NodeRef node;
  NodeHandle<K> parent = {};  // none at the root
  std::size_t slot = 0;       // of `node` in the parent
  bool fresh = false;         // the parent was read from far memory by this operation
  // An inner node that had to be reached by a step to the right, with its level: the split that
  // made it was not posted (yet, or its writer could not).
  struct Unposted {
    std::uint8_t level;
    NodeRef node;
    typename K::Owned separator;
    typename K::Cell cell;
  };
  std::optional<Unposted> unposted = {};
};

template <class K>
class Router {
 public:
  using View = typename K::View;
  using Cell = typename K::Cell;

  virtual ~Router() = default;

  // To the key's leaf, where that takes no round trip: neither suspends nor allocates.
  virtual bool known_route(View key, Route<K>& route) = 0;
  // The same with round trips, where it takes some.
  virtual Task<Result<Route<K>>> find_route(pool::Operation& op, View key) = 0;
  // The route led to a leaf that is not (any more) the key's.
  virtual void misled(const Route<K>& route) = 0;

  // What else is known without a round trip, of a route from known_route() or find_route().

  // The leaf after the route's, if `key` lies below it for certain; a null reference where there is
  // none, nullopt where one does not know.
  virtual std::optional<NodeRef> next_leaf(const Route<K>& /*route*/, View /*key*/) const {
    return std::nullopt;
  }
  // A route of one's own to the leaf after the route's; `next` may be `route` itself. False: not
  // known.
  virtual bool next_route(const Route<K>& /*route*/, Route<K>& /*next*/) const { return false; }
  // The route's leaf begins at `low`, and ends at `high` if `next` is its sibling.
  struct Extent {
    View low;
    View high;
    NodeRef next;
    double usual_width = 0;  // integer keys: high - low of leaves near by
  };
  virtual std::optional<Extent> extent(const Route<K>& /*route*/) const { return std::nullopt; }
  // The key of the cell, a long one, that the route's leaf has as its high fence.
  virtual std::optional<View> long_fence(const Route<K>& /*route*/, const Cell& /*high*/) const {
    return std::nullopt;
  }
};

}  // namespace pando::index
