// Cover: which entries of a leaf a scan reads, in which READs.
//
// Of integer keys that lie close together a scan knows the candidates: from, from + 1, … Only the
// neighbourhoods of their homes can hold them. Entries between two neighbourhoods are left out
// where that saves more than the READ costs that it takes.
#pragma once

#include <array>
#include <bitset>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "index/chime/layout.h"

namespace pando::index::chime {

// What a READ costs beside its data, in bytes: the headers of its answer (86 with RoCE) and its
// work request (64).
inline constexpr std::size_t kReadBytes = 150;

class Cover {
 public:
  using Set = std::bitset<kMaxSpan>;
  struct Run {  // a READ
    std::size_t first;
    std::size_t last;
  };
  static constexpr std::size_t kMaxRuns = 8;

  // Every entry, in one READ, without the header.
  static Cover all(const LeafGeometry& leaf) {
    Cover cover(leaf);
    for (std::size_t i = 0; i < leaf.span; ++i) {
      cover.homes_.set(i);
      cover.entries_.set(i);
    }
    cover.add({0, leaf.span - 1});
    return cover;
  }
  // What the keys [from, to) need; all() where that is no dearer. REQUIRES: from < to.
  static Cover of(const LeafGeometry& leaf, std::uint64_t from, std::uint64_t to) {
    assert(from < to);
    if (to - from > leaf.span) return all(leaf);
    Cover cover(leaf);
    Set wanted;
    for (std::uint64_t key = from; key != to; ++key) {
      const std::size_t home = leaf.home_of(key);
      if (cover.homes_[home]) continue;
      cover.homes_.set(home);
      for (std::size_t d = 0; d < leaf.neighbourhood; ++d) wanted.set(leaf.wrapped(home + d));
    }
    if (!cover.choose(wanted)) return all(leaf);
    Cover whole = all(leaf);
    return cover.cost() < whole.cost() ? cover : whole;
  }

  const Set& homes() const { return homes_; }      // of the keys
  const Set& entries() const { return entries_; }  // that are read
  bool is_all() const { return entries_.count() == leaf_->span; }
  std::size_t reads() const { return count_; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for_each_part([&](std::size_t, std::size_t bytes) { sum += bytes; });
    return sum;
  }
  std::size_t cost() const { return bytes() + count_ * kReadBytes; }

  template <class Each>
  void for_each_part(Each each) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const Run& run = runs_[i];
      leaf_->for_each_part(run.first, run.last - run.first + 1, each);
    }
  }
  // The replicas that these READs bring along: at least one.
  template <class Each>
  void for_each_replica(Each each) const {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t h = leaf_->neighbourhood;
      for (std::size_t r = (runs_[i].first + h - 1) / h; r * h <= runs_[i].last; ++r) each(r);
    }
  }

 private:
  explicit Cover(const LeafGeometry& leaf) : leaf_(&leaf) {}

  void add(const Run& run) { runs_[count_++] = run; }
  // False: too many runs.
  bool choose(const Set& wanted) {
    for (std::size_t i = 0; i < leaf_->span; ++i) {
      if (!wanted[i]) continue;
      const bool joins = count_ > 0 && leaf_->entry[i] <= leaf_->entry[runs_[count_ - 1].last] +
                                                              leaf_->slot_bytes + kReadBytes;
      if (!joins && count_ == kMaxRuns) return false;
      if (joins) {
        runs_[count_ - 1].last = i;
      } else {
        add({i, i});
      }
    }
    for (std::size_t n = 0; n < count_; ++n) {
      for (std::size_t i = runs_[n].first; i <= runs_[n].last; ++i) entries_.set(i);
    }
    return true;
  }

  const LeafGeometry* leaf_;
  Set homes_;
  Set entries_;
  std::array<Run, kMaxRuns> runs_{};
  std::size_t count_ = 0;
};

}  // namespace pando::index::chime
