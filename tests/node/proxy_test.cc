// The proxy of the tests (support/proxy.h) does what it is told, and says what it does.

#include "support/proxy.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <thread>

#include "fabric/conformance.h"
#include "fabric/open.h"
#include "fabric/wire/messages.h"
#include "fabric/wire/socket.h"
#include "support/conformance.h"
#include "support/memory_nodes.h"
#include "support/scale.h"

namespace pando::testing {
namespace {

using namespace std::chrono_literals;
using fabric::wire::Bytes;
using fabric::wire::Frame;
using fabric::wire::Socket;
using Side = Proxy::Side;
using Way = Proxy::Way;

// One end of a connection. Messages are texts.
class End {
 public:
  explicit End(Socket socket) : socket_(std::move(socket)) {}
  static End connected_to(const std::string& place) {
    return End(fabric::wire::begin_connect(fabric::wire::parse_place(place).value()).value());
  }

  void say(std::string_view text) const {
    ASSERT_TRUE(fabric::wire::wait_for(socket_.get(), POLLOUT, later()));
    const Frame frame{.bytes = static_cast<std::uint32_t>(text.size()),
                      .kind = fabric::wire::Kind::kBatch};
    Bytes bytes(sizeof(frame) + text.size());
    std::memcpy(bytes.data(), &frame, sizeof(frame));
    std::memcpy(bytes.data() + sizeof(frame), text.data(), text.size());
    ASSERT_EQ(socket_.send(bytes), bytes.size());
  }
  // The next message; "(end)" and "(reset)" where the connection is at its end.
  std::string hear() {
    for (;;) {
      const auto frame = fabric::wire::parse_frame(inbox_.bytes(), 1 << 20).value();
      if (frame) {
        const auto body = inbox_.bytes().subspan(sizeof(Frame), frame->bytes);
        std::string text(reinterpret_cast<const char*>(body.data()), body.size());
        inbox_.drop(sizeof(Frame) + frame->bytes);
        return text;
      }
      if (!fabric::wire::wait_for(socket_.get(), POLLIN, later())) return "(nothing)";
      std::array<std::byte, 4096> bytes;
      const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got == 0) return "(end)";
      if (got < 0) return errno == ECONNRESET ? "(reset)" : "(error)";
      inbox_.put({bytes.data(), static_cast<std::size_t>(got)});
    }
  }
  // Nothing is there to hear now.
  bool is_quiet() const {
    pollfd waiting = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 30) == 0;
  }
  void close() { socket_.close(); }
  Socket& socket() { return socket_; }

 private:
  static std::chrono::steady_clock::time_point later() {
    return std::chrono::steady_clock::now() + 20s;
  }
  Socket socket_;
  fabric::wire::Inbox inbox_;
};

class ProxyTest : public ::testing::Test {
 protected:
  static std::string place_of(const Socket& listener) {
    return "127.0.0.1:" + std::to_string(fabric::wire::port_of(listener));
  }
  End next_at_node() const {
    EXPECT_TRUE(
        fabric::wire::wait_for(node_.get(), POLLIN, std::chrono::steady_clock::now() + 20s));
    return End(fabric::wire::accept_from(node_));
  }
  bool nobody_at_node() const {
    pollfd waiting = {.fd = node_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 30) == 0;
  }

  Socket node_ = fabric::wire::listen_at({.host = "127.0.0.1", .port = "0", .path = ""}).value();
  Proxy proxy_{place_of(node_)};
};

