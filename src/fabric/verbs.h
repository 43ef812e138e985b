// The verbs contract: what every fabric promises and every index may rely on, and no more.
//
// A fabric moves bytes between a compute node and memory nodes with one-sided verbs: READ, WRITE,
// compare-and-swap, masked compare-and-swap, fetch-and-add. No code of ours runs at the memory
// node. tests/fabric/ holds one conformance test that every fabric passes.
//
//  1. Words. An aligned 8-byte word is never torn.
//  2. Lines. An aligned 64-byte line is never torn by a READ or WRITE, if caps().line_atomic. A
//  WRITE
//     of part of a line leaves its other bytes alone, whatever WRITEs and atomics change those
//     meanwhile: so small blocks of several owners may share a line.
//  3. No order between lines. A READ may fetch its lines in any order and at different moments, a
//     WRITE may land its lines in any order.
//  4. Batches. Verbs of one batch to one memory node execute in order after a WRITE or an atomic;
//     a WRITE may overtake an earlier READ of the same batch. Verbs to different nodes are not
//     ordered. A batch is one round trip, and one doorbell at each node it goes to.
//  5. Completion. A completed WRITE or atomic is visible to every later verb of anyone.
//  6. Buffers. An endpoint belongs to one worker and hands out registered buffers. READs land in
//     them and WRITEs leave from them; only WRITEs of up to caps().inline_limit bytes may come
//     from anywhere. Sources and targets stay untouched by the caller until the batch completes.
//  7. Atomics. On aligned 8-byte words, atomic against other fabric atomics and never torn against
//     READs and WRITEs. Not atomic against WRITEs: an atomic may be a load and a later store, and a
//     WRITE of the word that lands between the two is undone by the store. A compare-and-swap that
//     fails stores nothing. So nobody WRITEs to a word that an atomic of another's might change
//     at that time; docs/fabrics.md lists the words that see both. No CPU of a memory node touches
//     such a word.
//  8. Masked compare-and-swap. Native, or emulated where caps().masked_cas is false: one CAS with
//     the caller's best guess of the word. A failed CAS returns the word, so the second try is
//     informed: at most one extra round trip without contention. See Verb::succeeded().
//  9. Failure. Every batch ends in bounded time, with success or an error. An error says of each
//     verb whether it was executed, was not, or may have been (kIndeterminate); the last is never
//     blindly sent again. It takes effect, if at all, before any verb that its client posts to that
//     node afterwards: so what a lock guards is safe until its holder or a fence has freed it. The
//     same goes for verbs under way whose coroutine is destroyed. An address out of bounds or not
//     served is kInvalidArgument, before anything is executed.
// 10. Fencing. Endpoint::fence(client) takes a client's access away at every memory node; when it
//     has succeeded, no verb of that client takes effect any more.
// 11. Leaving. A client may go by itself; rule 9 lets it prove that nothing of it is under way:
//     once a verb that it posts to a node has completed there, every earlier one of unknown outcome
//     has happened or never will. Whoever relies on its being gone (its locks, its blocks) relies
//     on that proof at every node, or on a fence: docs/fabrics.md, "Leaving". When its Fabric is
//     destroyed, the nodes are told, close what it has open, and forget it.
//
// Every endpoint counts what it does, exactly (pando::Counters). A batch that is refused before
// anything is executed (kInvalidArgument) does nothing, and is not counted.
//
// Debug builds refuse batches that break rule 6.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "task/worker.h"
#include <pando/result.h>
#include <pando/stats.h>
#include <pando/task.h>

namespace pando::fabric {

inline constexpr std::size_t kLineBytes = 64;
using NodeId = std::uint16_t;
using ClientId = std::uint32_t;  // a compute node's identity at the fabric; 0 is nobody

// Where a byte lives: memory node and offset. The all-zero address is "nowhere" (offset 0 of a
// node holds its superblock, which nothing points to).
class Address {
 public:
  static constexpr unsigned kOffsetBits = 48;
  static constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kOffsetBits) - 1;
  // Offsets from here on are the node's on-chip memory (caps().onchip_bytes of it).
  static constexpr std::uint64_t kOnChip = std::uint64_t{1} << (kOffsetBits - 1);

  constexpr Address() = default;
  constexpr Address(NodeId node, std::uint64_t offset)
      : raw_((std::uint64_t{node} << kOffsetBits) | (offset & kOffsetMask)) {}
  static constexpr Address from_raw(std::uint64_t raw) {
    Address address;
    address.raw_ = raw;
    return address;
  }

