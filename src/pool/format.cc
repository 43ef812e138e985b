#include "pool/format.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "pool/compute_node.h"
#include "pool/layout.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using fabric::Batch;
using fabric::Buffer;
using fabric::ClientId;
using fabric::kLineBytes;
using fabric::NodeId;

// A superblock's first line: all but the stacks.
constexpr std::size_t kStateBytes = sizeof(Superblock::state_word);
using Headers = std::vector<Superblock>;

constexpr std::uint64_t kFirstEpoch = 1;

// Steady under simulation, where every run must be the same; else nobody else's.
std::uint64_t new_pool_id(Operation& op) {
  std::array<std::uint64_t, 4> words = {
      static_cast<std::uint64_t>(op.worker().now().time_since_epoch().count()),
      op.compute_node().fabric().client(), 0, 0};
  if (!op.worker().clock().simulated()) {
    std::random_device random;  // not simulated
    words[2] = (std::uint64_t{random()} << 32) | random();
    words[3] = (std::uint64_t{random()} << 32) | random();
  }
  return XXH3_64bits(words.data(), sizeof(words)) | 1;  // 0 is no pool
}

// Nodes 0 … this - 1 are there.
std::size_t nodes_from_0(const fabric::Fabric& fabric) {
  const std::size_t count = fabric.memory_node_count();
  std::size_t nodes = 0;
  while (nodes < count && fabric.memory_node_size(static_cast<NodeId>(nodes)) > 0) ++nodes;
  return nodes;
}

Task<Result<Headers>> read_headers(Operation& op, std::size_t nodes) {
  Buffer buffer = op.buffer(nodes * kLineBytes);
  Batch batch(op.cost());
  for (std::size_t i = 0; i < nodes; ++i) {
    batch.read(superblock_field(static_cast<NodeId>(i), 0), buffer.data() + i * kLineBytes,
               kLineBytes);
  }
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  Headers headers(nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    std::memcpy(&headers[i], buffer.data() + i * kLineBytes, kLineBytes);
  }
  co_return headers;
}

Status check_sizes(fabric::Fabric& fabric) {
  for (std::size_t i = 0; i < nodes_from_0(fabric); ++i) {
    const std::uint64_t size = fabric.memory_node_size(static_cast<NodeId>(i));
    if (size >= least_memory_node_size(i)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("memory node {} has {} bytes; a pool needs {} there at least", i, size,
                            least_memory_node_size(i)));
  }
  return {};
}

Error incompatible(std::size_t node, std::string why) {
  return Error(ErrorCode::kIncompatible, fmt::format("memory node {} {}", node, why));
}

// The nodes that a formatted pool began with. `headers` may have more.
Status check_headers(fabric::Fabric& fabric, const Headers& headers) {
  const std::size_t nodes = headers[0].node_count;
  for (std::size_t i = 0; i < std::max<std::size_t>(1, std::min(nodes, headers.size())); ++i) {
    const Superblock& header = headers[i];
    if (header.state_word == 0) {
      return fail(ErrorCode::kDataLost,
                  fmt::format("memory node {} is empty, the others hold a pool", i));
    }
    if (header.state_word != kFormatted || header.magic != kPoolMagic) {
      return fail(incompatible(i, "holds something else than a pool"));
    }
    if (header.format != kPoolFormat) {
      return fail(incompatible(
          i, fmt::format("has pool format {}; this version knows {}", header.format, kPoolFormat)));
    }
    if (header.pool_id != headers[0].pool_id) {
      return fail(incompatible(i, "belongs to another pool than memory node 0"));
    }
    if (header.node_id != i || header.node_count != nodes || nodes == 0 ||
        (nodes > headers.size() && !fabric.may_grow())) {
      return fail(
          incompatible(i, fmt::format("is node {} of {} in its pool, not {} of {}", header.node_id,
                                      header.node_count, i, headers.size())));
    }
    const std::uint64_t size = fabric.memory_node_size(static_cast<NodeId>(i));
    if (header.size != size || header.first_chunk != first_chunk_of(i, size)) {
      return fail(incompatible(
          i, fmt::format("was formatted with {} bytes and has {}", header.size, size)));
    }
  }
  return {};
}

// All of the line but the state. `header` must live until the batch completes.
void add_header(Batch& batch, const Superblock& header) {
  const Address line = superblock_field(static_cast<NodeId>(header.node_id), 0);
  batch.write(line + kStateBytes, reinterpret_cast<const std::byte*>(&header) + kStateBytes,
              kLineBytes - kStateBytes);
}

// Node by node; what a predecessor of ours has done stays. REQUIRES: node 0's state is our client.
Task<Status> format_nodes(Operation& op, Headers& headers) {
  const bool begun = headers[0].magic == kPoolMagic && headers[0].format == kPoolFormat;
  const std::uint64_t pool_id = begun ? headers[0].pool_id : new_pool_id(op);
  for (std::size_t i = 1; i < headers.size(); ++i) {
    if (headers[i].state_word == 0) continue;
    if (begun && headers[i].state_word == kFormatted && headers[i].pool_id == pool_id) continue;
    co_return fail(incompatible(i, "holds something already, memory node 0 does not"));
  }
  // A predecessor may have seen fewer nodes, or more.
  const bool counted = begun && headers[0].node_count > 0;
  const std::size_t nodes = counted ? headers[0].node_count : headers.size();
  if (nodes > headers.size()) {
    co_return fail(missing_memory_node(op.compute_node().fabric(), headers.size(), {}));
  }
  const auto header_of = [&](std::size_t i) {
    return make_header(op.compute_node().fabric(), i, nodes, pool_id);
  };
  if (Status written = co_await write_header(op, header_of(0)); !written) co_return written;
  for (std::size_t i = 1; i < nodes; ++i) {
    if (headers[i].state_word != 0) continue;
    const Superblock header = header_of(i);
    Batch batch(op.cost());
    add_header(batch, header);
    batch.write_word(superblock_field(static_cast<NodeId>(i), 0), &header.state_word);
    if (Status written = co_await op.submit(batch); !written) co_return written;
  }
  const std::uint64_t epoch = kFirstEpoch;
  Batch batch(op.cost());
  batch.write_word(tables_field(offsetof(PoolTables, epoch_word)), &epoch);
  co_return co_await op.submit(batch);
}

