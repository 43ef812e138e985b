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
#include "pool/item.h"
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

struct WrittenItem {
  pool::Block block;
  pool::ItemPointer pointer;
};

// An item prepared in a buffer, to be written by a batch of the caller's.
struct PreparedItem {
  WrittenItem item;
  fabric::Buffer buffer;
  std::size_t bytes = 0;
};

// Frees a block that was to become part of an index, which ended with `status` before anything led
// to it. A WRITE to it may still be under way where that is an error of the network: then it is
// retired, so that nobody has it before that is over.
void give_up(pool::ComputeNode& node, const pool::Block& block, const Status& status);

// Allocates; writes nothing yet.
Task<Result<PreparedItem>> prepare_item(Operation& op, std::string_view key,
                                        std::string_view value);
Task<Result<WrittenItem>> write_item(Operation& op, std::string_view key, std::string_view value);

Task<Result<FetchedItem>> fetch_item(Operation& op, pool::ItemPointer pointer);
// All in one round trip, in the order asked.
Task<Result<std::vector<FetchedItem>>> fetch_items(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers);

// The keys alone, however large the values, in one round trip (two where keys are long). Unchecked
// but for their length: compare with a hash. nullopt: no item at that place.
Task<Result<std::vector<std::optional<std::string>>>> fetch_keys(
    Operation& op, std::span<const pool::ItemPointer> pointers);

// Retires (published: readers may hold it) or frees an item that is known by pointer alone: reads
// its incarnation first.
Task<Status> retire_item(Operation& op, pool::ItemPointer pointer, bool published = true);
Task<Status> retire_items(Operation& op, std::span<const pool::ItemPointer> pointers);
// What is to be retired: their incarnations are read.
Task<Result<std::vector<pool::Block>>> item_blocks(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers);

}  // namespace pando::index
