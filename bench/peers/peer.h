// Peers: other libraries' one-sided READs over TCP on loopback, and mapped memory, for fabric_bench
// to hold ours against. A library's peer has a process of its own that owns kPeerBytes of memory
// and serves them as fast as its library can, polling.
//
// Only what is measured: a peer that fails ends the program with a message.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pando::bench {

inline constexpr std::uint64_t kPeerBytes = 64 << 20;
inline constexpr std::size_t kPeerReadBytes = 64;

class Peer {
 public:
  virtual ~Peer() = default;
  // Begins a READ of kPeerReadBytes into the slot's memory. REQUIRES: none is under way in `slot`,
  // which is below the `slots` that the peer was made with. False: try again after a poll().
  virtual bool post(std::size_t slot, std::uint64_t offset) = 0;
  // Puts the slots whose READs have ended behind `ended`.
  virtual void poll(std::vector<std::size_t>& ended) = 0;
};

// Those that this program was built with: the libraries' development packages were there.
struct PeerKind {
  std::string name;
  std::function<std::unique_ptr<Peer>(std::size_t slots)> make;
};
std::vector<PeerKind> peer_kinds();

// ---- For those who implement one ----

// A process that runs serve(out), which must write what a client needs to know to the descriptor
// `out`, close it, and never return. It ends with this object, or with this process.
class PeerProcess {
 public:
  explicit PeerProcess(const std::function<void(int out)>& serve);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  std::span<const std::byte> told() const { return told_; }

 private:
  pid_t id_ = 0;
  std::vector<std::byte> told_;
};
void tell(int out, std::span<const std::byte> bytes);
[[noreturn]] void die(const std::string& what);

std::unique_ptr<Peer> make_raw_memory(std::size_t slots);
std::unique_ptr<Peer> make_libfabric(std::size_t slots);
std::unique_ptr<Peer> make_ucx(std::size_t slots);

}  // namespace pando::bench