// Formats as node 0's owner, or gives the node back.
Task<Status> format(Operation& op) {
  const std::uint64_t self = op.compute_node().fabric().client();
  auto headers = co_await read_headers(op, nodes_from_0(op.compute_node().fabric()));
  if (!headers) co_return fail(headers.error());
  Status formatted = co_await format_nodes(op, *headers);
  auto swapped = co_await swap_state(op, 0, self, formatted ? kFormatted : 0);
  if (!formatted) co_return formatted;
  if (!swapped) co_return fail(swapped.error());
  if (!*swapped) co_return fail(ErrorCode::kFenced, "another took over formatting the pool");
  co_return Status{};
}

}  // namespace

std::uint64_t first_chunk_of(std::size_t node, std::uint64_t node_bytes) {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t end = chunk_states_at(node) + chunk_state_words(node_bytes) * 8;
  return (end + kPage - 1) / kPage * kPage;
}

std::uint64_t least_memory_node_size(std::size_t node) {
  return first_chunk_of(node, kChunkBytes) + kChunkBytes;
}

Superblock make_header(const fabric::Fabric& fabric, std::size_t node, std::size_t pool_nodes,
                       std::uint64_t pool_id) {
  Superblock header{};
  header.state_word = kFormatted;
  header.magic = kPoolMagic;
  header.format = kPoolFormat;
  header.node_id = static_cast<std::uint32_t>(node);
  header.node_count = static_cast<std::uint32_t>(pool_nodes);
  header.pool_id = pool_id;
  header.size = fabric.memory_node_size(static_cast<NodeId>(node));
  header.first_chunk = first_chunk_of(node, header.size);
  header.next_chunk_word = header.first_chunk;
  return header;
}

Task<Result<Superblock>> read_header(Operation& op, NodeId node) {
  Buffer buffer = op.buffer(kLineBytes);
  Batch batch(op.cost());
  batch.read(superblock_field(node, 0), buffer.data(), kLineBytes);
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  Superblock header{};
  std::memcpy(&header, buffer.data(), kLineBytes);
  co_return header;
}

Task<Status> write_header(Operation& op, const Superblock& header) {
  Batch batch(op.cost());
  add_header(batch, header);
  co_return co_await op.submit(batch);
}

Task<Result<bool>> swap_state(Operation& op, NodeId node, std::uint64_t from, std::uint64_t to) {
  Batch batch(op.cost());
  batch.compare_swap(superblock_field(node, offsetof(Superblock, state_word)), from, to);
  if (Status swapped = co_await op.submit(batch); !swapped) co_return fail(swapped.error());
  co_return batch[0].succeeded();
}

Error missing_memory_node(const fabric::Fabric& fabric, std::size_t node, const Status& looked) {
  if (!fabric.may_grow()) {
    return Error(ErrorCode::kIncompatible,
                 fmt::format("memory node {} was added to the pool, and is not given", node));
  }
  return Error(ErrorCode::kUnavailable,
               fmt::format("memory node {} of the pool is not there; start it with the memory that "
                           "it had{}{}",
                           node, looked ? "" : ": ", looked ? "" : looked.error().detail()));
}

Task<Result<Formatted>> format_or_check(Operation& op) {
  fabric::Fabric& fabric = op.compute_node().fabric();
  if (Status fit = check_sizes(fabric); !fit) co_return fail(fit.error());
  std::uint64_t formatter = 0;
  task::TimePoint since = op.worker().now();
  for (Pause pause(op);;) {
    auto headers = co_await read_headers(op, nodes_from_0(fabric));
    if (!headers) co_return fail(headers.error());
    const Superblock& first = (*headers)[0];
    const std::uint64_t state = first.state_word;
    if (state == kFormatted) {
      if (Status checked = check_headers(fabric, *headers); !checked) {
        co_return fail(checked.error());
      }
      if (first.node_count <= headers->size()) co_return Formatted{first.pool_id, first.node_count};
      const Status looked = fabric.look_for_memory_nodes();
      const std::size_t there = nodes_from_0(fabric);
      if (there <= headers->size()) co_return fail(missing_memory_node(fabric, there, looked));
      continue;  // it has come meanwhile
    }
    if (state > std::numeric_limits<ClientId>::max())
      co_return fail(incompatible(0, "holds something else than a pool"));

    bool take = state == 0;
    if (state != formatter) {
      formatter = state;
      since = op.worker().now();
    } else if (state != 0 && op.worker().now() - since >= op.compute_node().options().lease) {
      take = (co_await op.endpoint().fence(static_cast<ClientId>(state))).has_value();
    }
    if (take) {
      auto taken = co_await swap_state(op, 0, state, fabric.client());
      if (!taken) co_return fail(taken.error());
      if (*taken) {
        if (Status formatted = co_await format(op); !formatted) co_return fail(formatted.error());
        continue;
      }
    }
    if (Status waited = co_await pause.wait("the pool to be formatted"); !waited) {
      co_return fail(waited.error());
    }
  }
}

}  // namespace pando::pool
