#include "index/chime/hotspots.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "base/random.h"

namespace pando::index::chime {

namespace {

std::size_t bucket_of(std::uint64_t key_hash, std::size_t buckets) {
  return (key_hash >> 32) * buckets >> 32;
}

}  // namespace

LineNumbers LineNumbers::of(const fabric::Fabric& fabric) {
  // Nodes of any size may come: room for all ids, and as many lines as then have a number that
  // fits.
  if (fabric.may_grow()) {
    return {.memory_node_bits = std::bit_width(fabric::Fabric::kMaxGrown - 1), .bits = 64};
  }
  const std::size_t memory_nodes = fabric.memory_node_count();
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < memory_nodes; ++i) {
    size = std::max(size, fabric.memory_node_size(static_cast<fabric::NodeId>(i)));
  }
  LineNumbers lines;
  lines.memory_node_bits = static_cast<unsigned>(std::bit_width(memory_nodes - 1));
  lines.bits =
      lines.memory_node_bits + static_cast<unsigned>(std::bit_width(size / fabric::kLineBytes));
  return lines;
}

Hotspots::Hotspots(pool::Budget& budget, pool::Limbo& limbo, LineNumbers lines, std::size_t bytes)
    : budget_(budget), limbo_(limbo), lines_(lines) {
  const std::uint64_t used = budget_.used();
  if (!budget_.caches() || used >= budget_.limit()) return;
  bytes = std::min<std::uint64_t>(bytes, budget_.limit() - used);
  if (bytes < kLeastBytes) return;
  const std::size_t buckets = (bytes - sizeof(Table)) / sizeof(Bucket);
  if (!budget_.try_take(pool::BudgetUse::kIndexTables, Table::bytes(buckets))) return;
  bytes_ = Table::bytes(buckets);
  table_ = std::make_unique<Table>(budget_, buckets).release();
  budget_.add(*this, true);
}

Hotspots::~Hotspots() {
  budget_.remove(*this);
  if (Table* const table = table_) free_table(table);
}

void Hotspots::free_table(Table* table) {
  const std::unique_ptr<Table> freed(table);
  table->budget.give_back(pool::BudgetUse::kIndexTables, Table::bytes(table->buckets.size()));
}

std::uint64_t Hotspots::shrink(std::uint64_t) {
  Table* const table = table_.exchange(nullptr, std::memory_order_acq_rel);
  if (table == nullptr) return 0;
  limbo_.defer(table,
               [](pool::Limbo::Deferred* object) { free_table(static_cast<Table*>(object)); });
  const std::uint64_t given_up = bytes_.exchange(0);
  limbo_.collect();
  return given_up;
}

// It is called with the budget's lock, as shrink() is: so the table stays meanwhile.
void Hotspots::forget() {
  Table* const table = table_.load(std::memory_order_acquire);
  if (table == nullptr) return;
  for (Bucket& bucket : table->buckets) {
    for (auto& place : bucket.places) place.store(0, std::memory_order_relaxed);
  }
}

// --- Uses ---

// Once in 2, 4, 8 … times, the rarer the more uses. By a count that threads may spoil for each
// other: a simulation always draws the same.
bool Hotspots::counts_now(unsigned uses) {
  if (uses < kExact) return true;
  const std::uint64_t drawn = seldom_.load(std::memory_order_relaxed) + 1;
  seldom_.store(drawn, std::memory_order_relaxed);
  return base::mix64(drawn) >> (63 - (uses - kExact) / kStep) == 0;
}

void Hotspots::count_use(Bucket& bucket, std::atomic<std::uint64_t>& place, std::uint64_t word) {
  if (!counts_now(uses(word))) return;
  // Who comes second in a race for a place gives way: one use is not counted.
  if (uses(word) < kMostUses) {
    place.compare_exchange_strong(word, with_uses(word, uses(word) + 1), std::memory_order_relaxed);
    return;
  }
  for (auto& each : bucket.places) {
    std::uint64_t old = each.load(std::memory_order_relaxed);
    const unsigned less = std::min(kStep, (uses(old) + kStep - 1) / kStep);
    each.compare_exchange_strong(old, with_uses(old, uses(old) - less), std::memory_order_relaxed);
  }
}

// --- Places ---

// 0: none.
std::uint64_t Hotspots::owner(fabric::Address leaf, std::uint64_t key_hash) const {
  if (lines_.bits >= kOwnerBits) {
    const std::uint64_t number = lines_.number(leaf);
    return number <= kOwnerMask ? number : 0;
  }
  const unsigned key_bits = kOwnerBits - lines_.bits;
  return lines_.number(leaf) << key_bits | (key_hash & ((std::uint64_t{1} << key_bits) - 1));
}

void Hotspots::prefetch(std::uint64_t key_word) const {
  const Table* const table = table_.load(std::memory_order_acquire);
  if (table == nullptr) return;
  __builtin_prefetch(&table->buckets[bucket_of(base::mix64(key_word), table->buckets.size())]);
}

std::optional<Hotspots::Spot> Hotspots::find(fabric::Address leaf, std::uint64_t key_word) {
  Table* const table = table_.load(std::memory_order_acquire);
  if (table == nullptr) return std::nullopt;
  const std::uint64_t hash = base::mix64(key_word);
  const std::uint64_t wanted = owner(leaf, hash);
  Bucket& bucket = table->buckets[bucket_of(hash, table->buckets.size())];
  for (auto& place : bucket.places) {
    const std::uint64_t word = place.load(std::memory_order_relaxed);
    if (word == 0 || (word & kOwnerMask) != wanted) continue;
    count_use(bucket, place, word);
    return spot(word);
  }
  return std::nullopt;
}

void Hotspots::found(fabric::Address leaf, std::uint64_t key_word, Spot spot_found) {
  Table* const table = table_.load(std::memory_order_acquire);
  if (table == nullptr) return;
  const std::uint64_t hash = base::mix64(key_word);
  const std::uint64_t wanted = owner(leaf, hash);
  if (wanted == 0) return;
  const std::uint64_t fresh = pack(1, spot_found, wanted);
  Bucket& bucket = table->buckets[bucket_of(hash, table->buckets.size())];
  std::atomic<std::uint64_t>* least = nullptr;
  std::uint64_t least_word = ~std::uint64_t{0};
  for (auto& place : bucket.places) {
    const std::uint64_t word = place.load(std::memory_order_relaxed);
    if (word != 0 && (word & kOwnerMask) == wanted) {
      // Outdated: it starts anew.
      if (spot(word) != spot_found) place.store(fresh, std::memory_order_relaxed);
      return;
    }
    if (least == nullptr || (least_word != 0 && (word == 0 || uses(word) < uses(least_word)))) {
      least = &place;
      least_word = word;
    }
  }
  least->store(fresh, std::memory_order_relaxed);
}

}  // namespace pando::index::chime
