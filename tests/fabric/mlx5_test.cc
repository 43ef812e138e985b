// Masked compare-and-swap as mlx5 cards read it. There is no card here: what they would be given is
// compared with bytes that are written out, and a queue pair that notes its calls stands for
// theirs.

#include "fabric/rdma/mlx5.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/rdma/queue.h"

namespace pando::fabric::rdma {
namespace {

using ::testing::ElementsAre;

constexpr std::uint32_t kPair = 0xA1B2C3;

Verb masked_cas() {
  return {.kind = VerbKind::kMaskedCompareSwap,
          .compare = 0x1112131415161718,
          .swap = 0x2122232425262728,
          .compare_mask = 0x3132333435363738,
          .swap_mask = 0x4142434445464748};
}

Request masked_request(const Verb& verb, unsigned flags) {
  Request request;
  request.masked = &verb;
  request.piece = {.addr = 0x5152535455565758, .length = 8, .lkey = 0x61626364};
  request.work.wr.atomic.remote_addr = 0x7172737475767778;
  request.work.wr.atomic.rkey = 0x81828384;
  request.work.send_flags = flags;
  return request;
}

// Byte by byte: what the card's own documents have, most significant byte first.
constexpr std::array<unsigned char, 80> kExpected = {
    // Control: atomics of 8 bytes beyond the standard's (9); number of the request, the driver's
    // own; masked compare-and-swap.
    0x09, 0x00, 0x00, 0x14,
    // The queue pair, and five segments.
    0xA1, 0xB2, 0xC3, 0x05,
    // Signature, also the driver's; reserved; a completion is wanted; no immediate data.
    0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00,
    // Remote address, its key, reserved.
    0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x81, 0x82, 0x83, 0x84, 0x00, 0x00, 0x00, 0x00,
    // Swap, compare.
    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    // Their masks.
    0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
    // Local memory: length, key, address.
    0x00, 0x00, 0x00, 0x08, 0x61, 0x62, 0x63, 0x64, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58};

std::vector<unsigned> numbers(std::span<const std::byte> bytes) {
  std::vector<unsigned> all;
  for (const std::byte byte : bytes) all.push_back(std::to_integer<unsigned>(byte));
  return all;
}

TEST(Mlx5, AMaskedCompareSwapIsWrittenAsCardsReadIt) {
  const Verb verb = masked_cas();
  const RawRequest raw = encode_masked_cas(kPair, masked_request(verb, IBV_SEND_SIGNALED));
  EXPECT_EQ(numbers(raw), std::vector<unsigned>(kExpected.begin(), kExpected.end()));
}

TEST(Mlx5, ACompletionIsAskedForOnlyWhereItIsWanted) {
  const Verb verb = masked_cas();
  const RawRequest raw = encode_masked_cas(kPair, masked_request(verb, 0));
  std::vector<unsigned> expected(kExpected.begin(), kExpected.end());
  expected[11] = 0;
  EXPECT_EQ(numbers(raw), expected);
}

TEST(Mlx5, AFencedRequestSaysSo) {
  const Verb verb = masked_cas();
  const RawRequest raw =
      encode_masked_cas(kPair, masked_request(verb, IBV_SEND_SIGNALED | IBV_SEND_FENCE));
  std::vector<unsigned> expected(kExpected.begin(), kExpected.end());
  expected[11] = 0x88;  // in the highest three bits 4: it waits for READs and atomics before it
  EXPECT_EQ(numbers(raw), expected);
}

// rdma-core's own structures for the segments that it knows, laid over the bytes.
TEST(Mlx5, ItsSegmentsAreThoseOfTheDriver) {
  const Verb verb = masked_cas();
  const RawRequest raw = encode_masked_cas(kPair, masked_request(verb, IBV_SEND_SIGNALED));
  struct {
    mlx5_wqe_ctrl_seg control;
    mlx5_wqe_raddr_seg remote;
    mlx5_wqe_atomic_seg words;
    mlx5_wqe_atomic_seg masks;
    mlx5_wqe_data_seg local;
  } known{};
  static_assert(sizeof(known) == sizeof(RawRequest));
  mlx5dv_set_ctrl_seg(&known.control, 0, MLX5_OPCODE_ATOMIC_MASKED_CS, 9, kPair,
                      MLX5_WQE_CTRL_CQ_UPDATE, 5, 0, 0);
  known.remote = {.raddr = htobe64(0x7172737475767778), .rkey = htobe32(0x81828384)};
  known.words = {.swap_add = htobe64(verb.swap), .compare = htobe64(verb.compare)};
  known.masks = {.swap_add = htobe64(verb.swap_mask), .compare = htobe64(verb.compare_mask)};
  mlx5dv_set_data_seg(&known.local, 8, 0x61626364, 0x5152535455565758);
  EXPECT_EQ(std::memcmp(&known, raw.data(), sizeof(known)), 0);
}

// ---- What a card tells ----

std::array<std::byte, kAtomicCapsBytes> caps(unsigned order, unsigned kinds, unsigned sizes) {
  std::array<std::byte, kAtomicCapsBytes> told{};
  told[8] = static_cast<std::byte>(order << 6);
  told[18] = static_cast<std::byte>(kinds >> 8);
  told[19] = static_cast<std::byte>(kinds);
  told[22] = static_cast<std::byte>(sizes >> 8);
  told[23] = static_cast<std::byte>(sizes);
  return told;
}

TEST(Mlx5, ACardHasItWhereItSaysSo) {
  EXPECT_TRUE(reports_masked_cas(caps(1, 0xF, 0x1F)));
  EXPECT_TRUE(reports_masked_cas(caps(1, 0x4, 0x8)));
  EXPECT_FALSE(reports_masked_cas(caps(0, 0, 0))) << "nothing is told";
  EXPECT_FALSE(reports_masked_cas(caps(1, 0xB, 0x1F))) << "plain ones, and masked fetch-and-add";
  EXPECT_FALSE(reports_masked_cas(caps(1, 0xF, 0x17))) << "not of 8 bytes";
  EXPECT_FALSE(reports_masked_cas(caps(0, 0xF, 0x1F))) << "words come back in the network's order";
}

// ---- Posting ----

// Notes what is called, in place of a driver.
struct Notes {
  std::vector<std::string> calls;
  RawRequest raw{};
} notes;

void note(ibv_qp_ex* pair, std::string_view what) {
  notes.calls.push_back(std::string(what) +
                        ((pair->wr_flags & IBV_SEND_FENCE) != 0 ? " fenced" : "") +
                        ((pair->wr_flags & IBV_SEND_SIGNALED) != 0 ? "!" : ""));
}

struct NotingPair {
  ibv_qp_ex pair{};
  mlx5dv_qp_ex raw{};

