#include "pool/memory/shared_stack.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "pool/layout.h"
#include "pool/operation.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::kLineBytes;
using fabric::Outcome;

constexpr unsigned kPlaceBits = 42;
constexpr std::uint64_t kPlaceMask = (std::uint64_t{1} << kPlaceBits) - 1;
constexpr std::size_t kWordsPerNodeLine = 7;
// Above the counts: of a header, that it is one; of an entry, that its block has been used.
constexpr std::uint64_t kBornMark = std::uint64_t{1} << 18;
constexpr int kSealWaits = 20;
constexpr task::Duration kSealWait = std::chrono::microseconds(50);

constexpr std::uint64_t pack(std::uint64_t high, std::uint64_t place) {
  return (high << kPlaceBits) | place;
}
constexpr std::uint64_t high_of(std::uint64_t word) { return word >> kPlaceBits; }

// Where the words of a magazine are in a block of some kind and class, as its description allows.
class WordPlaces {
 public:
  constexpr WordPlaces(BlockKind kind, std::size_t size_class)
      : kind_(kind), size_class_(size_class) {}

  // In the block.
  constexpr std::uint64_t start() const {
    const BlockDescription& described = description(kind_);
    const std::uint64_t bytes = class_bytes(size_class_);
    if (described.spare > 0) return bytes - described.spare;
    return std::min<std::uint64_t>(described.writable_from, bytes / 2);
  }
  // From the start.
  constexpr std::size_t at(std::size_t i) const {
    if (!description(kind_).keeps_line_ends) return i * 8;
    return i / kWordsPerNodeLine * kLineBytes + i % kWordsPerNodeLine * 8;
  }
  constexpr std::size_t count() const {
    const std::size_t bytes = class_bytes(size_class_) - start();
    return description(kind_).keeps_line_ends ? bytes / kLineBytes * kWordsPerNodeLine : bytes / 8;
  }
  constexpr std::size_t header_words() const { return births() ? 1 : 2; }
  constexpr std::size_t entry_words() const { return births() ? 1 : 2; }
  // There is no room for entries: what lies behind the block is counted.
  constexpr bool counts_behind() const { return count() == 1; }
  constexpr std::size_t entries() const { return (count() - header_words()) / entry_words(); }
  // As a READ or WRITE takes them: whole lines where the block has such.
  constexpr std::size_t bytes(std::size_t entries) const {
    const std::size_t end = at(header_words() + entry_words() * entries - 1) + 8;
    const std::size_t whole = (end + kLineBytes - 1) / kLineBytes * kLineBytes;
    return std::min(whole, class_bytes(size_class_) - start());
  }
  constexpr bool births() const { return description(kind_).births; }
  constexpr BlockKind kind() const { return kind_; }
  constexpr std::size_t size_class() const { return size_class_; }
  constexpr std::uint64_t place_of(Address address) const {
    return address.offset() / class_alignment(size_class_);
  }
  constexpr Address address(fabric::NodeId node, std::uint64_t place) const {
    return {node, place * class_alignment(size_class_)};
  }

 private:
  BlockKind kind_;
  std::size_t size_class_;
};

