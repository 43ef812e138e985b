#include "pool/membership/memory_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/mutex.h"
#include "pool/compute_node.h"
#include "pool/format.h"
#include "pool/layout.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::ClientId;

// Far more often than nodes come; a READ each time. After a failure the node may hang, and each
// attempt with it: then more seldom. Shorter where leases are.
constexpr task::Duration kBetweenLooks = std::chrono::milliseconds(100);
constexpr task::Duration kAfterFailure = std::chrono::seconds(2);

constexpr std::size_t kListAt = offsetof(Superblock, added_words);

bool contains(const std::vector<NodeId>& list, NodeId id) {
  return std::ranges::find(list, id) != list.end();
}

Address list_word(std::size_t i) { return superblock_field(0, kListAt + i * 8); }

}  // namespace

// ---- The list ----

// Up to its first free word: what was read behind that may have come later.
Task<Result<MemoryNodes::List>> MemoryNodes::read_list(Operation& op) {
  constexpr std::size_t kBytes = sizeof(Superblock::added_words);
  Buffer buffer = op.buffer(kBytes);
  Batch batch(op.cost());
  batch.read(list_word(0), buffer.data(), kBytes);
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  List list;
  for (std::size_t i = 0; i < kMaxAddedNodes; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, buffer.data() + i * 8, sizeof(word));
    if (word == 0) break;
    if (word - 1 > std::numeric_limits<NodeId>::max()) {
      co_return fail(ErrorCode::kCorrupt, "the pool's list of memory nodes holds none");
    }
    list.push_back(static_cast<NodeId>(word - 1));
  }
  co_return list;
}

Task<Status> MemoryNodes::open(Operation& op, std::size_t initial) {
  assert(node_.membership().self() != 0);
  initial_ = initial;
  fabric::Fabric& fabric = node_.fabric();
  auto list = co_await read_list(op);
  if (!list) co_return fail(list.error());
  for (const NodeId id : *list) {
    Status looked;
    if (fabric.memory_node_size(id) == 0) looked = fabric.look_for_memory_nodes();
    if (fabric.memory_node_size(id) == 0) co_return fail(missing_memory_node(fabric, id, looked));
    auto ours = co_await checked(op, id);
    if (!ours) co_return fail(ours.error());
    if (!*ours) {
      co_return fail(ErrorCode::kIncompatible,
                     fmt::format("memory node {} was added to the pool, and holds another", id));
    }
    learn(id);
  }
  const std::size_t nodes = fabric.memory_node_count();
  if (fabric.may_grow() || nodes == initial + list->size()) co_return Status{};
  co_return fail(ErrorCode::kIncompatible, fmt::format("the pool has {} memory nodes, {} are given",
                                                       initial + list->size(), nodes));
}

Task<Result<bool>> MemoryNodes::reaches_all(Operation& op) {
  const auto list = co_await read_list(op);
  if (!list) co_return fail(list.error());
  co_return std::ranges::all_of(
      *list, [this](NodeId id) { return node_.fabric().memory_node_size(id) > 0; });
}

// ---- Who knows them ----

void MemoryNodes::learn(NodeId id) {
  const base::MutexLock lock(mutex_);
  added_.push_back(id);
  known_.store(added_.size(), std::memory_order_release);
}

void MemoryNodes::all_know(std::uint64_t count) {
  std::uint64_t before = used_.load(std::memory_order_relaxed);
  while (before < count && !used_.compare_exchange_weak(before, count)) {
  }
}

std::vector<NodeId> MemoryNodes::in_use() const {
  return first(std::min(used_.load(std::memory_order_relaxed), known()));
}

MemoryNodes::List MemoryNodes::first(std::uint64_t added) const {
  List ids;
  ids.reserve(initial_ + added);
  for (std::size_t i = 0; i < initial_; ++i) ids.push_back(static_cast<NodeId>(i));
  if (added == 0) return ids;
  const base::MutexLock lock(mutex_);
  ids.insert(ids.end(), added_.begin(), added_.begin() + static_cast<std::ptrdiff_t>(added));
  return ids;
}

// ---- Adding ----

