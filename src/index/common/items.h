// Items in use by an index: writing, fetching, retiring, one or many in a round trip.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/verbs.h"
#include "pool/compute_node.h"
#include "pool/memory/fresh_block.h"
#include "pool/memory/item.h"
#include "pool/operation.h"
#include <pando/result.h>
#include <pando/task.h>

namespace pando::index {

using pool::Operation;

// Keyed, so that nobody can choose keys that collide.
std::uint64_t hash_key(std::string_view key, std::uint64_t seed);

// An item with the buffer that holds it.
struct FetchedItem {
  fabric::Buffer buffer;
  std::optional<pool::ItemView> view;  // none: no such item lives at that place
};

// An item prepared in a buffer, to be written by a batch of the caller's.
struct PreparedItem {
  pool::FreshBlock block;
  pool::ItemPointer pointer;
  fabric::Buffer buffer;
  std::size_t bytes = 0;
};

// Allocates; writes nothing yet.
Task<Result<PreparedItem>> prepare_item(Operation& op, std::string_view key,
                                        std::string_view value);
// The same, written.
Task<Result<PreparedItem>> write_item(Operation& op, std::string_view key, std::string_view value);

// A block that was to become part of an index, by an operation that ended with `status` before
// anything led to it: free at once, unless a WRITE to it may still be under way.
void give_up(pool::FreshBlock& block, const Status& status);

Task<Result<FetchedItem>> fetch_item(Operation& op, pool::ItemPointer pointer);
// All in one round trip, in the order asked.
Task<Result<std::vector<FetchedItem>>> fetch_items(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers);

// The keys alone, however large the values, in one round trip (two where keys are long). Unchecked
// but for their length: compare with a hash. nullopt: no item at that place.
Task<Result<std::vector<std::optional<std::string>>>> fetch_keys(
    Operation& op, std::span<const pool::ItemPointer> pointers);

// Retires items that are known by pointer alone: reads their incarnations first.
Task<Status> retire_item(Operation& op, pool::ItemPointer pointer);
Task<Status> retire_items(Operation& op, std::span<const pool::ItemPointer> pointers);
// What is to be retired: their incarnations are read.
Task<Result<std::vector<pool::Block>>> item_blocks(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers);

}  // namespace pando::index
