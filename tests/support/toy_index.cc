#include "support/toy_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "fabric/verbs.h"
#include "index/common/items.h"
#include "index/common/node_locks.h"
#include "index/common/settings.h"
#include "pool/catalogue/catalogue.h"
#include "pool/compute_node.h"
#include "pool/memory/item.h"
#include "pool/operation.h"

namespace pando::testing {
namespace toy {
namespace {

using index::FetchedItem;
using index::NodeLock;
using index::PreparedItem;
using index::PutMode;
using pool::ItemPointer;
using pool::Operation;

// ---- Format ----

constexpr std::size_t kFewestSlots = 4;
constexpr std::size_t kMostSlots = 255;
// Levels: none has fewer nodes than four times those of the one above, but the highest.
constexpr std::size_t kMostLevels = 24;
// In a tree of four levels: each splits, a new root, an item.
constexpr std::size_t kBlocksOfAChange = 10;

struct Head {
  std::uint64_t lock;
  std::uint64_t root;  // ItemPointer; 0 where there is no key
  // Of an index that is being dropped: the way down to what is freed next. At each depth, how many
  // slots of the node there lead to what is gone.
  std::array<std::uint8_t, kMostLevels> freed;
};
// All in one line, as a drop needs it: index words begin at the eighth byte of one.
static_assert(sizeof(Head) == 40);

struct Slot {
  std::string_view key;
  ItemPointer to;
};

struct Node {
  FetchedItem item;  // the slots' keys lie in it
  pool::Block block;
  std::size_t level = 0;
  std::vector<Slot> slots;
};

std::string order_bytes(const Key& key) {
  if (key.type() == KeyType::kBytes) return std::string(key.bytes());
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(key.integer() >> (56 - 8 * i));
  return bytes;
}

OwnedKey owned_key(KeyType type, std::string_view bytes) {
  if (type == KeyType::kBytes) return OwnedKey(std::string(bytes));
  std::uint64_t integer = 0;
  for (const char byte : bytes) integer = integer << 8 | static_cast<unsigned char>(byte);
  return OwnedKey(integer);
}

constexpr std::size_t kNodeHeader = 2;
std::size_t slot_bytes(const Slot& slot) { return 10 + slot.key.size(); }

// Filled up with zeros to the usual size: so what a change replaces is what the next one needs, and
// a full pool has room to erase.
std::string encode(std::size_t level, std::span<const Slot> slots, std::size_t usual_bytes) {
  std::string bytes{static_cast<char>(level), static_cast<char>(slots.size())};
  for (const Slot& slot : slots) {
    const std::uint64_t to = slot.to.raw();
    const auto length = static_cast<std::uint16_t>(slot.key.size());
    bytes.append(reinterpret_cast<const char*>(&to), sizeof(to));
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes.append(slot.key);
  }
  bytes.resize(std::max(bytes.size(), usual_bytes));
  return bytes;
}

// False: that is no node.
bool decode(std::string_view bytes, Node& node) {
  if (bytes.size() < kNodeHeader) return false;
  node.level = static_cast<unsigned char>(bytes[0]);
  node.slots.resize(static_cast<unsigned char>(bytes[1]));
  bytes.remove_prefix(kNodeHeader);
  for (Slot& slot : node.slots) {
    std::uint64_t to = 0;
    std::uint16_t length = 0;
    if (bytes.size() < sizeof(to) + sizeof(length)) return false;
    std::memcpy(&to, bytes.data(), sizeof(to));
    std::memcpy(&length, bytes.data() + sizeof(to), sizeof(length));
    bytes.remove_prefix(sizeof(to) + sizeof(length));
    if (bytes.size() < length) return false;
    slot = {bytes.substr(0, length), ItemPointer::from_raw(to)};
    bytes.remove_prefix(length);
  }
  return !node.slots.empty() && node.level < kMostLevels;
}

// Of a leaf: where the key stands or would stand.
std::size_t place_of(const std::vector<Slot>& slots, std::string_view key) {
  return static_cast<std::size_t>(std::ranges::lower_bound(slots, key, {}, &Slot::key) -
                                  slots.begin());
}
// Of a node above: the slot that leads to the key.
std::size_t way_to(const std::vector<Slot>& slots, std::string_view key) {
  const auto after = std::ranges::upper_bound(slots, key, {}, &Slot::key);
  return after == slots.begin() ? 0 : static_cast<std::size_t>(after - slots.begin()) - 1;
}

// Other slots in the place of one.
void replace_slot(std::vector<Slot>& slots, std::size_t at, const std::vector<Slot>& by) {
  const auto place = slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(at));
  slots.insert(place, by.begin(), by.end());
}

// ---- Settings ----

struct Options {
  KeyType key_type = KeyType::kInteger;
  std::size_t node_bytes = 1024;

