#include "fabric/rdma/queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include "fabric/rdma/mlx5.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::rdma {
namespace {

// What every device has.
class PlainQueue final : public Queue {
 public:
  using Queue::Queue;

  int post(std::span<Request> requests) override {
    for (std::size_t i = 1; i < requests.size(); ++i) {
      requests[i - 1].work.next = &requests[i].work;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(&pair(), &requests.front().work, &bad);
  }
};

Error no_pair(const Device& device, int problem) {
  return {ErrorCode::kUnavailable,
          fmt::format("device {} gives no queue pair: {}; it may need more locked memory (ulimit "
                      "-l)",
                      device.name(), wire::system_reason(problem))};
}

}  // namespace

ibv_qp_init_attr_ex describe_pair(const Device& device, ibv_cq& completions,
                                  const ibv_qp_cap& room) {
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = wanted.recv_cq = &completions;
  wanted.cap = room;
  wanted.qp_type = IBV_QPT_RC;
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
  wanted.pd = device.domain();
  return wanted;
}

Result<Owned<ibv_qp>> make_pair(const Device& device, ibv_cq& completions, const ibv_qp_cap& room) {
  ibv_qp_init_attr_ex wanted = describe_pair(device, completions, room);
  Owned<ibv_qp> pair(ibv_create_qp_ex(device.context(), &wanted));
  if (pair == nullptr) return fail(no_pair(device, errno));
  return pair;
}

Result<std::unique_ptr<Queue>> make_queue(const Device& device, ibv_cq& completions,
                                          const ibv_qp_cap& room, bool masked_cas) {
  assert(!masked_cas || device.masked_cas());
  if (masked_cas) {
    std::unique_ptr<Queue> queue =
        make_masked_queue(device, describe_pair(device, completions, room));
    if (queue == nullptr) return fail(no_pair(device, errno));
    return queue;
  }
  Result<Owned<ibv_qp>> pair = make_pair(device, completions, room);
  if (!pair) return fail(pair.error());
  return std::make_unique<PlainQueue>(std::move(*pair));
}

std::optional<ibv_mtu> find_mtu(std::uint32_t bytes) {
  const auto at = std::ranges::find(kMtus, bytes);
  if (at == kMtus.end()) return std::nullopt;
  return static_cast<ibv_mtu>(IBV_MTU_256 + (at - kMtus.begin()));
}

Status make_ready(ibv_qp& pair, rdma_cm_id& id, const Device& device, ibv_mtu mtu) {
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr wanted{};
    wanted.qp_state = state;
    int mask = 0;
    if (rdma_init_qp_attr(&id, &wanted, &mask) != 0) return fail(rdma_error(device.name(), errno));
    // Those that are not in the mask do not count.
    wanted.path_mtu = std::min(wanted.path_mtu, mtu);
    wanted.max_dest_rd_atomic = std::min(wanted.max_dest_rd_atomic, device.most_answered());
    wanted.max_rd_atomic = std::min(wanted.max_rd_atomic, device.most_asked());
    if (const int problem = ibv_modify_qp(&pair, &wanted, mask); problem != 0) {
      return fail(rdma_error(device.name(), problem));
    }
  }
  return {};
}

}  // namespace pando::fabric::rdma
