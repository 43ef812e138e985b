// BLink's members that know the way: the root, the cached inner nodes, routes through them, and
// whether they led to the right node.
#pragma once

#include <chrono>

#include "index/blink/blink.h"

namespace pando::index {

// --- The root ---
// Its word in far memory is {address | level}: addresses are multiples of 64, levels below 32.

template <class K>
bool BLink<K>::cached_root(Root& root) const {
  const std::uint64_t word = root_word_.load(std::memory_order_acquire);
  const std::uint64_t rest = root_rest_.load(std::memory_order_acquire);
  if (word == 0 || rest >> 32 != root_check(word)) return false;  // none, or half set
  root.ref = NodeRef::decode(word, static_cast<std::uint16_t>(rest));
  root.level = static_cast<std::uint8_t>(rest >> 16);
  return true;
}

template <class K>
void BLink<K>::remember_root(const Root& root) {
  const std::uint64_t word = root.ref.word();
  root_rest_.store((root_check(word) << 32) | (std::uint64_t{root.level} << 16) | root.ref.high(),
                   std::memory_order_release);
  root_word_.store(word, std::memory_order_release);
}

template <class K>
void BLink<K>::forget_root() {
  root_word_.store(0, std::memory_order_release);
}

template <class K>
Task<Result<typename BLink<K>::Root>> BLink<K>::root(Operation& op) {
  Root root;
  if (cached_root(root)) co_return root;
  co_return co_await read_root(op);
}

template <class K>
Task<Result<typename BLink<K>::Root>> BLink<K>::read_root(Operation& op) {
  for (;;) {
    const fabric::Buffer buffer = op.buffer(2 * kLineBytes);
    fabric::Batch batch(op.cost());
    batch.read(record_.root_word(), buffer.data(), sizeof(std::uint64_t));
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const auto word = pando::index::load<std::uint64_t>(buffer.data());
    const Address address = Address::from_raw(word & ~std::uint64_t{63});
    const auto level = static_cast<std::uint8_t>(word & 63);
    batch.clear();
    batch.read(address, buffer.data(), kLineBytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const Node<K> header(buffer.data(), kLineBytes);
    if (header.index_id() == index_id() && header.level() == level) {
      const Root root{NodeRef(address, header.birth()), level};
      remember_root(root);
      co_return root;
    }
    if (op.expired()) {
      co_return fail(ErrorCode::kCorrupt, "the root word does not lead to a node of the index");
    }
    op.count_retry();
    co_await op.worker().yield();
  }
}

template <class K>
Task<Status> BLink<K>::set_first_root(Operation& op, const NodeRef& leaf) {
  const std::uint64_t word = leaf.address.raw();
  fabric::Batch batch(op.cost());
  batch.write_word(record_.root_word(), &word);
  co_return co_await op.submit(batch);
}

// --- Routes ---

template <class K>
bool BLink<K>::route_cached(View key, std::uint8_t level, Route<K>& route) {
  Root root;
  if (!cached_root(root) || root.level < level) return false;
  route.node = root.ref;
  for (std::uint8_t at = root.level; at > level; --at) {
    const CacheNode* node = cache_.find(route.node);
    if (node == nullptr || !node->reaches(key, false)) return false;
    const std::size_t slot = node->find(key);
    if (slot == node->count()) return false;
    route.parent = NodeHandle<K>(node, false);
    route.slot = slot;
    route.node = node->child(slot);
  }
  route.fresh = false;
  return true;
}

template <class K>
bool BLink<K>::known_route(View key, Route<K>& route) {
  return route_cached(key, 0, route);
}

template <class K>
Task<Result<Route<K>>> BLink<K>::find_route(Operation& op, View key) {
  return route(op, key, 0);
}

// REQUIRES: `route` outlives `next`, where its parent is its own.
template <class K>
bool BLink<K>::next_route(const Route<K>& route, Route<K>& next) const {
  const CacheNode* parent = route.parent.get();
  if (parent == nullptr) return false;
  std::size_t slot = route.slot + 1;
  if (slot == parent->count()) {
    parent = parent->has_high() ? cache_.find(parent->sibling()) : nullptr;
    if (parent == nullptr || parent->count() == 0) return false;
    slot = 0;
  }
  next = {parent->child(slot), NodeHandle<K>(parent, false), slot};
  return true;
}

template <class K>
std::optional<NodeRef> BLink<K>::next_leaf(const Route<K>& route, View key) const {
  if (!route.parent) return NodeRef{};
  if (route.slot + 1 < route.parent->count()) return route.parent->child(route.slot + 1);
  if (!route.parent->has_high()) return NodeRef{};
  const CacheNode* next = cache_.find(route.parent->sibling());
  if (next == nullptr || next->count() == 0 || !(key < next->key(0))) return std::nullopt;
  return next->child(0);
}

// How wide children of an inner node are on average; `otherwise` where it does not tell.
template <class K>
static double average_width(const CachedNode<K>& parent, double otherwise) {
  if constexpr (K::kType == KeyType::kInteger) {
    const std::size_t widths = parent.has_high() ? parent.count() : parent.count() - 1;
    if (widths == 0) return otherwise;
    return static_cast<double>(parent.key(widths) - parent.key(0)) / static_cast<double>(widths);
  }
  return otherwise;
}

template <class K>
auto BLink<K>::extent(const Route<K>& route) const -> std::optional<Extent> {
  const CacheNode* const parent = route.parent.get();
  if (parent == nullptr) return std::nullopt;
  Extent extent{parent->key(route.slot), {}, {}};
  if (route.slot + 1 < parent->count()) {
    extent.high = parent->key(route.slot + 1);
    extent.next = parent->child(route.slot + 1);
  } else {
    const CacheNode* next = parent->has_high() ? cache_.find(parent->sibling()) : nullptr;
    if (next == nullptr || next->count() == 0 || !(extent.low < next->key(0))) return std::nullopt;
    extent.high = next->key(0);
    extent.next = next->child(0);
  }
  if constexpr (K::kType == KeyType::kInteger) {
    extent.usual_width = average_width(*parent, static_cast<double>(extent.high - extent.low));
  }
  return extent;
}

template <class K>
std::optional<typename K::View> BLink<K>::long_fence(const Route<K>& route,
                                                     const Cell& high) const {
  if (!route.parent) return std::nullopt;
  const std::size_t next = route.slot + 1;
  const bool known = next < route.parent->count() || route.parent->has_high();
  if (!known || route.parent->cell(next) != high) return std::nullopt;
  return route.parent->key(next);
}

template <class K>
void BLink<K>::misled(const Route<K>& route) {
  counts_.misled.fetch_add(1, std::memory_order_relaxed);
  if (route.parent) {
    cache_.erase(route.parent->self());
  } else {
    forget_root();
  }
}

template <class K>
Task<Result<Route<K>>> BLink<K>::route(Operation& op, View key, std::uint8_t level, bool strict) {
  for (int restarts = 0;; ++restarts) {
    if (restarts > 0) {
      if (op.expired()) {
        co_return fail(ErrorCode::kTimeout, "finding the way through the index");
      }
      op.count_retry();
      co_await op.worker().yield();
    }
    Result<Root> root = co_await root_above(op, level, restarts > kRestartsBeforeRoot);
    if (!root) co_return fail(root.error());

    Descent descent{key, strict, restarts, root->level, root->level};
    descent.route.node = root->ref;
    bool restart = false;
    while (descent.level > level && !restart) {
      Result<bool> on = co_await step_down(op, descent);
      if (!on) co_return fail(on.error());
      restart = !*on;
    }
    if (!restart) co_return std::move(descent.route);
  }
}

// The root, if there is such a level; known from before unless `anew`.
template <class K>
Task<Result<typename BLink<K>::Root>> BLink<K>::root_above(Operation& op, std::uint8_t level,
                                                           bool anew) {
  Result<Root> found = anew ? co_await read_root(op) : co_await root(op);
  if (found && found->level < level) found = co_await read_root(op);
  if (found && found->level < level) {
    co_return fail(ErrorCode::kNotFound, "the tree has no such level");
  }
  co_return found;
}

// One node further: to a child, or to a sibling. False: restart.
template <class K>
Task<Result<bool>> BLink<K>::step_down(Operation& op, Descent& descent) {
  Route<K>& route = descent.route;
  NodeHandle<K> node(cache_.find(route.node), false);
  const bool cached = static_cast<bool>(node);
  if (!cached) {
    Result<Loaded> loaded = co_await load(op, route.node, descent.level);
    if (!loaded) co_return fail(loaded.error());
    if (loaded->outcome != LoadOutcome::kLoaded) {
      co_return co_await pass_dead(op, descent, loaded->outcome);
    }
    node = std::move(loaded->node);
  }
  if (!node->reaches(descent.key, descent.strict)) {
    if (cached) {  // outdated; or not, which a fresh one tells
      cache_.erase(node->self());
    } else {
      to_sibling(descent, *node.get());
    }
    co_return true;
  }
  const std::size_t slot = node->find(descent.key, descent.strict);
  if (slot == node->count()) {
    misled(route);
    cache_.erase(route.node);
    co_return false;
  }
  route.node = node->child(slot);
  route.slot = slot;
  route.parent = std::move(node);
  route.fresh = !cached;
  descent.left = NodeRef{};
  --descent.level;
  co_return true;
}

// A half-done split, or an outdated entry above: the key lies beyond the node.
template <class K>
void BLink<K>::to_sibling(Descent& descent, const CacheNode& node) {
  Route<K>& route = descent.route;
  if (descent.level == descent.root_level) forget_root();
  if (route.parent && !route.fresh) cache_.erase(route.parent->self());
  if ((route.fresh || !route.parent) && !route.unposted) {
    const std::size_t end = node.count();  // where the high fence is
    route.unposted = {descent.level, node.sibling(), Owned(node.key(end)), node.cell(end)};
  }
  descent.left = route.node;
  route.node = node.sibling();
}

// The way led to a node that is not there any more. True: there is a way around it.
template <class K>
Task<Result<bool>> BLink<K>::pass_dead(Operation& op, Descent& descent, LoadOutcome outcome) {
  Route<K>& route = descent.route;
  const bool dead = outcome == LoadOutcome::kDead;
  if (dead && descent.left && descent.restarts > kRestartsBeforeRoot) {
    // Left as a sibling by a merger that died: finish its work.
    Result<bool> finished = co_await finish_abandoned(op, descent.left, descent.level);
    if (!finished) co_return finished;
  }
  if (dead && !descent.left && route.parent && route.fresh) {
    // Its merger has not taken the entry out yet, or is dead: go around by the left, where one sees
    // which.
    const Owned separator(route.parent->key(route.slot));
    Result<Route<K>> around = co_await this->route(op, separator, descent.level, true);
    if (!around) co_return fail(around.error());
    route = std::move(*around);
    co_return true;
  }
  misled(route);
  co_return false;
}

// --- Inner nodes into the cache ---

template <class K>
Task<Result<std::optional<NodeHandle<K>>>> BLink<K>::decode(Operation& op, const NodeRef& ref,
                                                            InnerNode<K> node) {
  using Answer = std::optional<NodeHandle<K>>;
  auto sorted = co_await entries(op, node);
  if (!sorted) co_return fail(sorted.error());
  if (!*sorted) co_return Answer(std::nullopt);
  Owned high{};
  if (node.has(kHasHigh)) {
    Result<Owned> whole = co_await whole_key(op, node.high());
    if (!whole && outdated(whole.error())) co_return Answer(std::nullopt);
    if (!whole) co_return fail(whole.error());
    high = std::move(*whole);
  }
  CacheNode* made = CacheNode::make({ref, node.sibling(), node.level(), node.has(kHasHigh)},
                                    **sorted, high, node.high());
  if (made == nullptr) co_return fail(ErrorCode::kOutOfMemory, "on the compute node");
  // One in the middle of a merge is not kept: all who pass see it, until it has been finished.
  const bool kept = !node.has(kAbsorbing) && !node.has(kLeaving) && cache_.insert(made);
  co_return Answer(NodeHandle<K>(made, !kept));
}

template <class K>
Task<Result<typename BLink<K>::Loaded>> BLink<K>::load(Operation& op, const NodeRef& ref,
                                                       std::uint8_t level) {
  counts_.cache_misses.fetch_add(1, std::memory_order_relaxed);
  const fabric::Buffer buffer = op.buffer(options_.inner_bytes);
  for (int tries = 1;; ++tries) {
    if (Status read = co_await fetch(op, ref, level, buffer.data(), nullptr); !read) {
      co_return fail(read.error());
    }
    InnerNode<K> node(buffer.data(), options_.inner_bytes);
    switch (judge(node, level, ref)) {
      case Verdict::kStale:
        co_return Loaded{LoadOutcome::kStale, {}};
      case Verdict::kDead:
        co_return Loaded{LoadOutcome::kDead, {}};
      case Verdict::kGood: {
        if (node.has(kAbsorbing) || node.has(kLeaving)) {
          Result<bool> helped = co_await finish_abandoned(op, ref, level, IfLocked::kGiveUp);
          if (!helped) co_return fail(helped.error());
          if (*helped) break;  // look again
        }
        auto decoded = co_await decode(op, ref, node);
        if (!decoded) co_return fail(decoded.error());
        if (*decoded) co_return Loaded{LoadOutcome::kLoaded, std::move(**decoded)};
        break;  // outdated while we looked
      }
      case Verdict::kTorn:
        break;
    }
    if (op.expired()) co_return fail(ErrorCode::kTimeout, "reading an inner node");
    op.count_retry();
    co_await op.worker().yield();
    if (tries % kTornRetries == 0) {
      Result<bool> finished = co_await finish_abandoned(op, ref, level);
      if (!finished) co_return fail(finished.error());
    }
  }
}

// --- At the node ---

template <class K>
Verdict BLink<K>::judge(Node<K> node, std::uint8_t level, const NodeRef& ref) const {
  const Verdict header = node.judge_header(index_id(), level, ref);
  if (header != Verdict::kGood || node.lines() == 1) return header;
  const bool whole = level == 0 ? leaves_.intact(node) : node.versions_agree();
  return whole ? Verdict::kGood : Verdict::kTorn;
}

}  // namespace pando::index
