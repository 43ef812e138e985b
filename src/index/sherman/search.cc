// Sherman: get and multi_get.
#include <unordered_map>

#include "index/sherman/sherman.h"

namespace pando::index::sherman {

template <class K>
Task<Status> Sherman<K>::read_leaf(Operation& op, View key, std::byte* into) {
  Route<K> route;
  if (router().known_route(key, route)) {
    fabric::Batch batch(op.cost());
    batch.read(route.node.address, into, leaf_bytes());
    if (Status read = co_await op.submit(batch); !read) co_return read;
    if (believable(route, key, into)) co_return Status{};
    op.count_retry();
    router().misled(route);
  }
  Result<Found<K>> found = co_await tree().read(op, key, 0, into);
  co_return found ? Status{} : fail(found.error());
}

// An entry whose item is not the key's is no live one, or another key's with the same hash.
template <class K>
Task<Result<std::optional<typename Sherman<K>::Match>>> Sherman<K>::find_in(Operation& op,
                                                                            Leaf<K> leaf,
                                                                            View key) {
  using Answer = std::optional<Match>;
  const std::uint64_t word = key_word(key);
  std::size_t slot = leaf.find(word);
  if constexpr (K::kType == KeyType::kInteger) {
    if (slot == leaf.capacity()) co_return Answer(std::nullopt);
    co_return Answer(Match{slot, {}});
  } else {
    for (; slot < leaf.capacity(); slot = leaf.find(word, slot + 1)) {
      Result<FetchedItem> item = co_await fetch_item(op, leaf.item(slot));
      if (!item) co_return fail(item.error());
      if (item->view && item->view->key == key) {
        co_return Answer(Match{slot, std::move(*item)});
      }
    }
    co_return Answer(std::nullopt);
  }
}

template <class K>
Task<Result<std::optional<std::string>>> Sherman<K>::value_in(Operation& op, Leaf<K> leaf,
                                                              View key) {
  using Answer = std::optional<std::string>;
  Result<std::optional<Match>> match = co_await find_in(op, leaf, key);
  if (!match) co_return fail(match.error());
  if (!*match) co_return Answer(std::nullopt);
  const std::size_t slot = (*match)->slot;
  if (!leaf.is_item(slot)) co_return Answer(leaf.value(slot));
  FetchedItem& item = (*match)->item;
  if (!item.view) {
    Result<FetchedItem> fetched = co_await fetch_item(op, leaf.item(slot));
    if (!fetched) co_return fail(fetched.error());
    item = std::move(*fetched);
  }
  if (!item.view) co_return fail(ErrorCode::kCorrupt, "an entry's item is not there");
  co_return Answer(item.view->value);
}

template <class K>
Task<Result<std::string>> Sherman<K>::get(Operation& op, Key key) {
  const View wanted = K::view(key);
  const fabric::Buffer buffer = op.buffer(leaf_bytes());
  if (Status read = co_await read_leaf(op, wanted, buffer.data()); !read) {
    co_return fail(read.error());
  }
  const Leaf<K> leaf = leaf_at(buffer.data());
  if constexpr (K::kType == KeyType::kInteger) {
    // The common case once more without a further coroutine.
    const std::size_t slot = leaf.find(wanted);
    if (slot == leaf.capacity()) co_return fail(ErrorCode::kNotFound);
    if (!leaf.is_item(slot)) co_return std::string(leaf.value(slot));
  }
  Result<std::optional<std::string>> value = co_await value_in(op, leaf, wanted);
  if (!value) co_return fail(value.error());
  if (!*value) co_return fail(ErrorCode::kNotFound);
  co_return std::move(**value);
}

// The leaves of all keys in one batch, then the items of all that have one in another. What the
// cache cannot route, or routes wrongly, is looked up by itself.
template <class K>
Task<Status> Sherman<K>::multi_get(Operation& op, std::span<const Key> keys,
                                   std::span<std::optional<std::string>> values) {
  constexpr std::size_t kLeavesAtOnce = 64;
  const std::size_t bytes = leaf_bytes();
  for (std::size_t begin = 0; begin < keys.size();) {
    struct Planned {
      std::size_t key;
      std::size_t leaf;
      Route<K> route;
    };
    std::vector<Planned> planned;
    Unfinished unfinished;
    std::unordered_map<std::uint64_t, std::size_t> leaves;  // by address: which buffer
    std::vector<fabric::Buffer> buffers;
    fabric::Batch batch(op.cost());
    std::size_t end = begin;
    for (; end < keys.size() && buffers.size() < kLeavesAtOnce; ++end) {
      Route<K> route;
      if (!router().known_route(K::view(keys[end]), route)) {
        unfinished.alone.push_back(end);
        continue;
      }
      const auto [at, is_new] = leaves.try_emplace(route.node.address.raw(), buffers.size());
      if (is_new) {
        buffers.push_back(op.buffer(bytes));
        batch.read(route.node.address, buffers.back().data(), bytes);
      }
      planned.push_back({end, at->second, std::move(route)});
    }
    if (Status read = co_await op.submit(batch); !read) co_return read;

    for (const Planned& plan : planned) {
      const View key = K::view(keys[plan.key]);
      if (!believable(plan.route, key, buffers[plan.leaf].data())) {
        router().misled(plan.route);
        op.count_retry();
        unfinished.alone.push_back(plan.key);
        continue;
      }
      const Leaf<K> leaf = leaf_at(buffers[plan.leaf].data());
      const std::uint64_t word = key_word(key);
      values[plan.key].reset();
      for (std::size_t slot = leaf.find(word); slot < leaf.capacity();
           slot = leaf.find(word, slot + 1)) {
        if (leaf.is_item(slot)) {
          unfinished.items.push_back(leaf.item(slot));
          unfinished.items_of.push_back(plan.key);
        } else {
          values[plan.key] = std::string(leaf.value(slot));
        }
      }
    }
    Status finished = co_await finish_multi_get(op, unfinished, keys, values);
    if (!finished) co_return finished;
    begin = end;
  }
  co_return Status{};
}

// Of the members, those defined in this file.
template class Sherman<IntKeys>;
template class Sherman<ByteKeys>;

}  // namespace pando::index::sherman
