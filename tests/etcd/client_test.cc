#include "fabric/etcd/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "fabric/etcd/registry.h"
#include "fabric/open.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::etcd {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers every connection with these bytes, and closes it; or says nothing at all.
class Peer {
 public:
  explicit Peer(std::string answer)
      : answer_(std::move(answer)),
        listener_(wire::listen_at({.host = "127.0.0.1", .port = "0", .path = {}}).value()) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Peer() {
    stopping_ = true;
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(wire::port_of(listener_)); }

 private:
  void serve() {
    std::vector<wire::Socket> silent;
    while (!stopping_) {
      wire::Socket socket = wire::accept_from(listener_);
      if (!socket) {
        std::this_thread::sleep_for(1ms);
        continue;
      }
      if (answer_.empty()) {
        silent.push_back(std::move(socket));
        continue;
      }
      std::this_thread::sleep_for(20ms);  // all of the request is there
      std::array<std::byte, 4096> request;
      (void)socket.receive(request);
      (void)socket.send(std::as_bytes(std::span(answer_)));
    }
  }
  const std::string answer_;
  wire::Socket listener_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

std::string http(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nConnection: close\r\n\r\n" + body;
}

TEST(Endpoints, AreParsed) {
  EXPECT_THAT(parse_endpoints("http://a:2379,https://b:1/").value(),
              ElementsAre("http://a:2379", "https://b:1"));
  for (const char* const bad : {"", "a:2379", "ftp://a", "http://", "http://a,,http://b"}) {
    EXPECT_EQ(parse_endpoints(bad).error().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(EtcdClient, AsksTheNextWhereOneIsGone) {
  const Peer good(http("200 OK", R"({"header":{},"ID":"7","TTL":"10"})"));
  Client client({"http://127.0.0.1:1", good.url()});
  EXPECT_EQ(client.grant(10s).value(), 7);
  EXPECT_EQ(client.grant(10s).value(), 7);
}

TEST(EtcdClient, SaysWhoAndWhy) {
  Client gone({"http://127.0.0.1:1"});
  EXPECT_EQ(gone.grant(10s).error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(gone.grant(10s).error().detail(), HasSubstr("etcd at http://127.0.0.1:1: "));

  const Peer other(http("404 Not Found", "nothing here"));
  Client wrong({other.url()});
  EXPECT_EQ(wrong.grant(10s).error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(wrong.grant(10s).error().detail(), HasSubstr("nothing here (404)"));

  const Peer leaderless(http("503 Service Unavailable", R"({"error":"etcdserver: no leader"})"));
  EXPECT_EQ(Client({leaderless.url()}).grant(10s).error().code(), ErrorCode::kUnavailable);
  const Peer strict(http("401 Unauthorized", R"({"error":"user name is empty"})"));
  EXPECT_EQ(Client({strict.url()}).grant(10s).error().code(), ErrorCode::kDenied);
  const Peer garbage("garbage\r\n\r\n");
  EXPECT_FALSE(Client({garbage.url()}).grant(10s));
}

TEST(EtcdClient, WaitsForNobodyForEver) {
  const Peer silent("");
  Client client({silent.url()});
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(client.range("/p").error().code(), ErrorCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

// A key that is shorter than what was asked for, of an etcd that is none.
TEST(EtcdClient, OddKeysAreAnErrorAndNoMore) {
  const Peer odd(http("200 OK", R"({"header":{},"kvs":[{"key":"eA==","value":"e30="}]})"));
  for (const char* const key : {"", "secret"}) {
    Registry registry({{odd.url()}, "a", key});
    const auto nodes = registry.memory_nodes();
    ASSERT_FALSE(nodes);
    EXPECT_THAT(nodes.error().detail(), HasSubstr("etcd's key 'x'"));
    MemoryNodeRecord own;
    own.life = 7;
    EXPECT_FALSE(registry.enter(own, {}, 1)) << "the answer says nothing of a transaction";
  }
}

TEST(RegistryOptions, AClusterHasAName) {
  EXPECT_TRUE((RegistryOptions{{"http://a"}, "orders-2.test_1"}.check()));
  for (const char* const bad : {"", "a/b", "a b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE((RegistryOptions{{"http://a"}, bad}.check())) << bad;
  }
  EXPECT_FALSE((RegistryOptions{{"http://a"}, std::string(64, 'a')}.check()));
}

TEST(FabricUrl, NamesEtcdOrTheNodes) {
  const auto failure = [](const char* url) { return open_fabric(url).error().detail(); };
  EXPECT_THAT(failure("tcp:"), HasSubstr("tcp:?etcd=http"));
  EXPECT_THAT(failure("tcp:?etcd=http://127.0.0.1:1"), HasSubstr("cluster: ''"));
  EXPECT_THAT(failure("tcp:?etcd=nowhere&cluster=a"), HasSubstr("'nowhere' is no address of etcd"));
  EXPECT_THAT(failure("tcp:127.0.0.1:1?etcd=http://a&cluster=a"), HasSubstr("given already"));
  EXPECT_THAT(failure("tcp:?etcd=http://127.0.0.1:1&cluster=a"),
              HasSubstr("etcd at http://127.0.0.1:1: Couldn't connect to server; the memory nodes "
                        "of cluster 'a' cannot be found without it: start etcd, or name them"));
}

}  // namespace
}  // namespace pando::fabric::etcd
