// Chime: get and multi_get. One READ of a neighbourhood with a replica of the leaf's metadata, or
// of one entry where the hotspots know it.
#pragma once

#include <algorithm>
#include <vector>

#include "index/chime/chime.h"

namespace pando::index::chime {

// What read_leaf() reads for a key: its neighbourhood with what is needed to believe it; first
// the entry alone where a hotspot tells which.
template <class K>
class Chime<K>::Neighbourhood {
 public:
  // One that a writer is changing is read again so often; then the leaf is read whole, which
  // finds out whether that writer lives.
  static constexpr int kTries = 16;
  static constexpr bool kFindsRoute = true;
  static constexpr bool kGuesses = true;
  static constexpr bool kWhole = false;

  Neighbourhood(Chime& chime, const Wanted& wanted) : chime_(&chime), wanted_(wanted) {}
  View key() const { return wanted_.key; }
  bool guesses(const Route<K>& route) {
    guess_ = chime_->speculate(route.node, wanted_);
    return guess_.has_value();
  }
  void add_guess(fabric::Batch& batch, const Route<K>& route, std::byte* image) const {
    chime_->parts_for(*guess_).read(batch, route.node.address, image);
  }
  Verdict judge_guess(Leaf<K> leaf) const { return chime_->judge_guess(wanted_, *guess_, leaf); }
  void start(const Route<K>& route) { next_ = chime_->router().next_leaf(route, wanted_.key); }
  void add_reads(fabric::Batch& batch, const Route<K>& route, std::byte* image) const {
    chime_->parts_for(wanted_, chime_->options_.leaf.neighbourhood, chime_->needs_header(next_))
        .read(batch, route.node.address, image);
  }
  Verdict judge(const Route<K>& route, Leaf<K> leaf) const {
    return chime_->judge(wanted_, route, next_, leaf);
  }
  Seen seen(const Believed<Leaf<K>>& read) const;
  template <class Each>
  void for_each_match(Leaf<K> leaf, Each each) const {
    const LeafGeometry& geometry = chime_->options_.leaf;
    for (std::size_t slot = leaf.find(wanted_.home, wanted_.word); slot < leaf.capacity();
         slot = leaf.find(wanted_.home, wanted_.word, geometry.distance(wanted_.home, slot) + 1)) {
      each(slot);
    }
  }