  NotingPair() {
    notes = {};
    pair.qp_base.qp_num = kPair;
    pair.wr_start = [](ibv_qp_ex*) { notes.calls.emplace_back("start"); };
    pair.wr_complete = [](ibv_qp_ex*) {
      notes.calls.emplace_back("doorbell");
      return 0;
    };
    pair.wr_rdma_read = [](ibv_qp_ex* to, std::uint32_t key, std::uint64_t at) {
      note(to, "read " + std::to_string(key) + " " + std::to_string(at));
    };
    pair.wr_rdma_write = [](ibv_qp_ex* to, std::uint32_t key, std::uint64_t at) {
      note(to, "write " + std::to_string(key) + " " + std::to_string(at));
    };
    pair.wr_atomic_cmp_swp = [](ibv_qp_ex* to, std::uint32_t key, std::uint64_t at,
                                std::uint64_t compare, std::uint64_t swap) {
      note(to, "cas " + std::to_string(key) + " " + std::to_string(at) + " " +
                   std::to_string(compare) + " " + std::to_string(swap));
    };
    pair.wr_atomic_fetch_add = [](ibv_qp_ex* to, std::uint32_t key, std::uint64_t at,
                                  std::uint64_t add) {
      note(to, "faa " + std::to_string(key) + " " + std::to_string(at) + " " + std::to_string(add));
    };
    pair.wr_set_sge = [](ibv_qp_ex*, std::uint32_t key, std::uint64_t at, std::uint32_t length) {
      notes.calls.push_back("piece " + std::to_string(key) + " " + std::to_string(at) + " " +
                            std::to_string(length));
    };
    pair.wr_set_inline_data = [](ibv_qp_ex*, void* from, std::size_t length) {
      notes.calls.push_back("within " + std::string(static_cast<const char*>(from), length));
    };
    raw.wr_raw_wqe = [](mlx5dv_qp_ex*, const void* bytes) {
      notes.calls.emplace_back("raw");
      std::memcpy(notes.raw.data(), bytes, notes.raw.size());
    };
  }
};

TEST(Mlx5, RequestsOfAPartKeepTheirOrderAndShareADoorbell) {
  NotingPair noting;
  const Verb verb = masked_cas();
  const std::string text = "words";
  std::array<Request, 6> requests{};
  requests[0].work.opcode = IBV_WR_RDMA_READ;
  requests[0].work.wr.rdma = {.remote_addr = 100, .rkey = 1};
  requests[0].piece = {.addr = 7, .length = 64, .lkey = 9};
  requests[1] = masked_request(verb, 0);
  requests[2].work.opcode = IBV_WR_RDMA_WRITE;
  requests[2].work.send_flags = IBV_SEND_INLINE;
  requests[2].work.wr.rdma = {.remote_addr = 200, .rkey = 2};
  requests[2].piece = {
      .addr = reinterpret_cast<std::uint64_t>(text.data()), .length = 5, .lkey = 0};
  requests[3].work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  requests[3].work.wr.atomic = {.remote_addr = 300, .compare_add = 11, .swap = 12, .rkey = 3};
  requests[3].piece = {.addr = 8, .length = 8, .lkey = 9};
  requests[4].work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  requests[4].work.wr.atomic = {.remote_addr = 400, .compare_add = 13, .swap = 0, .rkey = 4};
  requests[4].piece = {.addr = 16, .length = 8, .lkey = 9};
  requests[5].work.opcode = IBV_WR_RDMA_WRITE;
  requests[5].work.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  requests[5].work.wr.rdma = {.remote_addr = 500, .rkey = 5};
  requests[5].piece = {.addr = 24, .length = 1000, .lkey = 9};
  EXPECT_EQ(post_by_calls(noting.pair, noting.raw, requests), 0);
  EXPECT_THAT(notes.calls,
              ElementsAre("start", "read 1 100", "piece 9 7 64", "raw", "write 2 200",
                          "within words", "cas 3 300 11 12", "piece 9 8 8", "faa 4 400 13",
                          "piece 9 16 8", "write 5 500 fenced!", "piece 9 24 1000", "doorbell"));
  EXPECT_EQ(notes.raw, encode_masked_cas(kPair, requests[1]));
}

// ---- Order ----

std::string fences(std::string_view verbs) {
  BatchOrder order;
  std::string found;
  for (const char verb : verbs) {
    const unsigned flags = order.flags_of(verb == 'R'   ? VerbKind::kRead
                                          : verb == 'W' ? VerbKind::kWrite
                                          : verb == 'M' ? VerbKind::kMaskedCompareSwap
                                          : verb == 'F' ? VerbKind::kFetchAdd
                                                        : VerbKind::kCompareSwap);
    EXPECT_TRUE(flags == 0 || flags == IBV_SEND_FENCE);
    found += flags != 0 ? '|' : '.';
  }
  return found;
}

TEST(BatchOrder, WhatWritesBehindAnAtomicIsFencedAndNothingElse) {
  EXPECT_EQ(fences("C"), ".");
  EXPECT_EQ(fences("CR"), "..") << "how locks are taken: no second round trip";
  EXPECT_EQ(fences("WCRR"), "....");
  EXPECT_EQ(fences("WWRW"), "....") << "a WRITE may overtake a READ";
  EXPECT_EQ(fences("RWC"), "...");
  EXPECT_EQ(fences("CW"), ".|");
  EXPECT_EQ(fences("MW"), ".|");
  EXPECT_EQ(fences("FW"), ".|");
  EXPECT_EQ(fences("CWW"), ".|.") << "the first waits, and the second comes behind it";
  EXPECT_EQ(fences("CRW"), "..|") << "the READ waits for nothing";
  EXPECT_EQ(fences("CC"), ".|");
  EXPECT_EQ(fences("CMFW"), ".|||");
}

TEST(BatchOrder, DevicesThatWereToldToDoWithoutAreKnown) {
  EXPECT_FALSE(lands_in_any_order("mlx5_0", nullptr));
  EXPECT_FALSE(lands_in_any_order("mlx5_0", ""));
  EXPECT_FALSE(lands_in_any_order("mlx5_1", "mlx5_10 mlx5_0"));
  EXPECT_TRUE(lands_in_any_order("mlx5_1", "mlx5_0 mlx5_1"));
  EXPECT_TRUE(lands_in_any_order("mlx5_0", "mlx5_0"));
  EXPECT_TRUE(lands_in_any_order("mlx5_0", "all"));
}

TEST(Mlx5, TheMtuIsOneOfFive) {
  EXPECT_EQ(find_mtu(256), IBV_MTU_256);
  EXPECT_EQ(find_mtu(1024), IBV_MTU_1024);
  EXPECT_EQ(find_mtu(4096), IBV_MTU_4096);
  for (const std::uint32_t other : {0u, 255u, 1500u, 8192u}) EXPECT_FALSE(find_mtu(other)) << other;
}

}  // namespace
}  // namespace pando::fabric::rdma
