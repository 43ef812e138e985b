// Memory nodes for tests: servers on threads of this process, on ports that the system chooses.
//
// PANDO_TEST_RDMA=ADDRESS in the environment says that the machine has an RDMA device, at this
// address: then there are tests on rdma, too. tests/guest has guests with such a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/node/memory.h"
#include "fabric/node/server.h"

namespace pando::testing {

// nullptr where the machine has no RDMA device for tests.
const char* rdma_address();

class MemoryNodes {
 public:
  struct Options {
    std::uint64_t bytes = 16 << 20;  // of each
    std::size_t nodes = 1;
    std::string key;
    std::string cluster;
    std::uint32_t onchip_bytes = 256 << 10;
    bool rdma = false;                        // verbs come by RDMA
    bool tls = false;                         // with a key of the tests where none is given
    fabric::node::ServerOptions server = {};  // its places, key, cluster and tls are set here
  };

  explicit MemoryNodes(const Options& options);  // throws where it cannot
  ~MemoryNodes();

  // "tcp:127.0.0.1:1234,127.0.0.1:1235"
  std::string tcp_url() const;
  // "rdma:127.0.0.1:1234,127.0.0.1:1235"
  std::string rdma_url() const;
  // "mapped:unix:/tmp/…,unix:/tmp/…"
  std::string mapped_url() const;
  // With the nodes' key, where they have one. Goes with them.
  std::string key_file() const { return folder_ + "/key"; }
  // "tls=on&key_file=/tmp/…", for a URL.
  std::string tls_words() const { return "tls=on&key_file=" + key_file(); }
  const fabric::node::ServerCounts& counts(std::size_t node) const;
  const fabric::node::NodeMemory& memory(std::size_t node) const { return nodes_[node]->memory; }
  std::string http(std::size_t node) const;  // HOST:PORT

  // As if its process had died; then as if it had been started again, with its memory or without.
  void stop(std::size_t node);
  void start(std::size_t node, bool memory_lost = false);

 private:
  struct Node {
    explicit Node(fabric::node::NodeMemory made) : memory(std::move(made)) {}
    fabric::node::NodeMemory memory;
    std::unique_ptr<fabric::node::Server> server;
    std::thread thread;
    fabric::node::ServerOptions options;
  };
  void run(Node& node);
  fabric::node::NodeMemory make_memory() const;

  Options options_;
  std::string folder_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace pando::testing
