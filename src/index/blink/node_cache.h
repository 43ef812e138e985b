// NodeCache: inner nodes kept on the compute side, under the compute node's budget.
//
// A hash table by node address, read without locks. An operation may use what find() returned for
// as long as it lasts (its pinned epoch holds freed entries back). What is kept may be outdated at
// any time: a reader finds out at the node it is led to (node.h) and drops the entry that misled
// it.
//
// The table doubles when a bucket overflows, unless that is no more than bad luck, or the budget
// has no room. Each slot of the old one is frozen, then copied: readers find nodes in either,
// writers that meet a frozen slot wait for the new one. Old tables are freed as nodes are: whoever
// pins an epoch after a node was taken out of the new table does not see the old one.
//
// Eviction is by second chance around the table. Freed entries count against the budget until they
// are really gone. Where there is no room, insert() says so and the caller keeps the node to
// itself.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "index/blink/cached_node.h"
#include "pool/compute_node.h"

namespace pando::index {

template <class K>
class NodeCache final : public pool::Cache {
 public:
  using CacheNode = CachedNode<K>;

  NodeCache(pool::ComputeNode& compute_node, bool enabled) : compute_node_(compute_node) {
    const std::uint64_t limit = compute_node_.budget().limit();
    if (!enabled || limit <= pool::Budget::kFloor) return;
    table_ = make_table(kFirstBuckets);
    if (table_ != nullptr) compute_node_.budget().add(*this);
  }
  ~NodeCache() override {  // REQUIRES: no reader left
    Table* const table = table_;
    if (table == nullptr) return;
    compute_node_.budget().remove(*this);
    for (Bucket& bucket : table->buckets) {
      for (auto& slot : bucket.slots) {
        if (CacheNode* node = pointer(slot.load(std::memory_order_relaxed))) free_accounted(node);
      }
    }
    free_table(table);
  }
  NodeCache(const NodeCache&) = delete;
  NodeCache& operator=(const NodeCache&) = delete;

  // What can be found here now: the table and its nodes. Nodes that wait to be freed are counted in
  // the budget only.
  std::size_t bytes() const {
    return table_bytes_.load(std::memory_order_relaxed) +
           node_bytes_.load(std::memory_order_relaxed);
  }

  const CacheNode* find(const NodeRef& ref) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return nullptr;
    const std::uint64_t hash = hash_of(ref.address);
    for (const auto& slot : table->buckets[table->place_of(hash)].slots) {
      const std::uint64_t word = slot.load(std::memory_order_acquire);
      if (word >> 48 != tag_of(hash)) continue;
      const CacheNode* node = pointer(word);
      node->prefetch();
      if (node->is(ref)) {
        node->touch();
        return node;
      }
    }
    return nullptr;
  }

  // Takes the node over and returns true, or leaves it to the caller. Replaces an older one.
  bool insert(CacheNode* node) {
    if (table_.load(std::memory_order_relaxed) == nullptr) return false;
    if (!make_room(node->bytes())) return false;
    node->budget = &compute_node_.budget();
    node_bytes_.fetch_add(node->bytes(), std::memory_order_relaxed);
    nodes_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t hash = hash_of(node->self().address);
    while (!put(*table_.load(std::memory_order_acquire), hash, node)) wait_for_growth();
    return true;
  }

  // Whoever calls it may hold no epoch, so a node is looked at only once it is out of the table,
  // and the table must not grow.
  std::uint64_t shrink(std::uint64_t bytes) override {
    std::uint64_t evicted = 0;
    {
      const base::MutexLock no_growth(growing_);
      std::vector<Bucket>& buckets = table_.load(std::memory_order_acquire)->buckets;
      for (std::size_t looked = 0; looked < buckets.size() && evicted < bytes; ++looked) {
        for (auto& slot : next_of(buckets).slots) {
          CacheNode* node = pointer(slot.exchange(0, std::memory_order_acq_rel));
          if (node == nullptr) continue;
          evicted += node->bytes();
          retire(node);
        }
      }
    }
    compute_node_.limbo().collect();
    return evicted;
  }