  constexpr std::uint64_t raw() const { return raw_; }
  constexpr NodeId node() const { return static_cast<NodeId>(raw_ >> kOffsetBits); }
  constexpr std::uint64_t offset() const { return raw_ & kOffsetMask; }
  // A node's main and on-chip memory are two parts with offsets of their own. The parts of all
  // nodes are numbered in one row: node 0's main memory, its on-chip memory, node 1's main memory …
  constexpr std::size_t part() const { return raw_ >> (kOffsetBits - 1); }
  constexpr std::uint64_t offset_in_part() const { return raw_ & (kOnChip - 1); }
  constexpr bool on_chip() const { return offset() >= kOnChip; }
  constexpr explicit operator bool() const { return raw_ != 0; }
  // REQUIRES: the sum stays within the node's offsets.
  constexpr Address operator+(std::uint64_t bytes) const {
    assert(bytes <= kOffsetMask - offset());
    return from_raw(raw_ + bytes);
  }
  friend constexpr auto operator<=>(Address, Address) = default;

 private:
  std::uint64_t raw_ = 0;
};

struct Caps {
  bool line_atomic = true;
  bool masked_cas = true;            // native; where false, emulated
  bool completes_inline = false;     // a lone batch completes without suspending
  std::uint32_t inline_limit = 256;  // bytes
  std::uint32_t onchip_bytes = 0;    // on each memory node
};

// The numbers travel (wire/messages.h), so they are never given to another kind.
enum class VerbKind : std::uint8_t {
  kRead = 0,
  kWrite = 1,
  kCompareSwap = 2,
  kMaskedCompareSwap = 3,
  kFetchAdd = 4,
};

// What all verbs of a kind have in common, whatever the fabric. A new kind is a line of
// kVerbTraits, a case of Verb::word_after() and describe_operands(), and how each fabric executes
// it.
struct VerbTraits {
  VerbKind kind;
  std::string_view name;
  std::string_view short_name;
  bool changes_memory;
  bool is_atomic;                     // on a word, and returns what it was
  bool compares;                      // an atomic that may keep the word: Verb::succeeded()
  std::uint8_t operands;              // words that say what to do
  std::uint64_t Counters::* counter;  // of how many there were
};
inline constexpr std::array kVerbTraits = {
    VerbTraits{VerbKind::kRead, "READ", "READ", false, false, false, 0, &Counters::reads},
    VerbTraits{VerbKind::kWrite, "WRITE", "WRITE", true, false, false, 0, &Counters::writes},
    VerbTraits{VerbKind::kCompareSwap, "compare-and-swap", "CAS", true, true, true, 2,
               &Counters::compare_swaps},
    VerbTraits{VerbKind::kMaskedCompareSwap, "masked compare-and-swap", "MCAS", true, true, true, 4,
               &Counters::compare_swaps},
    VerbTraits{VerbKind::kFetchAdd, "fetch-and-add", "FAA", true, true, false, 1,
               &Counters::fetch_adds},
};
inline constexpr std::size_t kMostOperands = 4;
static_assert([] {
  for (std::size_t i = 0; i < kVerbTraits.size(); ++i) {
    if (static_cast<std::size_t>(kVerbTraits[i].kind) != i) return false;
    if (kVerbTraits[i].operands > kMostOperands) return false;
  }
  return true;
}());

// For a number that came from elsewhere: all that follow REQUIRE that it is known.
constexpr bool is_known(VerbKind kind) {
  return static_cast<std::size_t>(kind) < kVerbTraits.size();
}
constexpr const VerbTraits& traits_of(VerbKind kind) {
  return kVerbTraits[static_cast<std::size_t>(kind)];
}
// Not by the table: where a verb is a copy in memory, they are asked as often as it is copied.
constexpr bool changes_memory(VerbKind kind) { return kind != VerbKind::kRead; }
constexpr bool is_atomic(VerbKind kind) {
  return kind != VerbKind::kRead && kind != VerbKind::kWrite;
}
static_assert(std::ranges::all_of(kVerbTraits, [](const VerbTraits& each) {
  return changes_memory(each.kind) == each.changes_memory && is_atomic(each.kind) == each.is_atomic;
}));

enum class Outcome : std::uint8_t { kPending, kExecuted, kNotExecuted, kIndeterminate };

