#include "fabric/rdma/door.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/parse.h"

namespace pando::fabric::rdma {
namespace {

constexpr int kBacklog = 256;

// A device's address where the host is its name, an address otherwise.
Result<SocketAddress> own_address(const wire::Place& place) {
  auto port = base::parse_unsigned("port", place.port, 0, 65535);
  if (!port) return fail(port.error());
  const Result<SocketAddress> device = address_of({.name = place.host});
  if (device) {
    return make_address(bytes_of(reinterpret_cast<const sockaddr*>(&device->storage)),
                        static_cast<std::uint16_t>(*port));
  }
  if (device.error().code() != ErrorCode::kNotFound) return device;
  Result<SocketAddress> address = find_address(place.host, place.port);
  if (address) return address;
  return fail(address.error().code(),
              fmt::format("{}; {}", address.error().detail(), device.error().detail()));
}

}  // namespace

Result<std::unique_ptr<Door>> Door::open(const node::NodeMemory& memory, const wire::Place& place) {
  auto channel = make_channel();
  if (!channel) return fail(channel.error());
  auto address = own_address(place);
  if (!address) return fail(address.error());
  std::unique_ptr<Door> door(new Door);
  door->channel_ = std::move(*channel);
  auto listener = make_id(*door->channel_);
  if (!listener) return fail(listener.error());
  door->listener_ = std::move(*listener);
  if (rdma_bind_addr(door->listener_.get(), address->get()) != 0 ||
      rdma_listen(door->listener_.get(), kBacklog) != 0) {
    return fail(rdma_error(address->to_string(), errno));
  }
  if (door->listener_->verbs == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is the address of no one RDMA device: give that of one",
                            address->to_string()));
  }
  auto device = Device::of(*door->listener_);
  if (!device) return fail(device.error());
  door->device_ = std::move(*device);

  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  auto main = door->device_->reg(memory.data(), memory.bytes(), kAccess);
  if (!main) return fail(main.error());
  door->memory_ = std::move(*main);
  wire::Door& offer = door->offer_;
  if (memory.onchip_bytes() > 0) {
    auto onchip = door->device_->reg(memory.onchip(), memory.onchip_bytes(), kAccess);
    if (!onchip) return fail(onchip.error());
    door->onchip_ = std::move(*onchip);
    offer.onchip_key = door->onchip_->rkey;
  }
  door->queue_.reset(ibv_create_cq(door->device_->context(), 1, nullptr, nullptr, 0));
  if (door->queue_ == nullptr) return fail(rdma_error(door->device_->name(), errno));

  offer.address = bytes_of(rdma_get_local_addr(door->listener_.get()));
  offer.port = ntohs(rdma_get_src_port(door->listener_.get()));
  // Cards move whole lines. Soft-RoCE copies word by word, and one copy ends before the next begins
  // only where there is one processor to copy.
  offer.line_atomic = !door->device_->is_software() || sysconf(_SC_NPROCESSORS_ONLN) == 1;
  offer.memory_at = reinterpret_cast<std::uint64_t>(memory.data());
  offer.onchip_at = reinterpret_cast<std::uint64_t>(memory.onchip());
  offer.memory_key = door->memory_->rkey;
  return door;
}

wire::Place Door::place() const {
  const std::string text = make_address(offer_.address, offer_.port).to_string();
  return wire::parse_place(text).value_or(wire::Place{});
}

Door::Invitation Door::invite() {
  Invitation made{.guest = ++last_guest_, .door = offer_};
  base::fill_random(made.door.token);
  guests_.emplace(made.guest, Invited{.token = made.door.token, .came = false, .id = nullptr});
  return made;
}

void Door::serve() {
  Event event;
  while (next_event(*channel_, event)) {
    if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      wire::Ticket ticket;
      std::memcpy(&ticket, event.data.data(), sizeof(ticket));
      answer(Owned<rdma_cm_id>(event.id), ticket);
      continue;
    }
    if (event.type == RDMA_CM_EVENT_ESTABLISHED || event.id == listener_.get()) continue;
    // It went, or did not come to the end. Its token is used up.
    for (auto& [guest, invited] : guests_) {
      if (invited.id.get() == event.id) invited.id.reset();
    }
  }
}

void Door::answer(Owned<rdma_cm_id> id, const wire::Ticket& ticket) {
  for (auto& [guest, invited] : guests_) {
    if (ticket.magic != wire::kMagic || invited.came) continue;
    if (!base::same(invited.token, ticket.token)) continue;
    invited.came = true;
    if (!let_in(*id)) break;
    invited.id = std::move(id);
    return;
  }
  rdma_reject(id.get(), nullptr, 0);
}

bool Door::let_in(rdma_cm_id& id) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_.get();
  wanted.cap = {.max_send_wr = 1,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
  wanted.qp_type = IBV_QPT_RC;
  if (id.verbs != device_->context() || rdma_create_qp(&id, device_->domain(), &wanted) != 0) {
    return false;
  }
  rdma_conn_param answer{};
  answer.responder_resources = RDMA_MAX_RESP_RES;
  answer.initiator_depth = RDMA_MAX_INIT_DEPTH;
  answer.rnr_retry_count = 7;
  return rdma_accept(&id, &answer) == 0;
}

}  // namespace pando::fabric::rdma