TEST_F(ProxyTest, BytesGoBothWaysAndMessagesAreCounted) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  client.say("one");
  client.say("");
  node.say(std::string(100'000, 'x'));
  EXPECT_EQ(node.hear(), "one");
  EXPECT_EQ(node.hear(), "");
  EXPECT_EQ(client.hear(), std::string(100'000, 'x'));
  EXPECT_EQ(proxy_.connections(), 1u);
  EXPECT_EQ(proxy_.messages(0, Way::kUp), 2u);
  EXPECT_EQ(proxy_.messages(0, Way::kDown), 1u);
  EXPECT_EQ(proxy_.busiest(), 0u);
  EXPECT_EQ(proxy_.counts().bytes_up, 2 * sizeof(Frame) + 3);
  client.close();
  EXPECT_EQ(node.hear(), "(end)");
  EXPECT_FALSE(proxy_.is_open(0));
  EXPECT_EQ(proxy_.busiest(), 1u) << "none is open";
}

TEST_F(ProxyTest, WhatIsHeldBackIsDeliveredThoughItsSenderIsGone) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  proxy_.hold(0, Way::kUp, 1);
  client.say("passes");
  client.say("held");
  client.say("held, too");
  EXPECT_EQ(node.hear(), "passes");
  EXPECT_TRUE(eventually([&] { return proxy_.messages(0, Way::kUp) == 3; }));
  node.say("the other way is free");
  EXPECT_EQ(client.hear(), "the other way is free");
  client.close();
  EXPECT_TRUE(eventually([&] { return !proxy_.is_open(0); }));
  EXPECT_TRUE(node.is_quiet());
  EXPECT_EQ(proxy_.waiting(0, Way::kUp), 2 * sizeof(Frame) + 13);
  proxy_.release(0, Way::kUp);
  EXPECT_EQ(node.hear(), "held");
  EXPECT_EQ(node.hear(), "held, too");
  EXPECT_EQ(node.hear(), "(end)");
}

TEST_F(ProxyTest, BothSidesAreCut) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  proxy_.hold(0, Way::kUp);
  client.say("never heard");
  EXPECT_TRUE(eventually([&] { return proxy_.waiting(0, Way::kUp) > 0; }));
  proxy_.cut(0, Side::kBoth);
  EXPECT_EQ(client.hear(), "(reset)");
  EXPECT_EQ(node.hear(), "(reset)");
  EXPECT_EQ(proxy_.counts().cut, 1u);
}

TEST_F(ProxyTest, OneSideIsCutAndTheOtherHearsWhatItSaid) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  proxy_.hold(0, Way::kUp);
  client.say("late");
  EXPECT_TRUE(eventually([&] { return proxy_.waiting(0, Way::kUp) > 0; }));
  proxy_.cut(0, Side::kClient);
  EXPECT_EQ(client.hear(), "(reset)");
  EXPECT_TRUE(node.is_quiet());
  proxy_.release(0, Way::kUp);
  EXPECT_EQ(node.hear(), "late");
  EXPECT_EQ(node.hear(), "(end)");
}

TEST_F(ProxyTest, HalfOfAConnectionEnds) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  client.say("before");
  EXPECT_TRUE(eventually([&] { return proxy_.messages(0, Way::kUp) == 1; }));
  proxy_.end(0, Way::kUp);
  EXPECT_EQ(node.hear(), "before");
  EXPECT_EQ(node.hear(), "(end)");
  client.say("lost");
  node.say("still heard");
  EXPECT_EQ(client.hear(), "still heard");
}

TEST_F(ProxyTest, DelaysKeepTheOrder) {
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  const auto begun = std::chrono::steady_clock::now();
  proxy_.delay(0, Way::kUp, 50ms);
  client.say("slow");
  EXPECT_TRUE(eventually([&] { return proxy_.messages(0, Way::kUp) == 1; }));
  proxy_.delay(0, Way::kUp, 0ms);
  client.say("behind it");
  EXPECT_EQ(node.hear(), "slow");
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 50ms);
  EXPECT_EQ(node.hear(), "behind it");
}

TEST_F(ProxyTest, TheEntranceRefusesHangsAndOpens) {
  proxy_.set_entrance(Proxy::Entrance::kRefuses);
  const auto place = fabric::wire::parse_place(proxy_.place()).value();
  for (int i = 0; i < 2; ++i) {
    const auto refused = fabric::wire::begin_connect(place);
    if (!refused) continue;  // at once
    ASSERT_TRUE(
        fabric::wire::wait_for(refused->get(), POLLOUT, std::chrono::steady_clock::now() + 20s));
    EXPECT_FALSE(fabric::wire::connected(*refused, place));
  }
  proxy_.set_entrance(Proxy::Entrance::kHangs);
  End client = End::connected_to(proxy_.place());
  client.say("hello?");
  EXPECT_TRUE(nobody_at_node());
  EXPECT_EQ(proxy_.connections(), 0u);
  proxy_.set_entrance(Proxy::Entrance::kOpen);
  EXPECT_EQ(next_at_node().hear(), "hello?");
  EXPECT_EQ(proxy_.counts().refused, 1u);
  EXPECT_EQ(proxy_.counts().hung, 1u);
}

