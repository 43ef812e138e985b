#include "pool/membership/membership.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/compute_node.h"
#include "pool/layout.h"
#include "pool/pause.h"
#include "pool/turn.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::Batch;
using fabric::Buffer;

constexpr std::uint32_t kLastGeneration = 0xff'ff'ff;
constexpr std::size_t kHeaderBytes = offsetof(PoolTables, members);
static_assert(kHeaderBytes == fabric::kLineBytes);

Address owner_address(std::size_t slot) {
  return member_address(slot) + offsetof(MemberSlot, owner_word);
}

bool is_unrecovered(const MemberSlot& slot) {
  const SlotState state = Slot::from_word(slot.owner_word).state;
  return state == SlotState::kRecovering || (state == SlotState::kDead && slot.ledger_word != 0);
}

// The tables' first words and the first `slots` slots, in a transfer buffer.
class Snapshot {
 public:
  explicit Snapshot(const Buffer& buffer) : bytes_(buffer.data()) {}
  std::uint64_t wanted() const { return word(offsetof(PoolTables, wanted_epoch)); }
  std::uint64_t epoch() const { return word(offsetof(PoolTables, epoch_word)); }
  std::uint64_t call() const { return word(offsetof(PoolTables, call_word)); }
  std::uint64_t recycler() const { return word(offsetof(PoolTables, recycler_word)); }
  std::size_t members() const {
    return std::min<std::size_t>(word(offsetof(PoolTables, members_word)), kMaxComputeNodes);
  }
  MemberSlot slot(std::size_t i) const {
    MemberSlot slot;
    std::memcpy(&slot, bytes_ + kHeaderBytes + i * sizeof(slot), sizeof(slot));
    return slot;
  }
  static std::size_t bytes(std::size_t slots) { return kHeaderBytes + slots * sizeof(MemberSlot); }

 private:
  std::uint64_t word(std::size_t at) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_ + at, sizeof(word));
    return word;
  }
  const std::byte* bytes_;
};

}  // namespace

struct Membership::State {
  // What was last seen of a slot, and for how long it has been silent.
  struct Watch {
    std::uint64_t owner_word = 0;
    std::uint64_t heartbeat = 0;
    task::TimePoint looked;
    task::Duration silent{};
  };

  explicit State(ComputeNode& compute_node) : node(compute_node) {
    node.budget().take(BudgetUse::kMembership, sizeof(State));
  }
  ~State() {
    node.budget().give_back(BudgetUse::kMembership, sizeof(State) + watches.size() * sizeof(Watch));
  }

  Task<Result<Buffer>> read_slots(Operation& op, Batch& batch);
  Task<Result<bool>> claim(Operation& op, const Snapshot& seen);
  Task<Status> forget_predecessor(Operation& op);
  Task<Status> first_announcement(Operation& op);
  Task<Result<std::optional<Buffer>>> beat_in_turn(Operation& op);
  Task<Result<Buffer>> beat(Operation& op);
  // What of the pulse is written: the last word only where the pool has grown, or can.
  std::size_t pulse_bytes() const {
    const bool grows = node.fabric().may_grow() || pulse[2] > 0;
    return grows ? sizeof(pulse)
                 : offsetof(MemberSlot, nodes_word) - offsetof(MemberSlot, epoch_word);
  }
  Task<Status> move_epoch(Operation& op, std::uint64_t epoch, bool allowed);
  Task<Status> look_after(Operation& op, const Snapshot& seen, std::size_t slots);
  bool suspected(std::size_t slot, std::uint64_t owner_word, std::uint64_t heartbeat,
                 task::TimePoint now);
  Task<Result<bool>> declare_dead(Operation& op, std::size_t slot, std::uint64_t owner_word);
  static Task<Status> shut_out(Operation& op, fabric::ClientId client);
  void grow_watches(std::size_t slots) PANDO_REQUIRES(mutex);
  void want(std::uint64_t epoch);
  Task<Result<std::optional<std::size_t>>> take_dead_slot(Operation& op);

