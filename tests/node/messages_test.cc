#include "fabric/wire/messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "base/random.h"
#include "fabric/wire/handshake.h"

namespace pando::fabric::wire {
namespace {

constexpr std::uint64_t kKey = 0x1234567890abcdef;
constexpr Request::Bounds kBounds{.memory_bytes = 1 << 20, .onchip_bytes = 4096};

// A batch of random verbs within bounds, and memory for them.
struct Traffic {
  explicit Traffic(std::uint64_t seed) : random(seed), bytes(64 << 10) {
    for (std::byte& each : bytes) each = static_cast<std::byte>(random.next());
    const std::size_t count = random.next() % 12 + 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t offset = random.next() % (kBounds.memory_bytes - 4096) / 8 * 8;
      const std::size_t length = random.next() % 300;
      std::byte* const local = bytes.data() + i * 4096 + random.next() % 64;
      switch (random.next() % 5) {
        case 0:
          batch.read(Address(0, offset + random.next() % 8), local, length);
          break;
        case 1:
          batch.write(Address(0, offset + random.next() % 8), local, length);
          break;
        case 2:
          batch.compare_swap(Address(0, offset), random.next(), random.next());
          break;
        case 3:
          batch.masked_compare_swap(Address(0, Address::kOnChip + offset % 4088 / 8 * 8),
                                    random.next(), random.next(), random.next(), random.next(),
                                    random.next());
          break;
        default:
          batch.fetch_add(Address(0, offset), random.next());
      }
      verbs.push_back(static_cast<std::uint32_t>(i));
    }
    append_batch(message, 5, kKey, batch, verbs);
  }
  std::span<const std::byte> body() const { return std::span(message).subspan(sizeof(Frame)); }

