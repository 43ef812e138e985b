#include "fabric/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/spin.h"

namespace pando::fabric {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kBase = 4096;  // where the tests' data begins
constexpr std::size_t kWordsOfLine = kLineBytes / 8;

std::span<std::uint64_t> words_of(const Buffer& buffer) {
  return {reinterpret_cast<std::uint64_t*>(buffer.data()), buffer.size() / 8};
}

void fill(const Buffer& buffer, unsigned seed) {
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    buffer.data()[i] = static_cast<std::byte>((i * 31 + seed) & 0xFF);
  }
}

bool same_line(std::span<const std::uint64_t> words, std::size_t line) {
  const auto of_line = words.subspan(line * kWordsOfLine, kWordsOfLine);
  return std::ranges::all_of(of_line, [&](std::uint64_t word) { return word == of_line[0]; });
}

// ---- Reads and writes ----

TEST_P(FabricConformance, AnEmptyBatchCompletesUncounted) {
  Batch batch;
  const Counters before = endpoint().counters();
  EXPECT_TRUE(client().submit(batch));
  EXPECT_EQ(endpoint().counters(), before);
}

TEST_P(FabricConformance, AReadSeesWhatWasWritten) {
  for (NodeId node = 0; node <= last_node(); ++node) {
    for (const std::size_t length : {1u, 8u, 63u, 64u, 256u, 257u, 1024u, 5000u, 65536u}) {
      const Buffer source = endpoint().buffer(length);
      const Buffer target = endpoint().buffer(length);
      fill(source, node + 1u);
      Batch write;
      write.write(Address(node, kBase), source.data(), length);
      ASSERT_TRUE(client().submit(write));
      EXPECT_EQ(write[0].outcome, Outcome::kExecuted);
      Batch read;
      read.read(Address(node, kBase), target.data(), length);
      ASSERT_TRUE(client().submit(read));
      EXPECT_EQ(read[0].outcome, Outcome::kExecuted);
      EXPECT_EQ(std::memcmp(source.data(), target.data(), length), 0) << length;
    }
  }
}

// Every offset in a line against many lengths: nothing beside the bytes meant may change, here or
// there.
TEST_P(FabricConformance, OddOffsetsAndLengthsTouchNothingElse) {
  constexpr std::size_t kArea = 512;
  const Buffer before = endpoint().buffer(kArea);
  const Buffer source = endpoint().buffer(kArea);
  const Buffer after = endpoint().buffer(kArea);
  fill(before, 3);
  fill(source, 101);
  // Across the border of a page and of whatever unit the fabric divides memory into.
  const Address area(0, 8192 - 100);
  for (std::size_t offset = 0; offset < 70; ++offset) {
    for (const std::size_t length : {0u, 1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 31u, 65u, 130u, 200u}) {
      Batch batch;
      batch.write(area, before.data(), kArea);
      batch.write(area + offset, source.data() + 1, length);
      batch.read(area, after.data(), kArea);
      ASSERT_TRUE(client().submit(batch));
      ASSERT_EQ(std::memcmp(after.data(), before.data(), offset), 0);
      ASSERT_EQ(std::memcmp(after.data() + offset, source.data() + 1, length), 0);
      ASSERT_EQ(std::memcmp(after.data() + offset + length, before.data() + offset + length,
                            kArea - offset - length),
                0);
      // And the same piece read on its own, into a place that is not aligned.
      std::memcpy(after.data(), before.data(), kArea);
      Batch read;
      read.read(area + offset, after.data() + 3, length);
      ASSERT_TRUE(client().submit(read));
      ASSERT_EQ(std::memcmp(after.data(), before.data(), 3), 0);
      ASSERT_EQ(std::memcmp(after.data() + 3, source.data() + 1, length), 0);
      ASSERT_EQ(
          std::memcmp(after.data() + 3 + length, before.data() + 3 + length, kArea - 3 - length),
          0);
    }
  }
}

TEST_P(FabricConformance, TheLastByteOfANodeCanBeUsed) {
  const std::uint64_t size = client().fabric().memory_node_size(last_node());
  const Buffer buffer = endpoint().buffer(64);
  fill(buffer, 9);
  const std::byte last = buffer.data()[63];
  Batch batch;
  batch.write(Address(last_node(), size - 64), buffer.data(), 64);
  ASSERT_TRUE(client().submit(batch));
  batch.clear();
  batch.read(Address(last_node(), size - 1), buffer.data(), 1);
  batch.read(Address(last_node(), size), buffer.data() + 1, 0);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(buffer.data()[0], last);
}

TEST_P(FabricConformance, SmallWritesMayComeFromAnywhere) {
  std::array<std::byte, 32> anywhere;
  anywhere.fill(std::byte{0x5A});
  ASSERT_GE(endpoint().caps().inline_limit, anywhere.size());
  const Buffer target = endpoint().buffer(anywhere.size());
  Batch batch;
  batch.write(Address(0, kBase), anywhere.data(), anywhere.size());
  batch.read(Address(0, kBase), target.data(), anywhere.size());
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(std::memcmp(target.data(), anywhere.data(), anywhere.size()), 0);
}