  index::SettingTable table() {
    index::SettingTable table("toy", key_type);
    table.add({.name = "node_bytes",
               .place = &node_bytes,
               .meaning = "a larger node is cut in two, where it has slots enough",
               .format = true,
               .trials = {"64", "256", "1024"},
               .most = 64 << 10});
    return table;
  }
};

// ---- The index ----

class ToyIndex final : public index::Tree {
 public:
  ToyIndex(pool::ComputeNode& compute_node, const pool::IndexRecord& record, const Options& options)
      : compute_node_(compute_node),
        head_(record.index_word(0)),
        options_(options),
        locks_(compute_node, {}) {}

  Task<Result<std::string>> get(Operation& op, Key key) override;
  Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                         std::span<std::optional<std::string>> values) override;
  Task<Status> scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) override;
  Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) override {
    return change(op, order_bytes(key), {value, mode});
  }
  Task<Status> erase(Operation& op, Key key) override {
    return change(op, order_bytes(key), {std::nullopt, PutMode::kUpdate});
  }
  // The words of a new index are zero: a tree without a key.
  Task<Status> create(Operation&) override { co_return Status{}; }
  Task<Status> destroy(pool::Session& session) override;
  Task<Status> check(Operation& op) override;
  IndexStats stats() const override;

 private:
  // A node on the way down, and which of its slots leads on; of a leaf, place_of().
  struct Step {
    Node node;
    std::size_t at = 0;
  };
  // What is to become of a key. No value: it is erased.
  struct Wish {
    std::optional<std::string_view> value;
    PutMode mode;
  };
  // What a change has in hand: items that nothing leads to yet, and what they replace.
  struct Copy {
    std::vector<PreparedItem> made;
    std::vector<pool::Block> replaced;
    std::vector<Node> neighbours;  // that were merged: keys of slots lie in them
  };

  static std::unexpected<Error> corrupt(std::string_view what) {
    return fail(ErrorCode::kCorrupt, fmt::format("toy index: {}", what));
  }

  Task<Result<Head>> read_head(Operation& op) const;
  // `level`: where they have to stand; the root may be anywhere.
  static Task<Result<std::vector<Node>>> read_nodes(Operation& op,
                                                    std::span<const ItemPointer> pointers,
                                                    std::optional<std::size_t> level);
  static Task<Result<Node>> read_node(Operation& op, ItemPointer pointer,
                                      std::optional<std::size_t> level = {});
  // Where slot `at` leads to. REQUIRES: not of a leaf.
  static Task<Result<Node>> read_below(Operation& op, const Node& node, std::size_t at) {
    return read_node(op, node.slots[at].to, node.level - 1);
  }
  static Task<Result<std::vector<Step>>> descend(Operation& op, ItemPointer root,
                                                 std::string_view key);
  static Task<Status> to_next_leaf(Operation& op, std::vector<Step>& path);

  Task<Status> change(Operation& op, std::string key, Wish wish);
  Task<Result<ItemPointer>> copy_tree(Operation& op, Copy& copy, ItemPointer root,
                                      std::string_view key, const Wish& wish);
  Task<Result<std::vector<Slot>>> copy_level(Operation& op, Copy& copy, std::size_t level,
                                             std::vector<Slot> slots, Step* above);
  static Task<Status> write(Operation& op, const Copy& copy);
  static Task<Result<std::vector<Slot>>> edit_leaf(Operation& op, Copy& copy,
                                                   const std::vector<Step>& path,
                                                   std::string_view key, const Wish& wish);
  Task<Status> merge(Operation& op, Copy& copy, std::vector<Slot>& slots, Step& above);
  Task<Result<std::vector<Slot>>> make_nodes(Operation& op, Copy& copy, std::size_t level,
                                             std::span<const Slot> slots);
  Task<Status> link(Operation& op, NodeLock& lock, Copy& copy, ItemPointer root);

  Task<Result<bool>> destroy_next(Operation& op);
  Task<Status> check_node(Operation& op, const Node& node, bool is_root,
                          std::optional<std::string_view> end);

  pool::ComputeNode& compute_node_;
  const fabric::Address head_;
  const Options options_;
  index::NodeLocks locks_;
  std::atomic<std::uint64_t> splits_{0};
  std::atomic<std::uint64_t> merges_{0};
};

