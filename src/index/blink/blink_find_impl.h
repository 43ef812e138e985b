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
Verdict BLink<K>::judge(Node<K> node, std::uint8_t level, const NodeRef& ref) const {
  const Verdict header = node.judge_header(index_id(), level, ref);
  if (header != Verdict::kGood || node.lines() == 1) return header;
  const bool whole = level == 0 ? leaves_.intact(node) : node.versions_agree();
  return whole ? Verdict::kGood : Verdict::kTorn;
}

template <class K>
bool BLink<K>::settled(Node<K> node) const {
  if (node.has(kDead)) return true;
  if (node.has(kAbsorbing) || node.has(kLeaving)) return false;
  return node.level() == 0 ? leaves_.settled(node) : node.versions_same();
}

template <class K>
Task<Result<bool>> BLink<K>::take(Operation& op, const NodeRef& ref, std::uint8_t level,
                                  std::byte* into, NodeLock& lock, Patience patience) {
  if (patience == Patience::kTry) {
    co_return co_await locks_.try_lock(op, lock, lock_target(ref, level, into));
  }
  if (Status got = co_await fetch(op, ref, level, into, &lock); !got) co_return fail(got.error());
  co_return true;
}

// A node that stays torn was left so by a writer that died; one in the middle of a merge may have
// been. Locking it waits for that to be certain, and takes over.
template <class K>
Task<Result<bool>> BLink<K>::heal(Operation& op, const NodeRef& ref, std::uint8_t level,
                                  Patience patience) {
  const fabric::Buffer buffer = op.buffer(node_bytes(level));
  for (NodeRef seen_off;;) {
    NodeLock lock(locks_);
    Result<bool> got = co_await take(op, ref, level, buffer.data(), lock, patience);
    if (!got || !*got) co_return got;
    Node<K> node(buffer.data(), node_bytes(level));
    const Verdict verdict = judge(node, level, ref);
    const bool lives = verdict != Verdict::kStale && verdict != Verdict::kDead;
    if (lives && node.has(kLeaving)) {
      if (Status done = co_await locks_.unlock(op, lock); !done) co_return fail(done.error());
      co_return co_await stay_or_die(op, ref, level, node.low(), node.entry_version(0), patience);
    }
    if (lives && node.has(kAbsorbing) && node.sibling() != seen_off) {
      seen_off = node.sibling();
      Result<bool> done = co_await see_off(op, node, lock, patience);
      if (!done || !*done) co_return done;
      continue;
    }
    if (verdict != Verdict::kStale && (lock.repair() || !settled(node))) {
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

template <class K>
Task<Result<Found<K>>> BLink<K>::find(Operation& op, View key, std::uint8_t level, std::byte* into,
                                      NodeLock* lock) {
  std::optional<Owned> around;  // the separator of a dead node that its parent still names
  NodeRef seen_off;             // the right node of one that is absorbing
  int torn = 0;
  for (int restarts = 0;; ++restarts) {
    if (restarts > 0 && op.expired()) co_return fail(ErrorCode::kTimeout, "finding a node");
    Route<K> route;
    if (restarts > 0 || !route_cached(key, level, route)) {
      Result<Route<K>> routed = around ? co_await this->route(op, *around, level, true)
                                       : co_await this->route(op, key, level);
      if (!routed) co_return fail(routed.error());
      route = std::move(*routed);
      if (lock != nullptr && route.unposted) {
        // While no lock is held yet. Should it fail, the next one will see to it.
        counts_.helped.fetch_add(1, std::memory_order_relaxed);
        const auto& late = *route.unposted;
        (void)co_await post(op, late.level, late.separator, late.cell, late.node);
      }
    } else {
      counts_.cache_hits.fetch_add(1, std::memory_order_relaxed);
    }
    Found<K> found;
    found.node = route.node;
    const Route<K>* known = &route;  // until a step to the right leaves the parent's knowledge
    for (bool restart = false; !restart;) {
      if (Status got = co_await fetch(op, found.node, level, into, lock); !got) {
        co_return fail(got.error());
      }
      Node<K> node(into, node_bytes(level));
      Verdict verdict = judge(node, level, found.node);
      if (lock != nullptr && verdict != Verdict::kStale && verdict != Verdict::kDead &&
          node.has(kLeaving)) {
        if (Status done = co_await let_go(op, lock); !done) co_return fail(done.error());
        Result<bool> done = co_await stay_or_die(op, found.node, level, node.low(),
                                                 node.entry_version(0), Patience::kWait);
        if (!done) co_return fail(done.error());
        continue;
      }
      if (lock != nullptr && verdict != Verdict::kStale && verdict != Verdict::kDead &&
          node.has(kAbsorbing) && node.sibling() != seen_off) {
        seen_off = node.sibling();
        Result<bool> done = co_await see_off(op, node, *lock, Patience::kWait);
        if (!done) co_return fail(done.error());
        continue;
      }
      if (lock == nullptr && around && verdict == Verdict::kGood && node.has(kAbsorbing)) {
        around.reset();
        Result<bool> helped = co_await heal(op, found.node, level, Patience::kTry);
        if (!helped) co_return fail(helped.error());
        if (*helped) continue;
      }
      if (lock != nullptr && verdict != Verdict::kStale && (lock->repair() || !settled(node))) {
        if (Status done = co_await repair(op, found.node, node, *lock); !done) {
          co_return fail(done.error());
        }
        verdict = judge(node, level, found.node);
      }
      if (verdict == Verdict::kGood || verdict == Verdict::kDead) {
        Result<bool> covers = co_await reaches(op, node, key, known);
        if (!covers) {
          co_await let_go(op, lock);
          const bool kept = lock != nullptr && verdict == Verdict::kGood;
          if (kept || !outdated(covers.error())) co_return fail(covers.error());
          restart = true;
          continue;
        }
        if (*covers && verdict == Verdict::kGood) co_return std::move(found);
        if (!*covers) {  // also past a dead node: its sibling is what it was when it died
          if (Status done = co_await let_go(op, lock); !done) co_return fail(done.error());
          op.count_retry();
          misled(route);
          if (verdict == Verdict::kGood && (route.fresh || !route.parent)) {
            found.unposted = node.sibling();
            found.unposted_cell = node.high();
          }
          found.node = node.sibling();
          known = nullptr;
          continue;
        }
      }
      if (Status done = co_await let_go(op, lock); !done) co_return fail(done.error());
      op.count_retry();
      if (verdict == Verdict::kTorn) {
        co_await op.worker().yield();
        if (++torn % kTornRetries == 0) {
          Result<bool> healed = co_await heal(op, found.node, level);
          if (!healed) co_return fail(healed.error());
          restart = true;  // the reference itself may be what is wrong
          misled(route);
        }
        if (op.expired()) co_return fail(ErrorCode::kTimeout, "reading a node");
        continue;
      }
      if (verdict == Verdict::kDead && route.parent && route.fresh && known != nullptr) {
        around = Owned(route.parent->key(route.slot));
      }
      misled(route);
      if (restarts > kRestartsBeforeRoot) forget_root();
      if (restarts > 0) co_await op.worker().yield();
      restart = true;
    }
  }
}

}  // namespace pando::index