// What is known of a verb that was sent and not answered.
constexpr Outcome outcome_unanswered(VerbKind kind) {
  return changes_memory(kind) ? Outcome::kIndeterminate : Outcome::kNotExecuted;
}
// And of one that could not be executed in time: some lines of a WRITE may have been written.
constexpr Outcome outcome_given_up(VerbKind kind) {
  return kind == VerbKind::kWrite ? Outcome::kIndeterminate : Outcome::kNotExecuted;
}

struct Verb {
  VerbKind kind;
  Outcome outcome = Outcome::kPending;
  bool emulated = false;     // masked CAS: was sent as a CAS of `guess`
  std::uint32_t length = 8;  // of a READ or WRITE
  Address target;
  std::byte* local = nullptr;  // READ: where to; WRITE: where from (never written through)
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;  // FAA: what to add
  std::uint64_t compare_mask = ~std::uint64_t{0};
  std::uint64_t swap_mask = ~std::uint64_t{0};
  std::uint64_t guess = 0;     // masked CAS: what the caller thinks the whole word is
  std::uint64_t previous = 0;  // atomics: the word before

  // Bytes of memory that it reads or changes.
  std::uint32_t extent() const { return is_atomic(kind) ? 8 : length; }
  // Bytes that it brings back.
  std::uint32_t returned_bytes() const { return kind == VerbKind::kWrite ? 0 : extent(); }

  // The word that a (masked) compare-and-swap makes of `word`.
  std::uint64_t swapped(std::uint64_t word) const {
    return (word & ~swap_mask) | (swap & swap_mask);
  }
  // What an atomic makes of the word that it finds.
  std::uint64_t word_after(std::uint64_t before) const;
  // Whether a (masked) compare-and-swap swapped. REQUIRES: outcome == kExecuted.
  bool succeeded() const {
    assert(outcome == Outcome::kExecuted);
    if (emulated) return previous == guess;
    return (previous & compare_mask) == (compare & compare_mask);
  }
  // An emulated one failed though the masked bits agree: try again with guess = previous.
  bool misguessed() const {
    return emulated && previous != guess && (previous & compare_mask) == (compare & compare_mask);
  }
};

// What was asked for, for people: "length 64", "0x1 to 0x2".
std::string describe_operands(const Verb& verb);
// Adds it to the counts.
void count(Counters& counts, const Verb& verb);

class Endpoint;

// Verbs that travel together. Build, submit, await; then look at the verbs' results. Reusable
// after clear(). Small batches (up to kInlineVerbs) allocate nothing.
class Batch {
 public:
  explicit Batch(Counters* cost = nullptr) : cost_(cost) {}  // NOLINT: few_ is filled by add()
  Batch(const Batch&) = delete;  // the endpoint keeps a pointer while it is under way
  Batch& operator=(const Batch&) = delete;

  // Each returns the verb's number in the batch.
  std::size_t read(Address from, std::byte* into, std::size_t length);
  std::size_t write(Address to, const std::byte* from, std::size_t length);
  // `word` must live until the batch completes.
  std::size_t write_word(Address to, const std::uint64_t* word);
  std::size_t compare_swap(Address target, std::uint64_t compare, std::uint64_t swap);
  std::size_t masked_compare_swap(Address target, std::uint64_t compare, std::uint64_t swap,
                                  std::uint64_t compare_mask, std::uint64_t swap_mask,
                                  std::uint64_t guess);
  std::size_t fetch_add(Address target, std::uint64_t add_this);

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Verb& operator[](std::size_t i) { return verbs_[i]; }
  const Verb& operator[](std::size_t i) const { return verbs_[i]; }
  std::span<Verb> verbs() { return {verbs_, size_}; }
  std::span<const Verb> verbs() const { return {verbs_, size_}; }
  void clear();

  // For fabrics.
  Counters* cost() const { return cost_; }
  void complete() { error_.reset(); }
  void complete(Error error) { error_ = std::make_unique<Error>(std::move(error)); }
  // Completes the batch with an error before any of its verbs was executed.
  void refuse(Error error);
  Status status() const {
    if (error_) return fail(*error_);
    return {};
  }
  std::coroutine_handle<> waiter;  // resumed by Endpoint::poll() when the batch completes
  Batch* next = nullptr;           // the fabric's queue

 private:
  friend class Endpoint;
  static constexpr std::size_t kInlineVerbs = 4;
  Verb& add(VerbKind kind, Address target);
  void grow();
  void set_length(Verb& verb, std::size_t length);