// A magazine's words in a transfer buffer.
class Words {
 public:
  Words(std::byte* bytes, const WordPlaces& places) : bytes_(bytes), places_(places) {}
  const WordPlaces& places() const { return places_; }
  std::size_t count() const { return high_of(get(0)) & ~kBornMark; }
  std::uint64_t next() const { return get(0) & kPlaceMask; }
  std::uint64_t link() const { return get(0); }
  void set_header(std::size_t entries, std::uint64_t next) {
    set(0, pack(entries | (places_.births() ? kBornMark : 0), next));
  }
  void set_next(std::uint64_t place) { set(0, (get(0) & ~kPlaceMask) | place); }
  void encode(std::span<const FreeRun> runs) {
    if (places_.counts_behind()) return set_header(runs.size() > 1 ? runs.front().count : 0, 0);
    const std::size_t entries = runs.size() - 1;
    set_header(entries, 0);
    for (std::size_t i = 0; i < entries; ++i) set_entry(i, runs[i]);
    if (places_.births()) return;
    // A block that was never used has been written now: its next user must not think it zero.
    set(1, std::max<std::uint32_t>(runs.back().block.incarnation, 1));
    set(1, get(1) | (std::uint64_t{checksum()} << 32));
  }
  bool plausible(std::size_t limit) const {
    if (count() >= limit && !places_.counts_behind()) return false;
    if (places_.births()) return (high_of(get(0)) & kBornMark) != 0;
    return get(1) >> 32 == checksum();
  }
  // `epoch`: what whoever read them has pinned.
  std::vector<FreeRun> decode(Address container, std::uint64_t epoch) const {
    // All lives so far began before (block.h).
    const std::uint32_t before = birth_mark(epoch - 1);
    std::vector<FreeRun> runs;
    if (places_.counts_behind()) {
      const FreeRun own = run(container, 1, before);
      if (count() > 0) runs.push_back(run(container + own.block.bytes(), count(), 0));
      runs.push_back(own);
      return runs;
    }
    runs.reserve(count() + 1);
    for (std::size_t i = 0; i < count(); ++i) {
      const std::size_t at = places_.header_words() + places_.entry_words() * i;
      const std::uint64_t high = high_of(get(at));
      const std::uint32_t incarnation = !places_.births() ? static_cast<std::uint32_t>(get(at + 1))
                                        : (high & kBornMark) != 0 ? before
                                                                  : 0;
      runs.push_back(run(places_.address(container.node(), get(at) & kPlaceMask),
                         (high & ~kBornMark) + 1, incarnation));
    }
    const auto own = static_cast<std::uint32_t>(get(1));
    runs.push_back(run(container, 1, places_.births() ? before : own));
    return runs;
  }

 private:
  std::uint64_t get(std::size_t i) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_ + places_.at(i), sizeof(word));
    return word;
  }
  void set(std::size_t i, std::uint64_t word) {
    std::memcpy(bytes_ + places_.at(i), &word, sizeof(word));
  }
  void set_entry(std::size_t i, const FreeRun& run) {
    const std::size_t at = places_.header_words() + places_.entry_words() * i;
    const bool mark = places_.births() && run.block.incarnation != 0;
    set(at, pack((run.count - 1) | (mark ? kBornMark : 0), places_.place_of(run.block.address)));
    if (!places_.births()) set(at + 1, run.block.incarnation);
  }
  // Over the entries and the counts; the next magazine is not known when it is first computed.
  std::uint32_t checksum() const {
    std::uint64_t hash = count() ^ (get(1) << 32);
    for (std::size_t i = 2; i < 2 + 2 * count(); ++i) {
      const std::uint64_t word = get(i);
      hash = XXH3_64bits_withSeed(&word, sizeof(word), hash);
    }
    return static_cast<std::uint32_t>(hash >> 32) | 1;  // zeroed memory is no magazine
  }
  FreeRun run(Address at, std::uint64_t count, std::uint32_t incarnation) const {
    return {.block = {.address = at,
                      .incarnation = incarnation,
                      .kind = places_.kind(),
                      .size_class = static_cast<std::uint8_t>(places_.size_class())},
            .count = static_cast<std::uint32_t>(count)};
  }

  std::byte* bytes_;
  WordPlaces places_;
};

// Of the compare-and-swap, which is what decides; the batch's error where it did not.
Status outcome_of(const Status& status, const fabric::Verb& swap) {
  if (status) return {};
  if (swap.outcome == Outcome::kIndeterminate)
    return fail(ErrorCode::kIndeterminate, status.error().detail());
  // The other verbs' outcome is nobody's concern.
  if (status.error().code() == ErrorCode::kIndeterminate) {
    return fail(ErrorCode::kUnavailable, status.error().detail());
  }
  return fail(status.error());
}

}  // namespace

std::size_t magazine_limit(BlockKind kind, std::size_t size_class) {
  const std::size_t entries = WordPlaces(kind, size_class).entries();
  return std::min(entries + 1, std::max<std::size_t>(list_limit(size_class) / 2, 2));
}

Address stack_address(fabric::NodeId node, BlockKind kind, std::size_t size_class) {
  const std::size_t index = class_index(kind, size_class);
  return superblock_field(node, offsetof(Superblock, free_stack_words) + index * 8);
}

