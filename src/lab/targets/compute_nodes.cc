#include "lab/targets/compute_nodes.h"

#include <utility>

namespace pando::lab {

Result<ComputeNodes> open_compute_nodes(Pool first, const std::string& index_name,
                                        const IndexOptions& index, const PoolOptions& pool,
                                        unsigned count) {
  auto created = first.create_index(index_name, index);
  if (!created) return fail(created.error());
  ComputeNodes nodes;
  nodes.push_back({std::move(first), std::move(*created)});
  while (nodes.size() < count) {
    auto attached = nodes.front().pool.attach(pool);
    if (!attached) return fail(attached.error());
    auto opened = attached->open_index(index_name, index);
    if (!opened) return fail(opened.error());
    nodes.push_back({std::move(*attached), std::move(*opened)});
  }
  return nodes;
}

Result<TargetMemory> memory_of(const ComputeNodes& nodes) {
  TargetMemory memory;
  for (const ComputeNode& node : nodes) {
    const auto stats = node.pool.stats();
    if (!stats) return fail(stats.error());
    memory.compute_bytes += stats->compute.bytes;
    memory.remote_bytes = stats->remote_bytes();  // of the pool: the same from every node
  }
  return memory;
}

}  // namespace pando::lab
