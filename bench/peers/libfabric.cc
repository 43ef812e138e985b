// libfabric's tcp provider under ofi_rxm: reliable datagram endpoints, which is what it offers for
// one-sided operations over sockets.
#include <fmt/format.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "peers/peer.h"

namespace pando::bench {
namespace {

constexpr auto kProvider = "tcp;ofi_rxm";
constexpr std::size_t kQueueLength = 1024;

// Where the memory is: all that a client must know.
struct Offer {
  std::uint64_t key = 0;
  std::uint64_t base = 0;
  std::size_t name_length = 0;
  std::array<std::byte, 256> name{};
};

void must(ssize_t result, const char* call) {
  if (result < 0)
    die(fmt::format("libfabric: {}: {}", call, fi_strerror(static_cast<int>(-result))));
}

// An endpoint with all that it needs. Never given back: it lives as long as its process.
struct Side {
  fi_info* info = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* queue = nullptr;
  fid_av* addresses = nullptr;
  fid_ep* endpoint = nullptr;

  explicit Side(bool serves) {
    fi_info* const wanted = fi_allocinfo();
    wanted->ep_attr->type = FI_EP_RDM;
    wanted->caps = FI_RMA | FI_MSG;
    wanted->mode = FI_CONTEXT | FI_CONTEXT2;
    wanted->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    wanted->domain_attr->threading = FI_THREAD_DOMAIN;
    wanted->fabric_attr->prov_name = strdup(kProvider);
    must(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", nullptr, serves ? FI_SOURCE : 0, wanted, &info),
         "fi_getinfo");
    fi_freeinfo(wanted);
    fid_fabric* fabric = nullptr;
    must(fi_fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric");
    must(fi_domain(fabric, info, &domain, nullptr), "fi_domain");
    fi_cq_attr queue_attributes{};
    queue_attributes.format = FI_CQ_FORMAT_CONTEXT;
    queue_attributes.size = kQueueLength;
    queue_attributes.wait_obj = FI_WAIT_NONE;
    must(fi_cq_open(domain, &queue_attributes, &queue, nullptr), "fi_cq_open");
    must(fi_endpoint(domain, info, &endpoint, nullptr), "fi_endpoint");
    must(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    fi_av_attr address_attributes{};
    must(fi_av_open(domain, &address_attributes, &addresses, nullptr), "fi_av_open");
    must(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
    must(fi_enable(endpoint), "fi_enable");
  }

  fid_mr* reg(void* memory, std::size_t bytes, std::uint64_t access, std::uint64_t wanted_key) {
    fid_mr* region = nullptr;
    must(fi_mr_reg(domain, memory, bytes, access, 0, wanted_key, 0, &region, nullptr), "fi_mr_reg");
    return region;
  }
};

[[noreturn]] void serve(int out) {
  void* const memory = mmap(nullptr, kPeerBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) die("libfabric: no memory");
  std::memset(memory, 1, kPeerBytes);
  Side side(true);
  fid_mr* const region = side.reg(memory, kPeerBytes, FI_REMOTE_READ, 1);
  Offer offer;
  offer.key = fi_mr_key(region);
  const bool by_address = (side.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  offer.base = by_address ? reinterpret_cast<std::uint64_t>(memory) : 0;
  offer.name_length = offer.name.size();
  must(fi_getname(&side.endpoint->fid, offer.name.data(), &offer.name_length), "fi_getname");
  tell(out, std::as_bytes(std::span(&offer, 1)));
  close(out);
  for (;;) {
    fi_cq_entry entry;
    fi_cq_read(side.queue, &entry, 1);
  }
}

class Libfabric final : public Peer {
 public:
  explicit Libfabric(std::size_t slots)
      : process_(serve),
        offer_(read_offer(process_.told())),
        side_(false),
        buffer_(slots * kPeerReadBytes),
        contexts_(slots) {
    if (fi_av_insert(side_.addresses, offer_.name.data(), 1, &peer_, 0, nullptr) != 1) {
      die("libfabric: fi_av_insert");
    }
    description_ = fi_mr_desc(side_.reg(buffer_.data(), buffer_.size(), FI_READ, 2));
  }

  bool post(std::size_t slot, std::uint64_t offset) override {
    const ssize_t result =
        fi_read(side_.endpoint, buffer_.data() + slot * kPeerReadBytes, kPeerReadBytes,
                description_, peer_, offer_.base + offset, offer_.key, &contexts_[slot]);
    if (result == -FI_EAGAIN) return false;
    must(result, "fi_read");
    return true;
  }

  void poll(std::vector<std::size_t>& ended) override {
    std::array<fi_cq_entry, 64> entries;
    const ssize_t count = fi_cq_read(side_.queue, entries.data(), entries.size());
    if (count == -FI_EAGAIN) return;
    must(count, "fi_cq_read");
    for (ssize_t i = 0; i < count; ++i) {
      const auto* const context =
          static_cast<fi_context2*>(entries[static_cast<std::size_t>(i)].op_context);
      ended.push_back(static_cast<std::size_t>(context - contexts_.data()));
    }
  }

 private:
  static Offer read_offer(std::span<const std::byte> told) {
    Offer offer;
    if (told.size() != sizeof(offer)) die("libfabric: its process has failed");
    std::memcpy(&offer, told.data(), sizeof(offer));
    return offer;
  }

  PeerProcess process_;
  const Offer offer_;
  Side side_;
  std::vector<std::byte> buffer_;
  std::vector<fi_context2> contexts_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  void* description_ = nullptr;
};

}  // namespace

std::unique_ptr<Peer> make_libfabric(std::size_t slots) {
  return std::make_unique<Libfabric>(slots);
}

}  // namespace pando::bench
