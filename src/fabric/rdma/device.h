// What rdma-core hands out, owned: whatever is destroyed here is out of the network card's reach
// when its destructor returns. And how an address, a device and its memory are found.
//
// Errors say what to do about them: no device, no limit of locked memory, no way there.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::fabric::rdma {

struct Destroy {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
  // With its queue pair, if it has one.
  void operator()(rdma_cm_id* id) const {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);
  }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_dm* memory) const { ibv_free_dm(memory); }
  void operator()(ibv_qp* pair) const { ibv_destroy_qp(pair); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;

// An error with the system's reason, `problem` being an errno.
Error rdma_error(std::string what, int problem);
// Why memory could not be registered.
Error registration_error(std::uint64_t bytes, int problem);

void set_non_blocking(int descriptor);
// One that does not block. An error where the machine has no RDMA.
Result<Owned<rdma_event_channel>> make_channel();
Result<Owned<rdma_cm_id>> make_id(rdma_event_channel& channel);

// An event, given back to librdmacm before it is looked at: ids can be destroyed at once.
struct Event {
  rdma_cm_event_type type{};
  int status = 0;
  rdma_cm_id* id = nullptr;
  std::array<std::byte, 56> data{};  // private data: what was there of it, then zeros
};
// False where none waits.
bool next_event(rdma_event_channel& channel, Event& event);

// An address of IPv4 or IPv6 with a port.
struct SocketAddress {
  sockaddr_storage storage{};

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::string to_string() const;
};
SocketAddress make_address(const std::array<std::byte, 16>& address, std::uint16_t port);
std::array<std::byte, 16> bytes_of(const sockaddr* address);
Result<SocketAddress> find_address(const std::string& host, const std::string& port);

// A device by name, or empty for whichever leads there; its port, and the place of the address in
// its table, -1 for the first that is one of IP.
struct DeviceChoice {
  std::string name;
  std::uint8_t port = 1;
  int gid_index = -1;
};
// The address of a device. kNotFound where there is no such device.
Result<SocketAddress> address_of(const DeviceChoice& choice);

// Whether the device was told to let the packets of a queue pair land in any order, which voids
// rule 4 of verbs.h: NVIDIA's driver takes that from the environment's
// MLX5_RELAXED_PACKET_ORDERING_ON, names of devices or "all". `value`: nullptr where it is not set.
bool lands_in_any_order(std::string_view device, const char* value);

// A device as librdmacm has opened it. Thread-safe.
class Device {
 public:
  // That which the id is bound to. An error where it cannot do what verbs need.
  static Result<std::shared_ptr<Device>> of(const rdma_cm_id& id);
  // That by which the address is reached, `from` one of ours unless its name is empty.
  static Result<std::shared_ptr<Device>> towards(SocketAddress to, const DeviceChoice& from,
                                                 std::chrono::milliseconds time);

  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_.get(); }
  const char* name() const { return ibv_get_device_name(context_->device); }
  std::uint32_t max_message() const { return max_message_; }
  // Soft-RoCE: a driver that copies with the processor.
  bool is_software() const { return software_; }
  // Sends and executes masked compare-and-swap (mlx5.h).
  bool masked_cas() const { return masked_cas_; }
  // Bytes of memory that it has on the chip.
  std::uint64_t chip_bytes() const { return chip_bytes_; }
  // READs and atomics at a time that a queue pair of it answers, and asks for.
  std::uint8_t most_answered() const { return most_answered_; }
  std::uint8_t most_asked() const { return most_asked_; }

  Result<Owned<ibv_mr>> reg(std::byte* memory, std::uint64_t bytes, int access) const;

 private:
  Device() = default;
  ibv_context* context_ = nullptr;  // librdmacm's own
  Owned<ibv_pd> domain_;
  std::uint32_t max_message_ = 0;
  bool software_ = false;
  bool masked_cas_ = false;
  std::uint64_t chip_bytes_ = 0;
  std::uint8_t most_answered_ = 0;
  std::uint8_t most_asked_ = 0;
};

}  // namespace pando::fabric::rdma
