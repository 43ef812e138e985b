// Sherman: get and multi_get.
#pragma once

#include "index/sherman/sherman.h"

namespace pando::index::sherman {

// What read_leaf() reads for a key: all of its leaf.
template <class K>
class Sherman<K>::WholeLeaf {
 public:
  static constexpr int kTries = 1;
  static constexpr bool kFindsRoute = false;
  static constexpr bool kGuesses = false;
  static constexpr bool kWhole = true;

  WholeLeaf(const Sherman& sherman, View key) : sherman_(&sherman), key_(key) {}
  View key() const { return key_; }
  void start(const Route<K>&) {}
  void add_reads(fabric::Batch& batch, const Route<K>& route, std::byte* image) const {
    batch.read(route.node.address, image, sherman_->leaf_bytes());
  }
  Verdict judge(const Route<K>& route, Leaf<K> leaf) const {
    return sherman_->judge_whole(route, key_, leaf);
  }
  template <class Each>
  void for_each_match(Leaf<K> leaf, Each each) const {
    const std::uint64_t word = sherman_->key_word(key_);
    for (std::size_t slot = leaf.find(word); slot < leaf.capacity();
         slot = leaf.find(word, slot + 1)) {
      each(slot);
    }
  }

 private:
  const Sherman* sherman_;
  View key_;
};

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
  const Unverified<Leaf<K>> image = new_image(op);
  WholeLeaf glance(*this, wanted);
  Result<Believed<Leaf<K>>> read = co_await this->read_leaf(op, glance, image);
  if (!read) co_return fail(read.error());
  const Leaf<K> leaf = read->leaf;
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

template <class K>
Task<Status> Sherman<K>::multi_get(Operation& op, std::span<const Key> keys,
                                   std::span<std::optional<std::string>> values) {
  return this->template read_values<WholeLeaf>(op, keys, values,
                                               [this](View key) { return WholeLeaf(*this, key); });
}

}  // namespace pando::index::sherman