Task<Status> push_magazine(Operation& op, std::span<const FreeRun> runs,
                           std::span<const Address> strike) {
  const Block container = runs.back().block;
  assert(runs.size() <=
         std::max<std::size_t>(2, magazine_limit(container.kind, container.size_class)));
  assert(std::ranges::all_of(runs, [&](const FreeRun& run) {
    return run.block.kind == container.kind && run.block.size_class == container.size_class &&
           run.block.address.node() == container.address.node();
  }));
  const Address stack =
      stack_address(container.address.node(), container.kind, container.size_class);
  const WordPlaces places(container.kind, container.size_class);
  const std::size_t bytes = places.bytes(places.counts_behind() ? 0 : runs.size() - 1);
  Buffer buffer = op.buffer(bytes);
  std::memset(buffer.data(), 0, bytes);
  Words words(buffer.data(), places);
  words.encode(runs);

  Buffer head = op.buffer(8);
  Batch look(op.cost());
  look.read(stack, head.data(), 8);
  const std::uint64_t nothing = 0;
  for (const Address page : strike) look.write_word(page, &nothing);
  if (Status read = co_await op.submit(look); !read) {
    // Whatever has become of it, the blocks have gone nowhere.
    if (read.error().code() != ErrorCode::kIndeterminate) co_return fail(read.error());
    co_return fail(ErrorCode::kUnavailable, read.error().detail());
  }
  std::uint64_t top = 0;
  std::memcpy(&top, head.data(), sizeof(top));
  for (int waits = 0;;) {
    if (stack_sealed(top)) {
      if (++waits > kSealWaits)
        co_return fail(ErrorCode::kBusy, "a stack of free blocks is sealed");
      co_await op.worker().sleep_for(kSealWait);
      const auto now = co_await read_word(op, stack);
      if (!now) co_return fail(now.error());
      top = *now;
      continue;
    }
    words.set_next(stack_place(top));
    Batch push(op.cost());
    push.write(container.address + places.start(), buffer.data(), bytes);
    const std::size_t swap = push.compare_swap(
        stack, top, next_stack_word(top, places.place_of(container.address), false));
    const Status status = co_await op.submit(push);
    if (Status pushed = outcome_of(status, push[swap]); !pushed) co_return pushed;
    if (push[swap].succeeded()) co_return Status{};
    top = push[swap].previous;
    op.count_retry();
  }
}

namespace {

Error no_magazine(Address at) {
  return {ErrorCode::kCorrupt,
          fmt::format("memory node {}, offset {:#x}: not a list of free blocks", at.node(),
                      at.offset())};
}

}  // namespace

Task<Result<Magazine>> read_magazine(Operation& op, fabric::NodeId node, BlockKind kind,
                                     std::size_t size_class, std::uint64_t word) {
  const std::size_t limit = magazine_limit(kind, size_class);
  const WordPlaces places(kind, size_class);
  const Address container = places.address(node, stack_place(word));
  Buffer buffer = op.buffer(places.bytes(limit - 1));
  const Words words(buffer.data(), places);
  Batch look(op.cost());
  look.read(container + places.start(), buffer.data(), buffer.size());
  if (Status read = co_await op.submit(look); !read) co_return fail(read.error());
  if (!words.plausible(limit)) co_return fail(no_magazine(container));
  co_return Magazine{words.decode(container, op.epoch()), words.next(), container + places.start(),
                     words.link()};
}

Task<Result<std::vector<FreeRun>>> pop_magazine(Operation& op, fabric::NodeId node, BlockKind kind,
                                                std::size_t size_class, std::uint64_t word) {
  const Address stack = stack_address(node, kind, size_class);
  while (!stack_empty(word)) {
    auto magazine = co_await read_magazine(op, node, kind, size_class, word);
    // What was read may be no magazine any more. A swap of the word for itself tells.
    const bool good = magazine.has_value();
    if (!good && magazine.error().code() != ErrorCode::kCorrupt) co_return fail(magazine.error());
    Batch pop(op.cost());
    const std::size_t swap =
        pop.compare_swap(stack, word, good ? next_stack_word(word, magazine->next, false) : word);
    const Status status = co_await op.submit(pop);
    if (Status popped = outcome_of(status, pop[swap]); !popped) co_return fail(popped.error());
    if (pop[swap].succeeded()) {
      if (good) co_return std::move(magazine->runs);
      co_return fail(magazine.error());
    }
    word = pop[swap].previous;
    op.count_retry();
  }
  co_return std::vector<FreeRun>{};
}

}  // namespace pando::pool
