#include "fabric/node/server.h"

#include <utility>

#include "fabric/node/loop.h"

namespace pando::fabric::node {

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::open(const NodeMemory& memory, const ServerOptions& options,
                                             ServerLog* log) {
  auto loop = std::make_unique<Loop>(memory, options, log);
  if (Status open = loop->open(); !open) return fail(open.error());
  return std::unique_ptr<Server>(new Server(std::move(loop)));
}

void Server::run() { loop_->run(); }
std::optional<task::Duration> Server::turn() { return loop_->turn(); }
void Server::stop() { loop_->stop(); }
std::vector<wire::Place> Server::places() const { return loop_->places(); }
std::optional<wire::Place> Server::http_place() const { return loop_->http_place(); }
std::optional<wire::Place> Server::rdma_place() const { return loop_->rdma_place(); }
bool Server::onchip_in_card() const { return loop_->onchip_in_card(); }
const ServerCounts& Server::counts() const { return loop_->counts(); }
std::vector<std::string> Server::audit() const { return loop_->audit(); }

}  // namespace pando::fabric::node