TEST_P(FabricConformance, OnChipMemoryIsApart) {
  const std::uint32_t size = endpoint().caps().onchip_bytes;
  if (size == 0) GTEST_SKIP() << "no on-chip memory";
  for (NodeId node = 0; node <= last_node(); ++node) {
    const Address main(node, kBase);
    const Address onchip(node, Address::kOnChip + kBase);
    client().write_word(main, 1);
    client().write_word(onchip, 2u + node);
    EXPECT_EQ(client().read_word(main), 1u);
    EXPECT_EQ(client().read_word(onchip), 2u + node);
    Batch batch;
    batch.compare_swap(onchip, 2u + node, 77);
    batch.fetch_add(onchip, 1);
    ASSERT_TRUE(client().submit(batch));
    EXPECT_TRUE(batch[0].succeeded());
    EXPECT_EQ(client().read_word(onchip), 78u);
  }
  client().write_word(Address(0, Address::kOnChip + size - 8), 5);
  EXPECT_EQ(client().read_word(Address(0, Address::kOnChip + size - 8)), 5u);
}

// ---- Batches ----

TEST_P(FabricConformance, VerbsOfABatchExecuteInOrderAfterWritesAndAtomics) {
  const Address word(0, kBase);
  const Buffer seen = endpoint().buffer(64);
  const auto words = words_of(seen);
  const std::uint64_t one = 1;
  Batch batch;
  batch.write_word(word, &one);
  batch.read(word, seen.data(), 8);
  batch.compare_swap(word, 1, 2);
  batch.read(word, seen.data() + 8, 8);
  batch.fetch_add(word, 40);
  batch.read(word, seen.data() + 16, 8);
  batch.compare_swap(word, 1, 3);  // fails
  ASSERT_TRUE(client().submit(batch));
  // The first READ may be overtaken by what follows it, but never precedes the WRITE.
  EXPECT_GE(words[0], 1u);
  EXPECT_EQ(batch[2].previous, 1u);
  EXPECT_TRUE(batch[2].succeeded());
  EXPECT_GE(words[1], 2u);
  EXPECT_EQ(batch[4].previous, 2u);
  EXPECT_EQ(words[2], 42u);
  EXPECT_EQ(batch[6].previous, 42u);
  EXPECT_FALSE(batch[6].succeeded());
  EXPECT_EQ(client().read_word(word), 42u);
}

TEST_P(FabricConformance, BatchesMayBeLargeAndGoToAllNodes) {
  constexpr std::size_t kVerbs = 300;
  const std::size_t nodes = client().fabric().memory_node_count();
  const Buffer source = endpoint().buffer(kVerbs * 8);
  const Buffer target = endpoint().buffer(kVerbs * 8);
  std::iota(words_of(source).begin(), words_of(source).end(), 1000);
  const auto place = [&](std::size_t i) {
    return Address(static_cast<NodeId>(i % nodes), kBase + i * 8);
  };
  Batch batch;
  for (std::size_t i = 0; i < kVerbs; ++i) {
    EXPECT_EQ(batch.write(place(i), source.data() + i * 8, 8), i);
  }
  ASSERT_TRUE(client().submit(batch));
  batch.clear();
  EXPECT_TRUE(batch.empty());
  for (std::size_t i = 0; i < kVerbs; ++i) batch.read(place(i), target.data() + i * 8, 8);
  EXPECT_EQ(batch.size(), kVerbs);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(std::memcmp(source.data(), target.data(), kVerbs * 8), 0);
  for (std::size_t i = 0; i < kVerbs; ++i) EXPECT_EQ(batch[i].outcome, Outcome::kExecuted);
}

TEST_P(FabricConformance, ManyTasksOfAWorkerShareItsEndpoint) {
  constexpr std::size_t kTasks = 16;
  constexpr std::size_t kRounds = 20;
  const auto add_often = [&](Address word, std::uint64_t add) -> Task<void> {
    for (std::size_t i = 0; i < kRounds; ++i) {
      Batch batch;
      batch.fetch_add(word, add);
      EXPECT_TRUE(co_await endpoint().submit(batch));
      EXPECT_EQ(batch[0].outcome, Outcome::kExecuted);
    }
  };
  const Address word(0, kBase);
  client().write_word(word, 0);
  for (std::size_t i = 1; i <= kTasks; ++i) client().worker().spawn(add_often(word, i));
  client().worker().run();
  EXPECT_EQ(client().read_word(word), kRounds * kTasks * (kTasks + 1) / 2);
}

