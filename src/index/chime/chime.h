// Chime: a B-link tree with hopscotch leaves (Luo et al., SOSP '24), whole: with deletes,
// byte-string keys, fewer round trips than the paper, and a proof where it has a gap.
//
// Inner nodes, cache, locks and versions are the shared BLink, scans and checks the shared
// LeafTree; here are the leaves (layout.h, hopscotch.h), the hotspots, and the operations, a file
// each: search_impl.h, scan_impl.h, insert_impl.h, split_impl.h, erase_impl.h.
//
// Round trips, inner nodes cached, integer keys, inline values:
//   get 1 (READ neighbourhood, or one entry; 2 where that was a wrong guess) · update, erase 2
//   (lock + READ neighbourhood; WRITE + unlock) · insert 2, where the neighbourhood has a free
//   entry, else 3 (READ on to the free entry that the lock word told of) · scan 1 (READ leaves, or
//   their parts).
// docs/protocols/chime.md explains each step and why it is right.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "index/blink/leaf_tree.h"
#include "index/chime/hotspots.h"
#include "index/chime/layout.h"
#include "index/chime/options.h"

namespace pando::index::chime {

template <class K>
class Chime final : public LeafTree<K, Leaf<K>> {
 public:
  Chime(pool::ComputeNode& compute_node, const pool::IndexRecord& record, const Options& options,
        Router<K>* router = nullptr);

