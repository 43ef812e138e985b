// Simulated sockets, by themselves and below the real tcp client and memory-node server.
#include "fabric/sim/sockets.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/conformance.h"
#include "fabric/sim/tcp_simulation.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::sim {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class Sockets : public ::testing::Test {
 protected:
  explicit Sockets(const SocketOptions& options = {}) : network_(engine_, options) {
    listener_ = wire::listen_at(place(), server_).value();
  }

  static wire::Place place() { return {.host = "server", .port = "7470", .path = {}}; }
  void pass(Time time) {
    engine_.run_until([] { return false; }, engine_.time() + time);
  }
  // Both ends of a new connection.
  std::pair<wire::Socket, wire::Socket> connect() {
    wire::Socket client = wire::begin_connect(place(), nullptr, client_).value();
    pass(kMillisecond);
    return {std::move(client), wire::accept_from(listener_)};
  }
  static std::string read_all(const wire::Socket& socket) {
    std::string text;
    std::byte piece[1000];
    while (const auto got = socket.receive(piece)) {
      if (*got == 0) break;
      text.append(reinterpret_cast<const char*>(piece), *got);
    }
    return text;
  }

  Engine engine_;
  SocketNetwork network_;
  Machine& server_ = network_.add_machine("server");
  Machine& client_ = network_.add_machine("client");
  wire::Socket listener_;
};

TEST_F(Sockets, CarryBytesBothWaysAndTakeTime) {
  auto [client, server] = connect();
  ASSERT_TRUE(server);
  EXPECT_TRUE(wire::connected(client, place()));
  EXPECT_EQ(client.send(bytes_of("question")), 8u);
  EXPECT_EQ(read_all(server), "");
  pass(kMillisecond);
  EXPECT_EQ(read_all(server), "question");
  EXPECT_EQ(server.send(bytes_of("answer")), 6u);
  pass(kMillisecond);
  EXPECT_EQ(read_all(client), "answer");
}

TEST_F(Sockets, EndAfterWhatWasSent) {
  auto [client, server] = connect();
  client.send(bytes_of("last words"));
  client.close();
  EXPECT_FALSE(server.ended());
  pass(kMillisecond);
  EXPECT_EQ(read_all(server), "last words");
  EXPECT_TRUE(server.ended());
  server.close();
  pass(kMillisecond);
  EXPECT_EQ(network_.connections(), 0u);
}

TEST_F(Sockets, AreResetWhereNobodyReads) {
  auto [client, server] = connect();
  server.close();
  client.send(bytes_of("to nobody"));
  pass(kMillisecond);
  EXPECT_FALSE(client.send(bytes_of("more")));
  EXPECT_EQ(errno, ECONNRESET);

  auto [second, unread] = connect();
  second.send(bytes_of("never read"));
  pass(kMillisecond);
  unread.close();
  pass(kMillisecond);
  EXPECT_FALSE(second.send(bytes_of("more")));
}

TEST_F(Sockets, AreRefusedWhereNobodyListens) {
  listener_.close();
  const wire::Socket client = wire::begin_connect(place(), nullptr, client_).value();
  EXPECT_EQ(client.send(bytes_of("too early")), 0u);
  EXPECT_TRUE(client.wait_for(POLLOUT, client_.now() + std::chrono::milliseconds(1)));
  EXPECT_FALSE(wire::connected(client, place()));
}

TEST_F(Sockets, HangWhereNothingAnswers) {
  server_.switch_off();
  const wire::Socket client = wire::begin_connect(place(), nullptr, client_).value();
  const task::TimePoint until = client_.now() + std::chrono::milliseconds(100);
  EXPECT_FALSE(client.wait_for(POLLOUT, until));
  EXPECT_EQ(client_.now(), until);
  network_.hang_connects(server_, client_, kMillisecond);
  server_.switch_on();
  const wire::Socket late = wire::begin_connect(place(), nullptr, client_).value();
  EXPECT_FALSE(late.wait_for(POLLOUT, client_.now() + std::chrono::milliseconds(100)));
  EXPECT_EQ(network_.coverage().hung_connects, 1u);
}

TEST_F(Sockets, AreHeldOneWayAtATime) {
  std::vector<std::pair<wire::Socket, wire::Socket>> all;
  for (int i = 0; i < 2; ++i) all.push_back(connect());
  ASSERT_TRUE(network_.hold_one_way(client_, server_, 5 * kMillisecond));
  for (auto& [client, server] : all) {
    client.send(bytes_of("there"));
    server.send(bytes_of("back"));
  }
  const auto arrived = [&] {
    int count = 0;
    for (auto& [client, server] : all) {
      count += client.wait_for(POLLIN, client_.now()) ? 1 : 0;
      count += server.wait_for(POLLIN, server_.now()) ? 1 : 0;
    }
    return count;
  };
  pass(4 * kMillisecond);
  EXPECT_EQ(arrived(), 3);
  pass(kMillisecond);
  EXPECT_EQ(arrived(), 4);
}

