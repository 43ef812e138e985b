// LineMemory: a node's bytes, read and written by many threads at once, line by line atomic.
//
// CPUs promise no more than 16 bytes to be atomic, so every stripe of kStripeBytes has a sequence
// number: odd while somebody changes the stripe. Stripes share numbers by a hash.
//  1. WRITEs and atomics make the number odd, change the bytes, and make it even again: those of
//     one stripe exclude one another. They hold one number at a time, for less than a microsecond.
//  2. READs copy a stripe, and copy it again if its number was odd or has changed. Readers that are
//     overtaken kOptimisticReads times in a row exclude the writers instead, so they do end.
//  3. So a READ sees each stripe, hence each line, at one moment, against atomics too; and atomics
//     see no WRITE half done.
//  4. A WRITE or atomic is visible to every verb of any thread that begins after it has returned:
//     the numbers are sequentially consistent.
//  5. An atomic that changes nothing leaves the number as it was, so failed compare-and-swaps do
//     not disturb readers.
//
// `Sharing` says who the others are: OneProcess here, whose threads do not end while they hold a
// stripe; several processes in fabric/node/redo_slots.h, any of which may be killed or stopped at
// any instruction. There, a verb that has waited too long for a stripe gives up: all verbs tell.
//
// Bounds and alignment are the caller's business. Does not own the bytes nor the numbers, so
// that they can lie in any kind of mapping; all-zero is their initial state.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "base/spin.h"
#include "fabric/line_copy.h"

namespace pando::fabric {

inline constexpr std::size_t kStripeBytes = 1024;

// Only threads of this process use the memory.
struct OneProcess {
  using Word = std::uint32_t;  // a sequence number, and who holds it
  class StripeWait {
   public:
    explicit StripeWait(const OneProcess&) {}
    // False: it has been too long.
    bool wait() {
      backoff_.pause();
      return true;
    }

   private:
    base::Backoff backoff_;
  };

  Word held(Word before) const { return before + 1; }
  Word released(Word before) const { return before + 2; }
  // Before a WRITE's stripe is held, or an atomic's (length 0): what will be done to the bytes
  // there. Returns where to copy from.
  const std::byte* announce(const std::byte* /*where*/, const std::byte* from,
                            std::size_t /*length*/) const {
    return from;
  }
};

template <class Sharing>
class BasicLineMemory {
 public:
  static constexpr unsigned kSequenceBits = 12;
  static constexpr std::size_t kSequences = std::size_t{1} << kSequenceBits;
  // Not padded to a line each: that was measured to gain nothing, and costs 16 times the cache.
  using Sequence = std::atomic<typename Sharing::Word>;

  BasicLineMemory() = default;
  // REQUIRES: `bytes` is aligned to kStripeBytes; `sequences` are kSequences.
  BasicLineMemory(std::byte* bytes, Sequence* sequences, Sharing sharing = {})
      : bytes_(bytes), sequences_(sequences), sharing_(sharing) {
    assert(reinterpret_cast<std::uintptr_t>(bytes) % kStripeBytes == 0);
  }

  std::byte* bytes() const { return bytes_; }

  // Each returns false where a stripe could not be had in time: then what was read is of no use,
  // and of a WRITE some stripes may have been written.
  [[nodiscard]] bool read(std::uint64_t offset, std::byte* into, std::size_t length) const {
    const bool one_stripe = offset % kStripeBytes + length <= kStripeBytes;
    if (one_stripe && try_read(offset, into, length)) [[likely]]
      return true;
    return read_by_stripes(offset, into, length);
  }

  [[nodiscard]] bool write(std::uint64_t offset, const std::byte* from, std::size_t length) const {
    while (length > 0) {
      const std::size_t part = std::min(length, kStripeBytes - offset % kStripeBytes);
      const std::byte* const source = sharing_.announce(bytes_ + offset, from, part);
      Exclusive stripe(sequence_of(offset), sharing_);
      if (!stripe) return false;
      copy_to_shared(bytes_ + offset, source, part);
      stripe.changed();
      offset += part;
      from += part;
      length -= part;
    }
    return true;
  }

  // Swaps the bits of swap_mask if those of compare_mask agree. `previous` is the word before.
  [[nodiscard]] bool compare_swap(std::uint64_t offset, std::uint64_t compare, std::uint64_t swap,
                                  std::uint64_t compare_mask, std::uint64_t swap_mask,
                                  std::uint64_t& previous) const {
    sharing_.announce(bytes_ + offset, nullptr, 0);
    Exclusive stripe(sequence_of(offset), sharing_);
    if (!stripe) return false;
    previous = detail::load_word(bytes_ + offset);
    if (((previous ^ compare) & compare_mask) == 0) {
      detail::store_word(bytes_ + offset, (previous & ~swap_mask) | (swap & swap_mask));
      stripe.changed();
    }
    return true;
  }

