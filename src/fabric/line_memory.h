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
//  not
//     disturb readers.
//
// Bounds and alignment are the caller's business. Does not own the bytes nor the numbers, so
// that they can lie in any kind of mapping; all-zero is their initial state.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/spin.h"
#include "fabric/line_copy.h"

namespace pando::fabric {

class LineMemory {
 public:
  static constexpr std::size_t kStripeBytes = 1024;
  static constexpr unsigned kSequenceBits = 12;
  static constexpr std::size_t kSequences = std::size_t{1} << kSequenceBits;
  // Not padded to a line each: that was measured to gain nothing, and costs 16 times the cache.
  using Sequence = std::atomic<std::uint32_t>;

  LineMemory() = default;
  // REQUIRES: `bytes` is aligned to kStripeBytes; `sequences` are kSequences.
  LineMemory(std::byte* bytes, Sequence* sequences) : bytes_(bytes), sequences_(sequences) {}

  std::byte* bytes() const { return bytes_; }

  void read(std::uint64_t offset, std::byte* into, std::size_t length) const {
    while (length > kStripeBytes - offset % kStripeBytes) {
      const std::size_t part = kStripeBytes - offset % kStripeBytes;
      read_stripe(offset, into, part);
      offset += part;
      into += part;
      length -= part;
    }
    if (length > 0) read_stripe(offset, into, length);
  }

  void write(std::uint64_t offset, const std::byte* from, std::size_t length) const {
    while (length > 0) {
      const std::size_t part = std::min(length, kStripeBytes - offset % kStripeBytes);
      Exclusive stripe(sequence_of(offset));
      copy_to_shared(bytes_ + offset, from, part);
      stripe.changed();
      offset += part;
      from += part;
      length -= part;
    }
  }

  // Swaps the bits of swap_mask if those of compare_mask agree. Returns the word before.
  std::uint64_t compare_swap(std::uint64_t offset, std::uint64_t compare, std::uint64_t swap,
                             std::uint64_t compare_mask = ~std::uint64_t{0},
                             std::uint64_t swap_mask = ~std::uint64_t{0}) const {
    Exclusive stripe(sequence_of(offset));
    const std::uint64_t word = detail::load_word(bytes_ + offset);
    if (((word ^ compare) & compare_mask) == 0) {
      detail::store_word(bytes_ + offset, (word & ~swap_mask) | (swap & swap_mask));
      stripe.changed();
    }
    return word;
  }

  std::uint64_t fetch_add(std::uint64_t offset, std::uint64_t add) const {
    Exclusive stripe(sequence_of(offset));
    const std::uint64_t word = detail::load_word(bytes_ + offset);
    detail::store_word(bytes_ + offset, word + add);
    stripe.changed();
    return word;
  }

  // Asks the cache for what a verb on [offset, offset + length) will touch; returns the number of
  // lines asked for, at most `limit`.
  std::size_t prefetch(std::uint64_t offset, std::size_t length, std::size_t limit) const {
    __builtin_prefetch(&sequence_of(offset));
    const std::size_t lines = std::min((offset % 64 + length + 63) / 64, limit);
    for (std::size_t i = 0; i < lines; ++i) __builtin_prefetch(bytes_ + offset + i * 64);
    return lines;
  }

 private:
  static constexpr int kOptimisticReads = 16;

  // Holds a stripe against other writers; its readers start over if it was changed.
  class Exclusive {
   public:
    explicit Exclusive(Sequence& number) : number_(number) {
      base::Backoff backoff;
      for (;;) {
        before_ = number_.load(std::memory_order_relaxed);
        if (before_ % 2 == 0 && number_.compare_exchange_weak(before_, before_ + 1)) break;
        backoff.pause();
      }
      // No change of the bytes may be seen by one who does not see the odd number.
      std::atomic_thread_fence(std::memory_order_release);
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;
    ~Exclusive() {
      if (changed_) {
        number_.store(before_ + 2);
      } else {
        number_.store(before_, std::memory_order_release);
      }
    }
    void changed() { changed_ = true; }

   private:
    Sequence& number_;
    std::uint32_t before_ = 0;
    bool changed_ = false;
  };

  void read_stripe(std::uint64_t offset, std::byte* into, std::size_t length) const {
    Sequence& number = sequence_of(offset);
    base::Backoff backoff;
    for (int i = 0; i < kOptimisticReads; ++i) {
      const std::uint32_t before = number.load();
      if (before % 2 == 0) [[likely]] {
        copy_from_shared(into, bytes_ + offset, length);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (number.load(std::memory_order_relaxed) == before) [[likely]]
          return;
      }
      backoff.pause();
    }
    const Exclusive stripe(number);
    copy_from_shared(into, bytes_ + offset, length);
  }

  Sequence& sequence_of(std::uint64_t offset) const {
    // Fibonacci hashing: neighbours and powers of two apart get different numbers.
    const std::uint64_t hash = offset / kStripeBytes * 0x9E3779B97F4A7C15u;
    return sequences_[hash >> (64 - kSequenceBits)];
  }

  std::byte* bytes_ = nullptr;
  Sequence* sequences_ = nullptr;
};

}  // namespace pando::fabric