  void forget() override {
    {
      const base::MutexLock no_growth(growing_);
      for (Bucket& bucket : table_.load(std::memory_order_acquire)->buckets) {
        for (auto& slot : bucket.slots) {
          CacheNode* node = pointer(slot.exchange(0, std::memory_order_acq_rel));
          if (node != nullptr) retire(node);
        }
      }
    }
    compute_node_.limbo().collect();
  }

  void erase(const NodeRef& ref) {
    if (table_.load(std::memory_order_relaxed) == nullptr || !ref) return;
    const std::uint64_t hash = hash_of(ref.address);
    while (!take_out(*table_.load(std::memory_order_acquire), hash, ref)) wait_for_growth();
  }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kFirstBuckets = 16;
  static constexpr std::size_t kGrowFrom = 2;  // nodes a bucket
  static constexpr int kLooks = 64;            // buckets looked at for one eviction
  static constexpr std::uint64_t kFrozen = 1;  // in a slot: nothing is put in it or taken out

  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, kSlots> slots{};
  };
  struct Table : pool::Limbo::Deferred {
    Table(pool::Budget& charged, std::size_t count) : budget(charged), buckets(count) {}

    static std::size_t bytes(std::size_t count) { return sizeof(Table) + count * sizeof(Bucket); }
    std::size_t place_of(std::uint64_t hash) const {
      return (hash >> 16 & 0xffff'ffff) * buckets.size() >> 32;
    }

    pool::Budget& budget;
    std::vector<Bucket> buckets;
  };

  static std::uint64_t hash_of(Address address) { return base::mix64(address.raw() >> 6); }
  static std::uint64_t tag_of(std::uint64_t hash) { return (hash & 0xffff) | 1; }
  static std::uint64_t word_of(std::uint64_t hash, const CacheNode* node) {
    return (tag_of(hash) << 48) | reinterpret_cast<std::uint64_t>(node);
  }
  static CacheNode* pointer(std::uint64_t word) {
    return reinterpret_cast<CacheNode*>(word & ((std::uint64_t{1} << 48) - 1) & ~kFrozen);
  }

  // False: a slot is frozen.
  bool put(Table& table, std::uint64_t hash, CacheNode* node) {
    Bucket& bucket = table.buckets[table.place_of(hash)];
    std::atomic<std::uint64_t>* place = nullptr;
    for (auto& slot : bucket.slots) {
      const std::uint64_t old = slot.load(std::memory_order_acquire);
      if (old == 0) {
        if (place == nullptr) place = &slot;
      } else if (old >> 48 == tag_of(hash) &&
                 pointer(old)->self().address == node->self().address) {
        place = &slot;
        break;
      }
    }
    if (place == nullptr) {
      if (grow(table)) return false;
      place = victim_in(bucket);
    }
    std::uint64_t replaced = place->load(std::memory_order_acquire);
    do {
      if ((replaced & kFrozen) != 0) return false;
    } while (
        !place->compare_exchange_weak(replaced, word_of(hash, node), std::memory_order_acq_rel));
    if (CacheNode* old = pointer(replaced)) retire(old);
    return true;
  }

  bool take_out(Table& table, std::uint64_t hash, const NodeRef& ref) {
    for (auto& slot : table.buckets[table.place_of(hash)].slots) {
      std::uint64_t word = slot.load(std::memory_order_acquire);
      if (word >> 48 != tag_of(hash)) continue;
      CacheNode* node = pointer(word);
      if (node->self().address != ref.address) continue;
      if ((word & kFrozen) != 0) return false;
      if (slot.compare_exchange_strong(word, 0, std::memory_order_acq_rel)) {
        retire(node);
        return true;
      }
      return (word & kFrozen) == 0;
    }
    return true;
  }

  // --- Growth ---

  void wait_for_growth() { const base::MutexLock grown(growing_); }

  // Whether there is a larger one than `table` now. REQUIRES: within an operation.
  bool grow(Table& table) {
    const base::MutexLock lock(growing_);
    if (table_.load(std::memory_order_acquire) != &table) return true;
    const std::size_t count = table.buckets.size();
    if (nodes_.load(std::memory_order_relaxed) < kGrowFrom * count) return false;
    Table* const larger = make_table(2 * count);
    if (larger == nullptr) return false;
    for (Bucket& bucket : table.buckets) {
      for (std::size_t i = 0; i < kSlots; ++i) {
        const std::uint64_t word = bucket.slots[i].fetch_or(kFrozen, std::memory_order_acq_rel);
        const CacheNode* node = pointer(word);
        if (node == nullptr) continue;
        // A bucket's nodes go to two new ones, which get none of another.
        const std::size_t place = larger->place_of(hash_of(node->self().address));
        larger->buckets[place].slots[i].store(word, std::memory_order_relaxed);
      }
    }
    table_.store(larger, std::memory_order_release);
    compute_node_.limbo().defer(
        &table, [](pool::Limbo::Deferred* object) { free_table(static_cast<Table*>(object)); });
    return true;
  }

  Table* make_table(std::size_t count) {
    if (!compute_node_.budget().try_take(pool::BudgetUse::kNodeCache, Table::bytes(count)))
      return nullptr;
    table_bytes_.store(Table::bytes(count), std::memory_order_relaxed);
    return std::make_unique<Table>(compute_node_.budget(), count).release();
  }
  static void free_table(Table* table) {
    const std::unique_ptr<Table> freed(table);
    table->budget.give_back(pool::BudgetUse::kNodeCache, Table::bytes(table->buckets.size()));
  }

  // --- Eviction ---

  Bucket& next_of(std::vector<Bucket>& buckets) {
    return buckets[hand_.fetch_add(1, std::memory_order_relaxed) % buckets.size()];
  }

  bool make_room(std::size_t bytes) {
    for (int tries = 0; tries < 4; ++tries) {
      if (compute_node_.budget().try_take(pool::BudgetUse::kNodeCache, bytes)) return true;
      evict_some(bytes);
      compute_node_.limbo().collect();
    }
    return false;
  }

  void evict_some(std::size_t bytes) {
    std::size_t evicted = 0;
    std::vector<Bucket>& buckets = table_.load(std::memory_order_acquire)->buckets;
    for (int look = 0; look < kLooks && evicted < 2 * bytes; ++look) {
      for (auto& slot : next_of(buckets).slots) {
        std::uint64_t word = slot.load(std::memory_order_acquire);
        CacheNode* node = pointer(word);
        if (node == nullptr || node->forget_touch() || (word & kFrozen) != 0) continue;
        if (slot.compare_exchange_strong(word, 0, std::memory_order_acq_rel)) {
          evicted += node->bytes();
          retire(node);
        }
      }
    }
  }

  std::atomic<std::uint64_t>* victim_in(Bucket& bucket) {
    for (auto& slot : bucket.slots) {
      const CacheNode* node = pointer(slot.load(std::memory_order_acquire));
      if (node == nullptr || !node->forget_touch()) return &slot;
    }
    return &bucket.slots[hand_.fetch_add(1, std::memory_order_relaxed) % kSlots];
  }

  // Readers may be looking at the node: it is freed once their operations have ended.
  void retire(CacheNode* node) {
    node_bytes_.fetch_sub(node->bytes(), std::memory_order_relaxed);
    nodes_.fetch_sub(1, std::memory_order_relaxed);
    compute_node_.limbo().defer(node, [](pool::Limbo::Deferred* object) {
      free_accounted(static_cast<CacheNode*>(object));
    });
  }
  static void free_accounted(CacheNode* node) {
    node->budget->give_back(pool::BudgetUse::kNodeCache, node->bytes());
    CacheNode::free_node(node);
  }

  pool::ComputeNode& compute_node_;
  std::atomic<Table*> table_{nullptr};
  base::Mutex growing_;  // held while the table grows, or must not
  std::atomic<std::size_t> hand_{0};
  std::atomic<std::size_t> table_bytes_{0};
  std::atomic<std::size_t> nodes_{0};
  std::atomic<std::size_t> node_bytes_{0};
};

}  // namespace pando::index
