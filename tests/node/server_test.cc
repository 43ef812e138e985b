// What memory nodes do when clients, networks or they themselves fail, seen through the fabrics and
// through raw sockets.

#include "fabric/node/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/time.h>

#include <chrono>
#include <csignal>
#include <string>

#include "fabric/conformance.h"
#include "fabric/open.h"
#include "fabric/wire/control.h"
#include "node/peers.h"
#include "support/memory_nodes.h"

namespace pando::fabric {
namespace {

using pando::testing::MemoryNodes;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr Address kWord(0, 4096);

Status add_one(Client& client, Address word) {
  Batch batch;
  batch.fetch_add(word, 1);
  return client.submit(batch);
}

// ---- Who may come in ----

TEST(ComingIn, OnlyWithTheKeyAndToTheRightCluster) {
  const MemoryNodes nodes({.key = "right", .cluster = "blue"});
  const std::string url = nodes.tcp_url() + "?timeout=5000&cluster=blue";
  {
    const KeyFile key("right");
    EXPECT_TRUE(open_fabric(url + "&key_file=" + key.path()));
    const Error red = error_of_opening(nodes.tcp_url() + "?cluster=red&key_file=" + key.path());
    EXPECT_EQ(red.code(), ErrorCode::kDenied);
    EXPECT_THAT(red.detail(), HasSubstr("belongs to cluster 'blue', not 'red'"));
  }
  const Error without = error_of_opening(url);
  EXPECT_EQ(without.code(), ErrorCode::kDenied);
  EXPECT_THAT(without.detail(), HasSubstr("wrong key"));
  const KeyFile key("wrong");
  const Error wrong = error_of_opening(url + "&key_file=" + key.path());
  EXPECT_EQ(wrong.code(), ErrorCode::kDenied);
  EXPECT_EQ(nodes.counts(0).refused.load(), 3u);
}

TEST(ComingIn, AKeyForANodeWithoutOneIsToldApart) {
  const MemoryNodes nodes({});
  const KeyFile key("some");
  const Error error = error_of_opening(nodes.tcp_url() + "?key_file=" + key.path());
  EXPECT_EQ(error.code(), ErrorCode::kDenied);
  EXPECT_THAT(error.detail(), HasSubstr("the memory node has no key"));
}

TEST(ComingIn, KeyFilesMustBeThereAndPrivate) {
  EXPECT_THAT(error_of_opening("tcp:127.0.0.1:1?key_file=/no/such/file").detail(),
              HasSubstr("/no/such/file"));
  const KeyFile key("open to all");
  chmod(key.path().c_str(), 0644);
  EXPECT_THAT(error_of_opening("tcp:127.0.0.1:1?key_file=" + key.path()).detail(),
              HasSubstr("open to everyone"));
}

TEST(ComingIn, NobodyThere) {
  std::string url;
  {
    const MemoryNodes nodes({});
    url = nodes.tcp_url();
  }
  const Error error = error_of_opening(url + "?timeout=500");
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(error.detail(), HasSubstr("127.0.0.1"));
}

TEST(ComingIn, BadUrlsSayWhatIsWrong) {
  struct Bad {
    const char* url;
    const char* reason;
  };
  constexpr Bad kBad[] = {
      {"tcp:", "the memory nodes are missing"},
      {"tcp:localhost", "'localhost' is no address"},
      {"tcp:localhost:many", "port of 'localhost:many'"},
      {"tcp:localhost:70000", "port"},
      {"tcp:127.0.0.1:1?speed=9", "'speed' is no parameter of tcp"},
      {"rdma:", "the memory nodes are missing, as in rdma:10.0.0.1:7470"},
      {"rdma:127.0.0.1:1?speed=9", "'speed' is no parameter of rdma; those are key_file"},
      {"rdma:127.0.0.1:1?masked_cas=no", "masked_cas: 'no' is neither native nor emulated"},
      {"rdma:127.0.0.1:1?mtu=1500", "mtu: '1500' is none of 256, 512, 1024, 2048, 4096"},
      {"rdma:127.0.0.1:1?mtu=8192", "mtu: '8192' is none of"},
      {"rdma:127.0.0.1:1?mtu=large", "mtu: 'large' is none of"},
      {"tcp:127.0.0.1:1?mtu=1024", "'mtu' is no parameter of tcp"},
      {"rdma:127.0.0.1:1?port=0", "port"},
      {"tcp:127.0.0.1:1?timeout=soon", "timeout: 'soon'"},
      {"tcp:127.0.0.1:1?tls=on", "tls: it is made with the cluster's key"},
      {"tcp:127.0.0.1:1?tls=some", "tls: 'some'"},
      {"rdma:127.0.0.1:1?tls=on", "tls: it is made with the cluster's key"},
      {"mapped:unix:/no/such/socket?tls=on", "mapped goes by Unix sockets, which need none"},
      {"mapped:", "the memory nodes are missing"},
      {"mapped:127.0.0.1:7470", "is no Unix socket"},
      {"mapped:unix:", "the path must have"},
      {"mapped:unix:/no/such/socket", "cannot connect"},
  };
  for (const Bad& bad : kBad) {
    EXPECT_THAT(error_of_opening(bad.url).detail(), HasSubstr(bad.reason)) << bad.url;
  }
}

TEST(ComingIn, TheSameNodeTwiceIsNoPool) {
  const MemoryNodes nodes({});
  const std::string place = nodes.tcp_url().substr(4);
  EXPECT_THAT(error_of_opening("tcp:" + place + "," + place).detail(),
              HasSubstr("one and the same"));
}

TEST(ComingIn, APurposeThatIsNotKnownIsRefusedByItsNumber) {
  const MemoryNodes nodes({});
  const auto place = wire::parse_place(nodes.tcp_url().substr(4)).value();
  const auto link = wire::ControlLink::open(
      place, "", "", {.purpose = static_cast<wire::Purpose>(99), .joins = 1}, 20s);
  ASSERT_FALSE(link);
  EXPECT_EQ(link.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(link.error().detail(), HasSubstr("wire: purpose 99, which is not known"));
}

wire::Bytes message(wire::Kind kind, std::uint32_t says, std::size_t has) {
  const wire::Frame frame{.bytes = says, .kind = kind};
  wire::Bytes bytes(sizeof(frame) + has);
  std::memcpy(bytes.data(), &frame, sizeof(frame));
  return bytes;
}

TEST(Strangers, AreServedNothing) {
  const MemoryNodes nodes({});
  const wire::Bytes all[] = {
      message(wire::Kind::kBatch, 16, 16),        message(wire::Kind::kFence, 8, 8),
      message(wire::Kind::kLeave, 0, 0),          message(wire::Kind::kProof, 120, 120),
      message(wire::Kind::kHello, 8, 8),          message(wire::Kind::kHello, 16 << 20, 64),
      message(static_cast<wire::Kind>(77), 0, 0), wire::Bytes(4096, std::byte{'x'}),
  };
  for (const wire::Bytes& each : all) {
    Stranger stranger(nodes);
    stranger.send(each);
    EXPECT_TRUE(stranger.is_closed());
  }
  EXPECT_EQ(nodes.counts(0).broken.load(), std::size(all));
  EXPECT_EQ(nodes.counts(0).reads.load() + nodes.counts(0).writes.load(), 0u);
  EXPECT_TRUE(open_fabric(nodes.tcp_url())) << "and the node serves on";
}

TEST(Strangers, OfAnotherVersionAreToldSo) {
  const MemoryNodes nodes({});
  for (const auto& [oldest, newest] : {std::pair{7, 9}, std::pair{0, 0}}) {
    Stranger stranger(nodes);
    wire::Bytes bytes;
    wire::append(bytes, wire::Kind::kHello,
                 wire::Hello{.oldest = static_cast<std::uint16_t>(oldest),
                             .newest = static_cast<std::uint16_t>(newest)});
    stranger.send(bytes);
    wire::Bytes body;
    const auto frame = stranger.receive(body);
    ASSERT_TRUE(frame && frame->kind == wire::Kind::kRefusal);
    const Error refused =
        wire::parse_refusal(body, "",
                            wire::Hello{.oldest = static_cast<std::uint16_t>(oldest),
                                        .newest = static_cast<std::uint16_t>(newest)},
                            {});
    EXPECT_EQ(refused.code(), ErrorCode::kIncompatible);
    EXPECT_THAT(refused.detail(), HasSubstr("versions"));
  }
}

TEST(Strangers, WhoSaysNothingIsShownTheDoor) {
  MemoryNodes::Options options;
  options.server.handshake_time = 50ms;
  const MemoryNodes nodes(options);
  Stranger stranger(nodes);
  EXPECT_TRUE(stranger.is_closed());
}

TEST(Strangers, TooManyAreTurnedAway) {
  MemoryNodes::Options options;
  options.server.max_connections = 3;
  const MemoryNodes nodes(options);
  const auto fabric = open_fabric(nodes.tcp_url()).value();
  Stranger second(nodes);
  Stranger third(nodes);
  Stranger fourth(nodes);
  EXPECT_TRUE(fourth.is_closed());
  EXPECT_GE(nodes.counts(0).refused.load(), 1u);
}

// ---- Nodes that go away ----

// Those that this machine can run: rdma where it has a device.
std::vector<std::string> with_rdma(std::vector<std::string> fabrics) {
  if (pando::testing::rdma_address() != nullptr) fabrics.emplace_back("rdma");
  return fabrics;
}

class OverAFabric : public ::testing::TestWithParam<std::string> {
 protected:
  MemoryNodes::Options nodes_of(std::size_t count) const {
    return {.nodes = count, .rdma = GetParam() == "rdma", .tls = GetParam() == "tls"};
  }
  std::string url(const MemoryNodes& nodes, const std::string& timeout = "2000") const {
    const std::string words = "?timeout=" + timeout;
    if (GetParam() == "rdma") return nodes.rdma_url() + words;
    if (GetParam() == "tls") return nodes.tcp_url() + words + "&" + nodes.tls_words();
    return (GetParam() == "tcp" ? nodes.tcp_url() : nodes.mapped_url()) + words;
  }
};

class NodesThatFail : public OverAFabric {
 protected:
  std::unique_ptr<Client> open(const MemoryNodes& nodes) const {
    return std::make_unique<Client>(open_fabric(url(nodes, "1000")).value());
  }
  // A batch may be the one that finds out.
  static Status after_a_while(Client& client, Address word, ErrorCode wanted) {
    Status status;
    for (int i = 0; i < 200; ++i) {
      status = add_one(client, word);
      if (!status && status.error().code() == wanted) break;
      std::this_thread::sleep_for(10ms);
    }
    return status;
  }
};

INSTANTIATE_TEST_SUITE_P(All, NodesThatFail,
                         ::testing::ValuesIn(with_rdma({"tcp", "tls", "mapped"})),
                         [](const auto& info) { return info.param; });

TEST_P(NodesThatFail, AreUnavailableOthersGoOnAndTheyComeBack) {
  MemoryNodes nodes(nodes_of(2));
  const auto client = open(nodes);
  const Address other(1, 4096);
  client->write_word(kWord, 10);
  client->write_word(other, 20);
  nodes.stop(1);
  const auto begun = SteadyClock::now();
  const Status down = after_a_while(*client, other, ErrorCode::kUnavailable);
  ASSERT_FALSE(down);
  EXPECT_EQ(down.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(down.error().detail(), HasSubstr("memory node 1"));
  EXPECT_LT(SteadyClock::now() - begun, 20s);
  EXPECT_TRUE(add_one(*client, kWord)) << "the other node";
  nodes.start(1);
  Status back;
  for (int i = 0; i < 500 && !(back = add_one(*client, other)); ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_TRUE(back) << back.error().message();
  // What was answered is there; what was not may be.
  EXPECT_GE(client->read_word(other), 21u);
  EXPECT_EQ(client->read_word(kWord), 11u);
}

TEST_P(NodesThatFail, ThatLostTheirMemorySaySo) {
  MemoryNodes nodes(nodes_of(2));
  const auto client = open(nodes);
  client->write_word(Address(1, 4096), 20);
  nodes.stop(1);
  nodes.start(1, true);
  const Status lost = after_a_while(*client, Address(1, 4096), ErrorCode::kDataLost);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), ErrorCode::kDataLost);
  const Status still = add_one(*client, Address(1, 4096));
  ASSERT_FALSE(still);
  EXPECT_EQ(still.error().code(), ErrorCode::kDataLost);
  EXPECT_TRUE(add_one(*client, kWord)) << "the other node";
  const ClientId gone = Client(client->fabric().attach().value()).fabric().client();
  EXPECT_TRUE(client->fence(gone)) << "there is nothing to harm";
}

// Whose clients come in over a socket.
class ClientsOverSockets : public OverAFabric {};

INSTANTIATE_TEST_SUITE_P(All, ClientsOverSockets, ::testing::ValuesIn(with_rdma({"tcp", "tls"})),
                         [](const auto& info) { return info.param; });

TEST_P(ClientsOverSockets, WhatIsUnderWayWhenANodeStopsEndsInTime) {
  MemoryNodes nodes(nodes_of(1));
  Client client(open_fabric(url(nodes, "300")).value());
  client.write_word(kWord, 0);
  std::size_t ended = 0;
  const auto add_for_ever = [&]() -> Task<void> {
    Status status;
    while (status) {
      Batch batch;
      batch.fetch_add(kWord, 1);
      status = co_await client.endpoint().submit(batch);
      if (!status) {
        const bool sent = batch[0].outcome == Outcome::kIndeterminate;
        EXPECT_EQ(status.error().code(),
                  sent ? ErrorCode::kIndeterminate : ErrorCode::kUnavailable);
      }
    }
    ++ended;
  };
  for (int i = 0; i < 16; ++i) client.worker().spawn(add_for_ever());
  std::thread stopper([&] {
    std::this_thread::sleep_for(50ms);
    nodes.stop(0);
  });
  const auto begun = SteadyClock::now();
  client.worker().run();
  EXPECT_LT(SteadyClock::now() - begun, 20s);
  EXPECT_EQ(ended, 16u);
  stopper.join();
}

// ---- Fencing ----

// Nothing was under way, so nobody need hear of it.
TEST_P(ClientsOverSockets, ThatWereIdleWhenANodeWasStartedAnewGoOn) {
  MemoryNodes nodes(nodes_of(1));
  Client client(open_fabric(url(nodes)).value());
  client.write_word(kWord, 10);
  nodes.stop(0);
  nodes.start(0);
  std::this_thread::sleep_for(100ms);
  const Status added = add_one(client, kWord);
  EXPECT_TRUE(added) << added.error().message();
  EXPECT_EQ(client.read_word(kWord), 11u);
}

TEST_P(ClientsOverSockets, ThatDidNotLookForLongTakeWhatCameInTime) {
  const MemoryNodes nodes(nodes_of(1));
  Client client(open_fabric(url(nodes, "500")).value());
  client.write_word(kWord, 10);
  Status added = fail(ErrorCode::kUnavailable);
  const auto add = [&]() -> Task<void> {
    Batch batch;
    batch.fetch_add(kWord, 1);
    added = co_await client.endpoint().submit(batch);
  };
  client.worker().spawn(add());
  client.worker().run_ready();
  std::this_thread::sleep_for(1500ms);
  client.worker().run();
  EXPECT_TRUE(added) << added.error().message();
}

TEST_P(ClientsOverSockets, ThatWereShutOutStayOut) {
  const MemoryNodes nodes(nodes_of(2));
  Client watcher(open_fabric(url(nodes)).value());
  Client victim(open_fabric(url(nodes)).value());
  victim.write_word(kWord, 1);
  victim.write_word(Address(1, 4096), 1);
  ASSERT_TRUE(watcher.fence(victim.fabric().client()));
  for (int i = 0; i < 3; ++i) {
    for (const Address word : {kWord, Address(1, 4096)}) {
      const Status status = add_one(victim, word);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code(), ErrorCode::kFenced);
    }
  }
  task::Worker worker;
  const auto another = victim.fabric().open_endpoint(worker).value();
  Batch batch;
  batch.fetch_add(kWord, 1);
  const auto submit = [&]() -> Task<Status> { co_return co_await another->submit(batch); };
  const Status anew = worker.run(submit());
  ASSERT_FALSE(anew);
  EXPECT_EQ(anew.error().code(), ErrorCode::kFenced) << "by a new connection, too";
  EXPECT_EQ(watcher.read_word(kWord), 1u);
  EXPECT_EQ(watcher.read_word(Address(1, 4096)), 1u);
  EXPECT_TRUE(victim.fabric().attach()) << "as somebody else it may come in";
}

TEST(Fencing, AMappedClientIsThereAsLongAsItsProcess) {
  const MemoryNodes nodes({});
  Client watcher(open_fabric(nodes.tcp_url()).value());
  auto victim = std::make_unique<Client>(open_fabric(nodes.mapped_url()).value());
  const ClientId id = victim->fabric().client();
  const Status busy = watcher.fence(id);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(busy.error().detail(), HasSubstr(std::to_string(getpid())));
  EXPECT_TRUE(add_one(*victim, kWord));
  victim.reset();
  EXPECT_TRUE(watcher.fence(id));
}

// Found by fuzz_node_conversation: a signal of the application's counted as no answer.
TEST(Signals, DisturbNobodyWhoWaitsForANode) {
  const MemoryNodes nodes({});
  struct sigaction handler = {};
  handler.sa_handler = [](int) {};
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGALRM, &handler, &before), 0);
  const itimerval often = {.it_interval = {.tv_sec = 0, .tv_usec = 50},
                           .it_value = {.tv_sec = 0, .tv_usec = 50}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  for (int i = 0; i < 100; ++i) {
    const auto fabric = open_fabric(nodes.tcp_url());
    EXPECT_TRUE(fabric) << fabric.error().message();
    if (!fabric) break;
  }
  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

// Found by fuzz_node_conversation: to find out whether it was still there the node served it, and
// so came to the same message again.
TEST(Fencing, AMappedClientThatFencesItselfIsBusy) {
  const MemoryNodes nodes({});
  const wire::Place place = wire::parse_place(nodes.mapped_url().substr(7)).value();
  auto link =
      wire::ControlLink::open(place, "", "", {.purpose = wire::Purpose::kMapping, .joins = 1}, 20s)
          .value();
  const Status fenced = link.fence(link.welcome().client, 20s);
  ASSERT_FALSE(fenced);
  EXPECT_EQ(fenced.error().code(), ErrorCode::kBusy);
}

// ---- Leaving, and being forgotten ----

namespace {

// Who comes over a socket, and says little.
class Comer {
 public:
  explicit Comer(const MemoryNodes& nodes)
      : place_(wire::parse_place(nodes.tcp_url().substr(4)).value()) {}
  Result<wire::ControlLink> open(ClientId client, std::uint32_t generation, bool joins) const {
    return wire::ControlLink::open(place_, "", "",
                                   {.client = client,
                                    .generation = generation,
                                    .purpose = wire::Purpose::kVerbs,
                                    .joins = static_cast<std::uint8_t>(joins ? 1 : 0)},
                                   20s);
  }

 private:
  wire::Place place_;
};

}  // namespace

TEST(Leaving, EndsEveryConnectionOfTheClient) {
  const MemoryNodes nodes({});
  const Comer comer(nodes);
  auto first = comer.open(0, 0, true).value();
  const ClientId client = first.welcome().client;
  auto verbs = comer.open(client, 1, false).value();
  auto others = comer.open(0, 0, true).value();
  ASSERT_TRUE(first.leave(20s));
  EXPECT_FALSE(verbs.stay(true, 20s)) << "closed";
  EXPECT_TRUE(others.stay(true, 20s));
  const auto late = comer.open(client, 1, false);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kFenced);
}

// The fence of one who has said that it leaves once answered "done" and closed nothing.
TEST(Leaving, IsNoProtectionFromBeingFenced) {
  const MemoryNodes nodes({});
  const Comer comer(nodes);
  auto watcher = comer.open(0, 0, true).value();
  auto left = comer.open(0, 1, true).value();
  ASSERT_TRUE(left.leave(20s));
  ASSERT_TRUE(watcher.fence(left.welcome().client, 20s));
  EXPECT_FALSE(left.stay(true, 20s)) << "shut out";
}

// Clients that die on their way in are in no pool, so that nobody would ever fence them.
TEST(Forgetting, ThoseWhoDieOnTheirWayInMakeRoom) {
  const MemoryNodes nodes({});
  const Comer comer(nodes);
  auto stays = comer.open(0, 0, true).value();
  ASSERT_TRUE(stays.stay(true, 20s));
  const ClientId staying = stays.welcome().client;
  {
    auto gone = std::move(stays);
  }
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(comer.open(0, 0, true)) << i;
  EXPECT_TRUE(comer.open(0, 0, true));
  EXPECT_TRUE(comer.open(staying, 0, false)) << "who stays is remembered without a connection";
}

// What a client sent by a connection that broke happens before what it sends by the next, or never.
TEST(Generations, ANewerOneEndsTheConnectionsOfOlderOnes) {
  const MemoryNodes nodes({});
  const wire::Place place = wire::parse_place(nodes.tcp_url().substr(4)).value();
  const auto open = [&](ClientId client, std::uint32_t generation, bool joins) {
    return wire::ControlLink::open(place, "", "",
                                   {.client = client,
                                    .generation = generation,
                                    .purpose = wire::Purpose::kVerbs,
                                    .joins = static_cast<std::uint8_t>(joins ? 1 : 0)},
                                   20s);
  };
  auto first = open(0, 1, true).value();
  const ClientId client = first.welcome().client;
  auto same = open(client, 1, false).value();
  EXPECT_TRUE(first.stay(true, 20s)) << "both live";
  auto newer = open(client, 2, false).value();
  EXPECT_FALSE(first.stay(true, 20s));
  EXPECT_FALSE(same.stay(true, 20s));
  EXPECT_TRUE(newer.stay(true, 20s));
  // Its SYN was lost and sent again: it began before the break.
  const auto late = open(client, 1, false);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(late.error().detail(), HasSubstr("renewed"));
  EXPECT_TRUE(newer.stay(true, 20s)) << "it goes on";
  EXPECT_TRUE(open(client, 0, false)) << "those without verbs have no generation";
  // What was said over an older connection must not be heard after what a newer one says.
  const auto control = [&] {
    return wire::ControlLink::open(place, "", "",
                                   {.client = client, .purpose = wire::Purpose::kControl}, 20s);
  };
  auto before = control().value();
  EXPECT_TRUE(before.stay(true, 20s));
  auto after = control().value();
  EXPECT_FALSE(before.stay(true, 20s));
  EXPECT_TRUE(after.stay(false, 20s));
  EXPECT_TRUE(newer.stay(true, 20s)) << "and verbs go on";
  const auto unknown = open(client + 7, 1, false);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::kFenced);
}