  base::Random random;
  Bytes bytes;
  Batch batch;
  std::vector<std::uint32_t> verbs;
  Bytes message;
};

RC_GTEST_PROP(Messages, ABatchArrivesAsItWasSent, (std::uint64_t seed)) {
  const Traffic sent(seed);
  const auto frame = parse_frame(sent.message, kMaxBytes).value();
  RC_ASSERT(frame.has_value());
  RC_ASSERT(frame->kind == Kind::kBatch);
  RC_ASSERT(frame->tag == 5u);
  RC_ASSERT(frame->bytes + sizeof(Frame) == sent.message.size());
  Request request;
  RC_ASSERT(request.parse(sent.body(), kKey, kBounds).has_value());
  RC_ASSERT(request.verbs().size() == sent.batch.size());
  for (std::size_t i = 0; i < sent.batch.size(); ++i) {
    const Verb& was = sent.batch[i];
    const Verb& is = request.verbs()[i];
    RC_ASSERT(is.kind == was.kind);
    RC_ASSERT(is.target == was.target);
    if (is.kind == VerbKind::kRead || is.kind == VerbKind::kWrite) {
      RC_ASSERT(is.length == was.length);
    }
    if (is.kind == VerbKind::kWrite) {
      RC_ASSERT(std::memcmp(is.local, was.local, was.length) == 0);
    }
    if (is_atomic(is.kind)) RC_ASSERT(is.swap == was.swap);
    if (is_atomic(is.kind) && is.kind != VerbKind::kFetchAdd) RC_ASSERT(is.compare == was.compare);
    if (is.kind == VerbKind::kMaskedCompareSwap) {
      RC_ASSERT(is.compare_mask == was.compare_mask);
      RC_ASSERT(is.swap_mask == was.swap_mask);
    }
  }
}

RC_GTEST_PROP(Messages, AnAnswerArrivesAsItWasGiven, (std::uint64_t seed)) {
  Traffic sent(seed);
  Request request;
  RC_ASSERT(request.parse(sent.body(), kKey, kBounds).has_value());
  const std::size_t executed = sent.random.next() % (sent.batch.size() + 1);
  Bytes out;
  Answer answer(out, 9, request.answer_bytes());
  std::vector<Bytes> reads(sent.batch.size());
  for (std::size_t i = 0; i < executed; ++i) {
    Verb& verb = request.verbs()[i];
    verb.previous = i * 1000 + 7;
    if (verb.kind == VerbKind::kRead) {
      for (std::size_t at = 0; at < verb.length; ++at) {
        reads[i].push_back(static_cast<std::byte>(sent.random.next()));
        answer.place_of_read()[at] = reads[i].back();
      }
    }
    answer.add(verb);
  }
  const bool all = executed == sent.batch.size();
  if (all) {
    answer.finish();
  } else {
    answer.give_up(Error(ErrorCode::kUnavailable, "no more"));
  }
  const auto frame = parse_frame(out, kMaxBytes).value();
  RC_ASSERT(frame.has_value() && frame->tag == 9u && frame->bytes + sizeof(Frame) == out.size());
  const Status status = read_answer(std::span(out).subspan(sizeof(Frame)), sent.batch, sent.verbs);
  RC_ASSERT(status.has_value() == all);
  if (!all) RC_ASSERT(status.error().message() == "unavailable: no more");
  for (std::size_t i = 0; i < sent.batch.size(); ++i) {
    const Verb& verb = sent.batch[i];
    RC_ASSERT((verb.outcome == Outcome::kExecuted) == (i < executed));
    if (i > executed) RC_ASSERT(verb.outcome == Outcome::kNotExecuted);
    if (i >= executed) continue;
    if (is_atomic(verb.kind)) RC_ASSERT(verb.previous == i * 1000 + 7);
    if (verb.kind == VerbKind::kRead && verb.length > 0) {
      RC_ASSERT(std::memcmp(verb.local, reads[i].data(), verb.length) == 0);
    }
  }
}

// Bytes that were changed or cut on the way are refused, or mean something within bounds.
RC_GTEST_PROP(Messages, NothingThatIsReceivedIsBelieved, (std::uint64_t seed)) {
  Traffic sent(seed);
  Bytes body(sent.body().begin(), sent.body().end());
  const std::size_t changes = sent.random.next() % 4 + 1;
  for (std::size_t i = 0; i < changes; ++i) {
    if (sent.random.next() % 4 == 0) {
      body.resize(sent.random.next() % (body.size() + 1));
    } else if (!body.empty()) {
      body[sent.random.next() % body.size()] = static_cast<std::byte>(sent.random.next());
    }
  }
  Request request;
  if (request.parse(body, kKey, kBounds)) {
    for (const Verb& verb : request.verbs()) {
      const bool onchip = verb.target.offset() >= Address::kOnChip;
      const std::uint64_t start = verb.target.offset() - (onchip ? Address::kOnChip : 0);
      RC_ASSERT(start + verb.length <= (onchip ? kBounds.onchip_bytes : kBounds.memory_bytes));
      if (verb.kind == VerbKind::kWrite) {
        RC_ASSERT(verb.local >= body.data());
        RC_ASSERT(verb.local + verb.length <= body.data() + body.size());
      }
    }
  }
  (void)read_answer(body, sent.batch, sent.verbs);  // the sanitizers look on
  (void)parse_status(body);
  (void)parse_frame(body, kMaxBytes);
}

TEST(Messages, AWrongRegionKeyIsNoBatch) {
  const Traffic sent(1);
  Request request;
  const Status parsed = request.parse(sent.body(), kKey + 1, kBounds);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
}

TEST(Messages, LongAndUnknownFramesAreRefused) {
  Bytes bytes(sizeof(Frame));
  const auto put = [&](const Frame& frame) { std::memcpy(bytes.data(), &frame, sizeof(frame)); };
  put({.bytes = 100, .kind = Kind::kBatch});
  EXPECT_FALSE(parse_frame(bytes, 100).value().has_value()) << "more is needed";
  EXPECT_FALSE(parse_frame(bytes, 99));
  put({.bytes = 0, .kind = static_cast<Kind>(0)});
  EXPECT_FALSE(parse_frame(bytes, 100));
  put({.bytes = 0, .kind = static_cast<Kind>(99)});
  EXPECT_FALSE(parse_frame(bytes, 100));
  EXPECT_FALSE(parse_frame(std::span(bytes).first(15), 100).value().has_value());
}

// ---- Coming in ----

// A node that knows `node_key` meets a client that knows `client_key`.
Result<bool> meet(std::string node_key, std::string client_key) {
  ClientHandshake client(std::move(client_key), "blue", {.purpose = Purpose::kVerbs});
  Bytes out;
  client.begin(out);
  const auto hello = parse<Hello>(std::span(out).subspan(sizeof(Frame))).value();
  Challenge challenge{.version = kVersion};
  base::fill_random(challenge.nonce);
  out.clear();
  const auto as_bytes = [](const auto& body) { return std::as_bytes(std::span(&body, 1)); };
  auto taken = client.take({.kind = Kind::kChallenge}, as_bytes(challenge), out);
  if (!taken) return taken;
  const auto proof = parse<Proof>(std::span(out).subspan(sizeof(Frame))).value();
  if (!base::same(proof.digest, client_proof(node_key, hello, challenge, proof))) {
    return fail(ErrorCode::kDenied, "by the node");
  }
  Welcome welcome{.region_key = 1, .life = 2};
  welcome.digest = node_proof(node_key, hello, challenge, welcome);
  return client.take({.kind = Kind::kWelcome}, as_bytes(welcome), out);
}

TEST(Messages, OnlyAnOfferOrAnErrorAnswersARdmaRequest) {
  const RdmaOffer offer{.port = 7, .memory_key = 9};
  const auto bytes = std::as_bytes(std::span(&offer, 1));
  EXPECT_EQ(parse_rdma_offer({.kind = Kind::kRdmaOffer}, bytes).value().memory_key, 9u);
  Bytes status;
  append_done(status, fail(ErrorCode::kBusy, "later"), 0);
  const auto refused = parse_rdma_offer({.kind = Kind::kDone},
                                        std::span<const std::byte>(status).subspan(sizeof(Frame)));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  const std::array<std::byte, 1> fine{};
  for (const auto& answer :
       {parse_rdma_offer({.kind = Kind::kRdmaOffer}, bytes.first(bytes.size() - 1)),
        parse_rdma_offer({.kind = Kind::kAnswer}, bytes),
        parse_rdma_offer({.kind = Kind::kDone}, fine), parse_rdma_offer({.kind = Kind::kDone}, {}),
        parse_rdma_offer({.kind = Kind::kRdmaOffer}, {})}) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(Handshake, BothMustKnowTheKey) {
  EXPECT_TRUE(meet("secret", "secret").value());
  EXPECT_TRUE(meet("", "").value());
  EXPECT_EQ(meet("secret", "guess").error().detail(), "by the node");
  EXPECT_EQ(meet("secret", "").error().detail(), "by the node");
  EXPECT_EQ(meet("", "secret").error().detail(), "by the node");
}

TEST(Handshake, ANodeThatDoesNotKnowTheKeyIsNotBelieved) {
  ClientHandshake client("secret", "blue", {.purpose = Purpose::kVerbs});
  Bytes out;
  client.begin(out);
  const Challenge challenge{.version = kVersion};
  ASSERT_FALSE(client.take({.kind = Kind::kChallenge}, std::as_bytes(std::span(&challenge, 1)), out)
                   .value());
  const Welcome welcome{.region_key = 1};
  const auto in = client.take({.kind = Kind::kWelcome}, std::as_bytes(std::span(&welcome, 1)), out);
  ASSERT_FALSE(in);
  EXPECT_EQ(in.error().code(), ErrorCode::kDenied);
}

TEST(Handshake, AnythingOutOfTurnEndsIt) {
  for (const Kind kind : {Kind::kWelcome, Kind::kAnswer, Kind::kDone, Kind::kHello}) {
    ClientHandshake client("", "", {.purpose = Purpose::kVerbs});
    Bytes out;
    client.begin(out);
    EXPECT_FALSE(client.take({.kind = kind}, out, out));
  }
}

}  // namespace
}  // namespace pando::fabric::wire
