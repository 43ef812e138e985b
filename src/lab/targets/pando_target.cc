#include "lab/targets/pando_target.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "lab/client_loop.h"
#include "lab/targets/compute_nodes.h"
#include "lab/threaded_target.h"

namespace pando::lab {

namespace {

class PandoTarget final : public ThreadedTarget {
 public:
  PandoTarget(std::string name, std::string fabric, std::string index_name, ComputeNodes nodes)
      : name_(std::move(name)),
        fabric_(std::move(fabric)),
        index_name_(std::move(index_name)),
        nodes_(std::move(nodes)) {}

  // Memory of our own goes with the process; a pool that others use must be left as it was.
  ~PandoTarget() override {
    if (fabric_ == "embedded") return;
    Pool first = nodes_.front().pool;
    nodes_.clear();
    const Status dropped = first.drop_index(index_name_);
    if (!dropped) {
      fmt::print(stderr, "pando bench: index {} stays behind: {}\n", index_name_,
                 dropped.error().message());
    }
  }

  std::string name() const override { return name_; }
  std::string fabric() const override { return fabric_; }
  bool is_peer() const override { return false; }
  Result<TargetMemory> memory() override { return memory_of(nodes_); }

 private:
  void run_client(unsigned client, ClientWork& work) override {
    const ComputeNode& node = nodes_[client % nodes_.size()];
    auto worker = node.pool.make_worker();
    if (!worker) return work.failures().add("making a worker: " + worker.error().message());
    PandoClient operations(*worker, node.index);
    work.ready();
    if (work.tasks() == 1) return worker->run(client_loop(operations, work));
    for (unsigned i = 0; i < work.tasks(); ++i) worker->spawn(client_loop(operations, work));
    worker->run();
  }

  std::string name_;
  std::string fabric_;
  std::string index_name_;
  ComputeNodes nodes_;
};

}  // namespace

std::string fabric_of(const std::string& pool_url) {
  return pool_url.substr(0, pool_url.find_first_of(":?"));
}

Result<std::unique_ptr<Target>> open_pando_target(const std::string& pool_url,
                                                  const PandoTargetOptions& options) {
  // Several targets may share a pool that outlives each of them.
  static std::atomic<unsigned> opened{0};
  const std::string index_name = fmt::format("bench-{}-{}", getpid(), opened++);
  auto first = Pool::open(pool_url, options.pool);
  if (!first) return fail(first.error());
  auto nodes = open_compute_nodes(std::move(*first), index_name, options.index, options.pool,
                                  options.compute_nodes);
  if (!nodes) return fail(nodes.error());
  return std::make_unique<PandoTarget>(options.index_text, fabric_of(pool_url), index_name,
                                       std::move(*nodes));
}

}  // namespace pando::lab
