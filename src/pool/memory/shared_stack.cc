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
constexpr std::size_t kHeaderWords = 2;
constexpr std::size_t kWordsPerNodeLine = 7;

constexpr std::uint64_t place_of(Address address) { return address.offset() / kLineBytes; }
constexpr std::uint64_t pack(std::uint64_t high, std::uint64_t place) {
  return (high << kPlaceBits) | place;
}
constexpr std::uint64_t high_of(std::uint64_t word) { return word >> kPlaceBits; }
constexpr int kSealWaits = 20;
constexpr task::Duration kSealWait = std::chrono::microseconds(50);

// Where the magazine's bytes start in its block, and where its words are from there.
constexpr std::uint64_t start_of(BlockKind kind, std::size_t size_class) {
  if (kind == BlockKind::kNotedNode) return class_bytes(size_class) - kNotedNodeSpare;
  return kind == BlockKind::kNode ? kLineBytes : 0;
}
constexpr std::size_t word_offset(BlockKind kind, std::size_t i) {
  if (kind != BlockKind::kNode) return i * 8;
  return i / kWordsPerNodeLine * kLineBytes + i % kWordsPerNodeLine * 8;
}
constexpr std::size_t words_in(BlockKind kind, std::size_t size_class) {
  if (!is_node(kind)) return class_bytes(size_class) / 8;
  if (kind == BlockKind::kNotedNode) return kNotedNodeSpare / 8;
  return (class_bytes(size_class) / kLineBytes - 1) * kWordsPerNodeLine;
}

// A magazine's words in a transfer buffer.
class Words {
 public:
  Words(std::byte* bytes, BlockKind kind) : bytes_(bytes), kind_(kind) {}
  std::uint64_t get(std::size_t i) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes_ + word_offset(kind_, i), sizeof(word));
    return word;
  }
  void set(std::size_t i, std::uint64_t word) {
    std::memcpy(bytes_ + word_offset(kind_, i), &word, sizeof(word));
  }
  std::size_t count() const { return high_of(get(0)); }
  // Over the entries and the counts; the next magazine is not known when it is first computed.
  std::uint32_t checksum() const {
    std::uint64_t hash = count() ^ (get(1) << 32);
    for (std::size_t i = kHeaderWords; i < kHeaderWords + 2 * count(); ++i) {
      const std::uint64_t word = get(i);
      hash = XXH3_64bits_withSeed(&word, sizeof(word), hash);
    }
    return static_cast<std::uint32_t>(hash >> 32) | 1;  // zeroed memory is no magazine
  }

 private:
  std::byte* bytes_;
  BlockKind kind_;
};

// Whole lines, as a READ or WRITE takes them.
std::size_t magazine_bytes(BlockKind kind, std::size_t entries) {
  const std::size_t last = word_offset(kind, kHeaderWords + 2 * entries - 1);
  return (last / kLineBytes + 1) * kLineBytes;
}

void encode(Words words, std::span<const FreeRun> runs) {
  const std::size_t entries = runs.size() - 1;
  words.set(0, pack(entries, 0));
  // A block that was never used has been written now: its next user must not think it zero.
  words.set(1, std::max<std::uint32_t>(runs.back().block.incarnation, 1));
  for (std::size_t i = 0; i < entries; ++i) {
    words.set(kHeaderWords + 2 * i, pack(runs[i].count - 1, place_of(runs[i].block.address)));
    words.set(kHeaderWords + 2 * i + 1, runs[i].block.incarnation);
  }
  words.set(1, words.get(1) | (std::uint64_t{words.checksum()} << 32));
}

bool plausible(Words words, std::size_t limit) {
  return words.count() < limit && words.get(1) >> 32 == words.checksum();
}

std::vector<FreeRun> decode(Words words, Address container, BlockKind kind,
                            std::size_t size_class) {
  const auto run = [&](std::uint64_t place, std::uint64_t count, std::uint64_t incarnation) {
    return FreeRun{.block = {.address = Address(container.node(), place * kLineBytes),
                             .incarnation = static_cast<std::uint32_t>(incarnation),
                             .kind = kind,
                             .size_class = static_cast<std::uint8_t>(size_class)},
                   .count = static_cast<std::uint32_t>(count)};
  };
  std::vector<FreeRun> runs;
  runs.reserve(words.count() + 1);
  for (std::size_t i = 0; i < words.count(); ++i) {
    const std::uint64_t word = words.get(kHeaderWords + 2 * i);
    runs.push_back(run(word & kPlaceMask, high_of(word) + 1, words.get(kHeaderWords + 2 * i + 1)));
  }
  runs.push_back(run(place_of(container), 1, words.get(1)));
  return runs;
}

