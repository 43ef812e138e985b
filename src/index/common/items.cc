#include "index/common/items.h"

#include <algorithm>
#include <cstring>

#include <pando/key.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "pool/compute_node.h"

namespace pando::index {

std::uint64_t hash_key(std::string_view key, std::uint64_t seed) {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

void give_up(pool::FreshBlock& block, const Status& status) {
  const bool over = status || status.error().code() == ErrorCode::kExists ||
                    status.error().code() == ErrorCode::kNotFound ||
                    status.error().code() == ErrorCode::kOutOfMemory;
  if (over) block.release();
}

Task<Result<PreparedItem>> prepare_item(Operation& op, std::string_view key,
                                        std::string_view value) {
  pool::Allocator& allocator = op.compute_node().allocator();
  const Result<pool::Block> block = co_await allocator.allocate(
      op, pool::BlockKind::kItem, pool::item_bytes(key.size(), value.size()));
  if (!block) co_return fail(block.error());
  PreparedItem prepared{pool::FreshBlock(allocator, *block), pool::ItemPointer::to(*block),
                        op.buffer(block->bytes())};
  prepared.bytes = pool::encode_item(prepared.buffer.data(), *block, key, value);
  co_return std::move(prepared);
}

Task<Result<PreparedItem>> write_item(Operation& op, std::string_view key, std::string_view value) {
  Result<PreparedItem> prepared = co_await prepare_item(op, key, value);
  if (!prepared) co_return fail(prepared.error());
  fabric::Batch batch(op.cost());
  batch.write(prepared->block->address, prepared->buffer.data(), prepared->bytes);
  if (Status status = co_await op.submit(batch); !status) co_return fail(status.error());
  co_return std::move(*prepared);
}

Task<Result<FetchedItem>> fetch_item(Operation& op, pool::ItemPointer pointer) {
  Result<std::vector<FetchedItem>> items = co_await fetch_items(op, {&pointer, 1});
  if (!items) co_return fail(items.error());
  co_return std::move(items->front());
}

Task<Result<std::vector<FetchedItem>>> fetch_items(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers) {
  std::vector<FetchedItem> items(pointers.size());
  fabric::Batch batch(op.cost());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (!pointers[i].plausible()) continue;
    items[i].buffer = op.buffer(pointers[i].bytes());
    batch.read(pointers[i].address(), items[i].buffer.data(), pointers[i].bytes());
  }
  Status status = co_await op.submit(batch);
  if (!status) co_return fail(status.error());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (items[i].buffer) items[i].view = pool::decode_item(items[i].buffer.data(), pointers[i]);
  }
  co_return std::move(items);
}

Task<Result<std::vector<std::optional<std::string>>>> fetch_keys(
    Operation& op, std::span<const pool::ItemPointer> pointers) {
  constexpr std::size_t kFirst = 256;
  std::vector<std::optional<std::string>> keys(pointers.size());
  const fabric::Buffer heads = op.buffer(std::max<std::size_t>(1, pointers.size()) * kFirst);
  fabric::Batch batch(op.cost());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (!pointers[i].plausible()) continue;
    batch.read(pointers[i].address(), heads.data() + i * kFirst,
               std::min(kFirst, pointers[i].bytes()));
  }
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  fabric::Batch more(op.cost());
  std::vector<std::pair<std::size_t, fabric::Buffer>> rests;
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    if (!pointers[i].plausible()) continue;
    const std::byte* head = heads.data() + i * kFirst;
    const std::size_t length = reinterpret_cast<const pool::ItemHeader*>(head)->key_length;
    if (length > kMaxKeyBytes || pool::item_bytes(length, 0) > pointers[i].bytes()) continue;
    const std::size_t here = std::min(length, kFirst - sizeof(pool::ItemHeader));
    keys[i] = std::string(reinterpret_cast<const char*>(head) + sizeof(pool::ItemHeader), here);
    if (here == length) continue;
    rests.emplace_back(i, op.buffer(length - here));
    more.read(pointers[i].address() + kFirst, rests.back().second.data(), length - here);
    keys[i]->resize(length);
  }
  if (Status read = co_await op.submit(more); !read) co_return fail(read.error());
  for (const auto& [i, rest] : rests) {
    const std::size_t here = kFirst - sizeof(pool::ItemHeader);
    std::memcpy(keys[i]->data() + here, rest.data(), keys[i]->size() - here);
  }
  co_return std::move(keys);
}

Task<Status> retire_item(Operation& op, pool::ItemPointer pointer) {
  co_return co_await retire_items(op, {&pointer, 1});
}

Task<Status> retire_items(Operation& op, std::span<const pool::ItemPointer> pointers) {
  const Result<std::vector<pool::Block>> blocks = co_await item_blocks(op, pointers);
  if (!blocks) co_return fail(blocks.error());
  for (const pool::Block& block : *blocks) op.compute_node().allocator().retire(block);
  co_return Status{};
}

Task<Result<std::vector<pool::Block>>> item_blocks(Operation& op,
                                                   std::span<const pool::ItemPointer> pointers) {
  fabric::Batch batch(op.cost());
  const std::size_t each = fabric::kLineBytes;
  const fabric::Buffer headers = op.buffer(std::max<std::size_t>(1, pointers.size()) * each);
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    batch.read(pointers[i].address(), headers.data() + i * each, sizeof(pool::ItemHeader));
  }
  Status status = co_await op.submit(batch);
  if (!status) co_return fail(status.error());
  std::vector<pool::Block> blocks;
  blocks.reserve(pointers.size());
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    const auto* item = reinterpret_cast<const pool::ItemHeader*>(headers.data() + i * each);
    blocks.push_back(pool::item_block(pointers[i], item->incarnation));
  }
  co_return std::move(blocks);
}

}  // namespace pando::index
