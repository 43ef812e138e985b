// Mapped memory by the same calls as the libraries: what asking for READs and hearing of their end
// leaves of it.
#include <sys/mman.h>

#include <cstring>

#include "peers/peer.h"

namespace pando::bench {
namespace {

class RawMemory final : public Peer {
 public:
  explicit RawMemory(std::size_t slots)
      : memory_(static_cast<std::byte*>(mmap(nullptr, kPeerBytes, PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))),
        buffer_(slots * kPeerReadBytes) {
    if (memory_ == MAP_FAILED) die("no memory");
    std::memset(memory_, 1, kPeerBytes);
  }
  ~RawMemory() override { munmap(memory_, kPeerBytes); }
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;

  bool post(std::size_t slot, std::uint64_t offset) override {
    std::byte* const local = buffer_.data() + slot * kPeerReadBytes;
    std::memcpy(local, memory_ + offset, kPeerReadBytes);
    asm volatile("" ::"r"(local) : "memory");
    ended_.push_back(slot);
    return true;
  }
  void poll(std::vector<std::size_t>& ended) override {
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }

 private:
  std::byte* memory_;
  std::vector<std::byte> buffer_;
  std::vector<std::size_t> ended_;
};

}  // namespace

std::unique_ptr<Peer> make_raw_memory(std::size_t slots) {
  return std::make_unique<RawMemory>(slots);
}

}  // namespace pando::bench
