// TLS for connections by TCP between clients and memory nodes, behind Socket's send() and
// receive().
//
//  - Version 1.3 with one cipher. Both sides prove that they know the cluster's key (an external
//    PSK that is derived from it) and agree on fresh keys (ECDHE): who learns the key later cannot
//    read what was recorded before. There are no certificates: a peer that comes with one instead,
//    or with another key, is refused. The handshake of messages.h follows inside.
//  - The handshake of TLS is driven by send() and receive(), like everything else.
//  - No tickets, no early data: nothing can be sent twice.
//  - close_notify is neither sent nor missed. Messages say how long they are, so who cuts a
//    connection off does no more than who cuts the cable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include <pando/result.h>

struct ssl_st;
struct ssl_ctx_st;

namespace pando::fabric::wire {

// What the first byte of a connection by TLS is, and no other's: a Hello begins with its length.
inline constexpr std::byte kTlsFirstByte{0x16};

// What all connections of one key share. Thread-safe; outlives its connections.
class TlsContext {
 public:
  // A key of AES-GCM is good for some 400 GB; each side renews its own long before.
  static constexpr std::uint64_t kRenewal = std::uint64_t{1} << 36;

  // kInvalidArgument where the key is empty. `renewal`: bytes after which a key is renewed.
  static Result<std::unique_ptr<const TlsContext>> make(std::string_view key,
                                                        std::uint64_t renewal = kRenewal);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  const base::Digest& secret() const { return secret_; }
  std::uint64_t renewal() const { return renewal_; }

 private:
  TlsContext(std::string_view key, std::uint64_t renewal);

  ssl_ctx_st* context_;
  const base::Digest secret_;
  const std::uint64_t renewal_;
};

enum class TlsRole : std::uint8_t { kClient, kNode };

// One connection's state. Used by one thread at a time.
class Tls {
 public:
  // A receive() into at least that many bytes leaves none behind that could be had: what poll()
  // does not report has not come.
  static constexpr std::size_t kBuffer = 64 << 10;

  // nullptr where the system has no memory. The descriptor is the caller's, and non-blocking.
  static std::unique_ptr<Tls> make(const TlsContext& context, TlsRole role, int descriptor);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As Socket has them. Bytes that send() did not take are to be given to it again.
  std::optional<std::size_t> send(std::span<const std::byte> bytes);
  std::optional<std::size_t> receive(std::span<std::byte> into);
  short events(short wanted) const;
  // Why it is at its end, where TLS is the reason: kDenied where the keys differ, kIncompatible
  // where the peer does not speak TLS as we do, else kUnavailable.
  const std::optional<Error>& problem() const { return problem_; }

 private:
  // Between OpenSSL and the socket. What is to go out is gathered and leaves with one call.
  struct Way {
    int descriptor = -1;
    bool may_receive = false;  // once in each call
    bool ended = false;        // by the peer or the network
    std::vector<std::byte> out;
    std::size_t sent = 0;  // of it

    bool waits() const { return !out.empty(); }
    // Sends what the socket takes. False: the connection is at its end.
    bool flush();
  };
  struct Bio;

  Tls(const TlsContext& context, TlsRole role, int descriptor)
      : renewal_(context.renewal()), role_(role) {
    way_.descriptor = descriptor;
  }
  // Before a call of OpenSSL's.
  void begin();
  // After one that did nothing: it goes on later, or ends here.
  void look_why();
  void end();
  void note_problem(unsigned long error);
  std::size_t encrypt(std::span<const std::byte> bytes);

  const std::uint64_t renewal_;
  const TlsRole role_;
  Way way_;
  ssl_st* ssl_ = nullptr;
  std::size_t taken_ = 0;   // bytes of send() whose records wait to go out
  std::uint64_t used_ = 0;  // bytes sent with the key of now
  bool agreed_ = false;     // the handshake is over
  bool over_ = false;
  std::optional<Error> problem_;
};

}  // namespace pando::fabric::wire