  ComputeNode& node;
  std::atomic<OwnerId> self{0};
  std::atomic<bool> beating{false};
  std::atomic<bool> looking_after{false};
  std::atomic<std::uint64_t> heart{0};  // beats so far, with those of predecessors in the slot
  std::atomic<std::uint64_t> wanted{0};
  std::atomic<bool> dead_ledgers{false};  // the last beat saw slots of the dead that have a ledger
  // The beating coroutine's alone.
  std::uint64_t own_word = 0;
  std::size_t known_slots = 16;
  // epoch_word, heartbeat_word and nodes_word, as written last
  std::array<std::uint64_t, 3> pulse{};
  std::uint64_t asked = 0;  // wanted_epoch, as written last
  std::uint64_t seen_wanted = 0;
  std::uint64_t answering = 0;       // answered_word, as written last
  std::uint64_t arrived_answer = 0;  // the same, known to have arrived
  std::atomic<std::uint64_t> answered{0};

  base::Mutex mutex;
  PoolView view PANDO_GUARDED_BY(mutex);
  std::vector<Watch> watches PANDO_GUARDED_BY(mutex);
};

Membership::Membership(ComputeNode& node) : state_(std::make_unique<State>(node)) {}
Membership::~Membership() = default;

OwnerId Membership::self() const { return state_->self.load(std::memory_order_acquire); }

// ---- Joining and leaving ----

Task<Status> Membership::join(Operation& op) {
  for (Pause pause(op);;) {
    Batch batch(op.cost());
    auto buffer = co_await state_->read_slots(op, batch);
    if (!buffer) co_return fail(buffer.error());
    const Snapshot seen(*buffer);
    auto claimed = co_await state_->claim(op, seen);
    if (!claimed) co_return fail(claimed.error());
    if (*claimed) break;
    // All are taken; some may be dead with nobody left to declare them so.
    if (Status done = co_await state_->look_after(op, seen, seen.members()); !done) co_return done;
    if (Status waited = co_await pause.wait("a free place among the compute nodes"); !waited) {
      co_return fail(ErrorCode::kBusy,
                     fmt::format("all {} places for compute nodes are taken", kMaxComputeNodes));
    }
  }
  if (Status done = co_await state_->forget_predecessor(op); !done) co_return done;
  co_return co_await state_->first_announcement(op);
}

// Reads the header and all slots ever used; reads again where there are more than were known. The
// verbs already in `batch` go with the first.
Task<Result<Buffer>> Membership::State::read_slots(Operation& op, Batch& batch) {
  for (;;) {
    Buffer buffer = op.buffer(Snapshot::bytes(known_slots));
    batch.read(tables_field(0), buffer.data(), Snapshot::bytes(known_slots));
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    const std::size_t slots = Snapshot(buffer).members();
    if (slots <= known_slots) co_return buffer;
    known_slots = std::min(kMaxComputeNodes, slots + 16);
    batch.clear();
  }
}

// Takes the first free slot. False: all were taken.
Task<Result<bool>> Membership::State::claim(Operation& op, const Snapshot& seen) {
  const fabric::ClientId client = node.fabric().client();
  std::uint64_t members = seen.members();
  for (std::size_t slot = 0; slot < kMaxComputeNodes; ++slot) {
    const std::uint64_t before = slot < seen.members() ? seen.slot(slot).owner_word : 0;
    const Slot old = Slot::from_word(before);
    if (old.state == SlotState::kAlive || old.state == SlotState::kRecovering) continue;
    if (old.generation == kLastGeneration) continue;
    // Readers of slots must know of this one before it is taken.
    while (members <= slot) {
      Batch batch(op.cost());
      batch.compare_swap(tables_field(offsetof(PoolTables, members_word)), members, slot + 1);
      if (Status moved = co_await op.submit(batch); !moved) co_return fail(moved.error());
      members = batch[0].succeeded() ? slot + 1 : batch[0].previous;
    }
    const Slot mine{client, old.generation + 1, SlotState::kAlive};
    Batch batch(op.cost());
    batch.compare_swap(owner_address(slot), before, mine.word());
    if (Status taken = co_await op.submit(batch); !taken) co_return fail(taken.error());
    if (!batch[0].succeeded()) continue;
    own_word = mine.word();
    self.store(make_owner(slot, mine.generation), std::memory_order_release);
    co_return true;
  }
  co_return false;
}

