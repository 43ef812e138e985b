// Target: a thing under test, an index of Pando's or a peer's library.
//
// Operations do not go through virtual calls. A target hands each client thread's work to the loop
// in client_loop.h, compiled for the target's own client type; that loop, with its checks, is the
// same for all, so that figures can be compared.
//
// Threads: run_client is called by several threads at once, one for each client; all else by one
// thread while no client runs.
#pragma once

#include <cstdint>
#include <string>

#include <pando/result.h>

namespace pando::lab {

class ClientWork;

struct TargetMemory {
  std::uint64_t compute_bytes = 0;  // on compute nodes, all of them together
  std::uint64_t remote_bytes = 0;   // on memory nodes
};

class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  // As the user named it: "sherman:leaf_bytes=2048", "lmdb".
  virtual std::string name() const = 0;
  // "embedded", "tcp"…; "local" for a library that is no disaggregated index.
  virtual std::string fabric() const = 0;
  virtual bool is_peer() const = 0;

  // Runs all of `work` on the calling thread. What goes wrong, work.failures() is told.
  virtual void run_client(unsigned client, ClientWork& work) = 0;
  // Waits for work that the target does in the background, before a phase that is measured.
  virtual void settle() {}
  virtual Result<TargetMemory> memory() = 0;
};

}  // namespace pando::lab
