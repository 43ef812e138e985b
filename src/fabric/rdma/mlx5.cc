#include "fabric/rdma/mlx5.h"

#include <infiniband/mlx5dv.h>

#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "fabric/rdma/device.h"

namespace pando::fabric::rdma {
namespace {

template <class Number>
void put_big(std::byte* to, Number number) {
  if constexpr (std::endian::native == std::endian::little) number = std::byteswap(number);
  std::memcpy(to, &number, sizeof(number));
}

std::uint16_t big_word(const std::byte* from) {
  return static_cast<std::uint16_t>((std::to_integer<unsigned>(from[0]) << 8) |
                                    std::to_integer<unsigned>(from[1]));
}

class MaskedQueue final : public Queue {
 public:
  explicit MaskedQueue(Owned<ibv_qp> pair)
      : Queue(std::move(pair)),
        calls_(*ibv_qp_to_qp_ex(&this->pair())),
        raw_(*mlx5dv_qp_ex_from_ibv_qp_ex(&calls_)) {}

  int post(std::span<Request> requests) override { return post_by_calls(calls_, raw_, requests); }

 private:
  ibv_qp_ex& calls_;
  mlx5dv_qp_ex& raw_;
};

}  // namespace

// ---- What a card has ----

bool has_masked_cas(ibv_context& device) {
  if (!mlx5dv_is_supported(device.device)) return false;
  // query_hca_cap_in and _out of mlx5_ifc.h. The kind stands above the lowest bit, which asks for
  // what is set, not for what could be.
  constexpr std::uint16_t kQueryHcaCap = 0x100;
  constexpr std::uint16_t kAtomic = 3;
  constexpr std::uint16_t kCurrent = 1;
  constexpr std::size_t kHeadBytes = 16;
  constexpr std::size_t kCapsBytes = 4096;
  std::array<std::byte, 16> question{};
  put_big(&question[0], kQueryHcaCap);
  put_big<std::uint16_t>(&question[6], (kAtomic << 1) | kCurrent);
  std::array<std::byte, kHeadBytes + kCapsBytes> answer{};
  if (mlx5dv_devx_general_cmd(&device, question.data(), question.size(), answer.data(),
                              answer.size()) != 0) {
    return false;
  }
  return reports_masked_cas(std::span(answer).subspan<kHeadBytes, kAtomicCapsBytes>());
}

bool reports_masked_cas(std::span<const std::byte, kAtomicCapsBytes> atomic_caps) {
  // atomic_caps of mlx5_ifc.h, from bit 0x40: how words return, in two bits, 1 being the
  // processor's order; from 0x90: kinds, of which bit 2 is the masked ("extended")
  // compare-and-swap; from 0xb0: sizes that reliable queue pairs take, as powers of two.
  const unsigned order = std::to_integer<unsigned>(atomic_caps[0x40 / 8]) >> 6;
  const unsigned kinds = big_word(&atomic_caps[0x90 / 8]);
  const unsigned sizes = big_word(&atomic_caps[0xb0 / 8]);
  constexpr unsigned kMaskedCompareSwap = 1 << 2;
  constexpr unsigned kEightBytes = 1 << 3;
  return order == 1 && (kinds & kMaskedCompareSwap) != 0 && (sizes & kEightBytes) != 0;
}

// ---- Requests ----

RawRequest encode_masked_cas(std::uint32_t pair_number, const Request& request) {
  assert(request.masked != nullptr);
  constexpr std::uint32_t kSegments = sizeof(RawRequest) / 16;
  // Of "extended" atomics: 8, and the size as a power of two beyond 4 bytes.
  constexpr std::uint32_t kEightByteWords = 8 | 1;
  const Verb& verb = *request.masked;
  const auto& remote = request.work.wr.atomic;
  const bool signalled = (request.work.send_flags & IBV_SEND_SIGNALED) != 0;
  const bool fenced = (request.work.send_flags & IBV_SEND_FENCE) != 0;
  RawRequest raw{};
  // Control: kind, queue pair, length, whether a completion is wanted and what it waits for.
  put_big<std::uint32_t>(&raw[0], (kEightByteWords << 24) | MLX5_OPCODE_ATOMIC_MASKED_CS);
  put_big<std::uint32_t>(&raw[4], (pair_number << 8) | kSegments);
  raw[11] = static_cast<std::byte>((signalled ? MLX5_WQE_CTRL_CQ_UPDATE : 0) |
                                   (fenced ? MLX5_WQE_CTRL_FENCE : 0));
  // Remote address.
  put_big<std::uint64_t>(&raw[16], remote.remote_addr);
  put_big<std::uint32_t>(&raw[24], remote.rkey);
  // Words, then masks, of each pair first that of the swap.
  put_big<std::uint64_t>(&raw[32], verb.swap);
  put_big<std::uint64_t>(&raw[40], verb.compare);
  put_big<std::uint64_t>(&raw[48], verb.swap_mask);
  put_big<std::uint64_t>(&raw[56], verb.compare_mask);
  // Where the word before goes.
  put_big<std::uint32_t>(&raw[64], request.piece.length);
  put_big<std::uint32_t>(&raw[68], request.piece.lkey);
  put_big<std::uint64_t>(&raw[72], request.piece.addr);
  return raw;
}

int post_by_calls(ibv_qp_ex& pair, mlx5dv_qp_ex& raw, std::span<const Request> requests) {
  ibv_wr_start(&pair);
  for (const Request& request : requests) {
    const ibv_send_wr& work = request.work;
    pair.wr_id = work.wr_id;
    pair.wr_flags = work.send_flags & (IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    if (request.masked != nullptr) {
      const RawRequest bytes = encode_masked_cas(pair.qp_base.qp_num, request);
      mlx5dv_wr_raw_wqe(&raw, bytes.data());  // which copies it
      continue;
    }
    const auto& atomic = work.wr.atomic;
    switch (work.opcode) {
      case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(&pair, work.wr.rdma.rkey, work.wr.rdma.remote_addr);
        break;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
        ibv_wr_atomic_cmp_swp(&pair, atomic.rkey, atomic.remote_addr, atomic.compare_add,
                              atomic.swap);
        break;
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        ibv_wr_atomic_fetch_add(&pair, atomic.rkey, atomic.remote_addr, atomic.compare_add);
        break;
      default:
        ibv_wr_rdma_write(&pair, work.wr.rdma.rkey, work.wr.rdma.remote_addr);
    }
    const ibv_sge& piece = request.piece;
    if ((work.send_flags & IBV_SEND_INLINE) != 0) {
      ibv_wr_set_inline_data(&pair, reinterpret_cast<void*>(piece.addr), piece.length);
    } else {
      ibv_wr_set_sge(&pair, piece.lkey, piece.addr, piece.length);
    }
  }
  return ibv_wr_complete(&pair);
}

std::unique_ptr<Queue> make_masked_queue(const Device& device, ibv_qp_init_attr_ex wanted) {
  wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  wanted.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE |
                          IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  mlx5dv_qp_init_attr own{};
  own.comp_mask =
      MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  own.send_ops_flags = MLX5DV_QP_EX_WITH_RAW_WQE;
  // Its driver would take results from completions to where requests say, and reads none of ours.
  own.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  Owned<ibv_qp> pair(mlx5dv_create_qp(device.context(), &wanted, &own));
  if (pair == nullptr) return nullptr;
  return std::make_unique<MaskedQueue>(std::move(pair));
}

bool makes_masked_queues(const Device& device) {
  const Owned<ibv_cq> completions(ibv_create_cq(device.context(), 1, nullptr, nullptr, 0));
  if (completions == nullptr) return false;
  const ibv_qp_cap room = {.max_send_wr = 1,
                           .max_recv_wr = 1,
                           .max_send_sge = 1,
                           .max_recv_sge = 1,
                           .max_inline_data = 0};
  return make_masked_queue(device, describe_pair(device, *completions, room)) != nullptr;
}

}  // namespace pando::fabric::rdma