// The slot's predecessor may have died with indexes open.
Task<Status> Membership::State::forget_predecessor(Operation& op) {
  const std::size_t slot = owner_slot(self.load());
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  const auto users_word = [slot](std::size_t entry) {
    return catalogue_address(entry) + offsetof(CatalogueEntry, users_words) + slot / 64 * 8;
  };
  Buffer buffer = op.buffer(kMaxIndexes * 8);
  Batch look(op.cost());
  for (std::size_t i = 0; i < kMaxIndexes; ++i) {
    look.read(users_word(i), buffer.data() + i * 8, 8);
  }
  if (Status read = co_await op.submit(look); !read) co_return read;
  for (std::size_t i = 0; i < kMaxIndexes; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, buffer.data() + i * 8, sizeof(word));
    while ((word & bit) != 0) {
      Batch batch(op.cost());
      batch.compare_swap(users_word(i), word, word & ~bit);
      if (Status cleared = co_await op.submit(batch); !cleared) co_return cleared;
      word = batch[0].succeeded() ? word & ~bit : batch[0].previous;
    }
  }
  co_return Status{};
}

// From the epoch that is read now, with the slot already ours, operations may pin: see epochs.h.
Task<Status> Membership::State::first_announcement(Operation& op) {
  const Address slot = member_address(owner_slot(self.load()));
  Buffer buffer = op.buffer(fabric::kLineBytes * 2);
  Batch look(op.cost());
  look.read(tables_field(0), buffer.data(), fabric::kLineBytes);
  look.read(slot, buffer.data() + fabric::kLineBytes, sizeof(MemberSlot));
  if (Status read = co_await op.submit(look); !read) co_return read;
  const Snapshot seen(buffer);
  // The heartbeat goes on from the predecessor's, so that watchers see it move.
  heart.store(seen.slot(0).heartbeat_word + 1);
  pulse = {seen.epoch(), heart.load(), seen.slot(0).nodes_word};
  arrived_answer = seen.slot(0).answered_word;
  Batch batch(op.cost());
  batch.write(slot + offsetof(MemberSlot, epoch_word), reinterpret_cast<std::byte*>(pulse.data()),
              pulse_bytes());
  if (Status written = co_await op.submit(batch); !written) co_return written;
  node.epochs().observe(seen.epoch());
  co_return Status{};
}

Task<Status> Membership::leave(Operation& op, bool leaves_ledger) {
  const OwnerId me = self();
  if (me == 0) co_return Status{};
  Slot slot = Slot::from_word(state_->own_word);
  slot.state = leaves_ledger ? SlotState::kDead : SlotState::kFree;
  Batch batch(op.cost());
  batch.compare_swap(owner_address(owner_slot(me)), state_->own_word, slot.word());
  if (Status left = co_await op.submit(batch); !left) co_return left;
  state_->self.store(0, std::memory_order_release);
  if (batch[0].succeeded()) co_return Status{};
  co_return fail(ErrorCode::kFenced, "this compute node was taken for dead");
}

// ---- Beating ----

Task<Status> Membership::beat(Operation& op) {
  const auto slots = co_await state_->beat_in_turn(op);
  if (!slots) co_return fail(slots.error());
  co_return Status{};
}

Task<Status> Membership::beat_and_look_after(Operation& op) {
  const auto slots = co_await state_->beat_in_turn(op);
  if (!slots) co_return fail(slots.error());
  const Turn turn(state_->looking_after);
  if (!turn || !*slots) co_return Status{};
  const Turn heart(state_->beating, base::mutated(base::Mutant::kFenceStopsHeart));
  const Snapshot seen(**slots);
  co_return co_await state_->look_after(op, seen, seen.members());
}

