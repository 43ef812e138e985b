// LocalEndpoint: executes batches itself, on memory that this process has mapped.
//
// What embedded and mapped have in common. A batch completes inline, without suspending, while the
// worker is not crowded. On a crowded worker it prefetches its targets and lets the other tasks
// run before it is executed: so their cache misses overlap.
//
// `View` is this endpoint's sight of the memory nodes:
//   const Caps& caps() const;
//   std::span<const std::uint64_t> sizes() const;             of the nodes
//   const Memory& part_of(Address address) const;             a BasicLineMemory
//   Status usable(const Batch& batch) const;                  whether its nodes can be used now
//   Task<Status> fence(task::Worker& worker, ClientId client);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "fabric/line_memory.h"
#include "fabric/verbs.h"

namespace pando::fabric {

// Executes a WRITE or an atomic. Apart from READs, which are short and many.
template <class Memory>
[[nodiscard, gnu::noinline]] bool change(Verb& verb, const Memory& memory, std::uint64_t offset) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  switch (verb.kind) {
    case VerbKind::kRead:
      break;
    case VerbKind::kWrite:
      return memory.write(offset, verb.local, verb.length);
    case VerbKind::kCompareSwap:
      return memory.compare_swap(offset, verb.compare, verb.swap, kAll, kAll, verb.previous);
    case VerbKind::kMaskedCompareSwap:
      return verb.emulated ? memory.compare_swap(offset, verb.guess, verb.swapped(verb.guess), kAll,
                                                 kAll, verb.previous)
                           : memory.compare_swap(offset, verb.compare, verb.swap, verb.compare_mask,
                                                 verb.swap_mask, verb.previous);
    case VerbKind::kFetchAdd:
      return memory.fetch_add(offset, verb.swap, verb.previous);
  }
  return false;
}

// False where the memory could not be had in time (line_memory.h).
template <class Memory>
[[nodiscard]] inline bool execute(Verb& verb, const Memory& memory, std::uint64_t offset) {
  if (verb.kind == VerbKind::kRead) return memory.read(offset, verb.local, verb.length);
  return change(verb, memory, offset);
}

template <class View>
class LocalEndpoint final : public Endpoint {
 public:
  LocalEndpoint(View view, task::Worker& worker)
      : Endpoint(view.caps(), worker), view_(std::move(view)) {}

  bool poll() override {
    if (first_ == nullptr) return false;
    // Waiters run later, so nothing is queued meanwhile.
    for (Batch* batch = std::exchange(first_, nullptr); batch != nullptr;) {
      Batch* const next = batch->next;
      execute(*batch);
      worker().schedule(batch->waiter);
      batch = next;
    }
    last_ = nullptr;
    return true;
  }
  bool pending() const override { return first_ != nullptr; }
  void abandon() override { first_ = last_ = nullptr; }
  Task<Status> fence(ClientId client) override { return view_.fence(worker(), client); }

 private:
  // Of a batch that is queued. A READ of 1 KiB gains nothing before most of its lines are asked
  // for.
  static constexpr std::size_t kPrefetchedLines = 32;
  // Verbs of a batch under way: a core waits for several lines of memory at a time.
  static constexpr std::size_t kAhead = 16;

  std::span<const std::uint64_t> memory_node_sizes() const override { return view_.sizes(); }

  bool post(Batch& batch) override {
    // With a batch queued there is a task to overlap with, whatever the worker says.
    if (!worker().crowded() && first_ == nullptr) {
      execute(batch);
      return true;
    }
    prefetch(batch);
    enqueue(batch);
    return false;
  }

  void enqueue(Batch& batch) {
    batch.next = nullptr;
    if (first_ == nullptr) {
      first_ = &batch;
    } else {
      last_->next = &batch;
    }
    last_ = &batch;
  }

  void prefetch(const Batch& batch) const {
    std::size_t lines = 0;
    for (std::size_t i = 0; i < batch.size() && lines < kPrefetchedLines; ++i) {
      lines += prefetch(batch[i], kPrefetchedLines - lines);
    }
  }
  std::size_t prefetch(const Verb& verb, std::size_t limit) const {
    if (verb.kind == VerbKind::kWrite) return 0;  // stores wait for nobody
    return view_.part_of(verb.target).prefetch(verb.target.offset_in_part(), verb.extent(), limit);
  }

  void execute(Batch& batch) {
    if (Status usable = view_.usable(batch); !usable) [[unlikely]] {
      batch.refuse(usable.error());
      return;
    }
    const std::span<Verb> verbs = batch.verbs();
    for (std::size_t i = 0; i < verbs.size(); ++i) {
      if (i + kAhead < verbs.size()) prefetch(verbs[i + kAhead], kPrefetchedLines);
      Verb& verb = verbs[i];
      if (!fabric::execute(verb, view_.part_of(verb.target), verb.target.offset_in_part()))
          [[unlikely]] {
        give_up(batch, i);
        return;
      }
      verb.outcome = Outcome::kExecuted;
    }
    batch.complete();
  }

  // The verb could not be executed in time, and those behind it are not.
  void give_up(Batch& batch, std::size_t verb) {
    const NodeId node = batch[verb].target.node();
    batch[verb].outcome = outcome_given_up(batch[verb].kind);
    for (std::size_t i = verb + 1; i < batch.size(); ++i) {
      batch[i].outcome = Outcome::kNotExecuted;
    }
    report_in_doubt(batch);
    batch.complete(Error(ErrorCode::kUnavailable,
                         "memory node " + std::to_string(node) +
                             ": a process that has stopped holds the memory that is asked for"));
  }

  View view_;
  Batch* first_ = nullptr;  // queued batches, the oldest first
  Batch* last_ = nullptr;
};

}  // namespace pando::fabric