// ---- Reading ----

Task<Result<Head>> ToyIndex::read_head(Operation& op) const {
  const fabric::Buffer buffer = op.buffer(sizeof(Head));
  fabric::Batch batch(op.cost());
  batch.read(head_, buffer.data(), sizeof(Head));
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  Head head;
  std::memcpy(&head, buffer.data(), sizeof(head));
  co_return head;
}

Task<Result<std::vector<Node>>> ToyIndex::read_nodes(Operation& op,
                                                     std::span<const ItemPointer> pointers,
                                                     std::optional<std::size_t> level) {
  Result<std::vector<FetchedItem>> items = co_await index::fetch_items(op, pointers);
  if (!items) co_return fail(items.error());
  std::vector<Node> nodes(pointers.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].item = std::move((*items)[i]);
    const std::optional<pool::ItemView>& view = nodes[i].item.view;
    if (!view || !decode(view->value, nodes[i])) co_return corrupt("a node is damaged");
    if (level && nodes[i].level != *level) co_return corrupt("a node is at the wrong level");
    nodes[i].block = pool::item_block(pointers[i], view->incarnation);
  }
  co_return std::move(nodes);
}

Task<Result<Node>> ToyIndex::read_node(Operation& op, ItemPointer pointer,
                                       std::optional<std::size_t> level) {
  Result<std::vector<Node>> nodes = co_await read_nodes(op, {&pointer, 1}, level);
  if (!nodes) co_return fail(nodes.error());
  co_return std::move(nodes->front());
}

// From the root to the leaf where the key stands or would stand. Nothing where there is no root.
Task<Result<std::vector<ToyIndex::Step>>> ToyIndex::descend(Operation& op, ItemPointer root,
                                                            std::string_view key) {
  std::vector<Step> path;
  if (!root) co_return std::move(path);
  Result<Node> node = co_await read_node(op, root);
  while (node) {
    const bool leaf = node->level == 0;
    const std::size_t at = leaf ? place_of(node->slots, key) : way_to(node->slots, key);
    path.emplace_back(std::move(*node), at);
    if (leaf) co_return std::move(path);
    node = co_await read_below(op, path.back().node, at);
  }
  co_return fail(node.error());
}

// From a leaf to the first slot of the next one; to nothing after the last.
Task<Status> ToyIndex::to_next_leaf(Operation& op, std::vector<Step>& path) {
  path.pop_back();
  while (!path.empty() && ++path.back().at == path.back().node.slots.size()) path.pop_back();
  while (!path.empty() && path.back().node.level > 0) {
    Result<Node> node = co_await read_below(op, path.back().node, path.back().at);
    if (!node) co_return fail(node.error());
    path.emplace_back(std::move(*node), 0);
  }
  co_return Status{};
}

Task<Result<std::string>> ToyIndex::get(Operation& op, Key key) {
  std::optional<std::string> value;
  if (Status read = co_await multi_get(op, {&key, 1}, {&value, 1}); !read) {
    co_return fail(read.error());
  }
  if (!value) co_return fail(ErrorCode::kNotFound);
  co_return std::move(*value);
}

