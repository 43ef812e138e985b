#include "fabric/etcd/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "etcd/fake_etcd.h"
#include "support/memory_nodes.h"
#include <pando/pando.h>

namespace pando::fabric::etcd {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MemoryNodeRecord node_with(std::uint64_t life) {
  return {.id = 0,
          .life = life,
          .bytes = 1 << 20,
          .places = {wire::parse_place("10.0.0.1:7470").value(),
                     wire::parse_place("unix:/run/pando/0").value()}};
}

bool within(std::chrono::seconds time, const std::function<bool()>& holds) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

class RegistryTest : public ::testing::Test {
 protected:
  FakeEtcd etcd;
  Registry registry{{{etcd.url()}, "a"}};
  Lease lease = registry.client().grant(10s).value();
};

TEST_F(RegistryTest, IdsBelongToMemoryAndAreNeverReused) {
  EXPECT_EQ(registry.enter(node_with(0xaaaa), {}, lease).value(), 0);
  EXPECT_EQ(registry.enter(node_with(0xbbbb), {}, lease).value(), 1);
  EXPECT_EQ(registry.enter(node_with(0xaaaa), {}, lease).value(), 0);
  EXPECT_EQ(registry.enter(node_with(0xbbbb), NodeId{1}, lease).value(), 1);
  const auto nodes = registry.memory_nodes().value();
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].id, 1);
  EXPECT_EQ(nodes[1].life, 0xbbbbu);
  EXPECT_EQ(nodes[1].bytes, 1u << 20);
  ASSERT_EQ(nodes[1].places.size(), 2u);
  EXPECT_EQ(nodes[1].places[0].to_string(), "10.0.0.1:7470");
  EXPECT_TRUE(nodes[1].places[1].local());

  etcd.end_lease(lease);
  EXPECT_THAT(registry.memory_nodes().value(), IsEmpty());
  const Lease later = registry.client().grant(10s).value();
  EXPECT_EQ(registry.enter(node_with(0xcccc), {}, later).value(), 2);
  EXPECT_EQ(registry.enter(node_with(0xaaaa), {}, later).value(), 0);
  Registry other({{etcd.url()}, "b"});
  EXPECT_THAT(other.memory_nodes().value(), IsEmpty());
  EXPECT_EQ(other.enter(node_with(0xdddd), {}, later).value(), 0);
}

TEST_F(RegistryTest, MemoryRemembersWhatEtcdHasLost) {
  EXPECT_EQ(registry.enter(node_with(0xaaaa), NodeId{3}, lease).value(), 3);
  EXPECT_EQ(registry.enter(node_with(0xbbbb), {}, lease).value(), 4);
  EXPECT_EQ(registry.enter(node_with(0xcccc), NodeId{1}, lease).value(), 1);
  EXPECT_EQ(registry.enter(node_with(0xdddd), {}, lease).value(), 5);
  const auto refused = registry.enter(node_with(0xeeee), NodeId{4}, lease);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().detail(), HasSubstr("was memory node 4 of cluster 'a'"));
  EXPECT_EQ(registry.enter(node_with(0xffff), NodeId{255}, lease).value(), 255);
  EXPECT_EQ(registry.enter(node_with(0x1111), {}, lease).error().code(), ErrorCode::kOutOfMemory);
}

TEST_F(RegistryTest, NodesThatComeTogetherGetIdsOfTheirOwn) {
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, 8> taken{};
  for (std::uint64_t life = 1; life <= taken.size(); ++life) {
    threads.emplace_back([&, life] {
      Registry own({{etcd.url()}, "a"});
      const auto id = own.enter(node_with(life), {}, lease);
      ASSERT_TRUE(id) << id.error().message();
      ++taken.at(*id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : taken) EXPECT_EQ(count, 1);
}

TEST_F(RegistryTest, SaysWhichKeyIsNotOurs) {
  const std::vector<Put> put = {{"/pando/a/nodes/00000", "{\"life\":7}"}};
  ASSERT_TRUE(registry.client().transact({}, put).value());
  EXPECT_EQ(registry.memory_nodes().error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(registry.memory_nodes().error().detail(), HasSubstr("'/pando/a/nodes/00000'"));
}

// ---- Signed with the cluster's key ----

class SignedRegistryTest : public RegistryTest {
 protected:
  void put(std::string key, std::string value) {
    const std::vector<Put> puts = {{std::move(key), std::move(value)}};
    ASSERT_TRUE(registry.client().transact({}, puts).value());
  }
  Registry with_key{{{etcd.url()}, "a", "secret"}};
};

TEST_F(SignedRegistryTest, WhatIsNotSignedIsLeftOut) {
  EXPECT_EQ(with_key.enter(node_with(0xaaaa), {}, lease).value(), 0);
  EXPECT_EQ(with_key.enter(node_with(0xaaaa), {}, lease).value(), 0) << "it knows its own id again";
  MemoryNodeRecord forged = node_with(0xbbbb);
  forged.id = 1;
  put("/pando/a/nodes/00001", write_memory_node(forged, {.cluster = "a", .key = "guess"}));
  put("/pando/a/nodes/00002", "{}");
  std::optional<Error> left_out;
  const auto nodes = with_key.memory_nodes(&left_out).value();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].life, 0xaaaau);
  ASSERT_TRUE(left_out);
  EXPECT_THAT(left_out->detail(), HasSubstr("'/pando/a/nodes/00001' is not signed"));

  put("/pando/a/nodes/00000", write_memory_node(node_with(0xaaaa), {.cluster = "a", .key = ""}));
  const auto none = with_key.memory_nodes();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kDenied);
  EXPECT_THAT(none.error().detail(), HasSubstr("'/pando/a/nodes/00000' is not signed"));
}

TEST_F(SignedRegistryTest, NodesGoByNoIdThatSomebodyElseHasWritten) {
  put("/pando/a/ids/00000", "000000000000bbbb");
  const auto refused = with_key.enter(node_with(0xaaaa), {}, lease);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDenied);
  EXPECT_THAT(refused.error().detail(), HasSubstr("remove etcd's keys under /pando/a/"));
}