TEST_P(FabricConformance, TasksCanBeDroppedWithBatchesUnderWay) {
  const auto held = std::make_shared<int>(0);
  const auto write_forever = [&](std::shared_ptr<int> guard, std::uint64_t i) -> Task<void> {
    const Buffer buffer = endpoint().buffer(1024);
    for (;; ++*guard) {
      Batch batch;
      batch.read(Address(0, kBase + i * 1024), buffer.data(), 1024);
      EXPECT_TRUE(co_await endpoint().submit(batch));
      co_await client().worker().yield();
    }
  };
  for (std::uint64_t i = 0; i < 8; ++i) client().worker().spawn(write_forever(held, i));
  client().worker().run_ready();
  client().worker().drop_tasks();
  EXPECT_EQ(held.use_count(), 1);
  client().write_word(Address(0, kBase), 7);  // and the endpoint still works
  EXPECT_EQ(client().read_word(Address(0, kBase)), 7u);
}

// ---- Atomics ----

TEST_P(FabricConformance, CompareSwapSwapsOnlyWhatItExpects) {
  const Address word(last_node(), kBase);
  client().write_word(word, 10);
  Batch batch;
  batch.compare_swap(word, 10, 20);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_TRUE(batch[0].succeeded());
  EXPECT_EQ(batch[0].previous, 10u);
  ASSERT_TRUE(client().submit(batch));  // the same once more
  EXPECT_FALSE(batch[0].succeeded());
  EXPECT_EQ(batch[0].previous, 20u);
  EXPECT_EQ(client().read_word(word), 20u);
}

TEST_P(FabricConformance, FetchAddWrapsAround) {
  const Address word(0, kBase);
  client().write_word(word, ~std::uint64_t{0});
  Batch batch;
  batch.fetch_add(word, 3);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(batch[0].previous, ~std::uint64_t{0});
  EXPECT_EQ(client().read_word(word), 2u);
}

constexpr std::uint64_t kWord = 0x1122334455667788;
constexpr std::uint64_t kLow = 0xFF;                        // compared
constexpr std::uint64_t kHigh = std::uint64_t{0xFF} << 24;  // swapped
constexpr std::uint64_t kSwapped = 0x11223344AA667788;
constexpr std::uint64_t kNewHigh = std::uint64_t{0xAA} << 24;

TEST_P(FabricConformance, MaskedCompareSwapWithAGoodGuess) {
  const Address word(0, kBase);
  client().write_word(word, kWord);
  Batch batch;
  // Bits outside the masks are no matter.
  batch.masked_compare_swap(word, 0xDEAD88, kNewHigh | 0xFF00, kLow, kHigh, kWord);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(batch[0].emulated, !endpoint().caps().masked_cas);
  EXPECT_TRUE(batch[0].succeeded());
  EXPECT_FALSE(batch[0].misguessed());
  EXPECT_EQ(batch[0].previous, kWord);
  EXPECT_EQ(client().read_word(word), kSwapped);
}

TEST_P(FabricConformance, MaskedCompareSwapWithABadGuessNeedsOneMoreTry) {
  const Address word(0, kBase);
  client().write_word(word, kWord);
  Batch batch;
  batch.masked_compare_swap(word, 0x88, kNewHigh, kLow, kHigh, 0x88);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(batch[0].previous, kWord);
  if (!endpoint().caps().masked_cas) {
    EXPECT_FALSE(batch[0].succeeded());
    EXPECT_TRUE(batch[0].misguessed());
    EXPECT_EQ(client().read_word(word), kWord);
    batch[0].guess = batch[0].previous;
    ASSERT_TRUE(client().submit(batch));
  }
  EXPECT_TRUE(batch[0].succeeded());
  EXPECT_FALSE(batch[0].misguessed());
  EXPECT_EQ(client().read_word(word), kSwapped);
}

// The guess contradicts the comparison: it is mended where they differ, and is good otherwise.
TEST_P(FabricConformance, MaskedCompareSwapMendsAGuessThatCannotSucceed) {
  const Address word(0, kBase);
  client().write_word(word, kWord);
  Batch batch;
  batch.masked_compare_swap(word, 0x88, kNewHigh, kLow, kHigh, kWord ^ 0x0F);
  ASSERT_TRUE(client().submit(batch));
  EXPECT_TRUE(batch[0].succeeded());
  EXPECT_EQ(client().read_word(word), kSwapped);
}

TEST_P(FabricConformance, MaskedCompareSwapFailsWhereTheMaskedBitsDiffer) {
  const Address word(0, kBase);
  client().write_word(word, kWord);
  for (const std::uint64_t guess : {kWord, kWord ^ 0xFF, std::uint64_t{0}}) {
    Batch batch;
    batch.masked_compare_swap(word, 0x77, kNewHigh, kLow, kHigh, guess);
    ASSERT_TRUE(client().submit(batch));
    EXPECT_FALSE(batch[0].succeeded());
    EXPECT_FALSE(batch[0].misguessed());
    EXPECT_EQ(batch[0].previous, kWord);
    EXPECT_EQ(client().read_word(word), kWord);
  }
}