// Level by level, each node once.
Task<Status> ToyIndex::multi_get(Operation& op, std::span<const Key> keys,
                                 std::span<std::optional<std::string>> values) {
  Result<Head> head = co_await read_head(op);
  if (!head) co_return fail(head.error());
  std::vector<std::string> wanted;
  for (const Key& key : keys) wanted.push_back(order_bytes(key));
  std::vector<ItemPointer> at(keys.size(), ItemPointer::from_raw(head->root));  // of each key
  std::optional<std::size_t> level;  // of the nodes that are read next
  for (bool inner = head->root != 0 && !keys.empty(); inner;) {
    std::map<std::uint64_t, std::size_t> places;
    std::vector<ItemPointer> distinct;
    for (const ItemPointer each : at) {
      if (each && places.emplace(each.raw(), distinct.size()).second) distinct.push_back(each);
    }
    Result<std::vector<Node>> nodes = co_await read_nodes(op, distinct, level);
    if (!nodes) co_return fail(nodes.error());
    inner = nodes->front().level > 0;
    if (inner) level = nodes->front().level - 1;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const std::vector<Slot>& slots = (*nodes)[places[at[i].raw()]].slots;
      const std::size_t slot = inner ? way_to(slots, wanted[i]) : place_of(slots, wanted[i]);
      const bool leads_on = inner || (slot < slots.size() && slots[slot].key == wanted[i]);
      at[i] = leads_on ? slots[slot].to : ItemPointer();
    }
  }
  Result<std::vector<FetchedItem>> items = co_await index::fetch_items(op, at);
  if (!items) co_return fail(items.error());
  for (std::size_t i = 0; i < at.size(); ++i) {
    values[i].reset();
    if (!at[i]) continue;
    const std::optional<pool::ItemView>& view = (*items)[i].view;
    if (!view || view->key != wanted[i]) co_return corrupt("an item is damaged");
    values[i] = std::string(view->value);
  }
  co_return Status{};
}

Task<Status> ToyIndex::scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) {
  Result<Head> head = co_await read_head(op);
  if (!head) co_return fail(head.error());
  const std::string first = order_bytes(from);
  Result<std::vector<Step>> path = co_await descend(op, ItemPointer::from_raw(head->root), first);
  if (!path) co_return fail(path.error());
  while (!path->empty() && limit > 0) {
    const Step& leaf = path->back();
    std::vector<ItemPointer> pointers;
    for (std::size_t i = leaf.at; i < leaf.node.slots.size() && pointers.size() < limit; ++i) {
      pointers.push_back(leaf.node.slots[i].to);
    }
    Result<std::vector<FetchedItem>> items = co_await index::fetch_items(op, pointers);
    if (!items) co_return fail(items.error());
    for (const FetchedItem& item : *items) {
      if (!item.view) co_return corrupt("an item is damaged");
      out.push_back({owned_key(options_.key_type, item.view->key), std::string(item.view->value)});
    }
    limit -= pointers.size();
    if (Status moved = co_await to_next_leaf(op, *path); !moved) co_return moved;
  }
  co_return Status{};
}

// ---- Changing ----

Task<Status> ToyIndex::change(Operation& op, std::string key, Wish wish) {
  NodeLock lock(locks_);
  const fabric::Buffer buffer = op.buffer(sizeof(Head));
  const index::LockTarget target{head_, buffer.data(), index::NodeParts::whole(sizeof(Head))};
  if (Status locked = co_await locks_.lock(op, lock, target); !locked) co_return locked;
  Head head;
  std::memcpy(&head, buffer.data(), sizeof(head));
  Copy copy;
  Result<ItemPointer> root =
      co_await copy_tree(op, copy, ItemPointer::from_raw(head.root), key, wish);
  if (root) co_return co_await link(op, lock, copy, *root);
  const Status failed = fail(root.error());
  for (PreparedItem& item : copy.made) index::give_up(item.block, failed);
  // It is what the lock's holder found, whether or not it hears that the lock is free.
  (void)co_await locks_.unlock(op, lock);
  co_return failed;
}

