// The compute nodes of an index under test: a Pool each, with its own budget and caches, and its
// handle of the index. Clients are dealt out over them in turn.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/target.h"
#include <pando/pando.h>

namespace pando::lab {

struct ComputeNode {
  Pool pool;
  Index index;
};
using ComputeNodes = std::vector<ComputeNode>;

// Creates the index on `first`, and attaches the others to the same memory nodes.
Result<ComputeNodes> open_compute_nodes(Pool first, const std::string& index_name,
                                        const IndexOptions& index, const PoolOptions& pool,
                                        unsigned count);

Result<TargetMemory> memory_of(const ComputeNodes& nodes);

// What client_loop.h calls a Client: one worker's use of the index.
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

 protected:
  Worker& worker() { return worker_; }

 private:
  Worker& worker_;
  const Index& index_;
};

}  // namespace pando::lab
