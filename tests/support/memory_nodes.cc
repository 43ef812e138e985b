#include "support/memory_nodes.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "fabric/rdma/acceptor.h"

namespace pando::testing {

using fabric::node::NodeMemory;
using fabric::node::Server;

namespace {

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return std::move(*result);
}

}  // namespace

const char* rdma_address() { return std::getenv("PANDO_TEST_RDMA"); }

NodeMemory MemoryNodes::make_memory() const {
  return or_throw(NodeMemory::make({.bytes = options_.bytes,
                                    .onchip_bytes = options_.onchip_bytes,
                                    .cluster = options_.cluster}));
}

MemoryNodes::MemoryNodes(const Options& options) : options_(options) {
  std::string name = std::filesystem::temp_directory_path() / "pando-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = name;
  if (options_.tls && options_.key.empty()) options_.key = "a key of the tests";
  if (!options_.key.empty()) {
    std::ofstream(key_file()) << options_.key << "\n";
    std::filesystem::permissions(key_file(), std::filesystem::perms::owner_read);
  }
  for (std::size_t i = 0; i < options.nodes; ++i) {
    auto node = std::make_unique<Node>(make_memory());
    node->options = options.server;
    node->options.listen = {{.host = "127.0.0.1", .port = "0", .path = ""},
                            {.host = "", .port = "", .path = folder_ + "/" + std::to_string(i)}};
    node->options.http = {.host = "127.0.0.1", .port = "0", .path = ""};
    if (options.rdma) {
      node->options.rdma =
          fabric::rdma::acceptor_at({.host = rdma_address(), .port = "0", .path = ""});
    }
    node->options.key = options_.key;
    node->options.cluster = options.cluster;
    node->options.tls = options.tls;
    run(*node);
    nodes_.push_back(std::move(node));
  }
}

MemoryNodes::~MemoryNodes() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) stop(i);
  std::filesystem::remove_all(folder_);
}

void MemoryNodes::run(Node& node) {
  node.server = or_throw(Server::open(node.memory, node.options));
  // The same place when it comes back.
  node.options.listen = node.server->places();
  node.options.http = node.server->http_place();
  node.thread = std::thread([&node] { node.server->run(); });
}

void MemoryNodes::stop(std::size_t node) {
  if (!nodes_[node]->thread.joinable()) return;
  nodes_[node]->server->stop();
  nodes_[node]->thread.join();
  nodes_[node]->server.reset();
}

void MemoryNodes::start(std::size_t node, bool memory_lost) {
  if (memory_lost) {
    auto fresh = std::make_unique<Node>(make_memory());
    fresh->options = nodes_[node]->options;
    nodes_[node] = std::move(fresh);
  }
  run(*nodes_[node]);
}

std::string MemoryNodes::tcp_url() const {
  std::string url = "tcp:";
  for (const auto& node : nodes_) url += node->options.listen[0].to_string() + ",";
  url.pop_back();
  return url;
}

std::string MemoryNodes::rdma_url() const { return tcp_url().replace(0, 3, "rdma"); }

std::string MemoryNodes::mapped_url() const {
  std::string url = "mapped:";
  for (const auto& node : nodes_) url += node->options.listen[1].to_string() + ",";
  url.pop_back();
  return url;
}

std::string MemoryNodes::http(std::size_t node) const {
  return nodes_[node]->options.http->to_string();
}

const fabric::node::ServerCounts& MemoryNodes::counts(std::size_t node) const {
  return nodes_[node]->server->counts();
}

}  // namespace pando::testing