// Nothing: another one is at it, or this compute node has left.
Task<Result<std::optional<Buffer>>> Membership::State::beat_in_turn(Operation& op) {
  std::optional<Buffer> slots;
  if (self.load() == 0) co_return slots;
  const Turn turn(beating);
  if (!turn) {
    if (base::mutated(base::Mutant::kFenceStopsHeart)) co_return slots;
    const std::uint64_t beats = heart.fetch_add(1) + 1;
    Batch batch(op.cost());
    batch.write_word(member_address(owner_slot(self.load())) + offsetof(MemberSlot, heartbeat_word),
                     &beats);
    if (Status written = co_await op.submit(batch); !written) co_return fail(written.error());
    co_return slots;
  }
  Result<Buffer> seen = co_await beat(op);
  if (!seen) co_return fail(seen.error());
  slots = std::move(*seen);
  co_return slots;
}

// Returns the slots as they were seen.
Task<Result<Buffer>> Membership::State::beat(Operation& op) {
  const std::size_t own_slot = owner_slot(self.load());
  // Announcing never goes back: joining announced more than its own operation's pin would allow.
  pulse = {std::max(pulse[0], node.announceable()), heart.fetch_add(1) + 1,
           node.memory_nodes().known()};
  Batch batch(op.cost());
  // First, so that the READ of the slots comes after it.
  batch.write(member_address(own_slot) + offsetof(MemberSlot, epoch_word),
              reinterpret_cast<std::byte*>(pulse.data()), pulse_bytes());
  // Writers may overwrite each other with less; then the one who wants more writes again.
  asked = wanted.load(std::memory_order_relaxed);
  if (asked > seen_wanted && asked > node.epochs().current()) {
    batch.write_word(tables_field(offsetof(PoolTables, wanted_epoch)), &asked);
  }
  // Never less than a predecessor's: who has come since then knows nothing of before it.
  const std::uint64_t to_answer =
      std::max(answered.load(std::memory_order_acquire), arrived_answer);
  answering = to_answer;
  if (to_answer > arrived_answer) {
    batch.write_word(member_address(own_slot) + offsetof(MemberSlot, answered_word), &answering);
  }
  auto buffer = co_await read_slots(op, batch);
  if (!buffer) co_return fail(buffer.error());
  arrived_answer = to_answer;
  const Snapshot seen(*buffer);
  seen_wanted = seen.wanted();
  want(seen_wanted);
  if (seen.slot(own_slot).owner_word != own_word) {
    co_return fail(ErrorCode::kFenced, "this compute node was silent and taken for dead");
  }

  std::uint64_t announced = pulse[0];
  std::uint64_t nodes_known = pulse[2];
  bool left_behind = false;
  PoolView now{.call_word = seen.call(),
               .recycler_word = seen.recycler(),
               .recycler_gone = true,
               .answered = ~std::uint64_t{0}};
  for (std::size_t i = 0; i < seen.members(); ++i) {
    const MemberSlot slot = seen.slot(i);
    const Slot member = Slot::from_word(slot.owner_word);
    left_behind |= is_unrecovered(slot);
    if (member.state != SlotState::kAlive) continue;
    now.answered = std::min(now.answered, slot.answered_word);
    if (make_owner(i, member.generation) == now.recycler_word >> 32) now.recycler_gone = false;
    announced = std::min(announced, slot.epoch_word);
    nodes_known = std::min(nodes_known, slot.nodes_word);
  }
  dead_ledgers.store(left_behind, std::memory_order_relaxed);
  now.dead_ledgers = left_behind;
  {
    const base::MutexLock lock(mutex);
    view = now;
  }
  node.memory_nodes().all_know(nodes_known);
  Status moved = co_await move_epoch(op, seen.epoch(), announced >= seen.epoch());
  if (!moved) co_return fail(moved.error());
  co_return buffer;
}

Task<Status> Membership::State::move_epoch(Operation& op, std::uint64_t epoch, bool allowed) {
  if (allowed) {
    Batch batch(op.cost());
    batch.compare_swap(tables_field(offsetof(PoolTables, epoch_word)), epoch, epoch + 1);
    if (Status moved = co_await op.submit(batch); !moved) co_return moved;
    epoch = batch[0].succeeded() ? epoch + 1 : batch[0].previous;
  }
  node.epochs().observe(epoch);
  co_return Status{};
}

