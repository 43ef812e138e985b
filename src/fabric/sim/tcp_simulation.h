// A simulation in which clients are the real tcp fabric (tcp/) and memory nodes the real server
// (node/), on simulated sockets (sockets.h). Its faults are those of connections and processes:
// verbs are executed whole, one batch after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "fabric/sim/simulation.h"
#include "fabric/sim/sockets.h"
#include <pando/result.h>

namespace pando::fabric::sim {

struct TcpSimOptions {
  std::uint64_t node_bytes = 0;
  std::uint32_t nodes = 1;
  std::uint32_t onchip_bytes = 0;
  bool native_masked_cas = true;
  SocketOptions sockets;
  std::chrono::milliseconds timeout{4};  // of clients, for an answer
  // Of memory nodes.
  std::chrono::milliseconds handshake_time{8};
  std::chrono::milliseconds remembered{20};
};

// An error where the machine has no memory for them.
Result<std::unique_ptr<Simulation>> make_tcp_simulation(const TcpSimOptions& options);

}  // namespace pando::fabric::sim
