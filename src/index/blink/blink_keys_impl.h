// BLink, the part about keys: entries and fences, and the items of long ones.
#pragma once

#include <algorithm>
#include <cstring>

#include "index/blink/blink.h"
#include "index/common/items.h"

namespace pando::index {

template <class K>
Task<Result<typename K::Owned>> BLink<K>::whole_key(Operation& op, Cell cell) {
  if (!K::is_long(cell)) co_return Owned(K::short_key(cell));
  if constexpr (K::kType == KeyType::kBytes) {
    Result<FetchedItem> item = co_await fetch_item(op, K::item(cell));
    if (!item) co_return fail(item.error());
    if (item->view && item->view->key.size() == cell.size()) co_return Owned(item->view->key);
    co_return fail(ErrorCode::kCorrupt, "the item of a separator does not hold it");
  } else {
    co_return Owned{};
  }
}

template <class K>
Task<Result<typename BLink<K>::NewCell>> BLink<K>::make_cell(Operation& op, View key) {
  if (K::fits_cell(key)) co_return NewCell{K::cell(key), {}};
  if constexpr (K::kType == KeyType::kBytes) {
    Result<PreparedItem> item = co_await write_item(op, key, {});
    if (!item) co_return fail(item.error());
    co_return NewCell{K::long_cell(key.size(), item->pointer, hash_key(key, seed())),
                      std::move(item->block)};
  } else {
    co_return NewCell{K::cell(key), {}};
  }
}

template <class K>
Task<Status> BLink<K>::drop_cell(Operation& op, const Cell& cell) {
  if (!K::is_long(cell)) co_return Status{};
  co_return co_await retire_item(op, K::item(cell));
}

template <class K>
Task<Result<bool>> BLink<K>::reaches(Operation& op, Node<K> node, View key, const Route<K>* route) {
  if (!node.has(kHasHigh)) co_return true;
  const Cell high = node.high();
  if (!K::is_long(high)) co_return key < K::short_key(high);
  if (route != nullptr) {
    if (const std::optional<View> fence = long_fence(*route, high)) co_return key < *fence;
  }
  Result<Owned> whole = co_await whole_key(op, high);
  if (!whole) co_return fail(whole.error());
  co_return key < View(*whole);
}

template <class K>
Task<Result<std::optional<std::vector<InnerEntry<K>>>>> BLink<K>::entries(Operation& op,
                                                                          InnerNode<K> node,
                                                                          bool drop_unreadable) {
  using Answer = std::optional<std::vector<InnerEntry<K>>>;
  std::vector<InnerEntry<K>> found;
  std::vector<pool::ItemPointer> wanted;
  std::vector<std::size_t> wanted_by;
  for (std::size_t slot = 0; slot < node.capacity(); ++slot) {
    if (node.empty(slot)) continue;
    const Cell cell = node.cell(slot);
    if (K::is_long(cell)) {
      wanted.push_back(K::item(cell));
      wanted_by.push_back(found.size());
      found.push_back({Owned{}, cell, node.child(slot)});
    } else {
      found.push_back({Owned(K::short_key(cell)), cell, node.child(slot)});
    }
  }
  Owned high{};
  if (node.has(kHasHigh)) {
    if (K::is_long(node.high())) {
      wanted.push_back(K::item(node.high()));
    } else {
      high = Owned(K::short_key(node.high()));
    }
  }
  if constexpr (K::kType == KeyType::kBytes) {
    if (!wanted.empty()) {
      Result<std::vector<FetchedItem>> items = co_await fetch_items(op, wanted);
      if (!items) co_return fail(items.error());
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const FetchedItem& item = (*items)[i];
        if (!item.view) {
          if (i >= wanted_by.size()) co_return Answer(std::nullopt);
          NodeRef& child = found[wanted_by[i]].child;
          if (!drop_unreadable) {
            // The entry of a node that died with its merger outlives its separator; ignore it.
            Result<bool> lives =
                co_await alive(op, child, static_cast<std::uint8_t>(node.level() - 1));
            if (!lives) co_return fail(lives.error());
            if (*lives) co_return Answer(std::nullopt);
          }
          child = NodeRef{};
        } else if (i < wanted_by.size()) {
          found[wanted_by[i]].key = Owned(item.view->key);
        } else {
          high = Owned(item.view->key);
        }
      }
    }
  }
  std::erase_if(found, [&](const InnerEntry<K>& entry) {
    return !entry.child || (node.has(kHasHigh) && !(entry.key < high));
  });
  std::ranges::sort(found, {}, &InnerEntry<K>::key);
  co_return Answer(std::move(found));
}

}  // namespace pando::index
