// Stripes that several processes change, any of which may be killed or stopped at any instruction.
//
// A sequence number's word names its holder: {pen + 1: 32, number: 32}. Each thread that changes
// the memory has a pen (layout.h). Before it takes a stripe it writes into its pen what it is going
// to store, and stores from there. When a process is gone, the node's own process looks for
// stripes that its pens hold: it stores what the pen says, once more, and frees the stripe. So a
// WRITE that was cut off is whole in every stripe that it had begun, as a network card would have
// it. A store of a single word needs no such note: it happens, or it does not.
//
// A stripe whose holder is alive but stopped cannot be had. Whoever waits for one gives up after
// kPatience.
#pragma once

#include <chrono>
#include <cstring>

#include "fabric/line_memory.h"
#include "fabric/node/layout.h"

namespace pando::fabric::node {

inline constexpr std::chrono::milliseconds kPatience{2000};

class ManyProcesses {
 public:
  using Word = std::uint64_t;
  class Patience {
   public:
    explicit Patience(const ManyProcesses&) {}
    bool wait() {
      backoff_.pause();
      if (++rounds_ % kRoundsBetweenLooks != 0) return true;
      const auto now = std::chrono::steady_clock::now();
      if (rounds_ == kRoundsBetweenLooks) until_ = now + kPatience;
      return now < until_;
    }

   private:
    static constexpr std::uint32_t kRoundsBetweenLooks = 1024;
    base::Backoff backoff_;
    std::uint32_t rounds_ = 0;
    std::chrono::steady_clock::time_point until_;
  };

  ManyProcesses() = default;
  // The mapping, and the number of a pen that no other thread uses.
  ManyProcesses(std::byte* mapping, std::size_t pen)
      : mapping_(mapping), pen_(pen_at(mapping, pen)), holder_((Word{pen} + 1) << 32) {}

  static Pen* pen_at(std::byte* mapping, std::size_t pen) {
    return reinterpret_cast<Pen*>(mapping + kPensAt) + pen;
  }
  // The pen that holds the stripe; kMaxPens where none does.
  static std::size_t holder_of(Word word) {
    return word >> 32 == 0 || (word >> 32) > kMaxPens ? kMaxPens : (word >> 32) - 1;
  }

  Word held(Word before) const { return holder_ | static_cast<std::uint32_t>(before + 1); }
  Word released(Word before) const { return static_cast<std::uint32_t>(before + 2); }
  const std::byte* announce(const std::byte* where, const std::byte* from,
                            std::size_t length) const {
    const bool one_word = reinterpret_cast<std::uintptr_t>(where) % 8 + length <= 8;
    pen_->length = one_word ? 0 : length;
    if (one_word) return from;
    pen_->place = static_cast<std::uint64_t>(where - mapping_);
    std::memcpy(pen_->bytes, from, length);
    return pen_->bytes;
  }

 private:
  std::byte* mapping_ = nullptr;
  Pen* pen_ = nullptr;
  Word holder_ = 0;
};

using SharedLineMemory = BasicLineMemory<ManyProcesses>;

}  // namespace pando::fabric::node
