// VerbWatch: sees every verb of a run, on its way to an observer, and tells what the scenario needs
// to know of what only the code under test does.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "fabric/sim/simulation.h"
#include "lab/check/observer.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/membership/membership.h"

namespace pando::lab::check {

class VerbWatch final : public fabric::sim::TraceSink {
 public:
  explicit VerbWatch(CheckObserver* observer) : observer_(observer) {}

  // Called when a client has taken a dead one's slot, to give back what that one held.
  void on_recovery(std::function<void(fabric::ClientId)> action) {
    recovering_ = std::move(action);
  }
  // Called when a client has begun to recycle memory, or a further phase of that.
  void on_recycling(std::function<void(fabric::ClientId)> action) {
    recycling_ = std::move(action);
  }
  // Called when a verb was executed in a chunk that is nobody's: something still leads there.
  void on_trespass(std::uint64_t node_bytes, std::function<void(const std::string&)> action) {
    node_bytes_ = node_bytes;
    trespass_ = std::move(action);
  }
  // Called when a client has given up its own slot.
  void on_leaving(std::function<void(fabric::ClientId)> action) { leaving_ = std::move(action); }
  // Called when a verb has taken effect that its client does not wait for any more.
  void on_late(std::function<void(const fabric::sim::LateVerb&)> action) {
    late_ = std::move(action);
  }
  // Called when verbs of a client may come late from now on. What it says is the late verb's note.
  void on_doubt(std::function<std::uint64_t(fabric::ClientId)> action) {
    doubted_ = std::move(action);
  }
  // By atomics of unknown outcome on words that hand out memory: chunks, and magazines of shared
  // stacks.
  std::uint64_t unknown_takings() const { return unknown_takings_; }
  // WRITEs that failed where a slot's ledger begins: pages that may not be part of it.
  std::uint64_t unknown_ledgers() const { return unknown_ledgers_; }
  // Whether the client has given up its slot: it can do nothing any more.
  bool has_left(fabric::ClientId client) const { return left_.contains(client); }

  void verb(const fabric::sim::TracedVerb& traced) override {
    if (fabric::is_atomic(traced.verb->kind)) look_at(traced.client, *traced.verb);
    if (traced.verb->kind == fabric::VerbKind::kWrite) look_at_write(*traced.verb);
    if (trespass_ && traced.verb->outcome == fabric::Outcome::kExecuted) {
      look_at_chunks(traced.client, *traced.verb);
    }
    if (observer_ != nullptr) observer_->verb(traced);
  }
  std::uint64_t doubted(fabric::ClientId client) override {
    return doubted_ ? doubted_(client) : 0;
  }
  void late(const fabric::sim::LateVerb& late) override {
    if (late_) late_(late);
  }

 private:
  static constexpr fabric::Address kRecycler =
      pool::tables_field(offsetof(pool::PoolTables, recycler_word));

  void look_at(fabric::ClientId client, const fabric::Verb& verb) {
    if (verb.outcome == fabric::Outcome::kIndeterminate) {
      unknown_takings_ += takings(verb);
      return;
    }
    if (verb.outcome != fabric::Outcome::kExecuted) return;
    if (recycling_ && verb.target == kRecycler && verb.succeeded()) recycling_(client);
    if (!is_slot(verb.target) || !verb.succeeded()) return;
    const pool::Slot before = pool::Slot::from_word(verb.compare);
    const pool::Slot after = pool::Slot::from_word(verb.swap);
    if (before.state == pool::SlotState::kAlive && before.client == client) {
      left_.insert(client);
      if (leaving_) leaving_(client);
    }
    if (recovering_ && after.state == pool::SlotState::kRecovering) recovering_(client);
  }

  // How many chunks or magazines change hands by an atomic, at most.
  std::uint64_t takings(const fabric::Verb& verb) const {
    if (verb.target.on_chip()) return 0;
    const fabric::NodeId node = verb.target.node();
    const std::uint64_t offset = verb.target.offset();
    if (offset == offsetof(pool::Superblock, next_chunk_word)) {
      return (verb.swap - verb.compare) / pool::kChunkBytes;
    }
    if (offset < sizeof(pool::Superblock)) return 1;
    if (!is_chunk_states(node, offset)) return 0;
    std::uint64_t chunks = 0;
    for (std::size_t i = 0; i < pool::kChunksPerWord; ++i) {
      chunks += is_free(verb.compare, i) && !is_free(verb.swap, i) ? 1 : 0;
    }
    return chunks;
  }
  bool is_chunk_states(fabric::NodeId node, std::uint64_t offset) const {
    return offset >= pool::chunk_states_at(node) &&
           offset < pool::first_chunk_of(node, node_bytes_);
  }
  static bool is_free(std::uint64_t states, std::size_t chunk) {
    return pool::chunk_state(states, chunk) == pool::ChunkState::kFree;
  }

  static bool is_slot(fabric::Address at) {
    constexpr std::uint64_t kSlots = pool::kTablesOffset + offsetof(pool::PoolTables, members);
    constexpr std::uint64_t kSlotsEnd = pool::kTablesOffset + offsetof(pool::PoolTables, catalogue);
    return at.node() == 0 && at.offset() >= kSlots && at.offset() < kSlotsEnd;
  }

  void look_at_write(const fabric::Verb& verb) {
    const bool ledger =
        verb.target.offset() % sizeof(pool::MemberSlot) == offsetof(pool::MemberSlot, ledger_word);
    if (ledger && is_slot(verb.target) && verb.outcome != fabric::Outcome::kExecuted) {
      ++unknown_ledgers_;
    }
  }

  // Each change of a chunk to free and from free is seen, in whatever order they are answered.
  void look_at_chunks(fabric::ClientId client, const fabric::Verb& verb) {
    if (verb.target.on_chip()) return;
    const fabric::NodeId node = verb.target.node();
    const std::uint64_t offset = verb.target.offset();
    const std::uint64_t first = pool::first_chunk_of(node, node_bytes_);
    if (offset >= first) {
      const auto at = free_chunks_.find({node, (offset - first) / pool::kChunkBytes});
      if (at == free_chunks_.end() || at->second <= 0) return;
      trespass_(fmt::format("compute node {} came to {}:{:#x}, in a chunk that is nobody's", client,
                            node, offset));
    } else if (is_chunk_states(node, offset) && fabric::is_atomic(verb.kind) && verb.succeeded()) {
      const std::size_t word = (offset - pool::chunk_states_at(node)) / 8 * pool::kChunksPerWord;
      for (std::size_t i = 0; i < pool::kChunksPerWord; ++i) {
        const bool was = is_free(verb.compare, i);
        const bool is = is_free(verb.swap, i);
        if (was != is) free_chunks_[{node, word + i}] += is ? 1 : -1;
      }
    }
  }

  CheckObserver* const observer_;
  std::uint64_t node_bytes_ = 0;
  std::function<void(const std::string&)> trespass_;
  std::map<std::pair<fabric::NodeId, std::size_t>, int> free_chunks_;
  std::function<void(fabric::ClientId)> recovering_;
  std::function<void(fabric::ClientId)> recycling_;
  std::function<void(fabric::ClientId)> leaving_;
  std::function<std::uint64_t(fabric::ClientId)> doubted_;
  std::function<void(const fabric::sim::LateVerb&)> late_;
  std::set<fabric::ClientId> left_;
  std::uint64_t unknown_takings_ = 0;
  std::uint64_t unknown_ledgers_ = 0;
};

}  // namespace pando::lab::check