// Writes what is to be the tree. Answers its root.
Task<Result<ItemPointer>> ToyIndex::copy_tree(Operation& op, Copy& copy, ItemPointer root,
                                              std::string_view key, const Wish& wish) {
  Result<std::vector<Step>> path = co_await descend(op, root, key);
  if (!path) co_return fail(path.error());
  for (const Step& step : *path) copy.replaced.push_back(step.node.block);
  Result<std::vector<Slot>> slots = co_await edit_leaf(op, copy, *path, key, wish);
  std::size_t above = path->empty() ? 0 : path->size() - 1;
  for (std::size_t level = 0; slots; ++level) {
    // On top there is the root, or nothing. A root is of no use where it leads to one node.
    if (above == 0 && (slots->empty() || (level > 0 && slots->size() == 1))) break;
    Step* const step = above == 0 ? nullptr : &(*path)[--above];
    slots = co_await copy_level(op, copy, level, std::move(*slots), step);
  }
  if (!slots) co_return fail(slots.error());
  if (Status written = co_await write(op, copy); !written) co_return fail(written.error());
  co_return slots->empty() ? ItemPointer() : slots->front().to;
}

// Makes nodes of the slots. Answers what is to stand at the next level: the slots of the node
// above, if there is one, with those that lead to the new nodes.
Task<Result<std::vector<Slot>>> ToyIndex::copy_level(Operation& op, Copy& copy, std::size_t level,
                                                     std::vector<Slot> slots, Step* above) {
  if (above != nullptr && slots.size() < kFewestSlots) {
    if (Status merged = co_await merge(op, copy, slots, *above); !merged) {
      co_return fail(merged.error());
    }
  }
  Result<std::vector<Slot>> made = co_await make_nodes(op, copy, level, slots);
  if (!made || above == nullptr) co_return made;
  replace_slot(above->node.slots, above->at, *made);
  co_return above->node.slots;
}

Task<Status> ToyIndex::write(Operation& op, const Copy& copy) {
  fabric::Batch batch(op.cost());
  for (const PreparedItem& item : copy.made) {
    batch.write(item.block->address, item.buffer.data(), item.bytes);
  }
  co_return co_await op.submit(batch);
}

// The slots of the last node of the path, with the wish fulfilled.
Task<Result<std::vector<Slot>>> ToyIndex::edit_leaf(Operation& op, Copy& copy,
                                                    const std::vector<Step>& path,
                                                    std::string_view key, const Wish& wish) {
  std::vector<Slot> slots;
  if (!path.empty()) slots = path.back().node.slots;
  auto at = slots.begin() + (path.empty() ? 0 : static_cast<std::ptrdiff_t>(path.back().at));
  const bool there = at != slots.end() && at->key == key;
  if (there && wish.mode == PutMode::kInsert) co_return fail(ErrorCode::kExists);
  if (!there && wish.mode == PutMode::kUpdate) co_return fail(ErrorCode::kNotFound);
  if (there) {
    Result<std::vector<pool::Block>> old = co_await index::item_blocks(op, {&at->to, 1});
    if (!old) co_return fail(old.error());
    copy.replaced.push_back(old->front());
    at = slots.erase(at);
  }
  if (wish.value) {
    Result<PreparedItem> item = co_await index::prepare_item(op, key, *wish.value);
    if (!item) co_return fail(item.error());
    slots.insert(at, {key, item->pointer});
    copy.made.push_back(std::move(*item));
  }
  co_return std::move(slots);
}

