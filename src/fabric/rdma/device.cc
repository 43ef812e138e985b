#include "fabric/rdma/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/parse.h"
#include "fabric/rdma/mlx5.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::rdma {
namespace {

// What rdma_rxe says of itself.
constexpr std::uint32_t kSoftRoceVendor = 0xFFFFFF;
constexpr const char* kAnyOrder = "MLX5_RELAXED_PACKET_ORDERING_ON";

// Why librdmacm has nothing to offer.
Error no_rdma() {
  if (access("/dev/infiniband/rdma_cm", R_OK | W_OK) != 0 && errno == EACCES) {
    return {ErrorCode::kDenied,
            "RDMA devices may not be used by this user: /dev/infiniband/* must be readable and "
            "writable, by a group of the user's or by all"};
  }
  return {ErrorCode::kUnavailable,
          "this machine has no RDMA device: load its drivers (and rdma_ucm), and look with 'rdma "
          "link'; libibverbs needs the package ibverbs-providers; in a container, /dev/infiniband "
          "must be there"};
}

std::uint16_t port_of(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

std::uint8_t at_most_255(int number) {
  return static_cast<std::uint8_t>(std::clamp(number, 0, 255));
}

}  // namespace

Error rdma_error(std::string what, int problem) {
  if (problem == ENODEV) {
    return {ErrorCode::kUnavailable,
            fmt::format("{}: no RDMA device leads there; 'rdma link' shows those of this machine, "
                        "and each needs an address of its own ('ip addr')",
                        what)};
  }
  return {ErrorCode::kUnavailable, fmt::format("{}: {}", what, wire::system_reason(problem))};
}

Error registration_error(std::uint64_t bytes, int problem) {
  return {ErrorCode::kOutOfMemory,
          fmt::format("{} of memory cannot be registered with the RDMA device: {}; memory that it "
                      "uses is locked: raise the limit (ulimit -l, or LimitMEMLOCK= of systemd)",
                      base::format_size(bytes), wire::system_reason(problem))};
}

void set_non_blocking(int descriptor) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

Result<Owned<rdma_event_channel>> make_channel() {
  Owned<rdma_event_channel> channel(rdma_create_event_channel());
  if (channel == nullptr) return fail(no_rdma());
  set_non_blocking(channel->fd);
  return channel;
}

Result<Owned<rdma_cm_id>> make_id(rdma_event_channel& channel) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(&channel, &id, nullptr, RDMA_PS_TCP) != 0) {
    return fail(rdma_error("RDMA connections", errno));
  }
  return Owned<rdma_cm_id>(id);
}

bool next_event(rdma_event_channel& channel, Event& event) {
  rdma_cm_event* got = nullptr;
  if (rdma_get_cm_event(&channel, &got) != 0) return false;
  event = {.type = got->event, .status = got->status, .id = got->id, .data = {}};
  const std::size_t bytes = std::min<std::size_t>(got->param.conn.private_data_len, 56);
  if (got->event == RDMA_CM_EVENT_CONNECT_REQUEST && got->param.conn.private_data != nullptr) {
    std::memcpy(event.data.data(), got->param.conn.private_data, bytes);
  }
  rdma_ack_cm_event(got);
  return true;
}

// ---- Addresses ----

std::string SocketAddress::to_string() const {
  std::array<char, NI_MAXHOST> host{};
  const auto* const address = reinterpret_cast<const sockaddr*>(&storage);
  getnameinfo(address, sizeof(storage), host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  const bool v6 = storage.ss_family == AF_INET6;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host.data(), v6 ? "]" : "", port_of(address));
}

SocketAddress make_address(const std::array<std::byte, 16>& address, std::uint16_t port) {
  SocketAddress made;
  in6_addr raw;
  std::memcpy(&raw, address.data(), sizeof(raw));
  if (IN6_IS_ADDR_V4MAPPED(&raw)) {
    auto* const to = reinterpret_cast<sockaddr_in*>(&made.storage);
    to->sin_family = AF_INET;
    to->sin_port = htons(port);
    std::memcpy(&to->sin_addr, address.data() + 12, 4);
  } else {
    auto* const to = reinterpret_cast<sockaddr_in6*>(&made.storage);
    to->sin6_family = AF_INET6;
    to->sin6_port = htons(port);
    to->sin6_addr = raw;
  }
  return made;
}

std::array<std::byte, 16> bytes_of(const sockaddr* address) {
  std::array<std::byte, 16> bytes{};
  if (address->sa_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  } else {
    bytes[10] = bytes[11] = std::byte{0xFF};
    std::memcpy(bytes.data() + 12, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  }
  return bytes;
}

Result<SocketAddress> find_address(const std::string& host, const std::string& port) {
  const addrinfo hints = {.ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int problem = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); problem != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no address: {}", host, gai_strerror(problem)));
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr,
              std::min<std::size_t>(found->ai_addrlen, sizeof(address.storage)));
  freeaddrinfo(found);
  return address;
}

