// TLS between two sockets of this process, and between one of them and peers of other kinds.

#include "fabric/wire/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "fabric/wire/socket.h"

namespace pando::fabric::wire {
namespace {

using ::testing::HasSubstr;

const std::string kKey = "a key of the tests";
constexpr std::size_t kMany = 4 << 20;

Bytes pattern(std::size_t count, unsigned seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * seed + i / 255);
  return bytes;
}

// One side of a connection, and what it wants to say.
struct End {
  Socket socket;
  Inbox inbox;
  Outbox outbox;
  bool open = true;

  void say(const Bytes& bytes) {
    outbox.bytes().insert(outbox.bytes().end(), bytes.begin(), bytes.end());
  }
  Bytes heard() const { return {inbox.bytes().begin(), inbox.bytes().end()}; }
  // Sends and receives what it can.
  void work() {
    if (!open) return;
    open = outbox.flush(socket);
    std::size_t before = 0;
    do {
      before = inbox.bytes().size();
      open = open && inbox.fill(socket);
    } while (open && inbox.bytes().size() > before);
  }
  // What to wait for, as those who use sockets do.
  pollfd wait() const {
    const auto wanted = static_cast<short>(POLLIN | (outbox.waiting() > 0 ? POLLOUT : 0));
    return {.fd = open ? socket.get() : -1, .events = socket.events(wanted), .revents = 0};
  }
};

std::pair<Socket, Socket> connected_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  for (const int end : ends) {
    const int small = 8 << 10;  // so that every large transfer is cut
    setsockopt(end, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  }
  return {Socket(ends[0]), Socket(ends[1])};
}

class TlsTest : public ::testing::Test {
 protected:
  void connect(const std::string& clients = kKey, const std::string& nodes = kKey,
               std::uint64_t renewal = TlsContext::kRenewal) {
    std::tie(client.socket, node.socket) = connected_pair();
    clients_ = TlsContext::make(clients, renewal).value();
    nodes_ = TlsContext::make(nodes, renewal).value();
    ASSERT_TRUE(client.socket.start_tls(*clients_, TlsRole::kClient));
    ASSERT_TRUE(node.socket.start_tls(*nodes_, TlsRole::kNode));
  }
  // Until `done`; each time only those are called whose descriptors say so, as in an event loop.
  template <class Done>
  void run_until(Done done) {
    client.work();
    while (!done()) {
      pollfd both[] = {client.wait(), node.wait()};
      ASSERT_GT(poll(both, 2, 10'000), 0) << "both wait for ever";
      if (both[0].revents != 0) client.work();
      if (both[1].revents != 0) node.work();
    }
  }

  void move_much_both_ways() {
    const Bytes there = pattern(kMany, 7);
    const Bytes back = pattern(kMany + 1, 11);
    client.say(there);
    node.say(back);
    run_until([&] {
      return node.inbox.bytes().size() == there.size() &&
             client.inbox.bytes().size() == back.size();
    });
    EXPECT_EQ(node.heard(), there);
    EXPECT_EQ(client.heard(), back);
  }

  End client;
  End node;

 private:
  std::unique_ptr<const TlsContext> clients_;
  std::unique_ptr<const TlsContext> nodes_;
};

TEST_F(TlsTest, MovesBytesBothWays) {
  connect();
  move_much_both_ways();
  EXPECT_FALSE(client.socket.problem() || node.socket.problem());
}

// A key that is used for little only: most messages are sent with another one than the last.
TEST_F(TlsTest, RenewsItsKeys) {
  connect(kKey, kKey, 10'000);
  move_much_both_ways();
}

// What poll() does not report must not be left in a buffer.
TEST_F(TlsTest, LeavesNothingBehind) {
  connect();
  client.say({std::byte{1}});
  run_until([&] { return node.inbox.bytes().size() == 1; });
  constexpr std::size_t kRecords = 20;
  constexpr std::size_t kBytes = 100;
  for (std::size_t i = 0; i < kRecords; ++i) {
    ASSERT_EQ(client.socket.send(pattern(kBytes, 3)), kBytes);
  }
  Bytes into(Tls::kBuffer);
  EXPECT_EQ(node.socket.receive(into), kRecords * kBytes);
}

// Someone in the middle, who passes on, counts and changes bytes.
class TlsInTheMiddle : public TlsTest {
 protected:
  void connect(std::uint64_t renewal = TlsContext::kRenewal) {
    context_ = TlsContext::make(kKey, renewal).value();
    std::tie(client.socket, by_client_) = connected_pair();
    std::tie(node.socket, by_node_) = connected_pair();
    ASSERT_TRUE(client.socket.start_tls(*context_, TlsRole::kClient));
    ASSERT_TRUE(node.socket.start_tls(*context_, TlsRole::kNode));
  }
  // Up to so many bytes at a time, until both have nothing to say any more.
  void pass(std::size_t step) {
    for (bool moved = true; moved;) {
      client.work();
      node.work();
      moved = pass(by_client_, by_node_, step);
      moved = pass(by_node_, by_client_, step) || moved;
    }
  }

  std::string seen;     // all that passed by
  std::byte change{0};  // of every byte, what to flip

 private:
  bool pass(const Socket& from, const Socket& to, std::size_t step) {
    Bytes bytes(step);
    const std::size_t got = from.receive(bytes).value_or(0);
    bytes.resize(got);
    for (std::byte& each : bytes) each ^= change;
    seen.append(reinterpret_cast<const char*>(bytes.data()), got);
    for (std::size_t sent = 0; sent < got;) {
      const auto more = to.send(std::span(bytes).subspan(sent));
      if (!more) break;
      sent += *more;
      node.work();
      client.work();
    }
    return got > 0;
  }
  std::unique_ptr<const TlsContext> context_;
  Socket by_client_;
  Socket by_node_;
};

TEST_F(TlsInTheMiddle, BytesMayComeOneByOneAndTellNothing) {
  connect();
  const std::string secret = "nobody is to read this";
  const auto bytes = std::as_bytes(std::span(secret));
  client.say({bytes.begin(), bytes.end()});
  pass(1);
  EXPECT_EQ(node.heard(), Bytes(bytes.begin(), bytes.end()));
  node.say(node.heard());
  pass(1);
  EXPECT_EQ(client.heard(), Bytes(bytes.begin(), bytes.end()));
  EXPECT_FALSE(seen.contains(secret));
}

TEST_F(TlsInTheMiddle, NoBitMayBeChanged) {
  connect();
  client.say(pattern(10, 1));
  pass(4096);
  ASSERT_EQ(node.heard(), pattern(10, 1));
  change = std::byte{1};
  client.say(pattern(10, 2));
  pass(4096);
  EXPECT_FALSE(node.open);
  EXPECT_EQ(node.heard(), pattern(10, 1));
  ASSERT_TRUE(node.socket.problem());
  EXPECT_EQ(node.socket.problem()->code(), ErrorCode::kUnavailable);
}

// The messages that announce a new key are there to be counted.
TEST_F(TlsInTheMiddle, KeysAreRenewedAsOftenAsTheyAreUsedUp) {
  std::size_t bytes[2] = {};
  constexpr std::size_t kMessages = 10;
  for (const bool often : {false, true}) {
    client = {};
    node = {};
    seen.clear();
    connect(often ? 1 : TlsContext::kRenewal);
    for (std::size_t i = 0; i < kMessages; ++i) {
      client.say(pattern(100, 1));
      pass(4096);
    }
    EXPECT_EQ(node.inbox.bytes().size(), kMessages * 100);
    bytes[often ? 1 : 0] = seen.size();
  }
  constexpr std::size_t kKeyUpdate = 5 + 5 + 1 + 16;  // a record's head, it, its type, its tag
  EXPECT_EQ(bytes[1] - bytes[0], (kMessages - 1) * kKeyUpdate);
}

// ---- Those who are refused ----

TEST(TlsContexts, NeedAKey) {
  const auto none = TlsContext::make("");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalidArgument);
}

// Whoever has something to send and waits for the other side's handshake must not be woken because
// it could send.
TEST_F(TlsTest, WaitsForTheHandshakeWithoutSpinning) {
  connect();
  client.say(pattern(100, 1));
  EXPECT_NE(client.wait().events & POLLOUT, 0) << "it has not begun";
  client.work();
  EXPECT_EQ(client.wait().events, POLLIN);
  node.work();
  EXPECT_EQ(node.wait().events, POLLIN);
  client.work();
  node.work();
  EXPECT_EQ(node.heard(), pattern(100, 1));
  node.say(pattern(kMany, 1));
  node.work();
  EXPECT_EQ(node.wait().events, POLLIN | POLLOUT);
}

TEST_F(TlsTest, AnotherKeyIsDeniedByBoth) {
  connect("one key", "another key");
  client.say(pattern(100, 1));
  run_until([&] { return !node.open; });
  EXPECT_EQ(node.socket.problem()->code(), ErrorCode::kDenied);
  run_until([&] { return !client.open; });
  EXPECT_EQ(client.socket.problem()->code(), ErrorCode::kDenied);
  EXPECT_TRUE(node.heard().empty());
}

TEST(TlsStrangers, GarbageIsToldApart) {
  for (const TlsRole role : {TlsRole::kClient, TlsRole::kNode}) {
    const auto context = TlsContext::make(kKey).value();
    auto [mine, other] = connected_pair();
    ASSERT_TRUE(mine.start_tls(*context, role));
    ASSERT_TRUE(other.send(Bytes(100, std::byte{'x'})));
    Bytes into(Tls::kBuffer);
    EXPECT_FALSE(mine.receive(into));
    ASSERT_TRUE(mine.problem());
    EXPECT_EQ(mine.problem()->code(), ErrorCode::kIncompatible);
    EXPECT_FALSE(mine.receive(into)) << "and it stays over";
    EXPECT_FALSE(mine.send(into));
  }
}

TEST_F(TlsTest, AnEndBeforeTlsIsExplainedToClientsAlone) {
  connect();
  client.work();
  node.socket.close();
  client.work();
  EXPECT_FALSE(client.open);
  ASSERT_TRUE(client.socket.problem());
  EXPECT_EQ(client.socket.problem()->code(), ErrorCode::kUnavailable);
  EXPECT_THAT(client.socket.problem()->detail(), HasSubstr("--tls on"));
}

// A write to a connection that is gone raises a signal that ends the process, unless it is asked
// not to.
TEST_F(TlsTest, AnEndLaterIsAnEndAndNoSignal) {
  connect();
  client.say(pattern(10, 1));
  run_until([&] { return node.inbox.bytes().size() == 10; });
  node.socket.close();
  EXPECT_FALSE(client.socket.send(pattern(10, 1)));
  Bytes into(Tls::kBuffer);
  EXPECT_FALSE(client.socket.receive(into));
  EXPECT_FALSE(client.socket.problem());
}

// OpenSSL keeps errors for each thread until somebody fetches them.
TEST_F(TlsTest, ErrorsOfOthersDoNotCountAndOnesOwnAreNotLeft) {
  connect();
  client.say(pattern(10, 1));
  run_until([&] { return node.inbox.bytes().size() == 10; });
  Bytes into(Tls::kBuffer);
  ERR_raise(ERR_LIB_SSL, SSL_R_BAD_LENGTH);
  EXPECT_EQ(node.socket.receive(into), 0u);
  ERR_raise(ERR_LIB_SSL, SSL_R_BAD_LENGTH);
  node.say(pattern(kMany, 1));
  EXPECT_TRUE(node.outbox.flush(node.socket));
  EXPECT_GT(node.outbox.waiting(), 0u);
  auto [mine, other] = connected_pair();
  const auto context = TlsContext::make(kKey).value();
  ASSERT_TRUE(mine.start_tls(*context, TlsRole::kNode));
  ASSERT_TRUE(other.send(Bytes(100, std::byte{'x'})));
  EXPECT_FALSE(mine.receive(into));
  EXPECT_EQ(ERR_peek_error(), 0u);
}

// ---- Peers that speak TLS, but not by the key ----

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

// A certificate that it has signed itself.
void certify(SSL_CTX* context) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> made(X509_new());
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -1000);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 1000);
  X509_set_pubkey(made.get(), key.get());
  ASSERT_GT(X509_sign(made.get(), key.get(), EVP_sha256()), 0);
  ASSERT_EQ(SSL_CTX_use_certificate(context, made.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key.get()), 1);
}

