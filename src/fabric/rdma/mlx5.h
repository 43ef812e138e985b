// The masked compare-and-swap of NVIDIA's cards (ConnectX-4 and later, driver mlx5), which the
// verbs of rdma-core have no word for: work requests written out byte by byte, as the card reads
// them.
//
// UNTESTED ON HARDWARE. The bytes, what is asked of a card and the order of calls have unit tests;
// no card has ever read them. masked_cas=emulated in a pool's URL does without.
//
//  - Both sides need it: the card that sends such a request, and the one that executes it.
//  - What returns is the word before, in the processor's byte order, as with other atomics: cards
//    have a setting for this (atomic_req_8B_endianness_mode), and one that returns big-endian words
//    counts as having none. (UCX's uct_ib_mlx5_devx_md_open reads it so for both kinds of atomics.)
//  - It is atomic against the card's other atomics: the same unit does both.
//
// Sources: `mlx5dv.h` and mlx5dv_wr_post(3) of rdma-core; the kernel's include/linux/mlx5/qp.h
// (mlx5_wqe_masked_atomic_seg) and mlx5_ifc.h (atomic_caps, query_hca_cap); how UCX fills such a
// request (uct_rc_mlx5_txqp_dptr_post).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "fabric/rdma/queue.h"

struct mlx5dv_qp_ex;  // NOLINT(readability-identifier-naming): rdma-core's

namespace pando::fabric::rdma {

// Whether the device sends and executes masked compare-and-swap of 8 bytes. False, too, where it
// cannot be asked.
bool has_masked_cas(ibv_context& device);
// What it tells of its atomics (atomic_caps), read so.
inline constexpr std::size_t kAtomicCapsBytes = 24;  // as far as they are looked at
bool reports_masked_cas(std::span<const std::byte, kAtomicCapsBytes> atomic_caps);

// A queue that takes requests of every kind; nullptr with errno where there is none to be had.
std::unique_ptr<Queue> make_masked_queue(const Device& device, ibv_qp_init_attr_ex wanted);

// Whether such queues can be had: drivers and kernels differ, whatever the card has.
bool makes_masked_queues(const Device& device);

// The request as the card reads it, but for the number that its driver gives it: segments of 16
// bytes for control, remote address, words, masks and local address. REQUIRES: a masked one.
using RawRequest = std::array<std::byte, 80>;
RawRequest encode_masked_cas(std::uint32_t pair_number, const Request& request);

// Queue::post by calls of a queue pair that was made for them: one doorbell, and between requests
// of the verbs' own kinds the raw ones in their place.
int post_by_calls(ibv_qp_ex& pair, mlx5dv_qp_ex& raw, std::span<const Request> requests);

}  // namespace pando::fabric::rdma