TEST_F(Sockets, ArriveAfterACut) {
  auto [client, server] = connect();
  network_.cut(client_, server_, 2 * kMillisecond);
  client.send(bytes_of("late"));
  client.close();  // what is under way is not lost with the socket
  pass(kMillisecond);
  EXPECT_EQ(read_all(server), "");
  pass(10 * kMillisecond);
  EXPECT_EQ(read_all(server), "late");
  EXPECT_TRUE(server.ended());
}

TEST_F(Sockets, AreHalfClosed) {
  auto [client, server] = connect();
  server.end_sending();
  pass(kMillisecond);
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(client.send(bytes_of("still there")), 11u);
  pass(kMillisecond);
  EXPECT_EQ(read_all(server), "still there");
  EXPECT_FALSE(server.send(bytes_of("no more")));
}

TEST_F(Sockets, DieWithoutAWord) {
  auto [client, server] = connect();
  ASSERT_TRUE(network_.end_silently(client_, server_, 5 * kMillisecond));
  EXPECT_EQ(client.send(bytes_of("into the void")), 13u);
  EXPECT_FALSE(server.ended());
  pass(5 * kMillisecond);
  EXPECT_FALSE(client.send(bytes_of("more")));
  EXPECT_TRUE(server.ended());
}

TEST_F(Sockets, OfAMachineThatGoesAreNoticedInTime) {
  auto [client, server] = connect();
  client_.switch_off();
  pass(kMillisecond);
  EXPECT_FALSE(server.ended());
  pass(100 * kMillisecond);
  EXPECT_TRUE(server.ended());
  EXPECT_FALSE(client.send(bytes_of("anyone?")));
}

class RoughSockets : public Sockets {
 protected:
  RoughSockets() : Sockets({.seed = 7, .cut = 60, .delay = 40, .window = 1000}) {}
};

TEST_F(RoughSockets, KeepTheOrderAndLoseNothing) {
  auto [client, server] = connect();
  std::string sent;
  for (int i = 0; i < 5000; ++i) sent += static_cast<char>('a' + i % 26);
  std::string received;
  std::size_t at = 0;
  bool was_full = false;
  bool was_cut = false;
  while (received.size() < sent.size()) {
    const std::string_view rest = std::string_view(sent).substr(at);
    const auto moved = client.send(bytes_of(rest));
    ASSERT_TRUE(moved);
    was_full |= *moved == 0 && !rest.empty();
    was_cut |= *moved > 0 && *moved < rest.size();
    at += *moved;
    pass(10 * kMicrosecond);
    if (was_full) received += read_all(server);
  }
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(was_full);
  EXPECT_TRUE(was_cut);
}

// ---- Below the real client and server ----

std::unique_ptr<Simulation> make(std::uint32_t nodes, const SocketOptions& sockets) {
  return make_tcp_simulation({.node_bytes = 16 << 20,
                              .nodes = nodes,
                              .onchip_bytes = 64 << 10,
                              .sockets = sockets,
                              .timeout = std::chrono::milliseconds(100)})
      .value();
}

TEST(TcpSimulation, ReadsWhatWasWritten) {
  const auto simulation = make(1, {});
  const auto fabric = simulation->open_client().value();
  task::Worker worker(fabric->clock());
  const auto endpoint = fabric->open_endpoint(worker).value();
  Buffer buffer = endpoint->buffer(64);
  std::memset(buffer.data(), 7, 64);
  const auto round_trip = [&](bool write) -> Task<Status> {
    Batch batch;
    if (write) batch.write(Address(0, 4096), buffer.data(), 64);
    if (!write) batch.read(Address(0, 4096), buffer.data(), 64);
    co_return co_await endpoint->submit(batch);
  };
  const Time before = simulation->time();
  EXPECT_TRUE(worker.run(round_trip(true)));
  std::memset(buffer.data(), 0, 64);
  EXPECT_TRUE(worker.run(round_trip(false)));
  EXPECT_EQ(buffer.data()[63], std::byte{7});
  EXPECT_GT(simulation->time(), before);
  EXPECT_LT(simulation->time(), before + kMillisecond);
}

TEST(TcpSimulation, ForgetsThoseWhoDieOnTheirWayIn) {
  const auto simulation = make(2, {});
  for (std::uint64_t steps = 1; steps < 12; ++steps) simulation->visit(steps);
  EXPECT_EQ(simulation->left_behind(), std::vector<std::string>{});
  EXPECT_GT(simulation->coverage().forgotten, 0u);
}

// Its fabrics use it as long as they live.
FabricUnderTest tcp_on(std::string name, std::uint32_t nodes, const SocketOptions& sockets) {
  const auto open = [nodes, sockets]() -> Result<std::unique_ptr<Fabric>> {
    static std::deque<std::unique_ptr<Simulation>> simulations;
    simulations.push_back(make(nodes, sockets));
    return simulations.back()->open_client();
  };
  return {.name = std::move(name), .open = open, .threaded = false};
}

INSTANTIATE_TEST_SUITE_P(
    SimulatedSockets, FabricConformance,
    ::testing::Values(tcp_on("calm", 1, {}),
                      tcp_on("rough_3_nodes", 3,
                             {.seed = 3, .cut = 50, .delay = 20, .window = 8 << 10})),
    name_of_fabric);

}  // namespace
}  // namespace pando::fabric::sim