// ---- Both ways to one memory ----

TEST(MixedClients, AtomicsOfBothKindsAreExact) {
  const MemoryNodes nodes({});
  constexpr std::uint64_t kRounds = 2'000;
  const auto add_often = [](const std::string& url) {
    Client client(open_fabric(url).value());
    for (std::uint64_t i = 0; i < kRounds; ++i) ASSERT_TRUE(add_one(client, kWord));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(add_often, nodes.tcp_url());
    threads.emplace_back(add_often, nodes.mapped_url());
  }
  for (auto& thread : threads) thread.join();
  Client reader(open_fabric(nodes.tcp_url()).value());
  EXPECT_EQ(reader.read_word(kWord), 4 * kRounds);
}

// ---- HTTP ----

std::string get(const std::string& place, const std::string& request) {
  const wire::Socket socket = wire::begin_connect(wire::parse_place(place).value()).value();
  pollfd waiting = {.fd = socket.get(), .events = POLLOUT, .revents = 0};
  ::poll(&waiting, 1, 20'000);
  (void)socket.send(std::as_bytes(std::span(request)));
  std::string answer;
  std::array<std::byte, 4096> bytes;
  waiting.events = POLLIN;
  while (::poll(&waiting, 1, 20'000) > 0) {
    const auto got = socket.receive(bytes);
    if (!got) break;
    answer.append(reinterpret_cast<const char*>(bytes.data()), *got);
  }
  return answer;
}

TEST(Http, TellsMetricsAndHealth) {
  const MemoryNodes nodes({});
  Client client(open_fabric(nodes.tcp_url()).value());
  client.write_word(kWord, 1);
  EXPECT_EQ(client.read_word(kWord), 1u);
  const std::string metrics = get(nodes.http(0), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(metrics, HasSubstr("200 OK"));
  EXPECT_THAT(metrics, HasSubstr("pando_node_verbs_total{kind=\"read\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("pando_node_verbs_total{kind=\"write\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("pando_node_clients 1\n"));
  EXPECT_THAT(metrics, HasSubstr("pando_node_memory_bytes 16777216\n"));
  EXPECT_THAT(get(nodes.http(0), "GET /health HTTP/1.0\r\n\r\n"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(get(nodes.http(0), "GET /else HTTP/1.1\r\n\r\n"), HasSubstr("404"));
  EXPECT_THAT(get(nodes.http(0), "POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("405"));
  EXPECT_EQ(get(nodes.http(0), std::string(9000, 'x')), "");
}

}  // namespace
}  // namespace pando::fabric