  Task<Result<std::string>> get(Operation& op, Key key) override;
  Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) override;
  Task<Status> erase(Operation& op, Key key) override;
  Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                         std::span<std::optional<std::string>> values) override;

 private:
  using Base = LeafTree<K, Leaf<K>>;
  using Base::covers;
  using Base::item_of;
  using Base::key_word;
  using Base::kNewEntry;
  using Base::leaf_at;
  using Base::new_image;
  using Base::not_believed;
  using Base::prepare;
  using Base::router;
  using Base::set;
  using Base::split;
  using Base::tree;
  using Base::write_and_retire;
  using typename Base::Cell;
  using typename Base::KeyAt;
  using typename Base::LeafPart;
  using typename Base::Match;
  using typename Base::NewEntry;
  using typename Base::View;

  // Leaves<K>
  bool absorb(Node<K> left, Node<K> right) override;
  Task<Status> undo_insert(Operation& op, Node<K> leaf) override;
  Task<Status> purge(Operation& op, Node<K> leaf) override;
  bool intact(Node<K> leaf) const override { return leaf_at(leaf.bytes()).agrees(); }
  bool complete(Node<K> leaf) const override { return leaf_at(leaf.bytes()).agrees(); }
  void set_version(Node<K> leaf, std::uint32_t version) const override {
    leaf_at(leaf.bytes()).set_version(version);
  }
  // Lines hold a part of their version only; but a writer is at most one ahead of the header.
  std::uint32_t newest_version(Node<K> leaf) const override { return leaf.version() + 1; }
  bool read_in_parts() const override { return true; }
  void clear_entries(Node<K> leaf) const override { leaf_at(leaf.bytes()).clear_entries(); }
  LockWord lock_word() const override { return LockWord::kNoted; }
  std::uint32_t note(Node<K> leaf) const override { return leaf_at(leaf.bytes()).vacancy(); }
  // LeafTree
  void initialize_leaf(Leaf<K> leaf, std::uint32_t incarnation, const Cell& low) const override;
  Status check_entries(const Leaf<K>& leaf) const override;
  void add_stats(IndexStats& stats) const override;

  // What one wants: a key, its word and its home.
  struct Wanted {
    View key;
    std::uint64_t word;
    std::size_t home;
  };
  Wanted want(View key) const {
    const std::uint64_t word = key_word(key);
    return {key, word, options_.leaf.home_of(word)};
  }
  // A leaf of which an image holds the `known` entries from the wanted key's home on, or (spot)
  // that one entry.
  struct Seen {
    NodeRef ref;
    Leaf<K> leaf;  // a view of the image
    std::size_t known = 0;
    std::optional<std::size_t> spot;
    std::optional<Found<K>> found;  // where the whole leaf was found by way of the tree
  };

  // search_impl.h

  struct Guess {
    std::size_t entry;
    std::uint16_t version;
  };
  bool needs_header(const std::optional<NodeRef>& next) const;
  NodeParts parts_for(const Wanted& wanted, std::size_t count, bool header) const;
  NodeParts parts_for(const Guess& guess) const;
  Verdict judge(const Wanted& wanted, const Route<K>& route, const std::optional<NodeRef>& next,
                Leaf<K> leaf) const;
  void expect(const Wanted& wanted) const;
  std::optional<Guess> speculate(const NodeRef& leaf, const Wanted& wanted);
  Verdict judge_guess(const Wanted& wanted, const Guess& guess, Leaf<K> leaf);

  class Neighbourhood;
  std::size_t place_of(const Wanted& wanted, const Seen& seen, std::size_t after = 0) const;
  Task<Result<std::optional<Match>>> find_in(Operation& op, const Wanted& wanted, const Seen& seen);
  void remember(const Wanted& wanted, const Seen& seen, std::size_t slot);

  // scan_impl.h
  bool read_part(fabric::Batch& batch, LeafPart& part, std::byte* image) override;
  Verdict slots_of_part(const LeafPart& part, Leaf<K> leaf,
                        std::vector<std::size_t>& slots) const override;

  // insert_impl.h

  // Its lock did not say that anyone left it unfinished. Giving up now leaves it so: the next one
  // will repair it.
  static constexpr const char* kNotOfOnePiece = "a locked leaf is not of one piece";
  enum class Purpose : std::uint8_t { kUpdate, kErase, kInsert, kPut };
  Task<Result<Seen>> lock(Operation& op, const Wanted& wanted, Purpose purpose,
                          const Unverified<Leaf<K>>& image, NodeLock& lock);
  Task<Result<std::optional<Seen>>> lock_fast(Operation& op, const Wanted& wanted, Purpose purpose,
                                              const Unverified<Leaf<K>>& image, NodeLock& lock);
  Verdict judge_locked(const Wanted& wanted, const Route<K>& route, Leaf<K> leaf) const;
  std::size_t hop_range(const Wanted& wanted, std::uint32_t vacancy) const;
  Task<Result<bool>> read_on(Operation& op, const Wanted& wanted, Seen& seen, std::size_t count);
  Task<Status> insert(Operation& op, const Wanted& wanted, Seen& seen, NodeLock& lock,
                      NewEntry& entry);
  Task<Status> overwrite(Operation& op, const Seen& seen, NodeLock& lock, const Match& match,
                         const NewEntry& entry);
  void write_entries(fabric::Batch& batch, const NodeRef& ref, Leaf<K> leaf, std::size_t first,
                     std::size_t last) const;
  void note_taken(NodeLock& lock, const Seen& seen, std::size_t home, std::size_t slot) const;

  // split_impl.h
  Result<std::size_t> split_at(const Leaf<K>& leaf, const std::vector<KeyAt>& keys,
                               std::size_t added) override;
  void divide(Leaf<K> left, Leaf<K> right, const std::vector<KeyAt>& keys, std::size_t middle,
              const NewEntry& entry) const override;

  Task<Status> take_out(Operation& op, const NodeRef& ref, Leaf<K> leaf, NodeLock& lock,
                        const std::vector<std::size_t>& slots);

  // erase_impl.h
  Task<Result<bool>> emptied(Operation& op, const NodeRef& ref, const Unverified<Leaf<K>>& image);

  const Options options_;
  Hotspots hotspots_;
  std::atomic<std::uint64_t> guesses_{0};
  std::atomic<std::uint64_t> wrong_guesses_{0};
  std::atomic<std::uint64_t> hops_{0};
  std::atomic<std::uint64_t> entries_at_splits_{0};
  std::atomic<std::uint64_t> partial_leaf_scans_{0};
};

extern template class Chime<IntKeys>;  // chime.cc
extern template class Chime<ByteKeys>;

// The kind, for the registry.
const Kind& kind();

}  // namespace pando::index::chime
