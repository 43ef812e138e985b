#include "fabric/rdma/acceptor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/parse.h"
#include "fabric/rdma/queue.h"

namespace pando::fabric::rdma {
namespace {

constexpr int kBacklog = 256;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                        IBV_ACCESS_REMOTE_ATOMIC;

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

Result<std::unique_ptr<Acceptor>> Acceptor::open(const node::NodeMemory& memory,
                                                 const wire::Place& place,
                                                 node::OnChipPlace onchip) {
  auto channel = make_channel();
  if (!channel) return fail(channel.error());
  auto address = own_address(place);
  if (!address) return fail(address.error());
  std::unique_ptr<Acceptor> acceptor(new Acceptor(memory));
  acceptor->channel_ = std::move(*channel);
  auto listener = make_id(*acceptor->channel_);
  if (!listener) return fail(listener.error());
  acceptor->listener_ = std::move(*listener);
  if (rdma_bind_addr(acceptor->listener_.get(), address->get()) != 0 ||
      rdma_listen(acceptor->listener_.get(), kBacklog) != 0) {
    return fail(rdma_error(address->to_string(), errno));
  }
  if (acceptor->listener_->verbs == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is the address of no one RDMA device: give that of one",
                            address->to_string()));
  }
  auto device = Device::of(*acceptor->listener_);
  if (!device) return fail(device.error());
  acceptor->device_ = std::move(*device);

  auto main = acceptor->device_->reg(memory.data(), memory.bytes(), kAccess);
  if (!main) return fail(main.error());
  acceptor->memory_ = std::move(*main);
  acceptor->queue_.reset(ibv_create_cq(acceptor->device_->context(), 1, nullptr, nullptr, 0));
  if (acceptor->queue_ == nullptr) return fail(rdma_error(acceptor->device_->name(), errno));

  if (Status offered = acceptor->offer_onchip(onchip); !offered) return fail(offered.error());
  wire::RdmaOffer& offer = acceptor->offer_;
  offer.address = bytes_of(rdma_get_local_addr(acceptor->listener_.get()));
  offer.port = ntohs(rdma_get_src_port(acceptor->listener_.get()));
  // Cards move whole lines. Soft-RoCE copies word by word, and one copy ends before the next begins
  // only where there is one processor to copy.
  offer.line_atomic = !acceptor->device_->is_software() || sysconf(_SC_NPROCESSORS_ONLN) == 1;
  offer.masked_cas = acceptor->device_->masked_cas() ? 1 : 0;
  offer.knows_mtu = 1;
  offer.memory_at = reinterpret_cast<std::uint64_t>(memory.data());
  offer.memory_key = acceptor->memory_->rkey;
  return acceptor;
}

Status Acceptor::offer_onchip(node::OnChipPlace place) {
  if (node_.onchip_bytes() == 0) return {};
  const bool must = place == node::OnChipPlace::kCard;
  if (must || (place == node::OnChipPlace::kAutomatic && !node_.outlives_process())) {
    Result<std::unique_ptr<ChipMemory>> card =
        ChipMemory::make(*device_, node_.onchip_bytes(), kAccess);
    Status moved;
    if (card) moved = node::move_to_card(node_, **card);
    if (must && !card) return fail(card.error());
    if (must && !moved) return moved;
    if (card && moved) {
      card_ = std::move(*card);
      offer_.onchip_at = 0;  // it is addressed from 0 on
      offer_.onchip_key = card_->key();
      return {};
    }
  }
  auto onchip = device_->reg(node_.onchip(), node_.onchip_bytes(), kAccess);
  if (!onchip) return fail(onchip.error());
  onchip_ = std::move(*onchip);
  offer_.onchip_at = reinterpret_cast<std::uint64_t>(node_.onchip());
  offer_.onchip_key = onchip_->rkey;
  return {};
}

Acceptor::~Acceptor() { (void)close(); }

Status Acceptor::close() {
  grants_.clear();
  if (card_ == nullptr) return {};
  const Status back = node::move_back(node_, *card_);
  card_.reset();
  return back;
}

wire::Place Acceptor::place() const {
  const std::string text = make_address(offer_.address, offer_.port).to_string();
  return wire::parse_place(text).value_or(wire::Place{});
}

Acceptor::Grant Acceptor::grant() {
  Grant made{.id = ++last_grant_, .offer = offer_};
  base::fill_random(made.offer.token);
  grants_.emplace(made.id, Granted{.token = made.offer.token, .came = false, .connection = {}});
  return made;
}

void Acceptor::serve() {
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
    for (auto& [number, granted] : grants_) {
      if (granted.connection && granted.connection->id.get() == event.id) {
        granted.connection.reset();
      }
    }
  }
}

void Acceptor::answer(Owned<rdma_cm_id> id, const wire::Ticket& ticket) {
  for (auto& [number, granted] : grants_) {
    if (ticket.magic != wire::kMagic || granted.came) continue;
    if (!base::same(granted.token, ticket.token)) continue;
    granted.came = true;
    Owned<ibv_qp> pair = let_in(*id, ticket.mtu);
    if (pair == nullptr) break;
    granted.connection.emplace(std::move(id), std::move(pair));
    return;
  }
  rdma_reject(id.get(), nullptr, 0);
}

// nullptr: it cannot come in.
Owned<ibv_qp> Acceptor::let_in(rdma_cm_id& id, std::uint32_t mtu) {
  const std::optional<ibv_mtu> limit = mtu == 0 ? IBV_MTU_4096 : find_mtu(mtu);
  if (id.verbs != device_->context() || !limit) return nullptr;
  Result<Owned<ibv_qp>> pair = make_pair(*device_, *queue_,
                                         {.max_send_wr = 1,
                                          .max_recv_wr = 1,
                                          .max_send_sge = 1,
                                          .max_recv_sge = 1,
                                          .max_inline_data = 0});
  if (!pair || !make_ready(**pair, id, *device_, *limit)) return nullptr;
  rdma_conn_param answer{};
  answer.responder_resources = RDMA_MAX_RESP_RES;
  answer.initiator_depth = RDMA_MAX_INIT_DEPTH;
  answer.rnr_retry_count = 7;
  answer.qp_num = (*pair)->qp_num;
  if (rdma_accept(&id, &answer) != 0) return nullptr;
  return std::move(*pair);
}

node::OpenRdmaAccess acceptor_at(wire::Place place, node::OnChipPlace onchip) {
  return [place = std::move(place), onchip](const node::NodeMemory& memory) {
    return Acceptor::open(memory, place, onchip);
  };
}

}  // namespace pando::fabric::rdma
