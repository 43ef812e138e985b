#include "peers/peer.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

namespace pando::bench {

std::vector<PeerKind> peer_kinds() {
  std::vector<PeerKind> kinds = {{"raw memory", make_raw_memory}};
#if PANDO_HAS_LIBFABRIC
  kinds.push_back({"libfabric", make_libfabric});
#endif
#if PANDO_HAS_UCX
  kinds.push_back({"ucx", make_ucx});
#endif
  return kinds;
}

PeerProcess::PeerProcess(const std::function<void(int out)>& serve) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) die("no pipe");
  const pid_t parent = getpid();
  id_ = fork();
  if (id_ < 0) die("no process");
  if (id_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(ends[0]);
    serve(ends[1]);
    _exit(1);
  }
  close(ends[1]);
  std::array<std::byte, 4096> piece{};
  for (;;) {
    const ssize_t got = read(ends[0], piece.data(), piece.size());
    if (got <= 0) break;
    told_.insert(told_.end(), piece.begin(), piece.begin() + got);
  }
  close(ends[0]);
}

PeerProcess::~PeerProcess() {
  kill(id_, SIGKILL);
  waitpid(id_, nullptr, 0);
}

void tell(int out, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = write(out, bytes.data(), bytes.size());
    if (sent <= 0) die("a peer could not tell where it is");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void die(const std::string& what) {
  fmt::print(stderr, "fabric_bench: {}\n", what);
  std::_Exit(1);
}

}  // namespace pando::bench