Task<void> MemoryNodes::look(Operation& op) {
  if (!node_.fabric().may_grow() || op.worker().now() < next_look_) co_return;
  const Status looked = co_await look_once(op);
  const task::Duration lease = node_.options().lease;
  next_look_ = op.worker().now() + (looked ? std::min<task::Duration>(kBetweenLooks, lease)
                                           : std::min<task::Duration>(kAfterFailure, 8 * lease));
}

Task<Status> MemoryNodes::look_once(Operation& op) {
  fabric::Fabric& fabric = node_.fabric();
  auto list = co_await read_list(op);
  if (!list) co_return fail(list.error());
  // In the order of the list, since peers are told a count: one that is not there yet holds up
  // those behind it.
  for (std::size_t i = known(); i < list->size(); ++i) {
    const NodeId id = (*list)[i];
    if (fabric.memory_node_size(id) == 0) break;
    auto ours = co_await checked(op, id);
    if (!ours) co_return fail(ours.error());
    if (!*ours) break;
    learn(id);
  }
  for (std::size_t i = initial_; i < fabric.memory_node_count(); ++i) {
    const auto id = static_cast<NodeId>(i);
    if (fabric.memory_node_size(id) < least_memory_node_size(id) || contains(*list, id)) continue;
    auto formatted = co_await format(op, id);
    if (!formatted) co_return fail(formatted.error());
    if (!*formatted) continue;
    if (Status added = co_await add(op, id, *list); !added) co_return added;
  }
  co_return Status{};
}

Task<Result<bool>> MemoryNodes::checked(Operation& op, NodeId id) {
  auto header = co_await read_header(op, id);
  if (!header) co_return fail(header.error());
  co_return header->state_word == kFormatted && header->magic == kPoolMagic &&
      header->format == kPoolFormat && header->pool_id == node_.pool_id() &&
      header->node_id == id && header->size == node_.fabric().memory_node_size(id);
}

// True: the node is formatted for this pool. False: it is another pool's, or another compute node
// is at it.
Task<Result<bool>> MemoryNodes::format(Operation& op, NodeId id) {
  auto header = co_await read_header(op, id);
  if (!header) co_return fail(header.error());
  const std::uint64_t self = node_.fabric().client();
  const std::uint64_t state = header->state_word;
  if (state == kFormatted) co_return co_await checked(op, id);
  if (state > std::numeric_limits<ClientId>::max()) co_return false;
  if (state != self) {
    if (formatters_.size() <= id) formatters_.resize(id + std::size_t{1});
    Formatter& formatter = formatters_[id];
    if (state != 0 && formatter.client != state) {
      formatter = {state, op.worker().now()};
      co_return false;
    }
    // Formatting takes a few round trips. Who has not ended it in all of a lease is shut out before
    // its place is taken, once it is dead; one that lives may only be cut off from this node.
    if (state != 0) {
      if (op.worker().now() - formatter.since < task::Duration(node_.options().lease)) {
        co_return false;
      }
      auto lives = co_await node_.membership().lives(op, static_cast<ClientId>(state));
      if (!lives || *lives) co_return lives ? Result<bool>(false) : lives;
      if (!co_await op.endpoint().fence(static_cast<ClientId>(state))) co_return false;
    }
    auto taken = co_await swap_state(op, id, state, self);
    if (!taken) co_return fail(taken.error());
    if (!*taken) co_return false;
  }
  const Superblock fresh = make_header(node_.fabric(), id, initial_, node_.pool_id());
  if (Status written = co_await write_header(op, fresh); !written) co_return fail(written.error());
  co_return co_await swap_state(op, id, self, kFormatted);
}

// `list` is read anew where others have added theirs meanwhile.
Task<Status> MemoryNodes::add(Operation& op, NodeId id, List& list) {
  while (!contains(list, id) && list.size() < kMaxAddedNodes) {
    Batch batch(op.cost());
    batch.compare_swap(list_word(list.size()), 0, std::uint64_t{id} + 1);
    if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
    if (batch[0].succeeded()) {
      list.push_back(id);
      break;
    }
    auto newer = co_await read_list(op);
    if (!newer) co_return fail(newer.error());
    list = std::move(*newer);
  }
  co_return Status{};
}

}  // namespace pando::pool
