// The wire protocol between clients and memory nodes, over TCP (within TLS or not, tls.h) or a Unix
// socket.
//
// Little-endian. Every message is a Frame and `bytes` bytes behind it. A connection opens with a
// handshake in which both sides prove that they know the cluster's key:
//
//   client                                     memory node
//   Hello {versions, nonce}              →
//                                        ←     Challenge {version, nonce}
//   Proof {hmac, who I am}               →
//                                        ←     Welcome {hmac, region key, memory},
//                                              or Refusal {hmac, why}
//   Batch {region key, verbs…} …         →
//                                        ←     Answer {results…} …, in the order of the batches
//   Fence {client}, Stay {0 or 1}, Leave →
//                                        ←     Done
//   RdmaRequest                          →     (a client that comes for rdma)
//                                        ←     RdmaOffer {where, keys, a token}, or Done with an
//                                        error
//
// Nothing but Hello and Proof is read from a client that has not been let in, and both are small.
// docs/formats/wire.md has the bytes; messages.cc is where untrusted bytes are taken apart
// (tests/fuzz/).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint64_t kMagic = 0x4552495757444e50;  // "PNDWWIRE"
inline constexpr std::uint16_t kVersion = 2;                 // the newest
inline constexpr std::uint16_t kOldestVersion = 2;           // still spoken

// Every number that travels is written out: these, Purpose, VerbKind (verbs.h), and those of errors
// (messages.cc). None is ever given to anything else; one that is not known is an error that says
// which it was. tests/node/golden_bytes_test.cc pins all messages.
enum class Kind : std::uint8_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefusal = 5,
  kBatch = 6,
  kAnswer = 7,
  kFence = 8,
  kLeave = 9,
  kDone = 10,
  kRdmaRequest = 11,
  kRdmaOffer = 12,
  kStay = 13,
};
// Empty where it is not known.
std::string_view name_of(Kind kind);

struct Frame {
  std::uint32_t bytes = 0;  // behind this
  Kind kind{};
  std::uint8_t zero[3] = {};
  std::uint64_t tag = 0;  // of a Batch, a Fence, a Stay or a Leave; its answer has the same
};
static_assert(sizeof(Frame) == 16);

// A longer message closes the connection. Batches are cut into several where needed.
inline constexpr std::uint32_t kMaxBytes = 16 << 20;
inline constexpr std::uint32_t kMaxBytesOfStrangers = 512;

using Nonce = std::array<std::byte, 32>;

struct Hello {
  std::uint64_t magic = kMagic;
  std::uint16_t oldest = kOldestVersion;
  std::uint16_t newest = kVersion;
  std::uint32_t zero = 0;
  Nonce nonce{};
};

struct Challenge {
  std::uint64_t magic = kMagic;
  std::uint16_t version = 0;
  std::uint16_t zero[3] = {};
  Nonce nonce{};
};

enum class Purpose : std::uint8_t {
  kVerbs = 1,  // batches over this connection
  kMapping =
      2,  // the memory's descriptor and a redo slot, over a Unix socket; then nothing but Leave
  kControl = 3,  // fences alone: of a client that is not let in for anything else
  kRdma = 4,     // verbs by RDMA, which are shut out when this connection ends
};

struct Proof {
  base::Digest digest{};  // sign(key, client's half of the handshake)
  ClientId client = 0;    // 0: give me an id
  // Connections of this client with a lower one are closed, and none is let in any more. 0: of no
  // generation, and without verbs.
  std::uint32_t generation = 0;
  Purpose purpose{};
  std::uint8_t joins = 0;  // 1: the client's first connection here; 0: it must be known already
  std::uint8_t zero[6] = {};
  std::uint64_t life = 0;  // of the memory that the client knows; 0: any
  char cluster[64] = {};
};
static_assert(sizeof(Proof) == 32 + 8 + 8 + 8 + 64);

struct Welcome {
  base::Digest digest{};  // sign(key, node's half)
  std::uint64_t region_key = 0;
  std::uint64_t life = 0;
  std::uint64_t memory_bytes = 0;
  std::uint32_t onchip_bytes = 0;
  ClientId client = 0;
  std::uint32_t redo_slot = 0;  // where the purpose is a mapping
  std::uint32_t zero = 0;
};
static_assert(sizeof(Welcome) == 32 + 24 + 16);

// How a client's verbs come in by RDMA: it connects to the address and shows the token, which is
// good for one time.
struct RdmaOffer {
  std::array<std::byte, 16> address{};  // of IPv6, or of IPv4 as ::ffff:a.b.c.d
  std::uint16_t port = 0;
  std::uint8_t line_atomic = 0;  // 1: no line is ever torn
  std::uint8_t masked_cas = 0;   // 1: its device executes masked compare-and-swap
  std::uint8_t knows_mtu = 0;    // 1: it goes by the ticket's MTU
  std::uint8_t zero[3] = {};
  std::uint64_t memory_at = 0;  // what its addresses begin with
  std::uint64_t onchip_at = 0;
  std::uint32_t memory_key = 0;
  std::uint32_t onchip_key = 0;
  base::Digest token{};
};
static_assert(sizeof(RdmaOffer) == 24 + 16 + 8 + 32);

// The private data of the RDMA connection.
struct Ticket {
  std::uint64_t magic = kMagic;
  base::Digest token{};
  std::uint32_t mtu = 0;  // bytes, at most; 0: whatever the way there takes
  std::uint32_t zero = 0;
};
static_assert(sizeof(Ticket) == 48);

