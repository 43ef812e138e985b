// Sherman: a B-link tree in far memory (Wang et al., SIGMOD '22), whole: with deletes, byte-string
// keys, any fabric, and locks that outlive their owners.
//
// Inner nodes, cache, locks and versions are the shared BLink; what does not depend on how a leaf
// arranges its entries, scans above all, is the shared LeafTree. Here are the operations that do, a
// file each: search_impl.h, insert_impl.h, split_impl.h, erase_impl.h.
//
// Round trips, inner nodes cached, integer keys, inline values:
//   get 1 (READ leaf) · put, insert, update, erase 2 (lock + READ; WRITE line + unlock) · scan 1
//   for what the cached inner nodes lead to (READ leaves, up to 32). A value out of line adds 1 to
//   get and scan and nothing to writes. Byte-string keys add 1 to get and scan (READ item), and to
//   writes that meet the key.
// docs/protocols/sherman.md explains each step and why it is right.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "index/blink/blink.h"
#include "index/blink/leaf_tree.h"
#include "index/common/items.h"
#include "index/index.h"
#include "index/sherman/layout.h"
#include "index/sherman/options.h"

namespace pando::index::sherman {

template <class K>
class Sherman final : public LeafTree<K, Leaf<K>> {
  using Base = LeafTree<K, Leaf<K>>;

 public:
  Sherman(pool::ComputeNode& compute_node, const pool::IndexRecord& record, const Options& options,
          Router<K>* router = nullptr);

  Task<Result<std::string>> get(Operation& op, Key key) override;
  Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) override;
  Task<Status> erase(Operation& op, Key key) override;
  Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                         std::span<std::optional<std::string>> values) override;

 private:
  using Base::item_of;
  using Base::judge_whole;
  using Base::key_word;
  using Base::kNewEntry;
  using Base::leaf_at;
  using Base::leaf_bytes;
  using Base::new_image;
  using Base::prepare;
  using Base::set;
  using Base::split;
  using Base::tree;
  using Base::worth_merging;
  using Base::write_and_retire;
  using typename Base::KeyAt;
  using typename Base::Match;
  using typename Base::NewEntry;
  using typename Base::View;

  // search_impl.h

  class WholeLeaf;
  Task<Result<std::optional<Match>>> find_in(Operation& op, Leaf<K> leaf, View key);
  Task<Result<std::optional<std::string>>> value_in(Operation& op, Leaf<K> leaf, View key);

  // split_impl.h
  void divide(Leaf<K> left, Leaf<K> right, const std::vector<KeyAt>& keys, std::size_t middle,
              const NewEntry& entry) const override;

  // erase_impl.h
  bool absorb(Node<K> left, Node<K> right) override;
};

extern template class Sherman<IntKeys>;  // sherman.cc
extern template class Sherman<ByteKeys>;

// The kind, for the registry.
const Kind& kind();

}  // namespace pando::index::sherman
