// Sherman: a B-link tree in far memory (Wang et al., SIGMOD '22), whole: with deletes, byte-string
// keys, any fabric, and locks that outlive their owners.
//
// Inner nodes, cache, locks and versions are the shared BLink; here are the leaves and the
// operations on them, a file each: search.cc, insert.cc, split.cc, erase.cc, scan.cc, check.cc.
//
// Round trips, inner nodes cached, integer keys, inline values:
//   get 1 (READ leaf) · put, insert, update, erase 2 (lock + READ; WRITE line + unlock) · scan 1
//   for what lies under one parent (READ leaves). A value out of line adds 1 to get and scan and
//   nothing to writes. Byte-string keys add 1 to get and scan (READ item), and to writes that meet
//   the key.
// docs/protocols/sherman.md explains each step and why it is right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "index/common/blink.h"
#include "index/common/items.h"
#include "index/index.h"
#include "index/sherman/layout.h"
#include "index/sherman/options.h"

namespace pando::index::sherman {

template <class K>
class Sherman final : public Tree, private Leaves<K> {
 public:
  Sherman(pool::ComputeNode& node, const pool::IndexRecord& record, const Options& options);

  Task<Result<std::string>> get(Operation& op, Key key) override;
  Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) override;
  Task<Status> erase(Operation& op, Key key) override;
  Task<Status> scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) override;
  Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                         std::span<std::optional<std::string>> values) override;
  Task<Status> create(Operation& op) override;
  Task<Status> destroy(Operation& op) override;
  Task<Status> check(Operation& op) override;
  IndexStats stats() const override;

 private:
  using View = typename K::View;
  using Owned = typename K::Owned;
  using Cell = typename K::Cell;

  // A place in a leaf where a key was found.
  struct Match {
    std::size_t slot = 0;
    FetchedItem item;  // byte-string keys: the key's item
  };

  // Leaves<K>
  std::size_t leaf_bytes() const override { return options_.leaf.bytes; }
  bool absorb(Node<K> left, Node<K> right) override;
  Task<Status> purge(Operation& op, Node<K> leaf) override;

  Leaf<K> leaf_at(std::byte* bytes) const { return Leaf<K>(bytes, options_.leaf); }
  std::uint64_t key_word(View key) const;
  // What an item calls the key: its bytes, an integer's in big-endian order.
  static std::string item_key(View key);

  // search.cc
  Task<Status> read_leaf(Operation& op, View key, std::byte* into);
  Task<Result<std::optional<Match>>> find_in(Operation& op, Leaf<K> leaf, View key);
  Task<Result<std::optional<std::string>>> value_in(Operation& op, Leaf<K> leaf, View key);

  // insert.cc, split.cc
  struct NewEntry {
    View key;
    std::uint64_t word;
    std::string_view value;
    std::optional<PreparedItem> item;  // none: the value goes inline
  };
  struct KeyAt {  // an entry of a leaf by its whole key
    Owned key;
    std::size_t slot;
  };
  Task<Result<std::optional<PreparedItem>>> prepare(Operation& op, View key,
                                                    std::string_view value);
  void set(Leaf<K> leaf, std::size_t slot, const NewEntry& entry) const;
  Task<Status> overwrite(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                         const Match& match, const NewEntry& entry);
  Task<Status> split(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                     const NewEntry& entry);
  Task<Result<std::vector<KeyAt>>> keys_of(Operation& op, Leaf<K> leaf);

  // erase.cc
  bool worth_merging(Leaf<K> leaf) const;

  // scan.cc
  struct ScanItem {
    Owned key;
    std::string value;
    pool::ItemPointer pointer;  // value still to be fetched
  };
  Task<Status> collect(Operation& op, Leaf<K> leaf, View from, std::vector<ScanItem>& out);
  Task<Status> fetch_values(Operation& op, std::vector<ScanItem>& items, std::size_t limit);

  // check.cc
  struct Level {
    std::uint8_t level;
    std::vector<std::pair<Owned, NodeRef>> nodes;     // by low fence
    std::vector<std::pair<Owned, NodeRef>> children;  // entries, of inner levels
  };
  Task<Result<Level>> walk_level(Operation& op, NodeRef first, std::uint8_t level);
  Task<Status> check_leaf(Operation& op, Leaf<K> leaf, const Owned& low,
                          const std::optional<Owned>& high);

  const Options options_;
  BLink<K> tree_;
};

// The kind, for the registry.
const Kind& kind();

}  // namespace pando::index::sherman
