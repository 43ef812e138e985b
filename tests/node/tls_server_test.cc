// Memory nodes that let clients in by TLS alone, and who comes there with what.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "fabric/conformance.h"
#include "node/peers.h"
#include "support/memory_nodes.h"

namespace pando::fabric {
namespace {

using pando::testing::MemoryNodes;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr Address kWordByTls(0, 4096);
const std::string kKey = "a key of the tests";

wire::Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Errors come at once, not after this.
constexpr const char* kLong = "?timeout=20000&";

TEST(TlsNode, LetsNobodyInWithoutTls) {
  const MemoryNodes nodes({.tls = true});
  const auto begun = std::chrono::steady_clock::now();
  const Error error = error_of_opening(nodes.tcp_url() + kLong + "key_file=" + nodes.key_file());
  EXPECT_EQ(error.code(), ErrorCode::kDenied);
  EXPECT_THAT(error.detail(), HasSubstr("give tls=on"));
  EXPECT_EQ(nodes.counts(0).refused.load(), 1u);
  EXPECT_EQ(nodes.counts(0).connections.load(), 0u);
  EXPECT_TRUE(open_fabric(nodes.tcp_url() + kLong + nodes.tls_words()));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

TEST(TlsNode, IsWhatAClientWithTlsLooksFor) {
  const MemoryNodes nodes({.key = kKey});
  const auto begun = std::chrono::steady_clock::now();
  const Error error = error_of_opening(nodes.tcp_url() + kLong + nodes.tls_words());
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(error.detail(), HasSubstr("start it with --tls on, or leave tls=on out of the URL"));
  EXPECT_EQ(nodes.counts(0).broken.load(), 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
}

TEST(TlsNode, LetsNobodyInWithAnotherKeyOrForAnotherCluster) {
  const MemoryNodes nodes({.cluster = "blue", .tls = true});
  const KeyFile wrong("another key");
  const Error denied =
      error_of_opening(nodes.tcp_url() + kLong + "cluster=blue&tls=on&key_file=" + wrong.path());
  EXPECT_EQ(denied.code(), ErrorCode::kDenied);
  EXPECT_THAT(denied.detail(), HasSubstr("another key"));
  // The node counts after it has told the client.
  while (nodes.counts(0).refused.load() == 0) std::this_thread::yield();
  EXPECT_EQ(nodes.counts(0).refused.load(), 1u);
  const Error red = error_of_opening(nodes.tcp_url() + kLong + "cluster=red&" + nodes.tls_words());
  EXPECT_EQ(red.code(), ErrorCode::kDenied);
  EXPECT_THAT(red.detail(), HasSubstr("belongs to cluster 'blue', not 'red'"));
  EXPECT_EQ(nodes.counts(0).refused.load(), 2u);
}

TEST(TlsNode, ServesUnixSocketsAndHttpAsEver) {
  const MemoryNodes nodes({.tls = true});
  Client mapped(open_fabric(nodes.mapped_url() + "?key_file=" + nodes.key_file()).value());
  Client by_tls(open_fabric(nodes.tcp_url() + "?" + nodes.tls_words()).value());
  by_tls.write_word(kWordByTls, 7);
  EXPECT_EQ(mapped.read_word(kWordByTls), 7u);
  const wire::Socket http = wire::begin_connect(wire::parse_place(nodes.http(0)).value()).value();
  const auto until = std::chrono::steady_clock::now() + 20s;
  ASSERT_TRUE(wire::wait_for(http.get(), POLLOUT, until));
  ASSERT_TRUE(http.send(bytes_of("GET /health HTTP/1.0\r\n\r\n")));
  ASSERT_TRUE(wire::wait_for(http.get(), POLLIN, until));
  wire::Inbox answer;
  ASSERT_TRUE(answer.fill(http));
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(answer.bytes().data()), 15),
              HasSubstr("HTTP/1.1 200 OK"));
}

TEST(TlsNode, NeedsAKey) {
  const MemoryNodes nodes({});
  const node::ServerOptions server{.listen = {{.host = "127.0.0.1", .port = "0", .path = ""}},
                                   .tls = true};
  const auto opened = node::Server::open(nodes.memory(0), server);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kInvalidArgument);
}

TEST(TlsNode, ClosesWhoSpeaksGarbage) {
  const MemoryNodes nodes({.tls = true});
  const wire::Bytes all[] = {
      wire::Bytes(4096, std::byte{'x'}),
      wire::Bytes(4096, wire::kTlsFirstByte),
      bytes_of(std::string_view("\x16\x03\x01\0\x05hello", 10)),
      bytes_of(std::string_view("\x16\x03\x01\xFF\xFF", 5)),
  };
  for (const wire::Bytes& each : all) {
    Stranger stranger(nodes);
    stranger.send(each);
    EXPECT_TRUE(stranger.is_closed());
  }
  EXPECT_EQ(nodes.counts(0).broken.load(), std::size(all));
  EXPECT_EQ(nodes.counts(0).connections.load(), 0u);
  EXPECT_TRUE(open_fabric(nodes.tcp_url() + "?" + nodes.tls_words())) << "and the node serves on";
}

// Garbage after TLS was agreed on is no better.
TEST(TlsNode, ClosesWhoSpeaksGarbageWithinTls) {
  const MemoryNodes nodes({.tls = true});
  const auto context = wire::TlsContext::make(kKey).value();
  Stranger stranger(nodes, context.get());
  stranger.send(wire::Bytes(4096, std::byte{'x'}));
  EXPECT_TRUE(stranger.is_closed());
  EXPECT_EQ(nodes.counts(0).broken.load(), 1u);
}

TEST(TlsNode, ShowsSlowPeersTheDoor) {
  MemoryNodes::Options options{.tls = true};
  options.server.handshake_time = 50ms;
  const MemoryNodes nodes(options);
  const auto context = wire::TlsContext::make(kKey).value();
  Stranger silent(nodes);
  Stranger begins(nodes);
  begins.send({wire::kTlsFirstByte});
  Stranger stops(nodes);
  stops.send(bytes_of(std::string_view("\x16\x03\x01\x02\0\x01\0\x01\xFC\x03\x03", 11)));
  Stranger within(nodes, context.get());
  within.send(wire::Bytes(8));  // the head of a message, half of it
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(begins.is_closed());
  EXPECT_TRUE(stops.is_closed());
  EXPECT_TRUE(within.is_closed());
}

// Batches and answers that fill every buffer on the way, both ways at once.
TEST(TlsNode, MovesMoreThanBuffersHold) {
  const MemoryNodes nodes({.tls = true});
  Client client(open_fabric(nodes.tcp_url() + kLong + nodes.tls_words()).value());
  constexpr std::size_t kBytes = 1 << 20;
  const Buffer source = client.endpoint().buffer(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i)
    source.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<Buffer> targets;
  const auto move = [&](std::byte* target) -> Task<void> {
    Batch batch;
    batch.write(kWordByTls, source.data(), kBytes);
    batch.read(kWordByTls, target, kBytes);
    const Status done = co_await client.endpoint().submit(batch);
    EXPECT_TRUE(done) << done.error().message();
  };
  for (int i = 0; i < 32; ++i) {
    targets.push_back(client.endpoint().buffer(kBytes));
    client.worker().spawn(move(targets.back().data()));
  }
  client.worker().run();
  for (const Buffer& target : targets) {
    ASSERT_EQ(std::memcmp(target.data(), source.data(), kBytes), 0);
  }
}

}  // namespace
}  // namespace pando::fabric