Result<SocketAddress> address_of(const DeviceChoice& choice) {
  int count = 0;
  const std::unique_ptr<ibv_context*[], void (*)(ibv_context**)> all(rdma_get_devices(&count),
                                                                     rdma_free_devices);
  if (all == nullptr || count <= 0) return fail(no_rdma());
  std::string names;
  for (int i = 0; i < count; ++i) {
    ibv_context* const context = all[static_cast<std::size_t>(i)];
    const char* const name = ibv_get_device_name(context->device);
    if (choice.name != name) {
      names += fmt::format(" {}", name);
      continue;
    }
    ibv_port_attr port{};
    if (const int problem = ibv_query_port(context, choice.port, &port); problem != 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("device {} has no port {}", name, choice.port));
    }
    for (int gid = std::max(choice.gid_index, 0); gid < port.gid_tbl_len; ++gid) {
      ibv_gid value{};
      if (ibv_query_gid(context, choice.port, gid, &value) == 0) {
        std::array<std::byte, 16> bytes{};
        std::memcpy(bytes.data(), value.raw, sizeof(value.raw));
        in6_addr raw;
        std::memcpy(&raw, value.raw, sizeof(raw));
        // Link-local ones say nothing without their interface.
        if (!IN6_IS_ADDR_UNSPECIFIED(&raw) && !IN6_IS_ADDR_LINKLOCAL(&raw)) {
          return make_address(bytes, 0);
        }
      }
      if (choice.gid_index >= 0) break;
    }
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {}, port {}: no IP address there; give its interface one "
                            "('ip addr')",
                            name, choice.port));
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("there is no RDMA device '{}'; there are:{}", choice.name, names));
}

// ---- Devices ----

bool lands_in_any_order(std::string_view device, const char* value) {
  std::string_view names = value != nullptr ? value : "";
  while (!names.empty()) {
    const std::size_t end = names.find_first_of(" ,");
    const std::string_view name = names.substr(0, end);
    if (name == "all" || name == device) return true;
    names.remove_prefix(end == std::string_view::npos ? names.size() : end + 1);
  }
  return false;
}

Result<std::shared_ptr<Device>> Device::of(const rdma_cm_id& id) {
  if (id.verbs == nullptr) return fail(rdma_error("RDMA", ENODEV));
  std::shared_ptr<Device> device(new Device);
  device->context_ = id.verbs;
  if (lands_in_any_order(device->name(), std::getenv(kAnyOrder))) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("device {} is to let WRITEs land in any order, by {} in the "
                            "environment; indexes need them in order: unset it",
                            device->name(), kAnyOrder));
  }
  ibv_device_attr_ex all{};
  const ibv_device_attr& attributes = all.orig_attr;
  ibv_port_attr port{};
  int problem = ibv_query_device_ex(id.verbs, nullptr, &all);
  if (problem == 0) problem = ibv_query_port(id.verbs, id.port_num, &port);
  if (problem != 0) return fail(rdma_error(device->name(), problem));
  if (attributes.atomic_cap == IBV_ATOMIC_NONE) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {} has no atomics, which indexes need", device->name()));
  }
  device->software_ = attributes.vendor_id == kSoftRoceVendor;
  device->masked_cas_ = has_masked_cas(*id.verbs);
  device->chip_bytes_ = all.max_dm_size;
  device->most_answered_ = at_most_255(attributes.max_qp_rd_atom);
  device->most_asked_ = at_most_255(attributes.max_qp_init_rd_atom);
  device->max_message_ = port.max_msg_sz;
  device->domain_.reset(ibv_alloc_pd(id.verbs));
  if (device->domain_ == nullptr) return fail(rdma_error(device->name(), errno));
  return device;
}

Result<std::shared_ptr<Device>> Device::towards(SocketAddress to, const DeviceChoice& from,
                                                std::chrono::milliseconds time) {
  auto channel = make_channel();
  if (!channel) return fail(channel.error());
  auto id = make_id(**channel);
  if (!id) return fail(id.error());
  SocketAddress source;
  if (!from.name.empty()) {
    auto own = address_of(from);
    if (!own) return fail(own.error());
    source = *own;
  }
  if (rdma_resolve_addr(id->get(), from.name.empty() ? nullptr : source.get(), to.get(),
                        static_cast<int>(time.count())) != 0) {
    return fail(rdma_error(to.to_string(), errno));
  }
  Event event;
  // The system ends it after `time`; a little more, so that its own answer is heard.
  const auto until = std::chrono::steady_clock::now() + time + std::chrono::milliseconds(100);
  if (!wire::wait_for((*channel)->fd, POLLIN, until) || !next_event(**channel, event)) {
    return fail(rdma_error(to.to_string(), ETIMEDOUT));
  }
  if (event.type != RDMA_CM_EVENT_ADDR_RESOLVED) {
    return fail(rdma_error(to.to_string(), event.status != 0 ? -event.status : EHOSTUNREACH));
  }
  return of(**id);
}

Result<Owned<ibv_mr>> Device::reg(std::byte* memory, std::uint64_t bytes, int access) const {
  Owned<ibv_mr> region(ibv_reg_mr(domain_.get(), memory, bytes, access));
  if (region == nullptr) return fail(registration_error(bytes, errno));
  return region;
}

}  // namespace pando::fabric::rdma