  Counters* cost_;
  std::size_t size_ = 0;
  std::size_t room_ = kInlineVerbs;
  // In few_, or in many_ from when those were too few.
  Verb* verbs_ = reinterpret_cast<Verb*>(few_);
  // Verbs are made one by one in add(): clearing all would cost as much as a short READ.
  alignas(Verb) std::byte few_[kInlineVerbs * sizeof(Verb)];
  std::unique_ptr<Verb[]> many_;
  std::unique_ptr<Error> error_;
  bool too_long_ = false;  // a length did not fit Verb::length
};

inline Verb& Batch::add(VerbKind kind, Address target) {
  if (size_ == room_) [[unlikely]]
    grow();
  return *std::construct_at(verbs_ + size_++, Verb{.kind = kind, .target = target});
}

inline void Batch::set_length(Verb& verb, std::size_t length) {
  if (length > std::numeric_limits<std::uint32_t>::max()) too_long_ = true;
  verb.length = static_cast<std::uint32_t>(length);
}

inline std::size_t Batch::read(Address from, std::byte* into, std::size_t length) {
  Verb& verb = add(VerbKind::kRead, from);
  verb.local = into;
  set_length(verb, length);
  return size_ - 1;
}

inline std::size_t Batch::write(Address to, const std::byte* from, std::size_t length) {
  Verb& verb = add(VerbKind::kWrite, to);
  verb.local = const_cast<std::byte*>(from);
  set_length(verb, length);
  return size_ - 1;
}

inline std::size_t Batch::write_word(Address to, const std::uint64_t* word) {
  return write(to, reinterpret_cast<const std::byte*>(word), sizeof(*word));
}

inline std::size_t Batch::compare_swap(Address target, std::uint64_t compare, std::uint64_t swap) {
  Verb& verb = add(VerbKind::kCompareSwap, target);
  verb.compare = compare;
  verb.swap = swap;
  return size_ - 1;
}

inline std::size_t Batch::masked_compare_swap(Address target, std::uint64_t compare,
                                              std::uint64_t swap, std::uint64_t compare_mask,
                                              std::uint64_t swap_mask, std::uint64_t guess) {
  Verb& verb = add(VerbKind::kMaskedCompareSwap, target);
  verb.compare = compare;
  verb.swap = swap;
  verb.compare_mask = compare_mask;
  verb.swap_mask = swap_mask;
  verb.guess = guess;
  return size_ - 1;
}

inline std::size_t Batch::fetch_add(Address target, std::uint64_t add_this) {
  Verb& verb = add(VerbKind::kFetchAdd, target);
  verb.swap = add_this;
  return size_ - 1;
}

inline void Batch::clear() {
  size_ = 0;
  error_.reset();
  too_long_ = false;
}

// Registered memory, given back to its endpoint when destroyed. 64-byte aligned. Contents are
// whatever the last user left.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Endpoint* owner, std::byte* data, std::size_t size)
      : owner_(owner), data_(data), size_(size) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Endpoint* owner_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// One worker's way to the memory nodes. Used by that worker's thread alone. Outlives its buffers
// and batches; outlived by its fabric.
class Endpoint : public task::Poller {
 public:
  Endpoint(const Caps& caps, task::Worker& worker);
  ~Endpoint() override;

  struct [[nodiscard]] Submission {
    Endpoint& endpoint;
    Batch& batch;
    bool await_ready() const { return endpoint.start(batch); }
    void await_suspend(std::coroutine_handle<> waiter) const { batch.waiter = waiter; }
    Status await_resume() const { return batch.status(); }
  };
  // co_await endpoint.submit(batch): one round trip. An empty batch completes at once, uncounted.
  Submission submit(Batch& batch) { return {*this, batch}; }

  // Rule 10, in one attempt, which takes no longer than a batch may and does not block the worker.
  // kBusy where the client cannot be shut out yet (its process still maps the memory); kUnavailable
  // where a node did not answer: to ask again does no harm.
  virtual Task<Status> fence(ClientId client) = 0;

  // Hears of WRITEs and atomics that are in doubt: they may yet take effect at a node, because
  // their outcome is unknown, or who waited for them is being destroyed. Told before that coroutine
  // hears of it or ends. What this client posts to the node from then on ends the doubt (rule 9).
  class Listener {
   public:
    virtual void left_in_doubt(NodeId node) = 0;

