// Stripes that several processes change, any of which may be killed or stopped at any instruction.
//
// A sequence number's word names its holder: {redo slot + 1: 32, number: 32}. Each thread that
// changes the memory has a redo slot (layout.h). Before it takes a stripe it writes into its redo
// slot what it is going to store, and stores from there. When a process is gone, the node's own
// process looks for stripes that its redo slots hold: it stores what the redo slot says, once more,
// and frees the stripe. So a WRITE that was cut off is whole in every stripe that it had begun, as
// a network card would have it. A store of a single word needs no such note: it happens, or it does
// not.
//
// A stripe whose holder is alive but stopped cannot be had. Whoever waits for one gives up after
// kStripeTimeout.
#pragma once

#include <chrono>
#include <cstring>

#include "fabric/line_memory.h"
#include "fabric/node/layout.h"

namespace pando::fabric::node {

inline constexpr std::chrono::milliseconds kStripeTimeout{2000};

class ManyProcesses {
 public:
  using Word = std::uint64_t;
  class StripeWait {
   public:
    explicit StripeWait(const ManyProcesses&) {}
    bool wait() {
      backoff_.pause();
      if (++rounds_ % kRoundsBetweenLooks != 0) return true;
      const auto now = std::chrono::steady_clock::now();
      if (rounds_ == kRoundsBetweenLooks) until_ = now + kStripeTimeout;
      return now < until_;
    }

   private:
    static constexpr std::uint32_t kRoundsBetweenLooks = 1024;
    base::Backoff backoff_;
    std::uint32_t rounds_ = 0;
    std::chrono::steady_clock::time_point until_;
  };

  ManyProcesses() = default;
  // The mapping, and the number of a redo slot that no other thread uses.
  ManyProcesses(std::byte* mapping, std::size_t slot)
      : mapping_(mapping), slot_(redo_slot_at(mapping, slot)), holder_((Word{slot} + 1) << 32) {}

  static RedoSlot* redo_slot_at(std::byte* mapping, std::size_t slot) {
    return reinterpret_cast<RedoSlot*>(mapping + kRedoSlotsAt) + slot;
  }
  // The redo slot that holds the stripe; kMaxRedoSlots where none does.
  static std::size_t holder_of(Word word) {
    return word >> 32 == 0 || (word >> 32) > kMaxRedoSlots ? kMaxRedoSlots : (word >> 32) - 1;
  }

  Word held(Word before) const { return holder_ | static_cast<std::uint32_t>(before + 1); }
  Word released(Word before) const { return static_cast<std::uint32_t>(before + 2); }
  const std::byte* announce(const std::byte* where, const std::byte* from,
                            std::size_t length) const {
    const bool one_word = reinterpret_cast<std::uintptr_t>(where) % 8 + length <= 8;
    slot_->length = one_word ? 0 : length;
    if (one_word) return from;
    slot_->place = static_cast<std::uint64_t>(where - mapping_);
    std::memcpy(slot_->bytes, from, length);
    return slot_->bytes;
  }

 private:
  std::byte* mapping_ = nullptr;
  RedoSlot* slot_ = nullptr;
  Word holder_ = 0;
};

using SharedLineMemory = BasicLineMemory<ManyProcesses>;

}  // namespace pando::fabric::node