// What becomes of `mine` when OpenSSL as it is speaks to it, with what `set_up` makes of it.
template <class SetUp>
std::optional<Error> meet(TlsRole role, SetUp set_up) {
  const auto ours = TlsContext::make(kKey).value();
  const Owned<SSL_CTX> theirs(SSL_CTX_new(TLS_method()));
  set_up(theirs.get());
  auto [mine, other] = connected_pair();
  EXPECT_TRUE(mine.start_tls(*ours, role));
  const Owned<SSL> peer(SSL_new(theirs.get()));
  SSL_set_fd(peer.get(), other.get());
  if (role == TlsRole::kClient) {
    SSL_set_accept_state(peer.get());
  } else {
    SSL_set_connect_state(peer.get());
  }
  Bytes into(Tls::kBuffer);
  for (int i = 0; i < 10; ++i) {
    if (role == TlsRole::kClient && !mine.send(pattern(10, 1))) return mine.problem();
    SSL_do_handshake(peer.get());
    if (!mine.receive(into)) return mine.problem();
  }
  return std::nullopt;  // it was let in
}

TEST(TlsStrangers, ACertificateIsNoKey) {
  const auto problem = meet(TlsRole::kClient, certify);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->code(), ErrorCode::kDenied);
}

TEST(TlsStrangers, ClientsWithoutAKeyAreNotLetIn) {
  const auto problem = meet(TlsRole::kNode, [](SSL_CTX*) {});
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->code(), ErrorCode::kIncompatible);
  EXPECT_TRUE(meet(TlsRole::kNode, certify));
}

TEST(TlsStrangers, OldVersionsAreNotSpoken) {
  for (const TlsRole role : {TlsRole::kClient, TlsRole::kNode}) {
    const auto problem = meet(role, [](SSL_CTX* context) {
      certify(context);
      SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    });
    ASSERT_TRUE(problem);
    EXPECT_EQ(problem->code(), ErrorCode::kIncompatible);
  }
}

}  // namespace
}  // namespace pando::fabric::wire
