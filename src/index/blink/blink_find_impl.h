// BLink's members that find the node of a key, to read it or to lock it.
#pragma once

#include "index/blink/blink.h"

namespace pando::index {

template <class K>
Task<Status> BLink<K>::fetch(Operation& op, const NodeRef& ref, std::uint8_t level, std::byte* into,
                             NodeLock* lock) {
  if (lock != nullptr) {
    co_return co_await locks_.lock(op, *lock, lock_target(ref, level, into));
  }
  fabric::Batch batch(op.cost());
  batch.read(ref.address, into, node_bytes(level));
  co_return co_await op.submit(batch);
}

template <class K>
Task<Status> BLink<K>::let_go(Operation& op, NodeLock* lock) {
  if (lock == nullptr) co_return Status{};
  co_return co_await locks_.unlock(op, *lock);
}

template <class K>
bool BLink<K>::complete(Node<K> node) const {
  if (node.has(kDead)) return true;
  if (node.has(kAbsorbing) || node.has(kLeaving)) return false;
  return node.level() == 0 ? leaves_.complete(node) : node.versions_same();
}

template <class K>
Task<Result<bool>> BLink<K>::lock_node(Operation& op, const NodeRef& ref, std::uint8_t level,
                                       std::byte* into, NodeLock& lock, IfLocked if_locked) {
  if (if_locked == IfLocked::kGiveUp) {
    co_return co_await locks_.try_lock(op, lock, lock_target(ref, level, into));
  }
  if (Status got = co_await fetch(op, ref, level, into, &lock); !got) co_return fail(got.error());
  co_return true;
}

// A node that stays torn was left so by a writer that died; one in the middle of a merge may have
// been. Locking it waits for that to be certain, and takes over.
template <class K>
Task<Result<bool>> BLink<K>::finish_abandoned(Operation& op, const NodeRef& ref, std::uint8_t level,
                                              IfLocked if_locked) {
  const fabric::Buffer buffer = op.buffer(node_bytes(level));
  for (NodeRef removed;;) {
    NodeLock lock(locks_);
    Result<bool> got = co_await lock_node(op, ref, level, buffer.data(), lock, if_locked);
    if (!got || !*got) co_return got;
    Node<K> node(buffer.data(), node_bytes(level));
    const Verdict verdict = judge(node, level, ref);
    const bool lives = verdict != Verdict::kStale && verdict != Verdict::kDead;
    if (lives && node.has(kLeaving)) {
      if (Status done = co_await locks_.unlock(op, lock); !done) co_return fail(done.error());
      co_return co_await end_departure(op, ref, level, node.low(), node.entry_version(0),
                                       if_locked);
    }
    if (lives && node.has(kAbsorbing) && node.sibling() != removed) {
      removed = node.sibling();
      Result<bool> done = co_await remove_absorbed(op, node, lock, if_locked);
      if (!done || !*done) co_return done;
      continue;
    }
    if (verdict != Verdict::kStale && (lock.repair() || !complete(node))) {
      if (Status done = co_await repair(op, ref, node, lock); !done) co_return fail(done.error());
    }
    if (Status done = co_await locks_.unlock(op, lock); !done) co_return fail(done.error());
    co_return true;
  }
}

template <class K>
Task<Result<Found<K>>> BLink<K>::read(Operation& op, View key, std::uint8_t level,
                                      std::byte* into) {
  return find(op, key, level, into, nullptr);
}

template <class K>
Task<Result<Found<K>>> BLink<K>::lock(Operation& op, View key, std::uint8_t level, std::byte* into,
                                      NodeLock& lock) {
  return find(op, key, level, into, &lock);
}

// --- Finding a node, step by step ---

// What is seldom needed has coroutines of its own.
template <class K>
Task<Result<Found<K>>> BLink<K>::find(Operation& op, View key, std::uint8_t level, std::byte* into,
                                      NodeLock* lock) {
  Search search{key, level, into, lock};
  for (;; ++search.restarts) {
    if (search.restarts > 0 && op.expired()) {
      co_return fail(ErrorCode::kTimeout, "finding a node");
    }
    if (search.restarts > 0 || !route_cached(key, level, search.route)) {
      if (Status routed = co_await route_search(op, search); !routed) {
        co_return fail(routed.error());
      }
    }
    search.found = Found<K>{.node = search.route.node};
    search.route_knows = true;
    for (Step step = Step::kAgain; step == Step::kAgain;) {
      if (Status got = co_await fetch(op, search.found.node, level, into, lock); !got) {
        co_return fail(got.error());
      }
      const Node<K> node(into, node_bytes(level));
      Verdict verdict = judge(node, level, search.found.node);
      if (left_unfinished(search, node, verdict)) {
        Result<bool> same = co_await finish_for_others(op, search, node, verdict);
        if (!same) co_return fail(same.error());
        if (!*same) continue;  // look again
        verdict = judge(node, level, search.found.node);
      }
      if (verdict == Verdict::kGood || verdict == Verdict::kDead) {
        const Route<K>* known = search.route_knows ? &search.route : nullptr;
        Result<bool> covers = co_await reaches(op, node, key, known);
        if (covers && *covers && verdict == Verdict::kGood) co_return std::move(search.found);
        if (!covers || !*covers) {
          Result<Step> next = covers ? co_await step_right(op, search, node, verdict)
                                     : co_await lost_fence(op, search, verdict, covers.error());
          if (!next) co_return fail(next.error());
          step = *next;
          continue;
        }
      }
      Result<Step> next = verdict == Verdict::kTorn ? co_await await_writer(op, search)
                                                    : co_await turn_back(op, search, verdict);
      if (!next) co_return fail(next.error());
      step = *next;
    }
  }
}

// A route that the cache does not know, or led to the wrong place by.
template <class K>
Task<Status> BLink<K>::route_search(Operation& op, Search& search) {
  Result<Route<K>> routed = search.around
                                ? co_await this->route(op, *search.around, search.level, true)
                                : co_await this->route(op, search.key, search.level);
  if (!routed) co_return fail(routed.error());
  search.route = std::move(*routed);
  if (search.lock != nullptr && search.route.unposted) {
    // While no lock is held yet. Should it fail, the next one will see to it.
    counts_.helped.fetch_add(1, std::memory_order_relaxed);
    const auto& late = *search.route.unposted;
    (void)co_await post(op, late.level, late.separator, late.cell, late.node);
  }
  co_return Status{};
}

// Whether a writer left the node in the middle of a change, as far as it concerns this search: one
// that only reads finishes merges when it came around a dead node.
template <class K>
bool BLink<K>::left_unfinished(const Search& search, Node<K> node, Verdict verdict) const {
  if (search.lock == nullptr) {
    return search.around && verdict == Verdict::kGood && node.has(kAbsorbing);
  }
  return verdict != Verdict::kStale && (search.lock->repair() || !complete(node));
}

// True: the node is the same still, locked or not as before, and in order if it is locked. False:
// look again.
template <class K>
Task<Result<bool>> BLink<K>::finish_for_others(Operation& op, Search& search, Node<K> node,
                                               Verdict verdict) {
  const NodeRef ref = search.found.node;
  if (search.lock == nullptr) {
    search.around.reset();
    Result<bool> helped = co_await finish_abandoned(op, ref, search.level, IfLocked::kGiveUp);
    if (!helped) co_return helped;
    co_return !*helped;
  }
  const bool lives = verdict != Verdict::kDead;
  if (lives && node.has(kLeaving)) {
    if (Status done = co_await let_go(op, search.lock); !done) co_return fail(done.error());
    Result<bool> done = co_await end_departure(op, ref, search.level, node.low(),
                                               node.entry_version(0), IfLocked::kWait);
    if (!done) co_return done;
    co_return false;
  }
  if (lives && node.has(kAbsorbing) && node.sibling() != search.removed) {
    search.removed = node.sibling();
    Result<bool> done = co_await remove_absorbed(op, node, *search.lock, IfLocked::kWait);
    if (!done) co_return done;
    co_return false;
  }
  if (Status done = co_await repair(op, ref, node, *search.lock); !done) {
    co_return fail(done.error());
  }
  co_return true;
}

// The key lies beyond the node: on to its sibling. Also past a dead node, whose sibling is what it
// was when it died.
template <class K>
Task<Result<typename BLink<K>::Step>> BLink<K>::step_right(Operation& op, Search& search,
                                                           Node<K> node, Verdict verdict) {
  if (Status done = co_await let_go(op, search.lock); !done) co_return fail(done.error());
  op.count_retry();
  misled(search.route);
  if (verdict == Verdict::kGood && (search.route.fresh || !search.route.parent)) {
    search.found.unposted = node.sibling();
    search.found.unposted_cell = node.high();
  }
  search.found.node = node.sibling();
  search.route_knows = false;
  co_return Step::kAgain;
}

// The key of the high fence cannot be read: the node is outdated, unless its lock is held.
template <class K>
Task<Result<typename BLink<K>::Step>> BLink<K>::lost_fence(Operation& op, Search& search,
                                                           Verdict verdict, Error error) {
  co_await let_go(op, search.lock);
  const bool kept = search.lock != nullptr && verdict == Verdict::kGood;
  if (kept || !outdated(error)) co_return fail(std::move(error));
  co_return Step::kRestart;
}

// A torn node: its writer is about to finish, or has died.
template <class K>
Task<Result<typename BLink<K>::Step>> BLink<K>::await_writer(Operation& op, Search& search) {
  if (Status done = co_await let_go(op, search.lock); !done) co_return fail(done.error());
  op.count_retry();
  co_await op.worker().yield();
  Step step = Step::kAgain;
  if (++search.torn % kTornRetries == 0) {
    Result<bool> finished = co_await finish_abandoned(op, search.found.node, search.level);
    if (!finished) co_return fail(finished.error());
    step = Step::kRestart;  // the reference itself may be what is wrong
    misled(search.route);
  }
  if (op.expired()) co_return fail(ErrorCode::kTimeout, "reading a node");
  co_return step;
}

// Not the node that was meant, or a dead one: another route.
template <class K>
Task<Result<typename BLink<K>::Step>> BLink<K>::turn_back(Operation& op, Search& search,
                                                          Verdict verdict) {
  if (Status done = co_await let_go(op, search.lock); !done) co_return fail(done.error());
  op.count_retry();
  const Route<K>& route = search.route;
  if (verdict == Verdict::kDead && route.parent && route.fresh && search.route_knows) {
    search.around = Owned(route.parent->key(route.slot));
  }
  misled(route);
  if (search.restarts > kRestartsBeforeRoot) forget_root();
  if (search.restarts > 0) co_await op.worker().yield();
  co_return Step::kRestart;
}

}  // namespace pando::index