// A node with its key, found by clients with it; records of others lead nowhere.
TEST_F(SignedRegistryTest, ClientsLookOnlyWhereASignedRecordLeads) {
  pando::testing::MemoryNodes nodes({.bytes = 4 << 20, .key = "secret", .cluster = "a"});
  const std::string url =
      "tcp:?etcd=" + etcd.url() + "&cluster=a&key_file=" + nodes.key_file() + "&timeout=1000";
  MemoryNodeRecord record{.life = nodes.memory(0).life(),
                          .bytes = nodes.memory(0).bytes(),
                          .places = {wire::parse_place(nodes.tcp_url().substr(4)).value()}};
  put("/pando/a/nodes/00000", write_memory_node(record, {.cluster = "a", .key = ""}));
  auto refused = Pool::open(url);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDenied);
  EXPECT_THAT(refused.error().detail(), HasSubstr("is not signed with the key of cluster 'a'"));

  ASSERT_TRUE(with_key.enter(record, {}, lease));
  const auto pool = Pool::open(url);
  EXPECT_TRUE(pool) << pool.error().message();
}

TEST_F(SignedRegistryTest, WithTlsNoUnixSocketIsUsed) {
  pando::testing::MemoryNodes nodes(
      {.bytes = 4 << 20, .key = "secret", .cluster = "a", .tls = true});
  const MemoryNodeRecord record{
      .life = nodes.memory(0).life(),
      .bytes = nodes.memory(0).bytes(),
      .places = {wire::parse_place(nodes.mapped_url().substr(7)).value()}};
  ASSERT_TRUE(with_key.enter(record, {}, lease));
  const auto pool = Pool::open("tcp:?etcd=" + etcd.url() + "&cluster=a&" + nodes.tls_words());
  ASSERT_FALSE(pool);
  EXPECT_THAT(pool.error().detail(), HasSubstr("goes without the TLS that tls=on asks for"));
}

TEST_F(RegistryTest, ARegistrationComesBack) {
  std::atomic<int> entered{0};
  std::atomic<int> failed{0};
  const auto there = [&] {
    const auto nodes = registry.memory_nodes();
    return nodes && nodes->size() == 1 && nodes->front().life == 0xaaaa && nodes->front().id == 0;
  };
  {
    Registration registration(
        {{etcd.url()}, "a"}, node_with(0xaaaa), {},
        {.entered = [&](NodeId) { ++entered; }, .failed = [&](const Error&) { ++failed; }});
    EXPECT_TRUE(registration.first_attempt());
    EXPECT_TRUE(there());
    etcd.set_away(true);
    EXPECT_TRUE(within(20s, [&] { return failed == 1; }));
    etcd.forget_everything();
    etcd.set_away(false);
    // It is told a moment after others can see it.
    EXPECT_TRUE(within(20s, [&] { return there() && entered == 2; }));
    EXPECT_EQ(failed, 1);
  }
  EXPECT_EQ(entered, 2);
  EXPECT_THAT(registry.memory_nodes().value(), IsEmpty());
}

// The nodes of this process, registered one by one, with clients at work all the time.
TEST_F(RegistryTest, AClientAtWorkLearnsOfNodes) {
  pando::testing::MemoryNodes nodes({.bytes = 4 << 20, .nodes = 4, .cluster = "a"});
  const std::string list = nodes.tcp_url().substr(4);
  const auto enter = [&](std::size_t i) {
    std::size_t begin = 0;
    for (std::size_t k = 0; k < i; ++k) begin = list.find(',', begin) + 1;
    const std::string place = list.substr(begin, list.find(',', begin) - begin);
    const MemoryNodeRecord record{.life = nodes.memory(i).life(),
                                  .bytes = nodes.memory(i).bytes(),
                                  .places = {wire::parse_place(place).value()}};
    EXPECT_EQ(registry.enter(record, {}, lease).value(), i);
  };
  enter(0);
  auto pool = Pool::open("tcp:?etcd=" + etcd.url() + "&cluster=a").value();
  auto peer = pool.attach({}).value();
  auto index = pool.create_index("kv").value();
  auto peers = peer.open_index("kv").value();

  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  for (std::uint64_t t = 0; t < 2; ++t) {
    clients.emplace_back([&, t] {
      const Index& mine = t == 0 ? index : peers;
      const std::string value(1000, 'v');
      for (std::uint64_t i = 0; !stop; ++i) {
        const std::uint64_t key = i % 10'000 * 2 + t;
        const Status put = mine.put(key, value);
        if (!put) {
          ASSERT_EQ(put.error().code(), ErrorCode::kOutOfMemory) << put.error().message();
          std::this_thread::sleep_for(10ms);
          continue;
        }
        const auto got = mine.get(key);
        ASSERT_TRUE(got) << got.error().message();
      }
    });
  }
  for (std::size_t i = 1; i < 4; ++i) {
    enter(i);
    EXPECT_TRUE(within(30s, [&] {
      const auto stats = pool.stats();
      return stats && stats->memory_nodes.size() == i + 1 &&
             stats->memory_nodes.back().reserved > std::uint64_t{1} << 20;
    }));
  }
  stop = true;
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace pando::fabric::etcd