TEST_P(FabricConformance, MaskedCompareSwapWithoutComparisonAlwaysSucceedsInTheEnd) {
  const Address word(0, kBase);
  client().write_word(word, kWord);
  Batch batch;
  batch.masked_compare_swap(word, 0, kNewHigh, 0, kHigh, 0);
  ASSERT_TRUE(client().submit(batch));
  if (batch[0].misguessed()) {
    batch[0].guess = batch[0].previous;
    ASSERT_TRUE(client().submit(batch));
  }
  EXPECT_TRUE(batch[0].succeeded());
  EXPECT_EQ(client().read_word(word), kSwapped);
}

// ---- Errors ----

class RefusedBatch {
 public:
  // A good WRITE and a good fetch-and-add around a verb at fault.
  template <class AddBadVerb>
  RefusedBatch(Client& client, AddBadVerb add_bad_verb, std::string_view reason) {
    const Address word(0, kBase);
    client.write_word(word, 1);
    const Counters counted = client.endpoint().counters();
    Counters cost;
    Batch batch(&cost);
    const std::uint64_t two = 2;
    batch.write_word(word, &two);
    add_bad_verb(batch);
    batch.fetch_add(word, 1);
    const Status status = client.submit(batch);
    EXPECT_FALSE(status) << reason;
    if (!status) {
      EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(status.error().detail(), HasSubstr(std::string(reason)));
    }
    for (std::size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(batch[i].outcome, Outcome::kNotExecuted);
    }
    EXPECT_EQ(client.endpoint().counters(), counted) << "a refused batch is not counted";
    EXPECT_EQ(cost, Counters{});
    EXPECT_EQ(client.read_word(word), 1u) << "a refused batch must execute nothing";
  }
};

TEST_P(FabricConformance, AddressesOutOfBoundsAreRefused) {
  const std::uint64_t size = client().fabric().memory_node_size(0);
  const Buffer buffer = endpoint().buffer(4096);
  const auto read_at = [&](Address from, std::size_t length) {
    return [&buffer, from, length](Batch& batch) { batch.read(from, buffer.data(), length); };
  };
  const auto write_at = [&](Address to, std::size_t length) {
    return [&buffer, to, length](Batch& batch) { batch.write(to, buffer.data(), length); };
  };
  const auto swap_at = [](Address at) {
    return [at](Batch& batch) { batch.compare_swap(at, 0, 0); };
  };
  const std::uint64_t onchip = Address::kOnChip + endpoint().caps().onchip_bytes;
  RefusedBatch(client(), read_at(Address(0, size - 8), 9), "length 9");
  RefusedBatch(client(), read_at(Address(0, size), 1), "node 0");
  RefusedBatch(client(), read_at(Address(0, size + 1), 0), "length 0");
  RefusedBatch(client(), write_at(Address(0, size - 4095), 4096), "length 4096");
  RefusedBatch(client(), write_at(Address(0, Address::kOnChip - 8), 8), "offset 0x7ffffffffff8");
  RefusedBatch(client(), read_at(Address(0, onchip), 1), "on-chip");
  RefusedBatch(client(), read_at(Address(0, Address::kOffsetMask), 4096), "offset 0xffffffffffff");
  RefusedBatch(client(), swap_at(Address(0, size)), "compare-and-swap");
  const auto nodes = static_cast<NodeId>(client().fabric().memory_node_count());
  RefusedBatch(client(), read_at(Address(nodes, 0), 8), "node " + std::to_string(nodes));
  RefusedBatch(client(), write_at(Address(0xFFFF, 0), 8), "node 65535");
  RefusedBatch(client(), swap_at(Address(nodes, 0)), "memory nodes");
}

TEST_P(FabricConformance, AtomicsOnUnalignedWordsAreRefused) {
  for (const std::uint64_t offset : {1u, 4u, 7u, 63u}) {
    const Address at(0, kBase + 64 + offset);
    RefusedBatch(client(), [at](Batch& batch) { batch.compare_swap(at, 0, 0); }, "not aligned");
    RefusedBatch(client(), [at](Batch& batch) { batch.fetch_add(at, 0); }, "not aligned");
    RefusedBatch(
        client(), [at](Batch& batch) { batch.masked_compare_swap(at, 0, 0, 1, 1, 0); },
        "not aligned");
  }
}

TEST_P(FabricConformance, LengthsOver32BitsAreRefusedNotCut) {
  const Buffer buffer = endpoint().buffer(64);
  RefusedBatch(
      client(),
      [&](Batch& batch) { batch.read(Address(0, kBase), buffer.data(), std::size_t{1} << 32); },
      "4 GiB");
}

TEST_P(FabricConformance, ABatchCanBeUsedAgainAfterAnError) {
  const Address word(0, kBase);
  Batch batch;
  batch.fetch_add(word + 1, 1);
  EXPECT_FALSE(client().submit(batch));
  batch.clear();
  batch.fetch_add(word, 1);
  EXPECT_TRUE(client().submit(batch));
}