// Takes the slots of a neighbour in, which is replaced as well: `above` has one slot less.
Task<Status> ToyIndex::merge(Operation& op, Copy& copy, std::vector<Slot>& slots, Step& above) {
  std::vector<Slot>& all = above.node.slots;
  if (all.size() == 1) co_return corrupt("a node has too few slots");
  const bool to_the_left = above.at > 0;
  const std::size_t place = to_the_left ? above.at - 1 : above.at + 1;
  Result<Node> neighbour = co_await read_below(op, above.node, place);
  if (!neighbour) co_return fail(neighbour.error());
  slots.insert(to_the_left ? slots.begin() : slots.end(), neighbour->slots.begin(),
               neighbour->slots.end());
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(place));
  if (to_the_left) --above.at;
  copy.replaced.push_back(neighbour->block);
  merges_.fetch_add(1, std::memory_order_relaxed);
  copy.neighbours.push_back(std::move(*neighbour));
  co_return Status{};
}

// As many as it takes to hold the slots. Answers the slots that lead to them.
Task<Result<std::vector<Slot>>> ToyIndex::make_nodes(Operation& op, Copy& copy, std::size_t level,
                                                     std::span<const Slot> slots) {
  std::size_t bytes = kNodeHeader;
  for (const Slot& slot : slots) bytes += slot_bytes(slot);
  const bool too_large = bytes > options_.node_bytes || slots.size() > kMostSlots;
  if (too_large && slots.size() >= 2 * kFewestSlots) {
    splits_.fetch_add(1, std::memory_order_relaxed);
    const std::size_t middle = slots.size() / 2;
    Result<std::vector<Slot>> made = co_await make_nodes(op, copy, level, slots.first(middle));
    if (!made) co_return fail(made.error());
    Result<std::vector<Slot>> more = co_await make_nodes(op, copy, level, slots.subspan(middle));
    if (!more) co_return fail(more.error());
    made->insert(made->end(), more->begin(), more->end());
    co_return std::move(*made);
  }
  Result<PreparedItem> node =
      co_await index::prepare_item(op, {}, encode(level, slots, options_.node_bytes));
  if (!node) co_return fail(node.error());
  std::vector<Slot> made{{slots.front().key, node->pointer}};
  copy.made.push_back(std::move(*node));
  co_return std::move(made);
}

Task<Status> ToyIndex::link(Operation& op, NodeLock& lock, Copy& copy, ItemPointer root) {
  for (PreparedItem& item : copy.made) item.block.publish();
  const std::uint64_t word = root.raw();
  fabric::Batch batch(op.cost());
  batch.write_word(head_ + offsetof(Head, root), &word);
  Status linked = co_await locks_.write_and_unlock(op, batch, lock);
  if (!linked) co_return linked;
  for (const pool::Block& block : copy.replaced) compute_node_.allocator().retire(block);
  co_return linked;
}

// ---- Freeing ----

// An operation for each node, so that the epoch moves on.
Task<Status> ToyIndex::destroy(pool::Session& session) {
  for (;;) {
    Operation op(session);
    Result<bool> more = co_await destroy_next(op);
    if (!more) co_return fail(more.error());
    if (!*more) co_return Status{};
  }
}

// Frees the first node that leads to no other one any more, with its items. False: there is none.
Task<Result<bool>> ToyIndex::destroy_next(Operation& op) {
  Result<Head> head = co_await read_head(op);
  if (!head) co_return fail(head.error());
  if (head->root == 0) co_return false;
  Result<Node> node = co_await read_node(op, ItemPointer::from_raw(head->root));
  std::size_t depth = 0;
  for (; node && node->level > 0 && head->freed[depth] < node->slots.size(); ++depth) {
    node = co_await read_below(op, *node, head->freed[depth]);
  }
  if (!node) co_return fail(node.error());
  std::vector<ItemPointer> pointers;
  for (const Slot& slot : node->slots) {
    if (node->level == 0) pointers.push_back(slot.to);
  }
  Result<std::vector<pool::Block>> blocks = co_await index::item_blocks(op, pointers);
  if (!blocks) co_return fail(blocks.error());
  blocks->push_back(node->block);

  std::fill(head->freed.begin() + static_cast<std::ptrdiff_t>(depth), head->freed.end(), 0);
  if (depth == 0) {
    head->root = 0;
  } else {
    ++head->freed[depth - 1];
  }
  constexpr std::size_t kFrom = offsetof(Head, root);
  fabric::Batch batch(op.cost());
  batch.write(head_ + kFrom, reinterpret_cast<const std::byte*>(&*head) + kFrom,
              sizeof(Head) - kFrom);
  if (Status written = co_await op.submit(batch); !written) co_return fail(written.error());
  for (const pool::Block& block : *blocks) compute_node_.allocator().retire(block);
  co_return true;
}

