#include "fabric/embedded/embedded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/sanitizers.h"
#include "fabric/conformance.h"
#include "fabric/open.h"

namespace pando::fabric {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kRounds =
    PANDO_THREAD_SANITIZER || PANDO_ADDRESS_SANITIZER ? 4'000 : 60'000;

FabricUnderTest embedded(std::string name, std::string url) {
  return {std::move(name), [url = std::move(url)] { return open_fabric(url); }, kRounds};
}

INSTANTIATE_TEST_SUITE_P(
    Embedded, FabricConformance,
    testing::Values(embedded("native", "embedded:16MiB"),
                    embedded("native_3_nodes", "embedded:48MiB?nodes=3"),
                    embedded("emulated", "embedded:16MiB?masked_cas=emulated&huge=off"),
                    embedded("emulated_3_nodes",
                             "embedded:48MiB?nodes=3&masked_cas=emulated&onchip=0")),
    name_of_fabric);

// ---- URLs ----

TEST(EmbeddedUrl, SetsWhatItSays) {
  const auto fabric =
      open_fabric("embedded:10MiB?nodes=3&masked_cas=emulated&onchip=64KiB&huge=off").value();
  EXPECT_EQ(fabric->memory_node_count(), 3u);
  for (NodeId node = 0; node < 3; ++node) {
    EXPECT_EQ(fabric->memory_node_size(node), (std::uint64_t{10} << 20) / 3 / 4096 * 4096);
  }
  EXPECT_EQ(fabric->memory_node_size(3), 0u);
  EXPECT_FALSE(fabric->caps().masked_cas);
  EXPECT_TRUE(fabric->caps().line_atomic);
  EXPECT_TRUE(fabric->caps().completes_inline);
  EXPECT_EQ(fabric->caps().onchip_bytes, 64u << 10);
  EXPECT_EQ(fabric->client(), 1u);

  const auto plain = open_fabric("embedded:1MiB").value();
  EXPECT_EQ(plain->memory_node_count(), 1u);
  EXPECT_EQ(plain->memory_node_size(0), 1u << 20);
  EXPECT_TRUE(plain->caps().masked_cas);
  EXPECT_EQ(plain->caps().onchip_bytes, 256u << 10);
}

struct BadUrl {
  const char* url;
  const char* reason;
};

TEST(EmbeddedUrl, ErrorsNameWhatIsWrong) {
  constexpr BadUrl kBadUrls[] = {
      {"", "no fabric ''; known: embedded"},
      {"warp:1GiB", "no fabric 'warp'; known: embedded"},
      {"embedded", "the size is missing"},
      {"embedded:", "the size is missing"},
      {"embedded:?nodes=2", "the size is missing"},
      {"embedded:many", "size: 'many' is not a size"},
      {"embedded:1.5GiB", "size: '1.5GiB' is not a size"},
      {"embedded:99999999999999999999", "too large"},
      {"embedded:1000000T", "too large"},
      {"embedded:1K", "size: 1KiB is too small for nodes=1: each needs 1MiB at least"},
      {"embedded:3MiB?nodes=4", "size: 3MiB is too small for nodes=4"},
      {"embedded:4MiB?nodes=0", "nodes: 0 is not between 1 and 1024"},
      {"embedded:4GiB?nodes=1025", "nodes: 1025 is not between 1 and 1024"},
      {"embedded:4MiB?nodes=two", "nodes: 'two' is not an unsigned integer"},
      {"embedded:4MiB?nodes", "'nodes' is not a setting of the form name=value"},
      {"embedded:4MiB?", ""},
      {"embedded:4MiB?nodes=1&nodes=2", "'nodes' is set twice"},
      {"embedded:4MiB?colour=red", "'colour' is no parameter of embedded"},
      {"embedded:4MiB?masked_cas=yes", "masked_cas: 'yes' is neither native nor emulated"},
      {"embedded:4MiB?huge=maybe", "huge: 'maybe' is neither on nor off"},
      {"embedded:4MiB?onchip=x", "onchip: 'x' is not a size"},
      {"embedded:4MiB?onchip=8GiB", "onchip: '8GiB' is too large"},
      {"embedded:4MiB?onchip=100", "onchip: 100 is not a multiple of 64 bytes"},
  };
  for (const auto& [url, reason] : kBadUrls) {
    const auto fabric = open_fabric(url);
    if (*reason == '\0') {
      EXPECT_TRUE(fabric) << url;
      continue;
    }
    ASSERT_FALSE(fabric) << url;
    EXPECT_EQ(fabric.error().code(), ErrorCode::kInvalidArgument) << url;
    EXPECT_THAT(fabric.error().detail(), HasSubstr(reason));
    EXPECT_THAT(fabric.error().detail(), HasSubstr(std::string("'") + url + "'"));
  }
}

TEST(EmbeddedUrl, WhatCanNeverFitIsRefused) {
  const auto fabric = open_fabric("embedded:128T");  // all of a process's address space
  ASSERT_FALSE(fabric);
  EXPECT_EQ(fabric.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(fabric.error().detail(), HasSubstr("128TiB can never fit"));
}

// ---- What embedded promises beyond the contract ----

TEST(Embedded, MemoryIsZeroAtBirth) {
  Client client(open_fabric("embedded:4MiB?nodes=2").value());
  for (NodeId node = 0; node < 2; ++node) {
    EXPECT_EQ(client.read_word(Address(node, 0)), 0u);
    EXPECT_EQ(client.read_word(Address(node, (2 << 20) - 8)), 0u);
    EXPECT_EQ(client.read_word(Address(node, Address::kOnChip)), 0u);
  }
}

TEST(Embedded, ClientIdsCountFromOneAndAreNotUsedAgain) {
  const auto first = open_fabric("embedded:1MiB").value();
  EXPECT_EQ(first->client(), 1u);
  EXPECT_EQ(first->attach().value()->client(), 2u);
  EXPECT_EQ(first->attach().value()->client(), 3u);
}

TEST(Embedded, AClientIsFencedOnceItsObjectIsGone) {
  Client first(open_fabric("embedded:1MiB").value());
  auto second = first.fabric().attach().value();
  const Status busy = first.fence(2);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(busy.error().detail(), HasSubstr("client 2"));
  second.reset();
  EXPECT_TRUE(first.fence(2));
}

TEST(Embedded, ALoneTaskDoesNotSuspend) {
  Client client(open_fabric("embedded:1MiB").value());
  const Buffer buffer = client.endpoint().buffer(1024);
  const auto work = [&]() -> Task<void> {
    for (int i = 0; i < 10; ++i) {
      Batch batch;
      batch.read(Address(0, 0), buffer.data(), 1024);
      batch.write(Address(0, 0), buffer.data(), 1024);
      batch.fetch_add(Address(0, 4096), 1);
      EXPECT_TRUE(co_await client.endpoint().submit(batch));
    }
  };
  const Task<void> task = work();
  client.worker().start(task.handle());
  EXPECT_TRUE(task.done());
  EXPECT_FALSE(client.endpoint().pending());
}

TEST(Embedded, BatchesOfACrowdOverlapAndAllComplete) {
  Client client(open_fabric("embedded:4MiB?nodes=2").value());
  constexpr std::uint64_t kTasks = 8;
  std::uint64_t under_way = 0;
  std::uint64_t most_under_way = 0;
  std::uint64_t completed = 0;
  const auto work = [&](std::uint64_t number) -> Task<void> {
    const Buffer buffer = client.endpoint().buffer(4096);
    for (std::uint64_t i = 0; i < 20; ++i) {
      Batch batch;
      const Address place(static_cast<NodeId>(number % 2), 4096 * (number * 20 + i));
      const std::uint64_t value = number * 1000 + i;
      batch.write_word(place, &value);
      batch.read(place, buffer.data(), 4096);
      batch.fetch_add(place, 1);
      most_under_way = std::max(most_under_way, ++under_way);
      EXPECT_TRUE(co_await client.endpoint().submit(batch));
      --under_way;
      EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(buffer.data()), value);
      EXPECT_EQ(batch[2].previous, value);
      ++completed;
    }
  };
  for (std::uint64_t i = 0; i < kTasks; ++i) client.worker().spawn(work(i));
  client.worker().run();
  EXPECT_EQ(completed, kTasks * 20);
  EXPECT_EQ(most_under_way, kTasks);
  EXPECT_EQ(client.endpoint().counters().round_trips, kTasks * 20);
  EXPECT_FALSE(client.endpoint().pending());
}

TEST(Embedded, DroppedTasksLeaveNothingQueued) {
  Client client(open_fabric("embedded:1MiB").value());
  const auto add = [&]() -> Task<void> {
    Batch batch;
    batch.fetch_add(Address(0, 0), 1);
    EXPECT_TRUE(co_await client.endpoint().submit(batch));
  };
  for (int i = 0; i < 2; ++i) client.worker().spawn(add());  // makes a crowd; never started
  {
    const Task<void> task = add();
    client.worker().start(task.handle());
    EXPECT_FALSE(task.done());
    EXPECT_TRUE(client.endpoint().pending());
  }
  client.worker().drop_tasks();
  EXPECT_FALSE(client.endpoint().pending());
  EXPECT_FALSE(client.worker().run_ready());
  EXPECT_EQ(client.read_word(Address(0, 0)), 0u);
}

}  // namespace
}  // namespace pando::fabric