#ifndef NDEBUG
TEST_P(FabricConformance, DebugBuildsRefuseMemoryThatIsNotTheEndpoints) {
  std::vector<std::byte> elsewhere(4096);
  const Buffer buffer = endpoint().buffer(64);
  const std::size_t limit = endpoint().caps().inline_limit;
  RefusedBatch(
      client(), [&](Batch& batch) { batch.read(Address(0, kBase), elsewhere.data(), 8); },
      "buffers of their endpoint");
  if (limit < elsewhere.size()) {  // where there is one
    RefusedBatch(
        client(),
        [&](Batch& batch) { batch.write(Address(0, kBase), elsewhere.data(), limit + 1); },
        "buffers of their endpoint");
  }
  RefusedBatch(
      client(), [&](Batch& batch) { batch.read(Address(0, kBase), buffer.data(), 4096); },
      "buffers of their endpoint");
}
#endif

// ---- Counters ----

TEST_P(FabricConformance, CountsAreExact) {
  const Buffer buffer = endpoint().buffer(1024);
  const Counters before = endpoint().counters();
  Counters cost;
  Batch batch(&cost);
  batch.read(Address(0, kBase), buffer.data(), 100);
  batch.read(Address(0, kBase), buffer.data(), 0);
  batch.write(Address(0, kBase), buffer.data(), 1000);
  batch.compare_swap(Address(0, kBase), 0, 1);
  batch.masked_compare_swap(Address(0, kBase), 0, 1, 1, 1, 0);
  batch.fetch_add(Address(last_node(), kBase), 1);
  ASSERT_TRUE(client().submit(batch));
  const Counters expected = {.round_trips = 1,
                             .doorbells = last_node() == 0 ? 1u : 2u,
                             .reads = 2,
                             .writes = 1,
                             .compare_swaps = 2,
                             .fetch_adds = 1,
                             .bytes_read = 100,
                             .bytes_written = 1000,
                             .retries = 0};
  EXPECT_EQ(cost, expected);
  Counters sum = before;
  sum += expected;
  EXPECT_EQ(endpoint().counters(), sum);

  ASSERT_TRUE(client().submit(batch));  // the same again costs the same again
  sum += expected;
  EXPECT_EQ(endpoint().counters(), sum);
  EXPECT_EQ(cost.round_trips, 2u);
  EXPECT_EQ(cost.bytes_written, 2000u);

  endpoint().count_retry(&cost);
  endpoint().count_retry(nullptr);
  EXPECT_EQ(cost.retries, 1u);
  EXPECT_EQ(endpoint().counters().retries, sum.retries + 2);
}

TEST_P(FabricConformance, ABatchRingsEachNodeOnce) {
  Counters cost;
  Batch batch(&cost);
  for (std::size_t i = 0; i < 5; ++i) {
    for (NodeId node = 0; node <= last_node(); ++node) batch.fetch_add(Address(node, kBase), 0);
  }
  ASSERT_TRUE(client().submit(batch));
  EXPECT_EQ(cost.round_trips, 1u);
  EXPECT_EQ(cost.doorbells, client().fabric().memory_node_count());
}

// ---- Buffers ----

TEST_P(FabricConformance, BuffersAreAlignedAndUsedAgain) {
  for (const std::size_t size : {0u, 1u, 64u, 65u, 1000u, 4096u, 1u << 20}) {
    std::byte* place = nullptr;
    {
      const Buffer buffer = endpoint().buffer(size);
      ASSERT_TRUE(buffer);
      place = buffer.data();
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % kLineBytes, 0u);
      std::memset(place, 0x11, size);
    }
    const std::size_t bytes = endpoint().buffer_bytes();
    EXPECT_GE(bytes, size);
    Buffer again = endpoint().buffer(size);
    EXPECT_EQ(again.data(), place);
    EXPECT_EQ(endpoint().buffer_bytes(), bytes);
    const Buffer other = endpoint().buffer(size);
    EXPECT_NE(other.data(), place);

    const Buffer moved = std::move(again);
    EXPECT_EQ(moved.data(), place);
  }
}

// ---- Clients and fences ----

TEST_P(FabricConformance, ClientsHaveIdsOfTheirOwnAndShareTheMemory) {
  const auto second = another_client();
  const auto third = another_client();
  const ClientId id = client().fabric().client();
  EXPECT_NE(id, 0u);
  EXPECT_NE(second->fabric().client(), 0u);
  EXPECT_NE(second->fabric().client(), id);
  EXPECT_NE(third->fabric().client(), id);
  EXPECT_NE(third->fabric().client(), second->fabric().client());
  EXPECT_EQ(second->fabric().memory_node_count(), client().fabric().memory_node_count());

  client().write_word(Address(last_node(), kBase), 4711);
  EXPECT_EQ(second->read_word(Address(last_node(), kBase)), 4711u);
}

