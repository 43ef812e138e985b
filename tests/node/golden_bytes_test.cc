// The wire's bytes, as they are and must stay: every message, compared byte for byte with what
// docs/formats/wire.md says. A number or a field that moves fails here, before an older client or
// memory node meets it. And numbers that nobody knows: an error that names them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "fabric/wire/messages.h"

namespace pando::fabric::wire {
namespace {

using ::testing::HasSubstr;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(each));
  return text;
}

// Of the literals here, which have a space behind every word.
std::string without_spaces(std::string_view text) {
  std::string rest(text);
  std::erase(rest, ' ');
  return rest;
}

template <class Bytes32>
Bytes32 counted_from(unsigned first) {
  Bytes32 bytes;
  for (std::byte& each : bytes) each = static_cast<std::byte>(first++);
  return bytes;
}

constexpr std::string_view kSecret = "secret";
const Hello kHello{.nonce = counted_from<Nonce>(0)};
const Challenge kChallenge{.version = 2, .nonce = counted_from<Nonce>(32)};

template <class Body>
std::string appended(Kind kind, const Body& body, std::uint64_t tag = 0) {
  Bytes out;
  append(out, kind, body, tag);
  return hex(out);
}

TEST(GoldenBytes, ComingIn) {
  EXPECT_EQ(
      appended(Kind::kHello, kHello),
      without_spaces(
          "3000000001000000 0000000000000000 504e445757495245 0200020000000000 0001020304050607 "
          "08090a0b0c0d0e0f 1011121314151617 18191a1b1c1d1e1f"));
  EXPECT_EQ(
      appended(Kind::kChallenge, kChallenge),
      without_spaces(
          "3000000002000000 0000000000000000 504e445757495245 0200000000000000 2021222324252627 "
          "28292a2b2c2d2e2f 3031323334353637 38393a3b3c3d3e3f"));

  Proof proof{.client = 0x01020304,
              .generation = 0x05060708,
              .purpose = Purpose::kRdma,
              .joins = 1,
              .life = 0x1112131415161718,
              .cluster = "blue"};
  proof.digest = client_proof(kSecret, kHello, kChallenge, proof);
  EXPECT_EQ(
      appended(Kind::kProof, proof),
      without_spaces(
          "7800000003000000 0000000000000000 6c596eaaaec8513c e47884721e807841 f1dc3dd495185a82 "
          "b03f6cfa780e2b9e 0403020108070605 0401000000000000 1817161514131211 626c756500000000 "
          "0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 "
          "0000000000000000 0000000000000000"));

  Welcome welcome{.region_key = 0x2122232425262728,
                  .life = 0x1112131415161718,
                  .memory_bytes = 0x3132333435363738,
                  .onchip_bytes = 0x41424344,
                  .client = 0x01020304,
                  .redo_slot = 0x51525354};
  welcome.digest = node_proof(kSecret, kHello, kChallenge, welcome);
  EXPECT_EQ(
      appended(Kind::kWelcome, welcome),
      without_spaces(
          "4800000004000000 0000000000000000 394644ea64e889c1 5996fb98e3ea56ed 23f35ea786be31f1 "
          "23446ac3023c149b 2827262524232221 1817161514131211 3837363534333231 4443424104030201 "
          "5453525100000000"));

  Bytes refusal;
  append_refusal(refusal, kSecret, kHello, kChallenge, Error(ErrorCode::kFenced, "gone"));
  EXPECT_EQ(
      hex(refusal),
      without_spaces(
          "2500000005000000 0000000000000000 33bf18ff05fe2b96 f199e0c145cb3795 a5afeb04290a8427 "
          "f6789f770698a216 0a676f6e65"));
}

TEST(GoldenBytes, Purposes) {
  EXPECT_EQ(std::to_underlying(Purpose::kVerbs), 1);
  EXPECT_EQ(std::to_underlying(Purpose::kMapping), 2);
  EXPECT_EQ(std::to_underlying(Purpose::kControl), 3);
  EXPECT_EQ(std::to_underlying(Purpose::kRdma), 4);
}