void Membership::State::want(std::uint64_t epoch) {
  std::uint64_t before = wanted.load(std::memory_order_relaxed);
  while (before < epoch && !wanted.compare_exchange_weak(before, epoch)) {
  }
}

void Membership::want(std::uint64_t epoch) { state_->want(epoch); }

std::uint64_t Membership::wanted() const { return state_->wanted.load(std::memory_order_relaxed); }

PoolView Membership::view() const {
  const base::MutexLock lock(state_->mutex);
  return state_->view;
}

void Membership::answer(std::uint64_t number) {
  state_->answered.store(number, std::memory_order_release);
}

// ---- The silent ----

void Membership::State::grow_watches(std::size_t slots) {
  if (watches.size() >= slots) return;
  node.budget().take(BudgetUse::kMembership, (slots - watches.size()) * sizeof(Watch));
  watches.resize(slots);
}

bool Membership::State::suspected(std::size_t slot, std::uint64_t owner_word,
                                  std::uint64_t heartbeat, task::TimePoint now) {
  const task::Duration lease = node.options().lease;
  const base::MutexLock lock(mutex);
  grow_watches(slot + 1);
  Watch& watch = watches[slot];
  if (watch.owner_word != owner_word || watch.heartbeat != heartbeat) {
    watch = {.owner_word = owner_word, .heartbeat = heartbeat, .looked = now, .silent = {}};
    return false;
  }
  // Several threads look; one may have taken its time from the clock before another's look.
  if (now > watch.looked) {
    watch.silent += std::min(now - watch.looked, lease / 4);
    watch.looked = now;
  }
  return watch.silent >= lease;
}

// True: the slot's owner can do nothing any more. False: it cannot be shut out yet. kUnavailable: a
// memory node did not answer; that is tried again, by the next beat or by who waits.
Task<Result<bool>> Membership::State::declare_dead(Operation& op, std::size_t slot,
                                                   std::uint64_t owner_word) {
  Slot dead = Slot::from_word(owner_word);
  Status fenced = co_await shut_out(op, dead.client);
  if (fenced && self.load() == 0) {
    // Nobody has waited for this one to know all memory nodes. It does now: whom the first fence
    // shut out of node 0 can learn of no more of them, so a second one reaches all.
    auto complete = co_await node.memory_nodes().reaches_all(op);
    if (!complete || !*complete) co_return complete;
    fenced = co_await shut_out(op, dead.client);
  }
  const bool half = base::mutated(base::Mutant::kHalfFence);
  if (!fenced && fenced.error().code() == ErrorCode::kBusy) co_return false;
  if (!fenced && !half) co_return fail(fenced.error());
  dead.state = SlotState::kDead;
  Batch batch(op.cost());
  batch.compare_swap(owner_address(slot), owner_word, dead.word());
  if (Status declared = co_await op.submit(batch); !declared) co_return fail(declared.error());
  // Where the word was another, someone else has declared it dead.
  co_return true;
}

Task<Status> Membership::State::shut_out(Operation& op, fabric::ClientId client) {
  if (base::mutated(base::Mutant::kNoFence)) co_return Status{};
  co_return co_await op.endpoint().fence(client);
}

Task<Status> Membership::State::look_after(Operation& op, const Snapshot& seen, std::size_t slots) {
  const task::TimePoint now = op.worker().now();
  for (std::size_t i = 0; i < slots; ++i) {
    const MemberSlot slot = seen.slot(i);
    if (Slot::from_word(slot.owner_word).state != SlotState::kAlive) continue;
    if (slot.owner_word == own_word) continue;
    if (!suspected(i, slot.owner_word, slot.heartbeat_word, now)) continue;
    const auto declared = co_await declare_dead(op, i, slot.owner_word);
    if (declared) continue;
    // The others would wait for the same memory node, and what was seen gets old.
    if (declared.error().code() == ErrorCode::kUnavailable) co_return Status{};
    co_return fail(declared.error());
  }
  co_return Status{};
}