TEST_P(FabricConformance, AFencedClientHasNoEffectAnyMore) {
  auto victim = another_client();
  const ClientId id = victim->fabric().client();
  const Address word(0, kBase);
  victim->write_word(word, 1);
  const Status at_once = client().fence(id);
  if (at_once) {
    Batch batch;
    batch.fetch_add(word, 1);
    const Status status = victim->submit(batch);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::kFenced);
  } else {
    EXPECT_EQ(at_once.error().code(), ErrorCode::kBusy);
  }
  victim.reset();
  EXPECT_TRUE(client().fence(id));
  EXPECT_TRUE(client().fence(id)) << "once more does no harm";
  EXPECT_EQ(client().read_word(word), 1u);
}

TEST_P(FabricConformance, AClientThatHasLeftIsAsGoodAsFenced) {
  auto other = another_client();
  const ClientId id = other->fabric().client();
  other->write_word(Address(0, kBase), 1);
  other.reset();
  EXPECT_TRUE(client().fence(id));
}

TEST_P(FabricConformance, WhoNeverWasIsNotFenced) {
  for (const ClientId nobody : {ClientId{0}, ClientId{1'000'000}}) {
    const Status refused = client().fence(nobody);
    ASSERT_FALSE(refused) << nobody;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().detail(), HasSubstr("client " + std::to_string(nobody)));
  }
}

// ---- Lines that are shared ----

// Who has a part of a line to itself. It changes it, looks at it, and must find what it has made of
// it, while others do the same with the rest of the line.
class PartOfLine {
 public:
  PartOfLine(Client& client, std::size_t number, std::uint64_t rounds)
      : client_(client), number_(number), rounds_(rounds) {}

  Task<void> use() {
    for (std::uint64_t i = 1; i <= rounds_ && !::testing::Test::HasFailure(); ++i) {
      if (number_ < kWritten.size()) {
        co_await write(kWritten[number_], i);
      } else {
        co_await count(i);
      }
    }
  }

  static constexpr Address kLine{0, kBase};
  static constexpr std::size_t kParts = 5;

 private:
  struct Bytes {
    std::size_t begin;
    std::size_t length;
  };
  // Two blocks, and two pieces that meet within a word. The rest sees atomics.
  static constexpr std::array<Bytes, kParts - 1> kWritten = {{{.begin = 0, .length = 16},
                                                              {.begin = 32, .length = 16},
                                                              {.begin = 48, .length = 11},
                                                              {.begin = 59, .length = 5}}};
  static constexpr Address kSwapped = kLine + 16;
  static constexpr Address kAdded = kLine + 24;

  Task<void> write(Bytes part, std::uint64_t round) {
    std::memset(wrote_.data(), static_cast<int>((round + number_ * 50) & 0xFF), part.length);
    Batch change;
    change.write(kLine + part.begin, wrote_.data(), part.length);
    EXPECT_TRUE(co_await client_.endpoint().submit(change));
    Batch look;
    look.read(kLine, read_.data(), kLineBytes);
    EXPECT_TRUE(co_await client_.endpoint().submit(look));
    EXPECT_EQ(std::memcmp(read_.data() + part.begin, wrote_.data(), part.length), 0)
        << "bytes from " << part.begin << ", round " << round;
  }

  Task<void> count(std::uint64_t round) {
    Batch change;
    change.compare_swap(kSwapped, round - 1, round);
    change.fetch_add(kAdded, 1);
    EXPECT_TRUE(co_await client_.endpoint().submit(change));
    EXPECT_EQ(change[0].previous, round - 1);
    EXPECT_EQ(change[1].previous, round - 1);
  }

  Client& client_;
  std::size_t number_;
  std::uint64_t rounds_;
  Buffer wrote_ = client_.endpoint().buffer(kLineBytes);
  Buffer read_ = client_.endpoint().buffer(kLineBytes);
};

TEST_P(FabricConformance, PartsOfALineDoNotDisturbOneAnother) {
  const Buffer zeros = endpoint().buffer(kLineBytes);
  std::ranges::fill(words_of(zeros), 0);
  Batch batch;
  batch.write(PartOfLine::kLine, zeros.data(), zeros.size());
  ASSERT_TRUE(client().submit(batch));
  if (GetParam().threaded) {
    on_threads(PartOfLine::kParts, [&](Client& own, std::size_t number) {
      PartOfLine part(own, number, rounds());
      own.worker().run(part.use());
    });
    return;
  }
  std::vector<std::unique_ptr<Client>> clients;
  std::deque<PartOfLine> parts;
  for (std::size_t number = 0; number < PartOfLine::kParts; ++number) {
    clients.push_back(another_client());
    parts.emplace_back(*clients.back(), number, rounds());
    clients.back()->worker().spawn(parts.back().use());
  }
  for (const auto& each : clients) each->worker().run();
}

// ---- Threads ----

// Writers fill all words of a line with one number; no READ may see two numbers in a line.
// `lines` at a time, beginning in the middle of a kilobyte, so that borders of all kinds are met.
class LineTearing {
 public:
  LineTearing(std::size_t lines, std::uint64_t rounds) : lines_(lines), rounds_(rounds) {}