TEST(GoldenBytes, ABatchOfEveryVerb) {
  Batch batch;
  std::string bytes = "abc";
  batch.read(Address(0, 0x1003), nullptr, 5);
  batch.write(Address(0, 0x2001), reinterpret_cast<const std::byte*>(bytes.data()), 3);
  batch.compare_swap(Address(0, 0x3000), 0x11, 0x12);
  batch.masked_compare_swap(Address(0, Address::kOnChip + 8), 0x21, 0x22, 0xff, 0xf0, 0);
  batch.fetch_add(Address(0, 0x4000), 0x31);
  // One that is emulated travels as the plain compare-and-swap that it is.
  batch.masked_compare_swap(Address(0, 0x5000), 0x41, 0x42, 0xff, 0xff, 0x1041);
  batch[5].emulated = true;
  Bytes out;
  append_batch(out, 7, 0x2122232425262728, batch, std::array{0u, 1u, 2u, 3u, 4u, 5u});
  EXPECT_EQ(
      hex(out),
      without_spaces(
          "c000000006000000 0700000000000000 2827262524232221 0600000000000000 0000000005000000 "
          "0310000000000000 0100000003000000 0120000000000000 6162630000000000 0200000008000000 "
          "0030000000000000 1100000000000000 1200000000000000 0300000008000000 0800000000800000 "
          "2100000000000000 2200000000000000 ff00000000000000 f000000000000000 0400000008000000 "
          "0040000000000000 3100000000000000 0200000008000000 0050000000000000 4110000000000000 "
          "4210000000000000"));
}

TEST(GoldenBytes, Answers) {
  Bytes out;
  Answer answer(out, 7, kAnswerHead + 24);
  std::ranges::copy(std::as_bytes(std::span("hello", 5)), answer.place_of_read());
  answer.add({.kind = VerbKind::kRead, .length = 5});
  answer.add({.kind = VerbKind::kWrite, .length = 3});
  answer.add({.kind = VerbKind::kCompareSwap, .previous = 0x61});
  answer.add({.kind = VerbKind::kFetchAdd, .previous = 0x62});
  answer.finish();
  EXPECT_EQ(
      hex(out),
      without_spaces(
          "2800000007000000 0700000000000000 0400000000000000 0000000000000000 68656c6c6f000000 "
          "6100000000000000 6200000000000000"));

  out.clear();
  Answer given_up(out, 8, kAnswerHead + 8);
  given_up.add({.kind = VerbKind::kMaskedCompareSwap, .previous = 0x61});
  given_up.give_up(Error(ErrorCode::kUnavailable, "late"));
  EXPECT_EQ(
      hex(out),
      without_spaces(
          "1c00000007000000 0800000000000000 0100000008000000 0400000000000000 6100000000000000 "
          "6c617465"));
}

TEST(GoldenBytes, Requests) {
  EXPECT_EQ(appended(Kind::kFence, std::uint64_t{0x01020304}, 9),
            without_spaces("0800000008000000 0900000000000000 0403020100000000"));
  EXPECT_EQ(appended(Kind::kStay, std::uint64_t{1}, 13),
            without_spaces("080000000d000000 0d00000000000000 0100000000000000"));
  Bytes out;
  append_empty(out, Kind::kLeave, 10);
  EXPECT_EQ(hex(out), without_spaces("0000000009000000 0a00000000000000"));
  out.clear();
  append_done(out, {}, 9);
  EXPECT_EQ(hex(out), without_spaces("010000000a000000 0900000000000000 00"));
  out.clear();
  append_done(out, fail(ErrorCode::kBusy, "wait"), 9);
  EXPECT_EQ(hex(out), without_spaces("050000000a000000 0900000000000000 0677616974"));
}

TEST(GoldenBytes, Rdma) {
  Bytes out;
  append_empty(out, Kind::kRdmaRequest, 12);
  EXPECT_EQ(hex(out), without_spaces("000000000b000000 0c00000000000000"));
  const RdmaOffer offer{.address = counted_from<std::array<std::byte, 16>>(0),
                        .port = 0x1d2e,
                        .line_atomic = 1,
                        .masked_cas = 1,
                        .knows_mtu = 1,
                        .memory_at = 0x6162636465666768,
                        .onchip_at = 0x7172737475767778,
                        .memory_key = 0x81828384,
                        .onchip_key = 0x91929394,
                        .token = counted_from<base::Digest>(32)};
  EXPECT_EQ(
      appended(Kind::kRdmaOffer, offer, 12),
      without_spaces(
          "500000000c000000 0c00000000000000 0001020304050607 08090a0b0c0d0e0f 2e1d010101000000 "
          "6867666564636261 7877767574737271 8483828194939291 2021222324252627 28292a2b2c2d2e2f "
          "3031323334353637 38393a3b3c3d3e3f"));
  const Ticket ticket{.token = counted_from<base::Digest>(32), .mtu = 1024};
  EXPECT_EQ(
      hex(std::as_bytes(std::span(&ticket, 1))),
      without_spaces(
          "504e445757495245 2021222324252627 28292a2b2c2d2e2f 3031323334353637 38393a3b3c3d3e3f "
          "0004000000000000"));
}

