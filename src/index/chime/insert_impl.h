// Chime: put, insert, update. Two round trips: lock and READ the neighbourhood; WRITE what changed
// and unlock. The lock word brings the vacancy map along; where the neighbourhood is full, it tells
// how far to read on for a free entry, to which other keys then hop.
#pragma once

#include <algorithm>

#include "index/chime/chime.h"
#include "index/chime/hopscotch.h"

namespace pando::index::chime {

// --- Locking ---

// How many entries from the key's home on an insert has to look at.
template <class K>
std::size_t Chime<K>::hop_range(const Wanted& wanted, std::uint32_t vacancy) const {
  const LeafGeometry& geometry = options_.leaf;
  for (std::size_t d = 0; d < geometry.span; ++d) {
    const std::size_t i = geometry.wrapped(wanted.home + d);
    if ((vacancy >> geometry.vacancy_bit(i) & 1) == 0) continue;
    if (d < geometry.neighbourhood) return geometry.neighbourhood;
    // To the end of what the bit covers, and as far as keys reach whose home lies there.
    const std::size_t last = geometry.vacancy_last(geometry.vacancy_bit(i));
    const std::size_t end = d + geometry.distance(i, last) + geometry.neighbourhood;
    return std::min(end, geometry.span);
  }
  return geometry.span;  // full, as far as the map knows
}

// Of a locked leaf that was read whole. In the middle of a merge it has to be repaired, as a torn
// one.
template <class K>
Verdict Chime<K>::judge_locked(const Wanted& wanted, const Route<K>& route, Leaf<K> leaf) const {
  const Verdict verdict = tree().judge(leaf, 0, route.node);
  if (verdict != Verdict::kGood) return verdict;
  if (!covers(route, wanted.key, leaf)) return Verdict::kStale;
  return leaf.has(kAbsorbing) || leaf.has(kLeaving) ? Verdict::kTorn : Verdict::kGood;
}

// Locks the leaf where the router says it is, and reads no more of it than the purpose needs. None:
// that was the wrong leaf, or it has to be repaired; the lock is free again.
template <class K>
Task<Result<std::optional<typename Chime<K>::Seen>>> Chime<K>::lock_fast(
    Operation& op, const Wanted& wanted, Purpose purpose, const Unverified<Leaf<K>>& image,
    NodeLock& lock) {
  using Answer = std::optional<Seen>;
  NodeLocks& locks = tree().locks();
  const LeafGeometry& geometry = options_.leaf;
  const bool may_be_hot = purpose == Purpose::kUpdate || purpose == Purpose::kPut;
  if (may_be_hot) expect(wanted);
  Route<K> route;
  if (!router().known_route(wanted.key, route)) {
    Result<Route<K>> routed = co_await router().find_route(op, wanted.key);
    if (!routed) co_return fail(routed.error());
    if (routed->unposted) co_return Answer(std::nullopt);  // the slow way sees to it
    route = std::move(*routed);
  }
  const std::optional<NodeRef> next = router().next_leaf(route, wanted.key);
  const bool may_insert = purpose == Purpose::kInsert || purpose == Purpose::kPut;
  const bool map_first = may_insert && options_.vacancy && !locks.options().lock_with_read;
  const bool whole = may_insert && !options_.vacancy;
  std::size_t known = whole ? geometry.span : geometry.neighbourhood;
  std::optional<Guess> guess;
  if (may_be_hot) guess = speculate(route.node, wanted);

  LockTarget target{route.node.address, image.bytes(), {}, LockWord::kNoted};
  if (guess) {
    target.parts = parts_for(*guess);
  } else if (!map_first) {
    target.parts = parts_for(wanted, known, needs_header(next));
  }
  if (Status locked = co_await locks.lock(op, lock, target); !locked) {
    co_return fail(locked.error());
  }
  if (guess && !lock.repair()) {
    const auto leaf =
        image.believe([&](Leaf<K> seen) { return judge_guess(wanted, *guess, seen); });
    if (leaf) co_return Answer(Seen{route.node, *leaf, known, guess->entry, {}});
  }
  if ((guess || map_first) && !lock.repair()) {
    if (map_first) known = hop_range(wanted, lock.note());
    fabric::Batch batch(op.cost());
    parts_for(wanted, known, needs_header(next)).read(batch, route.node.address, image.bytes());
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  }
  Verdict verdict = Verdict::kTorn;
  if (!lock.repair()) {
    const auto leaf = image.believe([&](Leaf<K> seen) {
      return known == geometry.span ? judge_locked(wanted, route, seen)
                                    : judge(wanted, route, next, seen);
    });
    if (leaf) co_return Answer(Seen{route.node, *leaf, known, {}, {}});
    verdict = leaf.error();
  }
  if (Status done = co_await locks.unlock(op, lock); !done) co_return fail(done.error());
  not_believed(op, route, verdict);
  co_return Answer(std::nullopt);
}

template <class K>
Task<Result<typename Chime<K>::Seen>> Chime<K>::lock(Operation& op, const Wanted& wanted,
                                                     Purpose purpose,
                                                     const Unverified<Leaf<K>>& image,
                                                     NodeLock& lock) {
  Result<std::optional<Seen>> fast = co_await lock_fast(op, wanted, purpose, image, lock);
  if (!fast) co_return fail(fast.error());
  if (*fast) co_return std::move(**fast);
  Result<Found<K>> found = co_await tree().lock(op, wanted.key, 0, image.bytes(), lock);
  if (!found) co_return fail(found.error());
  const Leaf<K> leaf = image.believed();
  lock.set_note(leaf.vacancy());
  co_return Seen{found->node, leaf, options_.leaf.span, {}, *found};
}

// Reads more of a locked leaf. False: it is not of one piece, and has to be repaired.
template <class K>
Task<Result<bool>> Chime<K>::read_on(Operation& op, const Wanted& wanted, Seen& seen,
                                     std::size_t count) {
  const Leaf<K>& leaf = seen.leaf;
  fabric::Batch batch(op.cost());
  parts_for(wanted, count, false).read(batch, seen.ref.address, leaf.bytes());
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  seen.known = count;
  if (count == options_.leaf.span) co_return leaf.agrees();
  const std::uint16_t version = leaf.version(wanted.home);
  for (std::size_t d = 0; d + options_.leaf.neighbourhood <= count; ++d) {
    if (!leaf.neighbourhood_agrees(options_.leaf.wrapped(wanted.home + d), version)) {
      co_return false;
    }
  }
  co_return true;
}

// --- Writing ---

// The entries from `first` to `last`, around the end.
template <class K>
void Chime<K>::write_entries(fabric::Batch& batch, const NodeRef& ref, Leaf<K> leaf,
                             std::size_t first, std::size_t last) const {
  const LeafGeometry& geometry = options_.leaf;
  const auto write = [&](std::size_t from, std::size_t to) {
    const std::size_t begin = geometry.entry[from];
    batch.write(ref.address + begin, leaf.bytes() + begin,
                geometry.entry[to] + geometry.slot_bytes - begin);
  };
  if (first <= last) {
    write(first, last);
  } else {
    write(first, geometry.span - 1);
    write(0, last);
  }
}

// A place was taken: its bit of the vacancy map goes where one sees that no other is free under it.
template <class K>
void Chime<K>::note_taken(NodeLock& lock, const Seen& seen, std::size_t home,
                          std::size_t slot) const {
  const LeafGeometry& geometry = options_.leaf;
  const std::size_t bit = geometry.vacancy_bit(slot);
  for (std::size_t i = geometry.vacancy_first(bit); i <= geometry.vacancy_last(bit); ++i) {
    if (geometry.distance(home, i) >= seen.known || seen.leaf.empty(i)) return;
  }
  lock.set_note(lock.note() & ~(std::uint32_t{1} << bit));
}

template <class K>
Task<Status> Chime<K>::put(Operation& op, Key key, std::string_view value, PutMode mode) {
  const Wanted wanted = want(K::view(key));
  NodeLock lock(tree().locks());
  Result<NewEntry> prepared = co_await prepare(op, wanted.key, value, lock);
  if (!prepared) co_return fail(prepared.error());
  NewEntry& entry = *prepared;
  const Unverified<Leaf<K>> image = new_image(op);
  const Purpose purpose = mode == PutMode::kUpdate   ? Purpose::kUpdate
                          : mode == PutMode::kInsert ? Purpose::kInsert
                                                     : Purpose::kPut;
  Result<Seen> seen = co_await this->lock(op, wanted, purpose, image, lock);
  Status status = seen ? Status{} : fail(seen.error());
  if (status) {
    Result<std::optional<Match>> match = co_await find_in(op, wanted, *seen);
    if (match && !*match && seen->spot) {  // another key with the same hash
      seen->spot.reset();
      Result<bool> whole = co_await read_on(op, wanted, *seen, seen->known);
      if (!whole) match = fail(whole.error());
      if (whole && !*whole) match = fail(ErrorCode::kCorrupt, kNotOfOnePiece);
      if (match) match = co_await find_in(op, wanted, *seen);
    }
    if (!match) {
      status = fail(match.error());
    } else if (const bool present = match->has_value();
               present == (mode == PutMode::kInsert) && mode != PutMode::kPut) {
      status = co_await tree().locks().unlock(op, lock);
      if (status) status = fail(present ? ErrorCode::kExists : ErrorCode::kNotFound);
    } else if (present) {
      entry.publish();
      remember(wanted, *seen, (*match)->slot);
      status = co_await overwrite(op, *seen, lock, **match, entry);
    } else {
      status = co_await insert(op, wanted, *seen, lock, entry);
    }
    // Others' unfinished work is not this operation's success or failure.
    if (status && seen->found && seen->found->unposted) {
      co_await tree().post_found(op, 0, *seen->found);
    }
  }
  entry.give_up(status);
  co_return status;
}

template <class K>
Task<Status> Chime<K>::overwrite(Operation& op, const Seen& seen, NodeLock& lock,
                                 const Match& match, const NewEntry& entry) {
  const Leaf<K>& leaf = seen.leaf;
  const pool::ItemPointer had = item_of(leaf, match.slot);
  set(leaf, match.slot, entry);
  fabric::Batch batch(op.cost());
  write_entries(batch, seen.ref, leaf, match.slot, match.slot);
  co_return co_await write_and_retire(op, batch, lock, had, match.item);
}

// Into a free entry of the neighbourhood; else after others have hopped; else into one of the
// halves of the leaf.
template <class K>
Task<Status> Chime<K>::insert(Operation& op, const Wanted& wanted, Seen& seen, NodeLock& lock,
                              NewEntry& entry) {
  const LeafGeometry& geometry = options_.leaf;
  Leaf<K> leaf = seen.leaf;
  std::vector<std::size_t> moved_to;
  std::size_t slot = leaf.free_place(wanted.home);
  if (slot == leaf.capacity() && seen.known == geometry.neighbourhood) {
    // Where the map is wrong, the whole leaf tells.
    std::size_t count = hop_range(wanted, lock.note());
    if (count <= geometry.neighbourhood) count = geometry.span;
    Result<bool> whole = co_await read_on(op, wanted, seen, count);
    if (!whole) co_return fail(whole.error());
    if (!*whole) co_return fail(ErrorCode::kCorrupt, kNotOfOnePiece);
  }
  if (slot == leaf.capacity()) slot = make_room(leaf, wanted.home, seen.known, moved_to);
  if (slot == leaf.capacity() && seen.known < geometry.span) {
    Result<bool> whole = co_await read_on(op, wanted, seen, geometry.span);
    if (!whole) co_return fail(whole.error());
    if (!*whole) co_return fail(ErrorCode::kCorrupt, kNotOfOnePiece);
    slot = make_room(leaf, wanted.home, seen.known, moved_to);
  }
  if (seen.known == geometry.span) lock.set_note(leaf.vacancy());
  if (slot == leaf.capacity()) {
    co_return co_await split(op, seen.ref, leaf, lock, entry);
  }
  entry.publish();
  set(leaf, slot, entry);
  leaf.enter(slot);
  fabric::Batch batch(op.cost());
  std::size_t last = slot;
  if (!moved_to.empty()) {
    hops_.fetch_add(moved_to.size(), std::memory_order_relaxed);
    // Each key where it came to stand, before the place that it left is written; then the bitmaps
    // and stamps of all homes that have to do with it.
    for (const std::size_t each : moved_to) write_entries(batch, seen.ref, leaf, each, each);
    write_entries(batch, seen.ref, leaf, slot, slot);
    const std::size_t farthest = geometry.distance(wanted.home, moved_to.front());
    last = geometry.wrapped(wanted.home +
                            std::min(farthest + geometry.neighbourhood, geometry.span) - 1);
    note_taken(lock, seen, wanted.home, moved_to.front());
  }
  write_entries(batch, seen.ref, leaf, wanted.home, last);
  note_taken(lock, seen, wanted.home, slot);
  co_return co_await tree().locks().write_and_unlock(op, batch, lock);
}

}  // namespace pando::index::chime
