// NodeCache: inner nodes kept on the compute side, under the compute node's budget.
//
// A hash table by node address, read without locks. An operation may use what find() returned for
// as long as it lasts (its pinned epoch holds freed entries back). What is kept may be outdated at
// any time: a reader finds out at the node it is led to (node.h) and drops the entry that misled
// it.
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

#include "index/common/cached_node.h"
#include "pool/compute_node.h"

namespace pando::index {

template <class K>
class NodeCache final : public pool::Cache {
 public:
  using CacheNode = CachedNode<K>;

  NodeCache(pool::ComputeNode& node, bool enabled) : node_(node) {
    const std::uint64_t limit = node_.budget().limit();
    if (!enabled || limit <= pool::Budget::kFloor) return;
    const std::size_t buckets = limit / kBytesPerBucket + 1;
    const std::size_t bytes = buckets * sizeof(Bucket);
    if (!node_.budget().try_take(pool::Part::kNodeCache, bytes)) return;
    buckets_ = std::vector<Bucket>(buckets);
    node_.budget().add(*this);
  }
  ~NodeCache() override {  // REQUIRES: no reader left
    node_.budget().remove(*this);
    for (Bucket& bucket : buckets_) {
      for (auto& slot : bucket.slots) {
        if (CacheNode* node = pointer(slot.load(std::memory_order_relaxed))) free_accounted(node);
      }
    }
    node_.budget().give_back(pool::Part::kNodeCache, buckets_.size() * sizeof(Bucket));
  }
  NodeCache(const NodeCache&) = delete;
  NodeCache& operator=(const NodeCache&) = delete;

  // What can be found here now: the table and its nodes. Nodes that wait to be freed are counted in
  // the budget only.
  std::size_t bytes() const {
    return buckets_.size() * sizeof(Bucket) + node_bytes_.load(std::memory_order_relaxed);
  }

  const CacheNode* find(const NodeRef& ref) const {
    if (buckets_.empty()) return nullptr;
    const std::uint64_t hash = hash_of(ref.address);
    for (const auto& slot : bucket_of(hash).slots) {
      const std::uint64_t word = slot.load(std::memory_order_acquire);
      if (word >> 48 != tag_of(hash)) continue;
      const CacheNode* node = pointer(word);
      node->prefetch();
      if (node->self() == ref) {
        node->touch();
        return node;
      }
    }
    return nullptr;
  }

  // Takes the node over and returns true, or leaves it to the caller. Replaces an older one.
  bool insert(CacheNode* node) {
    if (buckets_.empty()) return false;
    if (!make_room(node->bytes())) return false;
    node->budget = &node_.budget();
    node_bytes_.fetch_add(node->bytes(), std::memory_order_relaxed);
    const std::uint64_t hash = hash_of(node->self().address);
    const std::uint64_t word = word_of(hash, node);
    Bucket& bucket = bucket_of(hash);
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
    if (place == nullptr) place = victim_in(bucket);
    const std::uint64_t replaced = place->exchange(word, std::memory_order_acq_rel);
    if (CacheNode* old = pointer(replaced)) retire(old);
    return true;
  }

  // Whoever calls it may hold no epoch, so a node is looked at only once it is out of the table.
  std::uint64_t shrink(std::uint64_t bytes) override {
    std::uint64_t evicted = 0;
    for (std::size_t looked = 0; looked < buckets_.size() && evicted < bytes; ++looked) {
      Bucket& bucket = buckets_[hand_.fetch_add(1, std::memory_order_relaxed) % buckets_.size()];
      for (auto& slot : bucket.slots) {
        CacheNode* node = pointer(slot.exchange(0, std::memory_order_acq_rel));
        if (node == nullptr) continue;
        evicted += node->bytes();
        retire(node);
      }
    }
    node_.limbo().collect();
    return evicted;
  }

  void erase(const NodeRef& ref) {
    if (buckets_.empty() || !ref) return;
    const std::uint64_t hash = hash_of(ref.address);
    for (auto& slot : bucket_of(hash).slots) {
      std::uint64_t word = slot.load(std::memory_order_acquire);
      if (word >> 48 != tag_of(hash)) continue;
      CacheNode* node = pointer(word);
      if (node == nullptr || node->self().address != ref.address) continue;
      if (slot.compare_exchange_strong(word, 0, std::memory_order_acq_rel)) retire(node);
      return;
    }
  }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::uint64_t kBytesPerBucket = 2048;  // ~4 nodes to 8 slots
  static constexpr int kLooks = 64;                       // buckets looked at for one eviction

  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, kSlots> slots{};
  };

  static std::uint64_t hash_of(Address address) {
    std::uint64_t hash = (address.raw() >> 6) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
  }
  static std::uint64_t tag_of(std::uint64_t hash) { return (hash & 0xffff) | 1; }
  static std::uint64_t word_of(std::uint64_t hash, const CacheNode* node) {
    return (tag_of(hash) << 48) | reinterpret_cast<std::uint64_t>(node);
  }
  static CacheNode* pointer(std::uint64_t word) {
    return reinterpret_cast<CacheNode*>(word & ((std::uint64_t{1} << 48) - 1));
  }
  std::size_t place_of(std::uint64_t hash) const {
    return (hash >> 16 & 0xffff'ffff) * buckets_.size() >> 32;
  }
  Bucket& bucket_of(std::uint64_t hash) { return buckets_[place_of(hash)]; }
  const Bucket& bucket_of(std::uint64_t hash) const { return buckets_[place_of(hash)]; }

  bool make_room(std::size_t bytes) {
    for (int tries = 0; tries < 4; ++tries) {
      if (node_.budget().try_take(pool::Part::kNodeCache, bytes)) return true;
      evict_some(bytes);
      node_.limbo().collect();
    }
    return false;
  }

  void evict_some(std::size_t bytes) {
    std::size_t evicted = 0;
    for (int look = 0; look < kLooks && evicted < 2 * bytes; ++look) {
      Bucket& bucket = buckets_[hand_.fetch_add(1, std::memory_order_relaxed) % buckets_.size()];
      for (auto& slot : bucket.slots) {
        std::uint64_t word = slot.load(std::memory_order_acquire);
        CacheNode* node = pointer(word);
        if (node == nullptr || node->forget_touch()) continue;
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
    node_.limbo().defer(node, [](pool::Limbo::Deferred* object) {
      free_accounted(static_cast<CacheNode*>(object));
    });
  }
  static void free_accounted(CacheNode* node) {
    node->budget->give_back(pool::Part::kNodeCache, node->bytes());
    CacheNode::free_node(node);
  }

  pool::ComputeNode& node_;
  std::vector<Bucket> buckets_;
  std::atomic<std::size_t> hand_{0};
  std::atomic<std::size_t> node_bytes_{0};
};

}  // namespace pando::index