TEST(GoldenBytes, Errors) {
  const std::pair<ErrorCode, unsigned> all[] = {
      {ErrorCode::kNotFound, 1},     {ErrorCode::kExists, 2},      {ErrorCode::kInvalidArgument, 3},
      {ErrorCode::kIncompatible, 4}, {ErrorCode::kOutOfMemory, 5}, {ErrorCode::kBusy, 6},
      {ErrorCode::kTimeout, 7},      {ErrorCode::kUnavailable, 8}, {ErrorCode::kIndeterminate, 9},
      {ErrorCode::kFenced, 10},      {ErrorCode::kDataLost, 11},   {ErrorCode::kCorrupt, 12},
      {ErrorCode::kDenied, 13},
  };
  for (const auto& [code, number] : all) {
    Bytes out;
    append_done(out, fail(code), 0);
    const auto body = std::span<const std::byte>(out).subspan(sizeof(Frame));
    EXPECT_EQ(std::to_integer<unsigned>(body[0]), number);
    EXPECT_EQ(parse_status(body).error().code(), code);
  }
}

// ---- Numbers that nobody knows ----

TEST(UnknownNumbers, AMessage) {
  for (const unsigned kind : {0u, 14u, 99u, 255u}) {
    Bytes out;
    append_empty(out, static_cast<Kind>(kind));
    const auto frame = parse_frame(out, kMaxBytes);
    ASSERT_FALSE(frame);
    EXPECT_EQ(frame.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(frame.error().detail(), fmt::format("wire: a message of unknown kind {}", kind));
  }
}

TEST(UnknownNumbers, AVerb) {
  constexpr std::size_t kFirstKind = sizeof(Frame) + kBatchHead;
  for (const unsigned kind : {5u, 99u, 255u}) {
    Batch batch;
    batch.fetch_add(Address(0, 0), 1);
    Bytes out;
    append_batch(out, 1, 2, batch, std::array{0u});
    out[kFirstKind] = static_cast<std::byte>(kind);
    Request request;
    const Status parsed = request.parse(std::span<const std::byte>(out).subspan(sizeof(Frame)), 2,
                                        {.memory_bytes = 4096, .onchip_bytes = 0});
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(parsed.error().detail(), fmt::format("wire: a verb of unknown kind {}", kind));
  }
}

TEST(UnknownNumbers, AnError) {
  for (const unsigned number : {14u, 99u, 255u}) {
    const auto named = fmt::format("wire: error {}, which this program does not know: why", number);
    Bytes done(1, static_cast<std::byte>(number));
    for (const char each : std::string_view("why")) done.push_back(static_cast<std::byte>(each));
    const Status status = parse_status(done);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(status.error().detail(), named);

    Batch batch;
    batch.fetch_add(Address(0, 0), 1);
    Bytes out;
    append_answer_error(out, 1, Error(ErrorCode::kBusy, "why"));
    out[sizeof(Frame) + offsetof(AnswerHead, error)] = static_cast<std::byte>(number);
    const Status answered =
        read_answer(std::span<const std::byte>(out).subspan(sizeof(Frame)), batch, std::array{0u});
    ASSERT_FALSE(answered);
    EXPECT_EQ(answered.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(answered.error().detail(), named);

    const Error refused = [&] {
      Bytes body(sizeof(base::Digest));
      body.insert(body.end(), done.begin(), done.end());
      const base::Digest digest = refusal_proof(kSecret, kHello, kChallenge, done);
      std::ranges::copy(digest, body.begin());
      return parse_refusal(body, kSecret, kHello, kChallenge);
    }();
    EXPECT_EQ(refused.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(refused.detail(), HasSubstr(named));
  }
}

}  // namespace
}  // namespace pando::fabric::wire