  [[nodiscard]] bool fetch_add(std::uint64_t offset, std::uint64_t add,
                               std::uint64_t& previous) const {
    sharing_.announce(bytes_ + offset, nullptr, 0);
    Exclusive stripe(sequence_of(offset), sharing_);
    if (!stripe) return false;
    previous = detail::load_word(bytes_ + offset);
    detail::store_word(bytes_ + offset, previous + add);
    stripe.changed();
    return true;
  }

  // Asks the cache for what a verb on [offset, offset + length) will touch; returns the number of
  // lines asked for, at least 1 and at most `limit`.
  std::size_t prefetch(std::uint64_t offset, std::size_t length, std::size_t limit) const {
    __builtin_prefetch(&sequence_of(offset));
    std::size_t lines = 0;
    std::uint64_t at = offset / 64 * 64;
    do {
      __builtin_prefetch(bytes_ + at);
      at += 64;
    } while (++lines < limit && at < offset + length);
    return lines;
  }

 private:
  static constexpr int kOptimisticReads = 16;
  using Word = typename Sharing::Word;
  using StripeWait = typename Sharing::StripeWait;

  // Holds a stripe against other writers; its readers start over if it was changed.
  class Exclusive {
   public:
    Exclusive(Sequence& number, const Sharing& sharing) : number_(number), sharing_(sharing) {
      for (StripeWait waiting(sharing);;) {
        before_ = number_.load(std::memory_order_relaxed);
        if (before_ % 2 == 0 && number_.compare_exchange_weak(before_, sharing.held(before_))) {
          break;
        }
        if (!waiting.wait()) [[unlikely]]
          return;
      }
      held_ = true;
      // No change of the bytes may be seen by one who does not see the odd number.
      std::atomic_thread_fence(std::memory_order_release);
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;
    ~Exclusive() {
      if (!held_) return;
      if (changed_) {
        number_.store(sharing_.released(before_));
      } else {
        number_.store(before_, std::memory_order_release);
      }
    }
    explicit operator bool() const { return held_; }
    void changed() { changed_ = true; }

   private:
    Sequence& number_;
    const Sharing& sharing_;
    Word before_ = 0;
    bool held_ = false;
    bool changed_ = false;
  };

  // False: a writer was there meanwhile. REQUIRES: all within one stripe.
  bool try_read(std::uint64_t offset, std::byte* into, std::size_t length) const {
    assert(offset % kStripeBytes + length <= kStripeBytes);
    const Sequence& number = sequence_of(offset);
    const Word before = number.load();
    if (before % 2 != 0) [[unlikely]]
      return false;
    copy_from_shared(into, bytes_ + offset, length);
    std::atomic_thread_fence(std::memory_order_acquire);
    return number.load(std::memory_order_relaxed) == before;
  }

  // Of any length, however many writers are there.
  [[gnu::noinline]] bool read_by_stripes(std::uint64_t offset, std::byte* into,
                                         std::size_t length) const {
    while (length > 0) {
      const std::size_t part = std::min(length, kStripeBytes - offset % kStripeBytes);
      if (!read_stripe(offset, into, part)) return false;
      offset += part;
      into += part;
      length -= part;
    }
    return true;
  }

  bool read_stripe(std::uint64_t offset, std::byte* into, std::size_t length) const {
    base::Backoff backoff;
    for (int i = 0; i < kOptimisticReads; ++i) {
      if (try_read(offset, into, length)) [[likely]]
        return true;
      backoff.pause();
    }
    sharing_.announce(bytes_ + offset, nullptr, 0);
    const Exclusive stripe(sequence_of(offset), sharing_);
    if (!stripe) return false;
    copy_from_shared(into, bytes_ + offset, length);
    return true;
  }

  Sequence& sequence_of(std::uint64_t offset) const {
    // Fibonacci hashing: neighbours and powers of two apart get different numbers.
    const std::uint64_t hash = offset / kStripeBytes * 0x9E3779B97F4A7C15u;
    return sequences_[hash >> (64 - kSequenceBits)];
  }

  std::byte* bytes_ = nullptr;
  Sequence* sequences_ = nullptr;
  [[no_unique_address]] Sharing sharing_;
};

using LineMemory = BasicLineMemory<OneProcess>;

}  // namespace pando::fabric
