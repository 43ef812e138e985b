// EventQueue: what is going to happen, the earliest first; events of one moment in the order in
// which they were added. That order is what makes a simulation repeatable.
//
// A wheel of short slices of time, each a sorted list, for what is near: nearly all of it, so that
// adding and taking touch a line or two whatever the number of events. What lies beyond the wheel
// waits in a heap.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pando::fabric::sim {

// Picoseconds since the simulation began: a verb's slot at 45 million a second is no whole number
// of nanoseconds. Overflows after 213 days.
using Time = std::uint64_t;
inline constexpr Time kNanosecond = 1000;
inline constexpr Time kMicrosecond = 1000 * kNanosecond;
inline constexpr Time kMillisecond = 1000 * kMicrosecond;
inline constexpr Time kSecond = 1000 * kMillisecond;

class EventHandler;

// What the words mean is its handler's business.
struct Event {
  EventHandler* handler = nullptr;
  void* subject = nullptr;
  std::uint64_t serial = 0;
  std::uint64_t detail = 0;
};

class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void happen(const Event& event) = 0;
};

class EventQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  // REQUIRES: !empty().
  Time next_at() const {
    assert(!empty());
    return nodes_[first()].at;
  }

  void push(Time at, const Event& event) {
    const std::uint32_t node = new_node(at, event);
    ++size_;
    const std::uint64_t slice = at >> kSliceBits;
    if (slice >= now_slice_ + kSlices) {
      far_.push_back(node);
      std::ranges::push_heap(far_, Later{*this});
      return;
    }
    // What is late already comes next.
    add_to_slice((slice > now_slice_ ? slice : now_slice_) % kSlices, node);
  }

  // REQUIRES: !empty().
  Event pop() {
    assert(!empty());
    const std::uint32_t node = first();
    --size_;
    if (!far_.empty() && far_.front() == node) {
      std::ranges::pop_heap(far_, Later{*this});
      far_.pop_back();
    } else {
      take_first_of(near_slice());
    }
    const std::uint64_t slice = nodes_[node].at >> kSliceBits;
    if (slice > now_slice_) now_slice_ = slice;
    nodes_[node].next = free_;
    free_ = node;
    return nodes_[node].event;
  }

 private:
  static constexpr unsigned kSliceBits = 14;      // 16 ns: few events, at the rates of a card
  static constexpr std::uint64_t kSlices = 4096;  // 67 us, above most waits in a queue
  static constexpr std::uint64_t kWordBits = 64;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Node {
    Time at;
    std::uint64_t order;
    Event event;
    std::uint32_t next;
  };
  struct Later {
    const EventQueue& queue;
    bool operator()(std::uint32_t a, std::uint32_t b) const { return queue.before(b, a); }
  };
  struct Slice {
    std::uint32_t first = kNone;
    std::uint32_t last = kNone;
  };

  bool before(std::uint32_t a, std::uint32_t b) const {
    const Node& x = nodes_[a];
    const Node& y = nodes_[b];
    return x.at != y.at ? x.at < y.at : x.order < y.order;
  }

  std::uint32_t new_node(Time at, const Event& event) {
    if (free_ == kNone) {
      nodes_.push_back({at, pushed_++, event, kNone});
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }
    const std::uint32_t node = free_;
    free_ = nodes_[node].next;
    nodes_[node] = {at, pushed_++, event, kNone};
    return node;
  }

  void add_to_slice(std::uint64_t place, std::uint32_t node) {
    Slice& slice = slices_[place];
    ++near_;
    if (slice.first == kNone) {
      slice = {node, node};
      used_[place / kWordBits] |= std::uint64_t{1} << (place % kWordBits);
      used_words_ |= std::uint64_t{1} << (place / kWordBits);
    } else if (before(slice.last, node)) {
      nodes_[slice.last].next = node;
      slice.last = node;
    } else if (before(node, slice.first)) {
      nodes_[node].next = slice.first;
      slice.first = node;
    } else {
      std::uint32_t at = slice.first;
      while (!before(node, nodes_[at].next)) at = nodes_[at].next;
      nodes_[node].next = nodes_[at].next;
      nodes_[at].next = node;
    }
  }

  void take_first_of(std::uint64_t place) {
    Slice& slice = slices_[place];
    --near_;
    slice.first = nodes_[slice.first].next;
    if (slice.first != kNone) return;
    slice.last = kNone;
    used_[place / kWordBits] &= ~(std::uint64_t{1} << (place % kWordBits));
    if (used_[place / kWordBits] == 0) used_words_ &= ~(std::uint64_t{1} << (place / kWordBits));
  }

  // The first slice from now on that has events. REQUIRES: near_ > 0.
  std::uint64_t near_slice() const {
    assert(near_ > 0);
    const std::uint64_t from = now_slice_ % kSlices;
    const std::uint64_t word = from / kWordBits;
    if (const std::uint64_t rest = used_[word] >> (from % kWordBits); rest != 0) {
      return from + static_cast<std::uint64_t>(std::countr_zero(rest));
    }
    // Other words in turn; at last the part of this one that lies before `from`.
    const std::uint64_t words = std::rotr(used_words_, static_cast<int>(word + 1));
    const std::uint64_t next =
        (word + 1 + static_cast<std::uint64_t>(std::countr_zero(words))) % kWords;
    return next * kWordBits + static_cast<std::uint64_t>(std::countr_zero(used_[next]));
  }

  std::uint32_t first() const {
    if (near_ == 0) return far_.front();
    const std::uint32_t near = slices_[near_slice()].first;
    return !far_.empty() && before(far_.front(), near) ? far_.front() : near;
  }

  static constexpr std::uint64_t kWords = kSlices / kWordBits;
  static_assert(kWords == kWordBits, "one word tells which words are used");

  std::vector<Node> nodes_;
  std::uint32_t free_ = kNone;
  std::uint64_t pushed_ = 0;
  std::size_t size_ = 0;
  std::size_t near_ = 0;
  std::uint64_t now_slice_ = 0;  // of the last event taken: the wheel begins here
  std::vector<Slice> slices_ = std::vector<Slice>(kSlices);
  std::array<std::uint64_t, kWords> used_{};  // a bit a slice
  std::uint64_t used_words_ = 0;              // a bit a word of used_
  std::vector<std::uint32_t> far_;
};

}  // namespace pando::fabric::sim
