#include "lab/targets/pando_target.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "lab/client_loop.h"

namespace pando::lab {

namespace {

struct ComputeNode {
  Pool pool;
  Index index;
};

class PandoClient {
 public:
  PandoClient(Worker& worker, const Index& index) : worker_(worker), index_(index) {}

  auto get(Key key, Counters* cost) { return index_.get(worker_, key, cost); }
  auto insert(Key key, std::string_view value, Counters* cost) {
    return index_.insert(worker_, key, value, cost);
  }
  auto update(Key key, std::string_view value, Counters* cost) {
    return index_.update(worker_, key, value, cost);
  }
  auto scan(Key from, std::size_t limit, Counters* cost) {
    return index_.scan(worker_, from, limit, cost);
  }

 private:
  Worker& worker_;
  const Index& index_;
};

class PandoTarget final : public Target {
 public:
  PandoTarget(std::string name, std::string fabric, std::string index_name,
              std::vector<ComputeNode> nodes)
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

  Result<TargetMemory> memory() override {
    TargetMemory memory;
    for (const ComputeNode& node : nodes_) {
      const auto stats = node.pool.stats();
      if (!stats) return fail(stats.error());
      memory.compute_bytes += stats->compute.bytes;
      memory.remote_bytes = stats->remote_bytes();  // of the pool: the same from every node
    }
    return memory;
  }

 private:
  std::string name_;
  std::string fabric_;
  std::string index_name_;
  std::vector<ComputeNode> nodes_;
};

Result<std::vector<ComputeNode>> open_nodes(const PandoTargetOptions& options,
                                            const std::string& index_name) {
  auto first = Pool::open(options.pool_url, options.pool);
  if (!first) return fail(first.error());
  auto index = first->create_index(index_name, options.index);
  if (!index) return fail(index.error());
  std::vector<ComputeNode> nodes;
  nodes.push_back({*first, *index});
  while (nodes.size() < options.compute_nodes) {
    auto pool = first->attach(options.pool);
    if (!pool) return fail(pool.error());
    auto opened = pool->open_index(index_name, options.index);
    if (!opened) return fail(opened.error());
    nodes.push_back({*pool, *opened});
  }
  return nodes;
}

}  // namespace

Result<std::unique_ptr<Target>> open_pando_target(const PandoTargetOptions& options) {
  const std::string index_name = fmt::format("bench-{}", getpid());
  auto nodes = open_nodes(options, index_name);
  if (!nodes) return fail(nodes.error());
  std::string fabric = options.pool_url.substr(0, options.pool_url.find_first_of(":?"));
  return std::make_unique<PandoTarget>(options.index_text, std::move(fabric), index_name,
                                       std::move(*nodes));
}

}  // namespace pando::lab