Task<Result<bool>> Membership::gone(Operation& op, OwnerId owner) {
  if (owner == self()) co_return false;
  const std::size_t place = owner_slot(owner);
  Buffer buffer = op.buffer(sizeof(MemberSlot));
  Batch batch(op.cost());
  batch.read(member_address(place), buffer.data(), sizeof(MemberSlot));
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  MemberSlot seen;
  std::memcpy(&seen, buffer.data(), sizeof(seen));
  const Slot slot = Slot::from_word(seen.owner_word);
  if (slot.generation != owner_generation(owner) || slot.state != SlotState::kAlive) {
    co_return true;
  }
  if (!state_->suspected(place, seen.owner_word, seen.heartbeat_word, op.worker().now())) {
    co_return false;
  }
  auto declared = co_await state_->declare_dead(op, place, seen.owner_word);
  if (!declared && declared.error().code() == ErrorCode::kUnavailable) co_return false;
  co_return declared;
}

// ---- What the dead leave ----

namespace {

bool alive(const Snapshot& seen, fabric::ClientId client) {
  for (std::size_t i = 0; i < seen.members(); ++i) {
    const Slot slot = Slot::from_word(seen.slot(i).owner_word);
    if (slot.client == client && slot.state == SlotState::kAlive) return true;
  }
  return false;
}

}  // namespace

Task<Result<bool>> Membership::lives(Operation& op, fabric::ClientId client) {
  const Turn turn(state_->beating);
  if (!turn) co_return true;
  Batch batch(op.cost());
  auto slots = co_await state_->read_slots(op, batch);
  if (!slots) co_return fail(slots.error());
  co_return alive(Snapshot(*slots), client);
}

Task<Result<std::optional<std::size_t>>> Membership::take_dead_slot(Operation& op) {
  if (!state_->dead_ledgers.load(std::memory_order_relaxed) || self() == 0) co_return std::nullopt;
  const Turn turn(state_->beating);
  if (!turn) co_return std::nullopt;
  co_return co_await state_->take_dead_slot(op);
}

// Whoever recovers a slot was alive when it took it, and is so until it has left or been shut out.
// So the slots are read, and read again: who is named by the first and not alive by the second can
// do nothing any more.
Task<Result<std::optional<std::size_t>>> Membership::State::take_dead_slot(Operation& op) {
  const fabric::ClientId client = node.fabric().client();
  Batch first(op.cost());
  auto before = co_await read_slots(op, first);
  if (!before) co_return fail(before.error());
  Batch second(op.cost());
  auto after = co_await read_slots(op, second);
  if (!after) co_return fail(after.error());
  const Snapshot seen(*before);
  const Snapshot now(*after);
  for (std::size_t i = 0; i < std::min(seen.members(), now.members()); ++i) {
    const std::uint64_t word = now.slot(i).owner_word;
    if (!is_unrecovered(now.slot(i)) || word != seen.slot(i).owner_word) continue;
    Slot slot = Slot::from_word(word);
    if (slot.state == SlotState::kRecovering) {
      if (slot.client == client) co_return i;
      if (alive(now, slot.client)) continue;
    }
    slot.client = client;
    slot.state = SlotState::kRecovering;
    Batch take(op.cost());
    take.compare_swap(owner_address(i), word, slot.word());
    if (Status taken = co_await op.submit(take); !taken) co_return fail(taken.error());
    if (take[0].succeeded()) co_return i;
  }
  co_return std::nullopt;
}

Task<Status> Membership::recovered(Operation& op, std::size_t slot) {
  const Result<std::uint64_t> word = co_await read_word(op, owner_address(slot));
  if (!word) co_return fail(word.error());
  Slot done = Slot::from_word(*word);
  if (done.state != SlotState::kRecovering || done.client != state_->node.fabric().client()) {
    co_return Status{};
  }
  done.state = SlotState::kFree;
  Batch batch(op.cost());
  batch.compare_swap(owner_address(slot), *word, done.word());
  co_return co_await op.submit(batch);
}

}  // namespace pando::pool