   protected:
    ~Listener() = default;
  };
  void set_listener(Listener* listener) { listener_ = listener; }

  // Never null; kept in lists by size class and handed out again.
  Buffer buffer(std::size_t size);

  const Caps& caps() const { return caps_; }
  task::Worker& worker() const { return worker_; }
  const Counters& counters() const { return counters_; }
  void count_retry(Counters* cost) {
    ++counters_.retries;
    if (cost != nullptr) ++cost->retries;
  }
  std::size_t buffer_bytes() const { return buffer_bytes_; }

 protected:
  // By id. Verbs that are not within them never come to post().
  virtual std::span<const std::uint64_t> memory_node_sizes() const = 0;
  // Begins the batch. True: it has completed already. False: poll() will complete it and schedule
  // its waiter on the worker. REQUIRES: its targets are within their nodes, those of atomics
  // aligned.
  virtual bool post(Batch& batch) = 0;
  // Registered memory for buffers; fabrics that need registration override these.
  virtual std::byte* allocate_registered(std::size_t bytes);
  virtual void free_registered(std::byte* memory, std::size_t bytes);
  // REQUIRES: called by destructors of derived classes that override free_registered.
  void free_buffers();
  // Fabrics tell the listener by these.
  void report_in_doubt(NodeId node) {
    if (listener_ != nullptr) listener_->left_in_doubt(node);
  }
  void report_in_doubt(const Batch& batch);  // those of its verbs whose outcome is unknown

 private:
  friend class Buffer;
  struct Registered {
    std::byte* memory;
    std::size_t bytes;
  };
  bool start(Batch& batch);  // prepares, posts, counts
  // Makes every verb ready to be posted, and adds the batch to `cost`. False: it was refused.
  bool prepare(Batch& batch, Counters& cost);
  // Makes a masked CAS a CAS where it is emulated.
  void prepare(Verb& verb) const;
  // What is wrong with a verb whose target is not within its node, or not aligned.
  Error misplaced(const Verb& verb, std::span<const std::uint64_t> node_sizes) const;
  std::optional<Error> unregistered(const Batch& batch) const;
  bool is_registered(const std::byte* memory, std::size_t length) const;
  void give_back(std::byte* data, std::size_t size);

  const Caps caps_;
  task::Worker& worker_;
  Listener* listener_ = nullptr;
  Counters counters_;
  std::uint64_t batches_ = 0;
  std::vector<std::uint64_t> last_batch_at_;  // by node: the last batch that rang its doorbell
  std::size_t buffer_bytes_ = 0;
  std::vector<Registered> registered_;  // by address
  std::array<std::vector<std::byte*>, 48> free_buffers_;
};

// One compute node's attachment to the memory nodes. Thread-safe.
class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual const Caps& caps() const = 0;
  virtual ClientId client() const = 0;
  // Ids of memory nodes are 0 … memory_node_count() - 1.
  virtual std::size_t memory_node_count() const = 0;
  // 0: there is none with this id.
  virtual std::uint64_t memory_node_size(NodeId node) const = 0;
  // Whether memory nodes may come while it is used. Then the count only grows, up to kMaxGrown; a
  // node that has come keeps its id and its size, and endpoints that are open reach it. An id below
  // the count may have no node, or none yet; node 0 is always there.
  virtual bool may_grow() const { return false; }
  static constexpr std::size_t kMaxGrown = 256;
  // Where it may grow, nodes that come are noticed within some seconds. This looks for them now: it
  // blocks. An error where some could not be looked for or not be reached, which is no harm to what
  // is there.
  virtual Status look_for_memory_nodes() { return {}; }
  virtual Result<std::unique_ptr<Endpoint>> open_endpoint(task::Worker& worker) = 0;
  // Whether the client has a place where others look after it. Then its memory nodes remember it
  // until it leaves or is fenced, whatever becomes of its connections; else they forget it some
  // seconds after the last one ended, or at once where they need room. Not at first. Blocks.
  virtual Status stay(bool /*stays*/) { return {}; }
  // Another compute node's attachment to the same memory nodes, with a client id of its own.
  virtual Result<std::unique_ptr<Fabric>> attach() = 0;
  // What the workers of its endpoints go by. Lives as long as any of its fabrics.
  virtual task::Clock& clock() { return task::Clock::system(); }
};

}  // namespace pando::fabric
