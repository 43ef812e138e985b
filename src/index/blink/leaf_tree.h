// LeafTree: what indexes on the BLink tree share whatever their leaves look like: scans, making,
// checking and freeing a tree, keys and items of entries. How a leaf arranges its entries is the
// derived index's, which finds, writes and splits by it.
//
// L, a view of a leaf: derived from Node<K>, made as L(bytes, geometry) with an L::Geometry that
// LeafTreeOptions can hold. Entries are known by slots from 0 to capacity():
//   empty(i), live()      whether there is an entry; how many there are
//   key_word(i)           key_word() of its key
//   is_item(i), item(i)   out of line, and where; byte-string keys: always
//   value(i)              else: the value
//   set_value(i, word, value), set_item(i, word, item), clear(i)
//
// An entry whose item cannot be read, or is another's, is no live one: the operation's epoch holds
// the items of all entries that were live when the leaf was read. It went right in a split that is
// being finished.
//
// The members are defined in leaf_tree_impl.h, which an index's one .cc file includes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/blink/blink.h"
#include "index/blink/leaf_fill.h"
#include "index/blink/leaf_tree_options.h"
#include "index/blink/router.h"
#include "index/blink/unverified.h"
#include "index/common/items.h"
#include "index/index.h"

namespace pando::index {

// A leaf, or parts of one, that may be used.
template <class L>
struct Believed {
  enum class Extent : std::uint8_t { kGuess, kAsked, kWhole };  // see LeafTree::read_leaf()
  L leaf;
  NodeRef ref;
  Extent extent;
};

template <class K, class L>
class LeafTree : public Tree, protected Leaves<K> {
 public:
  using Options = LeafTreeOptions<typename L::Geometry>;

  // `router`, if given, outlives the tree; else its own inner nodes are the router.
  LeafTree(pool::ComputeNode& compute_node, const pool::IndexRecord& record, const Options& options,
           Router<K>* router = nullptr);

  // The leaves that the router names for the range are read in one batch; each is used as long as
  // it continues where the one before it ends.
  Task<Status> scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) override;
  Task<Status> create(Operation& op) override;
  Task<Status> destroy(pool::Session& session) override;
  Task<Status> check(Operation& op) override;
  IndexStats stats() const override;

 protected:
  using View = typename K::View;
  using Owned = typename K::Owned;
  using Cell = typename K::Cell;

  struct NewEntry {
    View key;
    std::uint64_t word;
    std::string_view value;
    std::optional<PreparedItem> item;  // none: the value goes inline

    // Before a verb is posted that may make a leaf lead to the item.
    void publish() {
      if (item) item->block.publish();
    }
    // The operation has ended; where it was not published, the item is freed.
    void give_up(const Status& status) {
      if (item) index::give_up(item->block, status);
    }
  };
  struct KeyAt {  // an entry of a leaf by its whole key
    Owned key;
    std::size_t slot;
  };
  static constexpr std::size_t kNewEntry = ~std::size_t{0};  // the slot of one that has none yet
  struct Match {  // a place in a leaf where a key was found
    std::size_t slot = 0;
    FetchedItem item;  // byte-string keys: the key's item
  };

  // Leaves<K>; absorb() is the derived index's.
  std::size_t leaf_bytes() const final { return options_.leaf.bytes; }
  Task<Status> purge(Operation& op, Node<K> leaf) override;

  // A fresh private image of a new leaf.
  virtual void initialize_leaf(L leaf, std::uint32_t incarnation, const Cell& low) const;
  // What check() asks of a leaf beyond entries that are readable, single and within its fences.
  // Errors say what is wrong; the caller names the leaf.
  virtual Status check_entries(const L& /*leaf*/) const { return {}; }
  // Of the keys of a leaf that is split, ascending, with the new one among them at `added`: how
  // many stay left. At least one does, and one goes.
  virtual Result<std::size_t> split_at(const L& leaf, const std::vector<KeyAt>& keys,
                                       std::size_t added) {
    return split_point(keys.size(), added, !leaf.has(kHasHigh));
  }
  // Moves the keys from `middle` on to `right`, a new leaf, and puts the new entry where it
  // belongs.
  virtual void divide(L left, L right, const std::vector<KeyAt>& keys, std::size_t middle,
                      const NewEntry& entry) const = 0;
  // Appends counts, and parts of the compute side's memory.
  virtual void add_stats(IndexStats& /*stats*/) const {}