// What each side signs. The key may be empty on both.
base::Digest client_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                          const Proof& proof);
base::Digest node_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                        const Welcome& welcome);
// Of a Refusal: of its status as it stands in the message.
base::Digest refusal_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                           std::span<const std::byte> status);

// ---- Building messages ----

using Bytes = std::vector<std::byte>;

template <class Body>
void append(Bytes& out, Kind kind, const Body& body, std::uint64_t tag = 0) {
  const Frame frame{.bytes = sizeof(Body), .kind = kind, .tag = tag};
  const auto* const head = reinterpret_cast<const std::byte*>(&frame);
  const auto* const rest = reinterpret_cast<const std::byte*>(&body);
  out.insert(out.end(), head, head + sizeof(frame));
  out.insert(out.end(), rest, rest + sizeof(Body));
}
// A message without a body.
void append_empty(Bytes& out, Kind kind, std::uint64_t tag = 0);
// An Error as the body of a Done; nothing where all is well.
void append_done(Bytes& out, const Status& status, std::uint64_t tag);
// The same with a proof before it: what a client is told that is not let in, or is shut out. The
// challenge is empty where there was none.
void append_refusal(Bytes& out, std::string_view key, const Hello& hello,
                    const Challenge& challenge, const Error& error);

// A verb's bytes in a Batch, and its result's in the Answer, both a multiple of 8.
std::size_t request_bytes(const Verb& verb);
std::size_t result_bytes(const Verb& verb);
inline constexpr std::size_t kBatchHead = 16;   // region key, count
inline constexpr std::size_t kAnswerHead = 16;  // executed, error, zero; bytes of the error's text

// Appends a frame with these verbs of the batch. REQUIRES: it is not longer than kMaxBytes.
void append_batch(Bytes& out, std::uint64_t tag, std::uint64_t region_key, const Batch& batch,
                  std::span<const std::uint32_t> verbs);

// ---- Taking messages apart: nothing is believed ----

// A body of fixed size; nullopt where the size is another.
template <class Body>
std::optional<Body> parse(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(Body)) return std::nullopt;
  Body body;
  std::memcpy(&body, bytes.data(), sizeof(Body));
  return body;
}

// The frame at the front of `bytes`: nullopt where more is needed. An error where it cannot be
// one, or is longer than `limit`.
Result<std::optional<Frame>> parse_frame(std::span<const std::byte> bytes, std::uint32_t limit);

// The status in a Done.
Status parse_status(std::span<const std::byte> body);
// What a Refusal says. Where it does not prove that it comes from who knows the key, nothing may
// rest on it: it is kUnavailable then, but for words to people (kDenied, kIncompatible,
// kInvalidArgument), and says so.
Error parse_refusal(std::span<const std::byte> body, std::string_view key, const Hello& hello,
                    const Challenge& challenge);
// The answer to an RdmaRequest.
Result<RdmaOffer> parse_rdma_offer(const Frame& frame, std::span<const std::byte> body);

// A Batch as the memory node sees it. The WRITEs' bytes are not copied.
class Request {
 public:
  // Where verbs may point.
  struct Bounds {
    std::uint64_t memory_bytes = 0;
    std::uint64_t onchip_bytes = 0;
  };
  // kInvalidArgument where a verb lies out of bounds (nothing was executed: tell the client);
  // kCorrupt where the bytes are no batch, or the region key is wrong.
  Status parse(std::span<const std::byte> body, std::uint64_t region_key, const Bounds& bounds);

  // `local` of a WRITE points into the body. The target's node is 0.
  std::span<Verb> verbs() { return verbs_; }
  // What the Answer takes at most, its head included; its Frame not.
  std::size_t answer_bytes() const { return answer_bytes_; }

 private:
  std::vector<Verb> verbs_;
  std::size_t answer_bytes_ = 0;
};

// What an Answer's head says.
struct AnswerHead {
  std::uint32_t executed = 0;  // that many verbs; the next one may have been, later ones were not
  std::uint8_t error = 0;      // 0, or the number of an ErrorCode: then its text ends the body
  std::uint8_t zero[3] = {};
  std::uint64_t text_bytes = 0;
};
static_assert(sizeof(AnswerHead) == kAnswerHead);

// An Answer as it grows at the end of `out`, the results behind one another.
class Answer {
 public:
  // `bytes`: what the body takes at most (Request::answer_bytes).
  Answer(Bytes& out, std::uint64_t tag, std::size_t bytes);
  // Where the next verb, a READ, is to put its bytes.
  std::byte* place_of_read() { return at_; }
  // The verb was executed: its result, which a READ has put there already.
  void add(const Verb& verb);
  // All were; or the next one was not, because of this.
  void finish();
  void give_up(const Error& error);

 private:
  void end(const Error* error);

  Bytes& out_;
  const std::uint64_t tag_;
  const std::size_t begin_;  // of the Frame, in out_
  std::byte* at_;
  std::uint32_t executed_ = 0;
};
// The Answer to a batch of which nothing was executed.
void append_answer_error(Bytes& out, std::uint64_t tag, const Error& error);

// Copies the results into these verbs of the batch, and sets their outcomes. The answer's error, if
// it has one. kCorrupt where the body is no answer to them.
Status read_answer(std::span<const std::byte> body, Batch& batch,
                   std::span<const std::uint32_t> verbs);

}  // namespace pando::fabric::wire