  void write(Client& client, std::size_t number) {
    const Buffer buffer = client.endpoint().buffer(lines_ * kLineBytes);
    for (std::uint64_t i = 1; i <= rounds_; ++i) {
      std::ranges::fill(words_of(buffer), (std::uint64_t{number + 1} << 32) | i);
      Batch batch;
      batch.write(kArea, buffer.data(), buffer.size());
      EXPECT_TRUE(client.submit(batch));
    }
    --writers_;
  }

  void read(Client& client) const {
    const Buffer buffer = client.endpoint().buffer(lines_ * kLineBytes);
    bool last = false;
    while (!last) {
      last = writers_ == 0;
      Batch batch;
      batch.read(kArea, buffer.data(), buffer.size());
      ASSERT_TRUE(client.submit(batch));
      for (std::size_t line = 0; line < lines_; ++line) {
        ASSERT_TRUE(same_line(words_of(buffer), line)) << "line " << line << " is torn";
      }
    }
  }

  static constexpr Address kArea{0, 8192 + 512};
  static constexpr std::size_t kWriters = 2;

 private:
  std::size_t lines_;
  std::uint64_t rounds_;
  std::atomic<std::size_t> writers_ = kWriters;
};

TEST_P(FabricConformance, LinesAreNeverTorn) {
  if (!GetParam().threaded || !endpoint().caps().line_atomic) GTEST_SKIP();
  for (const std::size_t lines : {1u, 5u, 40u}) {
    LineTearing tearing(lines, rounds());
    const Buffer zeros = endpoint().buffer(lines * kLineBytes);
    std::ranges::fill(words_of(zeros), 0);
    Batch batch;
    batch.write(LineTearing::kArea, zeros.data(), zeros.size());
    ASSERT_TRUE(client().submit(batch));
    on_threads(4, [&](Client& own, std::size_t i) {
      if (i < LineTearing::kWriters) {
        tearing.write(own, i);
      } else {
        tearing.read(own);
      }
    });
  }
}

// A word is written and swapped between numbers whose halves are equal, at once.
TEST_P(FabricConformance, WordsAreNeverTornBetweenWritesAndAtomics) {
  if (!GetParam().threaded) GTEST_SKIP();
  const Address word(0, kBase + 24);
  const auto doubled = [](std::uint64_t half) { return (half << 32) | half; };
  const auto is_whole = [](std::uint64_t seen) { return seen >> 32 == (seen & 0xFFFFFFFF); };
  client().write_word(word, 0);
  on_threads(4, [&](Client& own, std::size_t number) {
    std::uint64_t seen = 0;
    for (std::uint64_t i = 1; i <= rounds(); ++i) {
      const std::uint64_t value = doubled(number * rounds() + i);
      if (number == 0) {
        own.write_word(word, value);
      } else if (number == 1) {
        // The same in a WRITE of odd ends, which covers the neighbours in part.
        const Buffer around = own.endpoint().buffer(64);
        std::ranges::fill(words_of(around), value);
        Batch batch;
        batch.write(Address(0, word.offset() - 3), around.data() + 5, 14);
        ASSERT_TRUE(own.submit(batch));
      } else {
        Batch batch;
        batch.compare_swap(word, seen, value);
        ASSERT_TRUE(own.submit(batch));
        seen = batch[0].succeeded() ? value : batch[0].previous;
        ASSERT_TRUE(is_whole(batch[0].previous));
      }
      ASSERT_TRUE(is_whole(own.read_word(word)));
    }
  });
}

// Two words of a line are raised in turn, the left one first: the right one is never ahead.
TEST_P(FabricConformance, AReadSeesTheAtomicsOnALineAtOneMoment) {
  if (!GetParam().threaded || !endpoint().caps().line_atomic) GTEST_SKIP();
  const Address line(0, kBase);
  const Address right = line + 56;
  client().write_word(line, 0);
  client().write_word(right, 0);
  std::atomic<bool> stop = false;
  on_threads(3, [&](Client& own, std::size_t number) {
    if (number == 0) {
      for (std::uint64_t i = 0; i < rounds(); ++i) {
        Batch batch;
        batch.fetch_add(line, 1);
        batch.fetch_add(right, 1);
        EXPECT_TRUE(own.submit(batch));
      }
      stop = true;
      return;
    }
    const Buffer buffer = own.endpoint().buffer(64);
    while (!stop) {
      Batch batch;
      batch.read(line, buffer.data(), 64);
      ASSERT_TRUE(own.submit(batch));
      const auto words = words_of(buffer);
      ASSERT_GE(words[0], words[7]);
      ASSERT_LE(words[0], words[7] + 1);
    }
  });
}

