// Chime: get and multi_get. One READ of a neighbourhood with a replica of the leaf's metadata, or
// of one entry where the hotspots know it.
#include <algorithm>
#include <vector>

#include "index/chime/chime.h"

namespace pando::index::chime {

namespace {
// A neighbourhood that a writer is changing is read again so often; then the leaf is read whole,
// which finds out whether that writer lives.
constexpr int kTornRetries = 16;
}  // namespace

// The metadata comes from the header where replicas are not used, and where they do not tell how
// far the leaf reaches: the next leaf of the level is unknown to the cache.
template <class K>
bool Chime<K>::needs_header(const std::optional<NodeRef>& next) const {
  return !options_.replicas || (options_.sibling_validation && !next);
}

template <class K>
NodeParts Chime<K>::parts_for(const Wanted& wanted, std::size_t count, bool header) const {
  NodeParts parts;
  if (count >= options_.leaf.span) return NodeParts::whole(options_.leaf.bytes);
  if (header) parts.add(0, K::kHeaderLines * kLineBytes);
  options_.leaf.for_each_part(
      wanted.home, count, [&](std::size_t offset, std::size_t bytes) { parts.add(offset, bytes); });
  return parts;
}

// Sibling-based validation: the leaf reaches up to the next one that the parent knows of, if that
// is its sibling, and the key lies below that.
template <class K>
typename Chime<K>::Sight Chime<K>::judge(const Wanted& wanted, const Route<K>& route,
                                         const std::optional<NodeRef>& next, Leaf<K> leaf) const {
  std::uint16_t version = 0;
  bool reaches = false;
  if (needs_header(next)) {
    if (leaf.judge_header(tree().index_id(), 0, route.node) != Verdict::kGood) {
      return Sight::kElsewhere;
    }
    version = static_cast<std::uint16_t>(leaf.Node<K>::version() & Leaf<K>::kVersionMask);
    reaches = covers(route, wanted.key, leaf);
  } else {
    const std::size_t r = options_.leaf.replica_for(wanted.home);
    const bool same_life = leaf.replica_birth(r) == route.node.birth && !leaf.replica_dead(r);
    if (!same_life && !mutated(Mutant::kNoReplicaCheck)) return Sight::kElsewhere;
    version = leaf.replica_version(r);
    if constexpr (K::kType == KeyType::kInteger) {
      if (!options_.sibling_validation) {
        reaches = !leaf.replica_has_next(r) || wanted.key < leaf.replica_fence(r);
      }
    }
    if (options_.sibling_validation) reaches = leaf.replica_sibling(r) == *next;
    if (mutated(Mutant::kNoReplicaCheck)) reaches = true;
  }
  if (!leaf.neighbourhood_agrees(wanted.home, version)) return Sight::kTorn;
  return reaches ? Sight::kGood : Sight::kElsewhere;
}

// --- Speculation ---

// Fetches what speculate() will look at, while the way to the leaf is looked up.
template <class K>
void Chime<K>::expect(const Wanted& wanted) const {
  if (options_.speculation) hotspots_.prefetch(wanted.word);
}

template <class K>
std::optional<typename Chime<K>::Guess> Chime<K>::speculate(const NodeRef& leaf,
                                                            const Wanted& wanted) {
  if (!options_.speculation) return std::nullopt;
  const std::optional<Hotspots::Spot> spot = hotspots_.find(leaf.address, wanted.word);
  if (!spot || spot->distance >= options_.leaf.neighbourhood) return std::nullopt;
  guesses_.fetch_add(1, std::memory_order_relaxed);
  return Guess{(wanted.home + spot->distance) % options_.leaf.span, spot->version};
}

// The entry alone tells: it has the key, and the leaf has been neither split nor merged nor freed
// since the key was found there, as all of these change the version of every entry. A key that was
// erased, or moved within the leaf, does not stand there any more.
template <class K>
bool Chime<K>::right_guess(const Wanted& wanted, const Guess& guess, Leaf<K> leaf) const {
  if (mutated(Mutant::kBlindSpeculation)) return !leaf.empty(guess.entry);
  return !leaf.empty(guess.entry) && leaf.key_word(guess.entry) == wanted.word &&
         leaf.version(guess.entry) == guess.version;
}

template <class K>
void Chime<K>::remember(const Wanted& wanted, const Seen& seen, Leaf<K> leaf, std::size_t slot) {
  if (!options_.speculation || seen.spot) return;
  hotspots_.found(seen.leaf.address, wanted.word,
                  {options_.leaf.distance(wanted.home, slot), leaf.version(slot)});
}

// --- Looking ---

template <class K>
Task<Result<typename Chime<K>::Seen>> Chime<K>::look(Operation& op, const Wanted& wanted,
                                                     std::byte* image) {
  const Leaf<K> leaf = leaf_at(image);
  Route<K> route;
  expect(wanted);
  if (!router().known_route(wanted.key, route)) {
    Result<Route<K>> routed = co_await router().find_route(op, wanted.key);
    if (!routed) co_return fail(routed.error());
    route = std::move(*routed);
  }
  if (const auto guess = speculate(route.node, wanted)) {
    fabric::Batch batch(op.cost());
    const std::size_t offset = options_.leaf.entry[guess->entry];
    batch.read(route.node.address + offset, image + offset, options_.leaf.slot_bytes);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    if (right_guess(wanted, *guess, leaf)) co_return Seen{route.node, 0, guess->entry, {}};
    wrong_guesses_.fetch_add(1, std::memory_order_relaxed);
  }
  const std::optional<NodeRef> next = router().next_leaf(route, wanted.key);
  const std::size_t count = options_.leaf.neighbourhood;
  const NodeParts parts = parts_for(wanted, count, needs_header(next));
  for (int tries = 0; tries < kTornRetries; ++tries) {
    fabric::Batch batch(op.cost());
    parts.read(batch, route.node.address, image);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const Sight sight = judge(wanted, route, next, leaf);
    if (sight == Sight::kGood) co_return Seen{route.node, count, {}, {}};
    op.count_retry();
    if (sight == Sight::kElsewhere) {
      router().misled(route);
      break;
    }
    co_await op.worker().yield();
  }
  Result<Found<K>> found = co_await tree().read(op, wanted.key, 0, image);
  if (!found) co_return fail(found.error());
  co_return Seen{found->node, options_.leaf.span, {}, {}};
}

template <class K>
std::size_t Chime<K>::place_of(const Wanted& wanted, const Seen& seen, Leaf<K> leaf,
                               std::size_t after) const {
  if (seen.spot) return after == 0 ? *seen.spot : leaf.capacity();
  return leaf.find(wanted.home, wanted.word, after);
}

// An entry whose item cannot be read is no live one: see LeafTree.
template <class K>
Task<Result<std::optional<typename Chime<K>::Match>>> Chime<K>::find_in(Operation& op,
                                                                        const Wanted& wanted,
                                                                        const Seen& seen,
                                                                        Leaf<K> leaf) {
  using Answer = std::optional<Match>;
  std::size_t slot = place_of(wanted, seen, leaf);
  if constexpr (K::kType == KeyType::kInteger) {
    if (slot == leaf.capacity()) co_return Answer(std::nullopt);
    co_return Answer(Match{slot, {}});
  } else {
    while (slot < leaf.capacity()) {
      Result<FetchedItem> item = co_await fetch_item(op, leaf.item(slot));
      if (!item) co_return fail(item.error());
      if (item->view && item->view->key == wanted.key) {
        co_return Answer(Match{slot, std::move(*item)});
      }
      slot = place_of(wanted, seen, leaf, options_.leaf.distance(wanted.home, slot) + 1);
    }
    co_return Answer(std::nullopt);
  }
}

template <class K>
Task<Result<std::string>> Chime<K>::get(Operation& op, Key key) {
  const Wanted wanted = want(K::view(key));
  const fabric::Buffer buffer = op.buffer(options_.leaf.bytes);
  const Leaf<K> leaf = leaf_at(buffer.data());
  for (;;) {
    Result<Seen> seen = co_await look(op, wanted, buffer.data());
    if (!seen) co_return fail(seen.error());
    if constexpr (K::kType == KeyType::kInteger) {
      // The common case without a further coroutine.
      const std::size_t slot = place_of(wanted, *seen, leaf);
      if (slot == leaf.capacity()) co_return fail(ErrorCode::kNotFound);
      remember(wanted, *seen, leaf, slot);
      if (!leaf.is_item(slot)) co_return std::string(leaf.value(slot));
    }
    Result<std::optional<Match>> match = co_await find_in(op, wanted, *seen, leaf);
    if (!match) co_return fail(match.error());
    if (*match) {
      const std::size_t slot = (*match)->slot;
      remember(wanted, *seen, leaf, slot);
      FetchedItem& item = (*match)->item;
      if (!item.view) {
        Result<FetchedItem> fetched = co_await fetch_item(op, leaf.item(slot));
        if (!fetched) co_return fail(fetched.error());
        item = std::move(*fetched);
      }
      if (item.view) co_return std::string(item.view->value);
      if (!seen->spot) co_return fail(ErrorCode::kCorrupt, "an entry's item is not there");
    }
    if (!seen->spot) co_return fail(ErrorCode::kNotFound);
    // Another key with the same hash, or an item that went while it was fetched.
    wrong_guesses_.fetch_add(1, std::memory_order_relaxed);
    hotspots_.found(seen->leaf.address, wanted.word, {});
    if (op.expired()) co_return fail(ErrorCode::kTimeout, "reading an entry");
  }
}

// The neighbourhoods of all keys in one batch, then the items of all that have one in another. What
// the cache cannot route, or routes wrongly, is looked up by itself.
template <class K>
Task<Status> Chime<K>::multi_get(Operation& op, std::span<const Key> keys,
                                 std::span<std::optional<std::string>> values) {
  constexpr std::size_t kAtOnce = 64;
  for (std::size_t begin = 0; begin < keys.size(); begin += kAtOnce) {
    struct Planned {
      std::size_t key;
      Wanted wanted;
      Route<K> route;
      std::optional<NodeRef> next;
      fabric::Buffer image;
    };
    std::vector<Planned> planned;
    Unfinished unfinished;
    fabric::Batch batch(op.cost());
    const std::size_t end = std::min(keys.size(), begin + kAtOnce);
    planned.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      const Wanted wanted = want(K::view(keys[i]));
      Route<K> route;
      if (!router().known_route(wanted.key, route)) {
        unfinished.alone.push_back(i);
        continue;
      }
      std::optional<NodeRef> next = router().next_leaf(route, wanted.key);
      planned.push_back({i, wanted, std::move(route), next, op.buffer(options_.leaf.bytes)});
      parts_for(wanted, options_.leaf.neighbourhood, needs_header(next))
          .read(batch, planned.back().route.node.address, planned.back().image.data());
    }
    if (Status read = co_await op.submit(batch); !read) co_return read;

    for (const Planned& plan : planned) {
      const Leaf<K> leaf = leaf_at(plan.image.data());
      const Sight sight = judge(plan.wanted, plan.route, plan.next, leaf);
      if (sight != Sight::kGood) {
        if (sight == Sight::kElsewhere) router().misled(plan.route);
        op.count_retry();
        unfinished.alone.push_back(plan.key);
        continue;
      }
      values[plan.key].reset();
      for (std::size_t slot = leaf.find(plan.wanted.home, plan.wanted.word); slot < leaf.capacity();
           slot = leaf.find(plan.wanted.home, plan.wanted.word,
                            options_.leaf.distance(plan.wanted.home, slot) + 1)) {
        if (leaf.is_item(slot)) {
          unfinished.items.push_back(leaf.item(slot));
          unfinished.items_of.push_back(plan.key);
        } else {
          values[plan.key] = std::string(leaf.value(slot));
        }
      }
    }
    Status finished = co_await finish_multi_get(op, unfinished, keys, values);
    if (!finished) co_return finished;
  }
  co_return Status{};
}

// Of the members, those defined in this file.
template class Chime<IntKeys>;
template class Chime<ByteKeys>;

}  // namespace pando::index::chime