// ---- Checking ----

Task<Status> ToyIndex::check(Operation& op) {
  Result<Head> head = co_await read_head(op);
  if (!head) co_return fail(head.error());
  if (const auto owner = static_cast<pool::OwnerId>(head->lock >> 32); owner != 0) {
    Result<bool> gone = co_await compute_node_.membership().gone(op, owner);
    if (!gone) co_return fail(gone.error());
    if (!*gone) co_return corrupt("locked");
  }
  if (head->root == 0) co_return Status{};
  Result<Node> root = co_await read_node(op, ItemPointer::from_raw(head->root));
  if (!root) co_return fail(root.error());
  co_return co_await check_node(op, *root, true, {});
}

// And all below it: keys ascend and are less than `end`, slots have the first key of where they
// lead.
Task<Status> ToyIndex::check_node(Operation& op, const Node& node, bool is_root,
                                  std::optional<std::string_view> end) {
  const std::vector<Slot>& slots = node.slots;
  const std::size_t fewest = !is_root ? kFewestSlots : node.level > 0 ? 2 : 1;
  if (slots.size() < fewest) co_return corrupt("a node has too few slots");
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::optional<std::string_view> next = i + 1 < slots.size() ? slots[i + 1].key : end;
    if (next && slots[i].key >= *next) co_return corrupt("keys out of order");
    if (node.level == 0) {
      Result<FetchedItem> item = co_await index::fetch_item(op, slots[i].to);
      if (!item) co_return fail(item.error());
      if (!item->view || item->view->key != slots[i].key) co_return corrupt("an item is damaged");
      continue;
    }
    Result<Node> below = co_await read_below(op, node, i);
    if (!below) co_return fail(below.error());
    if (below->slots.front().key != slots[i].key) co_return corrupt("a slot has the wrong key");
    if (Status sound = co_await check_node(op, *below, false, next); !sound) co_return sound;
  }
  co_return Status{};
}

IndexStats ToyIndex::stats() const {
  IndexStats stats;
  stats.counts = {{"splits", splits_.load()},
                  {"merges", merges_.load()},
                  {"lock_takeovers", locks_.takeovers()},
                  {"lock_handovers", locks_.handed_over()}};
  stats.compute.parts = {{"lock table", locks_.bytes()}};
  stats.compute.bytes = locks_.bytes();
  return stats;
}

// ---- The kind ----

class ToyKind final : public index::Kind {
 public:
  std::string_view name() const override { return "toy"; }
  std::string_view summary() const override { return "sorted arrays, copied on write"; }
  std::uint32_t format_version() const override { return 1; }
  std::size_t blocks_linked_at_once() const override { return kBlocksOfAChange; }
  std::vector<index::Setting> settings() const override { return Options().table().describe(); }
  Result<IndexOptions> normalize(const IndexOptions& options) const override {
    Options parsed;
    if (Status status = parsed.table().parse(options); !status) return fail(status.error());
    return parsed.table().spell();
  }
  Result<std::unique_ptr<index::Tree>> make(pool::ComputeNode& compute_node,
                                            const pool::IndexRecord& record,
                                            const IndexOptions& options) const override {
    Options parsed;
    if (Status status = parsed.table().parse(options); !status) return fail(status.error());
    return std::make_unique<ToyIndex>(compute_node, record, parsed);
  }
};

}  // namespace
}  // namespace toy

const index::Kind& toy_kind() {
  static const toy::ToyKind kKind;
  return kKind;
}

}  // namespace pando::testing