  // What a scan is after in a leaf that the router knows from end to end (Router::Extent): the keys
  // [from, to), of [low, high).
  struct LeafPart {
    NodeRef leaf;
    NodeRef next;
    View low, high;
    View from, to;
    bool all = false;  // for read_part() to remember whether it reads all entries
  };
  // Adds READs of what is needed to the batch, and puts `to` further up where they bring more.
  // False: the leaf is to be read whole.
  virtual bool read_part(fabric::Batch& /*batch*/, LeafPart& /*part*/, std::byte* /*image*/) {
    return false;
  }
  // Whether that may be believed; the slots with keys of [from, to).
  virtual Verdict slots_of_part(const LeafPart& /*part*/, L /*leaf*/,
                                std::vector<std::size_t>& /*slots*/) const {
    return Verdict::kGood;
  }

  BLink<K>& tree() { return tree_; }
  const BLink<K>& tree() const { return tree_; }
  Router<K>& router() const { return router_; }
  // Room to read a leaf into.
  Unverified<L> new_image(Operation& op) const {
    return Unverified<L>(op.buffer(leaf_bytes()), options_.leaf);
  }
  // Whether the key lies below the leaf's high fence, as far as one can tell without a READ.
  bool covers(const Route<K>& route, View key, Node<K> leaf) const;
  // Of all of the leaf that the route leads to: good if it may be believed, and is the key's. One
  // that is torn is not told from a stale one: the slow way sees to it.
  Verdict judge_whole(const Route<K>& route, View key, L leaf) const;
  // The end of a try: counts it, and tells the router.
  void not_believed(Operation& op, const Route<K>& route, Verdict verdict) const;

  // Route, READ, believe, else the slow way: BLink::read(). How much of a leaf one reads for a key,
  // and when one believes that, is up to a Glance:
  //   key()
  //   start(route)                        this leaf will be read
  //   add_reads(batch, route, image)      of what is needed, into its places in the image
  //   judge(route, leaf)                  a Verdict; good: right leaf, of one piece as far as read
  //   kTries                              torn ones are read so often
  //   kFindsRoute                         has the router look for a route where it knows none
  //   kGuesses                            there may be a READ that is cheaper, and mostly enough:
  //     guesses(route)                    whether there is; called before start()
  //     add_guess(batch, route, image)
  //     judge_guess(leaf)
  // and, for read_values():
  //   kWhole                              reads whole leaves, so that keys may share one
  //   for_each_match(leaf, each)          the slots that may hold the key
  template <class Glance>
  Task<Result<Believed<L>>> read_leaf(Operation& op, Glance& glance, const Unverified<L>& image);
  // multi_get(): the leaves of all keys in one batch, then the items of all that have one in
  // another. Whatever is not routed or believed at once is looked up by itself. `look` makes the
  // Glance for a key.
  template <class Glance, class Look>
  Task<Status> read_values(Operation& op, std::span<const Key> keys,
                           std::span<std::optional<std::string>> values, Look look);
  L leaf_at(std::byte* bytes) const { return L(bytes, options_.leaf); }
  // The integer key, or a hash of the byte-string key.
  std::uint64_t key_word(View key) const {
    if constexpr (K::kType == KeyType::kInteger) {
      return key;
    } else {
      return hash_key(key, tree_.seed());
    }
  }
  // What an item calls the key: its bytes, an integer's in big-endian order.
  static std::string item_key(View key);
  // A new entry. Its item, if it has one, travels with the locking of the leaf: nobody can reach it
  // before the leaf is written.
  Task<Result<NewEntry>> prepare(Operation& op, View key, std::string_view value, NodeLock& lock);
  // The live entries of a locked leaf by whole key, ascending.
  Task<Result<std::vector<KeyAt>>> keys_of(Operation& op, L leaf);
  static void set(L leaf, std::size_t slot, const NewEntry& entry);
  // The end of a multi_get. Keys, by their number, whose value may be in an item, with that item;
  // and those that have to be looked up by themselves.
  struct Unfinished {
    std::vector<pool::ItemPointer> items;
    std::vector<std::size_t> items_of;
    std::vector<std::size_t> alone;
  };
  Task<Status> finish_multi_get(Operation& op, const Unfinished& unfinished,
                                std::span<const Key> keys,
                                std::span<std::optional<std::string>> values);
  // Submits the batch, which overwrites or clears an entry, with the unlock; then retires the item
  // that the entry had, if any. `known`: that item, where it was fetched.
  Task<Status> write_and_retire(Operation& op, fabric::Batch& batch, NodeLock& lock,
                                pool::ItemPointer had, const FetchedItem& known);
  static pool::ItemPointer item_of(const L& leaf, std::size_t slot) {
    return leaf.is_item(slot) ? leaf.item(slot) : pool::ItemPointer{};
  }
  // Puts a new entry into a locked leaf that has no room for it: splits it, by split_at() and
  // divide().
  Task<Status> split(Operation& op, const NodeRef& ref, L leaf, NodeLock& lock, NewEntry& entry);
  // After an erase. Rarely enough that leaves whose neighbours are full do not try at every one.
  bool worth_merging(L leaf) const;

