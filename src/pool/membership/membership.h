// Membership: which compute nodes use the pool, and which of them are dead.
//
// A compute node takes a slot in far memory when it opens the pool, under an owner id (slot and
// generation) that no other ever has. Locks name this id. Its housekeeper moves the slot's
// heartbeat; one that stands still for a lease, by the watcher's own clock, is suspected. Then:
// fence the client at every memory node; only when that has succeeded is it declared dead in
// its slot, and only then may its locks be taken over. Never by the clock alone: a paused client
// that wakes up must find its writes refused.
//
// A watcher counts silence only while it is itself awake: a look that comes late counts as a
// quarter of a lease at most, so that a machine on which all of them were paused does not wake up
// to find everyone else silent for too long.
//
// Where a fence does not get through to all memory nodes, or its maker dies at it, the client is
// shut out of some. Once it meets one of those its heart stops: it is declared dead in the end, and
// nobody waits for good for what it cannot give back.
//
// A slot's owner_word: {client:32, generation:24, state:8}. Free (and never used, or left) → alive
// → free or dead → alive, one generation on. A slot whose generations are used up stays as it is.
// Whoever leaves does so by itself, without a fence: see ComputeNode::close().
//
// The dead leave a ledger of the memory that they held free (ledger.h). It belongs to who has the
// slot: the next to join there, or a living one that takes it to recover that: dead → recovering,
// with its own client id → free. Where that one dies or leaves in the middle, another takes its
// place: recovering → recovering. No one joins in a slot that is being recovered. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "fabric/verbs.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

// {slot:8, generation:24}; generation counts from 1, so 0 is nobody.
using OwnerId = std::uint32_t;

constexpr std::size_t owner_slot(OwnerId owner) { return owner >> 24; }
constexpr std::uint32_t owner_generation(OwnerId owner) { return owner & 0xff'ff'ff; }
constexpr OwnerId make_owner(std::size_t slot, std::uint32_t generation) {
  return (static_cast<OwnerId>(slot) << 24) | generation;
}

enum class SlotState : std::uint8_t { kFree = 0, kAlive = 1, kDead = 2, kRecovering = 3 };

// What owner_word says.
struct Slot {
  fabric::ClientId client = 0;
  std::uint32_t generation = 0;
  SlotState state = SlotState::kFree;

  static constexpr Slot from_word(std::uint64_t word) {
    return {static_cast<fabric::ClientId>(word >> 32),
            static_cast<std::uint32_t>(word >> 8) & 0xff'ff'ff,
            static_cast<SlotState>(word & 0xff)};
  }
  constexpr std::uint64_t word() const {
    return (std::uint64_t{client} << 32) | (std::uint64_t{generation} << 8) |
           static_cast<std::uint64_t>(state);
  }
};

// What the last beat saw of the whole pool, all of it in one look at all slots.
struct PoolView {
  std::uint64_t call_word = 0;
  std::uint64_t recycler_word = 0;
  bool recycler_gone = false;  // whom that word names has left or is dead
  std::uint64_t answered = 0;  // the last call that every living compute node had answered
  bool dead_ledgers = false;   // some of the dead had a ledger yet to be recovered
};

class Membership {
 public:
  explicit Membership(ComputeNode& node);
  ~Membership();

  // This compute node's id. 0 before join().
  OwnerId self() const;

  // kBusy where all slots are taken by the living, kTimeout where some are not but cannot be
  // declared dead. REQUIRES: no operation has looked at far memory yet but `op`.
  Task<Status> join(Operation& op);
  // Gives the slot up: `leaves_ledger` as the dead do, with a ledger for others to recover; else
  // free for the next. REQUIRES: nothing of this compute node can happen any more but what `op`
  // does (docs/fabrics.md, "Leaving"). An error: whether the slot is still its own is not known,
  // and it will be taken for dead.
  Task<Status> leave(Operation& op, bool leaves_ledger);
  // One beat: moves the heartbeat, announces the epoch, reads all slots, and moves the global epoch
  // where it can. kFenced once this node has been declared dead itself. Where another one is at it,
  // who may be held up, it moves the heartbeat alone.
  Task<Status> beat(Operation& op);
  // The same, and looks after silent members: fences and buries those that are dead. That takes as
  // long as memory nodes take to answer, so the heart must be kept beating by somebody else.
  Task<Status> beat_and_look_after(Operation& op);

  // Memory is waiting for the global epoch to get to `epoch`: with the next beat, asks all compute
  // nodes to beat often until it is there. wanted() is the latest that anyone asked for.
  void want(std::uint64_t epoch);
  std::uint64_t wanted() const;

  PoolView view() const;
  // From the next beat on, this compute node's slot says that it has answered call `number`.
  void answer(std::uint64_t number);

  // True once `owner` can do nothing any more: it has left, or was declared dead (by this call,
  // where its lease has run out and the fence succeeded). False: alive as far as known, ask again
  // later.
  Task<Result<bool>> gone(Operation& op, OwnerId owner);

  // Whether a compute node that is not known to be dead has this id at the fabric.
  Task<Result<bool>> lives(Operation& op, fabric::ClientId client);

  // The housekeeper's. A slot of the dead whose ledger is this compute node's to recover, from now
  // on until recovered(), or until it is itself dead or gone; the same one again until then.
  // Nothing: there is none, as far as known. Costs nothing while no beat has seen any.
  Task<Result<std::optional<std::size_t>>> take_dead_slot(Operation& op);
  Task<Status> recovered(Operation& op, std::size_t slot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pando::pool