 private:
  Chime* chime_;
  Wanted wanted_;
  std::optional<Guess> guess_;
  std::optional<NodeRef> next_;  // the leaf after it, see needs_header()
};

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

template <class K>
NodeParts Chime<K>::parts_for(const Guess& guess) const {
  NodeParts parts;
  parts.add(options_.leaf.entry[guess.entry], options_.leaf.slot_bytes);
  return parts;
}

// Sibling-based validation: the leaf reaches up to the next one that the parent knows of, if that
// is its sibling, and the key lies below that.
template <class K>
Verdict Chime<K>::judge(const Wanted& wanted, const Route<K>& route,
                        const std::optional<NodeRef>& next, Leaf<K> leaf) const {
  std::uint16_t version = 0;
  bool reaches = false;
  if (needs_header(next)) {
    if (leaf.judge_header(tree().index_id(), 0, route.node) != Verdict::kGood) {
      return Verdict::kStale;
    }
    version = static_cast<std::uint16_t>(leaf.Node<K>::version() & Leaf<K>::kVersionMask);
    reaches = covers(route, wanted.key, leaf);
  } else {
    const std::size_t r = options_.leaf.replica_for(wanted.home);
    const bool same_life = leaf.replica_birth(r) == route.node.birth && !leaf.replica_dead(r);
    if (!same_life && !mutated(Mutant::kNoReplicaCheck)) return Verdict::kStale;
    version = leaf.replica_version(r);
    if constexpr (K::kType == KeyType::kInteger) {
      if (!options_.sibling_validation) {
        reaches = !leaf.replica_has_next(r) || wanted.key < leaf.replica_fence(r);
      }
    }
    if (options_.sibling_validation) reaches = leaf.replica_sibling(r) == *next;
    if (mutated(Mutant::kNoReplicaCheck)) reaches = true;
  }
  if (!leaf.neighbourhood_agrees(wanted.home, version)) return Verdict::kTorn;
  return reaches ? Verdict::kGood : Verdict::kStale;
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
Verdict Chime<K>::judge_guess(const Wanted& wanted, const Guess& guess, Leaf<K> leaf) {
  bool right = !leaf.empty(guess.entry);
  if (!mutated(Mutant::kBlindSpeculation)) {
    right = right && leaf.key_word(guess.entry) == wanted.word &&
            leaf.version(guess.entry) == guess.version;
  }
  if (right) return Verdict::kGood;
  wrong_guesses_.fetch_add(1, std::memory_order_relaxed);
  return Verdict::kStale;
}

template <class K>
typename Chime<K>::Seen Chime<K>::Neighbourhood::seen(const Believed<Leaf<K>>& read) const {
  using Extent = typename Believed<Leaf<K>>::Extent;
  const LeafGeometry& geometry = chime_->options_.leaf;
  switch (read.extent) {
    case Extent::kGuess:
      return {read.ref, read.leaf, 0, guess_->entry, {}};
    case Extent::kAsked:
      return {read.ref, read.leaf, geometry.neighbourhood, {}, {}};
    case Extent::kWhole:
      break;
  }
  return {read.ref, read.leaf, geometry.span, {}, {}};
}

template <class K>
void Chime<K>::remember(const Wanted& wanted, const Seen& seen, std::size_t slot) {
  if (!options_.speculation || seen.spot) return;
  hotspots_.found(seen.ref.address, wanted.word,
                  {options_.leaf.distance(wanted.home, slot), seen.leaf.version(slot)});
}

// --- Looking ---

template <class K>
std::size_t Chime<K>::place_of(const Wanted& wanted, const Seen& seen, std::size_t after) const {
  if (seen.spot) return after == 0 ? *seen.spot : seen.leaf.capacity();
  return seen.leaf.find(wanted.home, wanted.word, after);
}

// An entry whose item cannot be read is no live one: see LeafTree.
template <class K>
Task<Result<std::optional<typename Chime<K>::Match>>> Chime<K>::find_in(Operation& op,
                                                                        const Wanted& wanted,
                                                                        const Seen& seen) {
  using Answer = std::optional<Match>;
  const Leaf<K>& leaf = seen.leaf;
  std::size_t slot = place_of(wanted, seen);
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
      slot = place_of(wanted, seen, options_.leaf.distance(wanted.home, slot) + 1);
    }
    co_return Answer(std::nullopt);
  }
}

template <class K>
Task<Result<std::string>> Chime<K>::get(Operation& op, Key key) {
  const Wanted wanted = want(K::view(key));
  const Unverified<Leaf<K>> image = new_image(op);
  for (;;) {
    expect(wanted);
    Neighbourhood glance(*this, wanted);
    Result<Believed<Leaf<K>>> read = co_await this->read_leaf(op, glance, image);
    if (!read) co_return fail(read.error());
    const Seen seen = glance.seen(*read);
    const Leaf<K>& leaf = seen.leaf;
    if constexpr (K::kType == KeyType::kInteger) {
      // The common case without a further coroutine.
      const std::size_t slot = place_of(wanted, seen);
      if (slot == leaf.capacity()) co_return fail(ErrorCode::kNotFound);
      remember(wanted, seen, slot);
      if (!leaf.is_item(slot)) co_return std::string(leaf.value(slot));
    }
    Result<std::optional<Match>> match = co_await find_in(op, wanted, seen);
    if (!match) co_return fail(match.error());
    if (*match) {
      const std::size_t slot = (*match)->slot;
      remember(wanted, seen, slot);
      FetchedItem& item = (*match)->item;
      if (!item.view) {
        Result<FetchedItem> fetched = co_await fetch_item(op, leaf.item(slot));
        if (!fetched) co_return fail(fetched.error());
        item = std::move(*fetched);
      }
      if (item.view) co_return std::string(item.view->value);
      if (!seen.spot) co_return fail(ErrorCode::kCorrupt, "an entry's item is not there");
    }
    if (!seen.spot) co_return fail(ErrorCode::kNotFound);
    // Another key with the same hash, or an item that went while it was fetched.
    wrong_guesses_.fetch_add(1, std::memory_order_relaxed);
    hotspots_.found(seen.ref.address, wanted.word, {});
    if (op.expired()) co_return fail(ErrorCode::kTimeout, "reading an entry");
  }
}

template <class K>
Task<Status> Chime<K>::multi_get(Operation& op, std::span<const Key> keys,
                                 std::span<std::optional<std::string>> values) {
  return this->template read_values<Neighbourhood>(
      op, keys, values, [this](View key) { return Neighbourhood(*this, want(key)); });
}

}  // namespace pando::index::chime