 private:
  struct ScanItem {
    Owned key;
    std::string value;
    pool::ItemPointer pointer;  // value still to be fetched
  };
  // A leaf of a scan's batch.
  struct Ahead {
    NodeRef ref;
    Unverified<L> image;
    bool whole = true;  // else only what read_part() brought
    // Integer keys, where the router knows the leaf from end to end:
    std::optional<LeafPart> part = {};
    double usual_width = 0;  // of its parent's leaves
    // Once it is believed:
    std::optional<L> leaf = {};
    std::vector<std::size_t> slots = {};  // of a part: where its keys stand
  };
  bool plan(Ahead& ahead, const Route<K>& route, View cursor, LeafForecast& forecast) const;
  Task<Status> read_ahead(Operation& op, const Route<K>& route, View cursor, std::size_t missing,
                          std::vector<Ahead>& leaves);
  // The first leaf of a batch must be the cursor's, as the route says; others: continues().
  Verdict believe_first(Ahead& first, const Route<K>& route, View cursor) const;
  Verdict believe(Ahead& ahead) const;
  void believe_anyway(Ahead& ahead) const;  // of the tree's own, and a mutant's
  bool continues(const Ahead& before, const Ahead& ahead) const;
  Task<Status> read_leaves(Operation& op, View cursor, std::size_t missing,
                           std::vector<Ahead>& leaves);
  Task<Status> take_leaves(Operation& op, std::vector<Ahead>& leaves, std::size_t missing,
                           std::optional<Owned>& cursor, std::vector<ScanItem>& items);
  Task<Status> take(Operation& op, const Ahead& ahead, std::optional<Owned>& cursor,
                    std::vector<ScanItem>& items);
  void collect_slot(L leaf, std::size_t slot, std::vector<ScanItem>& out) const;
  static void put_in_order(std::vector<ScanItem>& items, std::size_t first);
  Task<Status> collect(Operation& op, L leaf, View from, std::vector<ScanItem>& out);
  Task<Status> fetch_values(Operation& op, std::vector<ScanItem>& items, std::size_t limit);

  struct Level {
    std::uint8_t level;
    std::vector<std::pair<Owned, NodeRef>> nodes;     // by low fence
    std::vector<std::pair<Owned, NodeRef>> children;  // entries, of inner levels
  };
  struct Fences {
    Owned low;
    std::optional<Owned> high;
  };
  Task<Result<Level>> walk_level(Operation& op, NodeRef first, std::uint8_t level);
  Task<Status> check_header(Operation& op, const NodeRef& ref, Node<K> node, std::uint8_t level);
  Task<Result<Fences>> check_fences(Operation& op, const NodeRef& ref, Node<K> node,
                                    const Owned& expected_low);
  Task<Status> check_inner(Operation& op, InnerNode<K> node, const Fences& fences,
                           std::vector<std::pair<Owned, NodeRef>>& children);
  Task<Status> check_leaf(Operation& op, L leaf, const Fences& fences);
  // What is left of an index that is being dropped.
  struct Remains {
    NodeRef next;  // the next node to be freed; none: all are
    std::uint8_t level = 0;
    bool absorbed = false;  // its left neighbour was absorbing it
  };
  static constexpr std::size_t kRemainsWord = 13;
  Task<Result<Remains>> read_remains(Operation& op);
  Task<Status> write_remains(Operation& op, const Remains& remains);
  Task<Result<Remains>> first_remains(Operation& op, std::uint8_t level);
  Task<Result<std::vector<pool::Block>>> items_to_free(Operation& op, L leaf, bool doubled);
  Task<Status> destroy_next(Operation& op, Remains& remains);

  const Options options_;
  BLink<K> tree_;
  Router<K>& router_;
  LeafFill fill_;
};

}  // namespace pando::index