TEST_F(ProxyTest, NewcomersAreHeldBack) {
  proxy_.hold_newcomers(Way::kUp, 1);
  End client = End::connected_to(proxy_.place());
  End node = next_at_node();
  client.say("hello");
  client.say("I am");
  EXPECT_EQ(node.hear(), "hello");
  EXPECT_TRUE(node.is_quiet());
  proxy_.let_newcomers_pass();
  End next = End::connected_to(proxy_.place());
  End at_node = next_at_node();
  next.say("hello");
  next.say("I am another");
  EXPECT_EQ(at_node.hear(), "hello");
  EXPECT_EQ(at_node.hear(), "I am another");
  EXPECT_TRUE(node.is_quiet()) << "who came before is held on";
}

// In all the states in which poll would tell of a descriptor again and again.
TEST_F(ProxyTest, ItSleepsWhileItHoldsThingsUp) {
  End gone = End::connected_to(proxy_.place());
  End node_of_gone = next_at_node();
  End alive = End::connected_to(proxy_.place());
  End node_of_alive = next_at_node();
  End cut_off = End::connected_to(proxy_.place());
  End node_of_cut_off = next_at_node();
  for (std::size_t i = 0; i < 3; ++i) proxy_.hold(i, Way::kUp);
  for (End* const each : {&gone, &alive, &cut_off}) each->say("held");
  EXPECT_TRUE(eventually([&] { return proxy_.waiting(2, Way::kUp) > 0; }));
  gone.close();
  proxy_.end(1, Way::kDown);
  node_of_alive.say("nobody reads this");
  proxy_.cut(2, Side::kClient);
  node_of_cut_off.close();
  proxy_.set_entrance(Proxy::Entrance::kHangs);
  const End waits = End::connected_to(proxy_.place());
  std::this_thread::sleep_for(50ms);
  const std::clock_t before = std::clock();  // processor time
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.2);
}

// What a client was told happened has happened once, what it was told is unknown at most once.
TEST(ProxyTrouble, VerbsHappenOnceOrNotAtAll) {
  const MemoryNodes nodes({});
  Proxy proxy(nodes.tcp_url().substr(4));
  fabric::Client client(fabric::open_fabric("tcp:" + proxy.place() + "?timeout=300").value());
  fabric::Client reader(fabric::open_fabric(nodes.tcp_url()).value());
  constexpr fabric::Address kWord(0, 4096);
  reader.write_word(kWord, 0);
  constexpr std::uint64_t kSeed = 12;
  std::printf("trouble of seed %lu\n", kSeed);
  proxy.begin_trouble({.seed = kSeed, .every = 5ms, .longest = 20ms});
  std::uint64_t done = 0;
  std::uint64_t unknown = 0;
  const std::uint64_t wanted = scaled(3'000, 300);
  while (done < wanted || proxy.counts().cut < 10) {
    fabric::Batch batch;
    batch.fetch_add(kWord, 1);
    const Status status = client.submit(batch);
    done += status ? 1 : 0;
    unknown += batch[0].outcome == fabric::Outcome::kIndeterminate ? 1 : 0;
    if (!status) {
      ASSERT_TRUE(status.error().code() == ErrorCode::kUnavailable ||
                  status.error().code() == ErrorCode::kIndeterminate)
          << status.error().message();
    }
  }
  proxy.end_trouble();
  // What is still on its way has happened once the client's next verb has.
  while (true) {
    fabric::Batch batch;
    batch.fetch_add(kWord, 1);
    const Status status = client.submit(batch);
    unknown += batch[0].outcome == fabric::Outcome::kIndeterminate ? 1 : 0;
    if (!status) continue;
    ++done;
    break;
  }
  const std::uint64_t sum = reader.read_word(kWord);
  EXPECT_GE(sum, done);
  EXPECT_LE(sum, done + unknown);
  const Proxy::Counts counts = proxy.counts();
  std::printf("%lu done, %lu unknown; %lu cuts, %lu ends, %lu holds, %lu delays\n", done, unknown,
              counts.cut, counts.ended, counts.held, counts.delayed);
}

}  // namespace
}  // namespace pando::testing