// Of the compare-and-swap, which is what decides; the batch's error where it did not.
Status outcome_of(const Status& status, const fabric::Verb& swap) {
  if (status) return {};
  if (swap.outcome == Outcome::kIndeterminate)
    return fail(ErrorCode::kIndeterminate, status.error().detail());
  return fail(status.error());
}

}  // namespace

std::size_t magazine_limit(BlockKind kind, std::size_t size_class) {
  const std::size_t entries = (words_in(kind, size_class) - kHeaderWords) / 2;
  return std::min(entries + 1, std::max<std::size_t>(list_limit(size_class) / 2, 2));
}

Address stack_address(fabric::NodeId node, BlockKind kind, std::size_t size_class) {
  const std::size_t index = class_index(kind, size_class);
  return superblock_field(node, offsetof(Superblock, free_stack_words) + index * 8);
}

Task<Status> push_magazine(Operation& op, std::span<const FreeRun> runs,
                           std::span<const Address> strike) {
  const Block container = runs.back().block;
  assert(runs.size() <= magazine_limit(container.kind, container.size_class));
  const Address stack =
      stack_address(container.address.node(), container.kind, container.size_class);
  const std::size_t bytes = magazine_bytes(container.kind, runs.size() - 1);
  Buffer buffer = op.buffer(bytes);
  std::memset(buffer.data(), 0, bytes);
  Words words(buffer.data(), container.kind);
  encode(words, runs);

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
    words.set(0, pack(runs.size() - 1, stack_place(top)));
    Batch push(op.cost());
    push.write(container.address + start_of(container.kind, container.size_class), buffer.data(),
               bytes);
    const std::size_t swap =
        push.compare_swap(stack, top, next_stack_word(top, place_of(container.address), false));
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
  const Address container(node, stack_place(word) * kLineBytes);
  Buffer buffer = op.buffer(magazine_bytes(kind, limit - 1));
  const Words words(buffer.data(), kind);
  Batch look(op.cost());
  look.read(container + start_of(kind, size_class), buffer.data(), buffer.size());
  if (Status read = co_await op.submit(look); !read) co_return fail(read.error());
  if (!plausible(words, limit)) co_return fail(no_magazine(container));
  co_return Magazine{decode(words, container, kind, size_class), words.get(0) & kPlaceMask,
                     container + start_of(kind, size_class), words.get(0)};
}

Task<Result<std::vector<FreeRun>>> pop_magazine(Operation& op, fabric::NodeId node, BlockKind kind,
                                                std::size_t size_class, std::uint64_t word) {
  const Address stack = stack_address(node, kind, size_class);
  const std::size_t limit = magazine_limit(kind, size_class);
  const std::size_t bytes = magazine_bytes(kind, limit - 1);
  Buffer buffer = op.buffer(bytes);
  const Words words(buffer.data(), kind);
  while (!stack_empty(word)) {
    const Address container(node, stack_place(word) * kLineBytes);
    Batch look(op.cost());
    look.read(container + start_of(kind, size_class), buffer.data(), bytes);
    if (Status read = co_await op.submit(look); !read) co_return fail(read.error());

    // What was read may be no magazine any more. A swap of the word for itself tells.
    const bool good = plausible(words, limit);
    Batch pop(op.cost());
    const std::size_t swap = pop.compare_swap(
        stack, word, good ? next_stack_word(word, words.get(0) & kPlaceMask, false) : word);
    const Status status = co_await op.submit(pop);
    if (Status popped = outcome_of(status, pop[swap]); !popped) co_return fail(popped.error());
    if (pop[swap].succeeded()) {
      if (good) co_return decode(words, container, kind, size_class);
      co_return fail(no_magazine(container));
    }
    word = pop[swap].previous;
    op.count_retry();
  }
  co_return std::vector<FreeRun>{};
}

}  // namespace pando::pool
