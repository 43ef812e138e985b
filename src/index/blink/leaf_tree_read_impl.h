// LeafTree's members that read leaves without their locks: route, READ, believe, else the slow way.
#pragma once

#include <algorithm>
#include <cassert>
#include <unordered_map>
#include <utility>

#include "index/blink/leaf_tree.h"

namespace pando::index {

template <class K, class L>
bool LeafTree<K, L>::covers(const Route<K>& route, View key, Node<K> leaf) const {
  if (!leaf.has(kHasHigh) || mutated(Mutant::kNoFenceCheck)) return true;
  const Cell high = leaf.high();
  if (!K::is_long(high)) return key < K::short_key(high);
  const std::optional<View> fence = router_.long_fence(route, high);
  return fence && key < *fence;
}

template <class K, class L>
Verdict LeafTree<K, L>::judge_whole(const Route<K>& route, View key, L leaf) const {
  const bool good = tree_.judge(leaf, 0, route.node) == Verdict::kGood && covers(route, key, leaf);
  return good ? Verdict::kGood : Verdict::kStale;
}

template <class K, class L>
void LeafTree<K, L>::not_believed(Operation& op, const Route<K>& route, Verdict verdict) const {
  op.count_retry();
  if (verdict != Verdict::kTorn) router_.misled(route);
}

template <class K, class L>
template <class Glance>
Task<Result<Believed<L>>> LeafTree<K, L>::read_leaf(Operation& op, Glance& glance,
                                                    const Unverified<L>& image) {
  Route<K> route;
  bool routed = router_.known_route(glance.key(), route);
  if constexpr (Glance::kFindsRoute) {
    if (!routed) {
      Result<Route<K>> found = co_await router_.find_route(op, glance.key());
      if (!found) co_return fail(found.error());
      route = std::move(*found);
      routed = true;
    }
  }
  if (routed) {
    if constexpr (Glance::kGuesses) {
      if (glance.guesses(route)) {
        fabric::Batch batch(op.cost());
        glance.add_guess(batch, route, image.bytes());
        if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
        const auto leaf = image.believe([&](L seen) { return glance.judge_guess(seen); });
        if (leaf) co_return Believed<L>{*leaf, route.node, Believed<L>::Extent::kGuess};
      }
    }
    glance.start(route);
    for (int tries = 0; tries < Glance::kTries; ++tries) {
      fabric::Batch batch(op.cost());
      glance.add_reads(batch, route, image.bytes());
      if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
      const auto leaf = image.believe([&](L seen) { return glance.judge(route, seen); });
      if (leaf) co_return Believed<L>{*leaf, route.node, Believed<L>::Extent::kAsked};
      not_believed(op, route, leaf.error());
      if (leaf.error() != Verdict::kTorn) break;
      co_await op.worker().yield();
    }
  }
  Result<Found<K>> found = co_await tree_.read(op, glance.key(), 0, image.bytes());
  if (!found) co_return fail(found.error());
  co_return Believed<L>{image.believed(), found->node, Believed<L>::Extent::kWhole};
}

template <class K, class L>
template <class Glance, class Look>
Task<Status> LeafTree<K, L>::read_values(Operation& op, std::span<const Key> keys,
                                         std::span<std::optional<std::string>> values, Look look) {
  assert(values.size() == keys.size());
  constexpr std::size_t kAtOnce = 64;
  struct Planned {
    std::size_t key;
    Glance glance;
    Route<K> route;
    std::size_t image;
  };
  for (std::size_t begin = 0; begin < keys.size();) {
    std::vector<Planned> planned;
    planned.reserve(std::min(kAtOnce, keys.size() - begin));
    std::vector<Unverified<L>> images;
    std::unordered_map<std::uint64_t, std::size_t> image_of;  // by address of a whole leaf
    Unfinished unfinished;
    fabric::Batch batch(op.cost());
    std::size_t end = begin;
    for (; end < keys.size() && (Glance::kWhole ? images.size() : end - begin) < kAtOnce; ++end) {
      Route<K> route;
      Glance glance = look(K::view(keys[end]));
      if (!router_.known_route(glance.key(), route)) {
        unfinished.alone.push_back(end);
        continue;
      }
      glance.start(route);
      std::size_t image = images.size();
      if constexpr (Glance::kWhole) {
        image = image_of.try_emplace(route.node.address.raw(), image).first->second;
      }
      if (image == images.size()) {
        images.push_back(new_image(op));
        glance.add_reads(batch, route, images.back().bytes());
      }
      planned.push_back({end, std::move(glance), std::move(route), image});
    }
    if (Status read = co_await op.submit(batch); !read) co_return read;

    for (const Planned& plan : planned) {
      const auto leaf =
          images[plan.image].believe([&](L seen) { return plan.glance.judge(plan.route, seen); });
      if (leaf) {
        values[plan.key].reset();
        plan.glance.for_each_match(*leaf, [&](std::size_t slot) {
          if (leaf->is_item(slot)) {
            unfinished.items.push_back(leaf->item(slot));
            unfinished.items_of.push_back(plan.key);
          } else {
            values[plan.key] = std::string(leaf->value(slot));
          }
        });
      } else {
        not_believed(op, plan.route, leaf.error());
        unfinished.alone.push_back(plan.key);
      }
    }
    Status finished = co_await finish_multi_get(op, unfinished, keys, values);
    if (!finished) co_return finished;
    begin = end;
  }
  co_return Status{};
}

}  // namespace pando::index
