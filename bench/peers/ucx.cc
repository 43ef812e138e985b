// UCX over its tcp transport.
#include <fmt/format.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "peers/peer.h"

namespace pando::bench {
namespace {

// Where the memory is: all that a client must know. A packed key and an address follow.
struct Offer {
  std::uint64_t base = 0;
  std::size_t key_length = 0;
  std::size_t address_length = 0;
};

void must(ucs_status_t status, const char* call) {
  if (status != UCS_OK) die(fmt::format("UCX: {}: {}", call, ucs_status_string(status)));
}

// Never given back: it lives as long as its process.
struct Side {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;

  Side() {
    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_NET_DEVICES", "lo", 1);
    ucp_config_t* config = nullptr;
    must(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_RMA;
    must(ucp_init(&parameters, config, &context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker_parameters{};
    worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(context, &worker_parameters, &worker), "ucp_worker_create");
  }
};

[[noreturn]] void serve(int out) {
  Side side;
  ucp_mem_map_params_t wanted{};
  wanted.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  wanted.length = kPeerBytes;
  wanted.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h memory = nullptr;
  must(ucp_mem_map(side.context, &wanted, &memory), "ucp_mem_map");
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  must(ucp_mem_query(memory, &attributes), "ucp_mem_query");
  std::memset(attributes.address, 1, kPeerBytes);

  Offer offer;
  offer.base = reinterpret_cast<std::uint64_t>(attributes.address);
  void* key = nullptr;
  must(ucp_rkey_pack(side.context, memory, &key, &offer.key_length), "ucp_rkey_pack");
  ucp_address_t* address = nullptr;
  must(ucp_worker_get_address(side.worker, &address, &offer.address_length),
       "ucp_worker_get_address");
  tell(out, std::as_bytes(std::span(&offer, 1)));
  tell(out, {static_cast<const std::byte*>(key), offer.key_length});
  tell(out, {reinterpret_cast<const std::byte*>(address), offer.address_length});
  close(out);
  for (;;) ucp_worker_progress(side.worker);
}

class Ucx final : public Peer {
 public:
  explicit Ucx(std::size_t slots)
      : process_(serve), buffer_(slots * kPeerReadBytes), slots_(slots) {
    const std::span<const std::byte> told = process_.told();
    Offer offer;
    if (told.size() < sizeof(offer)) die("UCX: its process has failed");
    std::memcpy(&offer, told.data(), sizeof(offer));
    if (told.size() != sizeof(offer) + offer.key_length + offer.address_length) {
      die("UCX: its process has failed");
    }
    base_ = offer.base;
    const std::byte* const key = told.data() + sizeof(offer);
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<const ucp_address_t*>(key + offer.key_length);
    must(ucp_ep_create(side_.worker, &parameters, &endpoint_), "ucp_ep_create");
    must(ucp_ep_rkey_unpack(endpoint_, key, &key_), "ucp_ep_rkey_unpack");
    for (std::size_t i = 0; i < slots; ++i) slots_[i] = {this, i};
  }

  bool post(std::size_t slot, std::uint64_t offset) override {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    parameters.cb.send = on_end;
    parameters.user_data = &slots_[slot];
    const ucs_status_ptr_t request = ucp_get_nbx(endpoint_, buffer_.data() + slot * kPeerReadBytes,
                                                 kPeerReadBytes, base_ + offset, key_, &parameters);
    if (UCS_PTR_IS_ERR(request)) must(UCS_PTR_STATUS(request), "ucp_get_nbx");
    if (request == nullptr) ended_.push_back(slot);  // at once
    return true;
  }

  void poll(std::vector<std::size_t>& ended) override {
    if (ended_.empty()) ucp_worker_progress(side_.worker);
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

 private:
  struct Slot {
    Ucx* peer;
    std::size_t number;
  };
  static void on_end(void* request, ucs_status_t status, void* data) {
    must(status, "a READ");
    const auto& slot = *static_cast<Slot*>(data);
    slot.peer->ended_.push_back(slot.number);
    ucp_request_free(request);
  }

  PeerProcess process_;
  Side side_;
  std::vector<std::byte> buffer_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> ended_;
  std::uint64_t base_ = 0;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
};

}  // namespace

std::unique_ptr<Peer> make_ucx(std::size_t slots) { return std::make_unique<Ucx>(slots); }

}  // namespace pando::bench