TEST_P(FabricConformance, SumsAreExact) {
  if (!GetParam().threaded) GTEST_SKIP();
  constexpr std::size_t kThreads = 4;
  const Address added(last_node(), kBase);
  const Address swapped(last_node(), kBase + 8);
  client().write_word(added, 0);
  client().write_word(swapped, 0);
  on_threads(kThreads, [&](Client& own, std::size_t) {
    std::uint64_t guess = 0;
    for (std::size_t i = 0; i < rounds(); ++i) {
      Batch add;
      add.fetch_add(added, 3);
      ASSERT_TRUE(own.submit(add));
      for (bool done = false; !done;) {
        Batch swap;
        swap.compare_swap(swapped, guess, guess + 1);
        ASSERT_TRUE(own.submit(swap));
        done = swap[0].succeeded();
        guess = done ? guess + 1 : swap[0].previous;
      }
    }
  });
  EXPECT_EQ(client().read_word(added), kThreads * rounds() * 3);
  EXPECT_EQ(client().read_word(swapped), kThreads * rounds());
}

// Each thread counts in a byte of its own, all in one word.
TEST_P(FabricConformance, MaskedCompareSwapsDoNotDisturbOneAnother) {
  if (!GetParam().threaded) GTEST_SKIP();
  constexpr std::size_t kThreads = 4;
  const Address word(0, kBase);
  client().write_word(word, 0);
  on_threads(kThreads, [&](Client& own, std::size_t number) {
    const unsigned shift = static_cast<unsigned>(number) * 16;
    const std::uint64_t mask = std::uint64_t{0xFFFF} << shift;
    std::uint64_t guess = 0;
    for (std::uint64_t i = 0; i < rounds(); ++i) {
      for (bool done = false; !done;) {
        Batch batch;
        batch.masked_compare_swap(word, i << shift, (i + 1) << shift, mask, mask, guess);
        ASSERT_TRUE(own.submit(batch));
        done = batch[0].succeeded();
        guess = batch[0].previous;
        ASSERT_TRUE(done || batch[0].misguessed());
      }
    }
  });
  const std::uint64_t count = rounds();
  EXPECT_EQ(client().read_word(word), count << 48 | count << 32 | count << 16 | count);
}

// Data, then a flag, in one batch: whoever sees the flag sees the data.
TEST_P(FabricConformance, AFlagIsNotSeenBeforeTheDataThatWasWrittenBeforeIt) {
  if (!GetParam().threaded) GTEST_SKIP();
  constexpr std::size_t kBytes = 2048;
  const Address data(0, kBase);
  const Address flag(0, kBase + 65536);
  const Buffer zeros = endpoint().buffer(kBytes);
  std::ranges::fill(words_of(zeros), 0);
  Batch clear;
  clear.write(data, zeros.data(), kBytes);
  ASSERT_TRUE(client().submit(clear));
  client().write_word(flag, 0);
  on_threads(2, [&](Client& own, std::size_t number) {
    const Buffer buffer = own.endpoint().buffer(kBytes);
    std::uint64_t seen = 0;
    if (number == 0) {
      for (std::uint64_t i = 1; i <= rounds(); ++i) {
        std::ranges::fill(words_of(buffer), i);
        Batch batch;
        batch.write(data, buffer.data(), kBytes);
        batch.write_word(flag, &i);
        EXPECT_TRUE(own.submit(batch));
      }
      return;
    }
    while (seen < rounds()) {
      seen = own.read_word(flag);
      Batch batch;
      batch.read(data, buffer.data(), kBytes);
      ASSERT_TRUE(own.submit(batch));
      for (const std::uint64_t word : words_of(buffer)) ASSERT_GE(word, seen);
    }
  });
}

// Each of two threads writes its own word and then reads the other's: one at least must see the
// other's WRITE, as a completed WRITE is visible to every later verb.
TEST_P(FabricConformance, CompletedWritesAreVisibleToAll) {
  if (!GetParam().threaded) GTEST_SKIP();
  const std::uint64_t meetings = rounds() / 4;
  for (const bool one_batch : {false, true}) {
    const std::array<Address, 2> words = {Address(0, kBase), Address(0, kBase + 4096)};
    std::array<std::vector<std::uint64_t>, 2> saw;
    std::atomic<std::uint64_t> arrived = 0;
    for (const Address word : words) client().write_word(word, 0);
    on_threads(2, [&](Client& own, std::size_t number) {
      const Buffer buffer = own.endpoint().buffer(8);
      for (std::uint64_t i = 1; i <= meetings; ++i) {
        ++arrived;
        base::Backoff backoff;  // both must begin within the same few nanoseconds
        while (arrived.load(std::memory_order_relaxed) < 2 * i) backoff.pause();
        Batch write;
        write.write_word(words[number], &i);
        if (one_batch) write.read(words[1 - number], buffer.data(), 8);
        EXPECT_TRUE(own.submit(write));
        saw[number].push_back(one_batch ? words_of(buffer)[0] : own.read_word(words[1 - number]));
      }
    });
    for (std::size_t i = 0; i < meetings; ++i) {
      ASSERT_TRUE(saw[0][i] > i || saw[1][i] > i) << "round " << i << ": neither saw the other";
    }
  }
}

}  // namespace
}  // namespace pando::fabric
