// EventQueue: what is going to happen, the earliest first; events of one moment in the order in
// which they were added. That order is what makes a simulation repeatable.
//
// A heap of four children a node over 16-byte keys, its events aside: half the levels of a binary
// heap, and what is compared lies in one line.
#pragma once

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
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // REQUIRES: !empty().
  Time next_at() const { return heap_.front().at; }

  void push(Time at, const Event& event) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(events_.size());
      events_.push_back(event);
    } else {
      slot = free_.back();
      free_.pop_back();
      events_[slot] = event;
    }
    heap_.emplace_back();
    rise(heap_.size() - 1, {at, (pushed_++ << kSlotBits) | slot});
  }

  // REQUIRES: !empty().
  Event pop() {
    const auto slot = static_cast<std::uint32_t>(heap_.front().order & kSlotMask);
    const Key last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    free_.push_back(slot);
    return events_[slot];
  }

 private:
  static constexpr unsigned kSlotBits = 24;  // events under way at once; 2^40 in all
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
  static constexpr std::size_t kChildren = 4;

  struct Key {
    Time at;
    std::uint64_t order;  // {count:40, slot:24}
    friend bool operator<(const Key& a, const Key& b) {
      return a.at != b.at ? a.at < b.at : a.order < b.order;
    }
  };

  void rise(std::size_t place, const Key& key) {
    while (place > 0) {
      const std::size_t parent = (place - 1) / kChildren;
      if (!(key < heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = key;
  }
  void sink(const Key& key) {
    const std::size_t count = heap_.size();
    std::size_t place = 0;
    for (;;) {
      const std::size_t first = place * kChildren + 1;
      if (first >= count) break;
      const std::size_t end = first + kChildren < count ? first + kChildren : count;
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (heap_[child] < heap_[least]) least = child;
      }
      if (!(heap_[least] < key)) break;
      heap_[place] = heap_[least];
      place = least;
    }
    heap_[place] = key;
  }

  std::vector<Key> heap_;
  std::vector<Event> events_;
  std::vector<std::uint32_t> free_;
  std::uint64_t pushed_ = 0;
};

}  // namespace pando::fabric::sim
