#include "lab/workload.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cctype>

#include "base/random.h"
#include "lab/zipf.h"

namespace pando::lab {

namespace {

constexpr std::array kMixes = {
    Mix{.name = "LOAD", .insert = 100},
    Mix{.name = "A", .search = 50, .update = 50},
    Mix{.name = "B", .search = 95, .update = 5},
    Mix{.name = "C", .search = 100},
    Mix{.name = "F", .search = 50, .read_modify_write = 50},
    Mix{.name = "D", .search = 95, .insert = 5, .distribution = Distribution::kLatest},
    Mix{.name = "E", .insert = 5, .scan = 95},
};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::toupper(x) == std::toupper(y); });
}

OperationKind draw_kind(const Mix& mix, base::Random& random) {
  std::uint64_t dice = random.below(100);
  const auto falls_in = [&dice](unsigned share) {
    if (dice < share) return true;
    dice -= share;
    return false;
  };
  if (falls_in(mix.search)) return OperationKind::kSearch;
  if (falls_in(mix.insert)) return OperationKind::kInsert;
  if (falls_in(mix.update)) return OperationKind::kUpdate;
  if (falls_in(mix.scan)) return OperationKind::kScan;
  return OperationKind::kReadModifyWrite;
}

// Draws items; `latest` gives the distance from the newest.
class ItemSource {
 public:
  explicit ItemSource(const PlanOptions& options)
      : distribution_(options.distribution),
        items_(options.items),
        zipf_(options.items, options.theta),
        scramble_(options.items, options.seed) {}

  std::uint64_t operator()(base::Random& random) const {
    switch (distribution_) {
      case Distribution::kUniform:
        return random.below(items_);
      case Distribution::kLatest:
        return zipf_(random);
      case Distribution::kZipf:
        break;
    }
    return scramble_(zipf_(random));
  }

 private:
  Distribution distribution_;
  std::uint64_t items_;
  Zipf zipf_;
  base::Permutation scramble_;
};

}  // namespace

std::string_view to_string(Distribution distribution) {
  switch (distribution) {
    case Distribution::kZipf:
      return "zipf";
    case Distribution::kUniform:
      return "uniform";
    case Distribution::kLatest:
      return "latest";
  }
  return "?";
}

std::span<const Mix> all_mixes() { return kMixes; }

const Mix* find_mix(std::string_view name) {
  const auto* found = std::ranges::find_if(
      kMixes, [name](const Mix& mix) { return equal_ignoring_case(mix.name, name); });
  return found == kMixes.end() ? nullptr : found;
}

std::vector<Operation> make_plan(const PlanOptions& options) {
  assert(!options.mix->is_load());
  base::Random random(base::mix64(base::mix64(options.seed, options.phase), options.client));
  const ItemSource draw_item(options);
  std::vector<Operation> plan;
  plan.reserve(options.operations);
  for (std::uint64_t i = 0; i < options.operations; ++i) {
    const OperationKind kind = draw_kind(*options.mix, random);
    const bool scans = kind == OperationKind::kScan;
    const unsigned length = scans ? 1 + static_cast<unsigned>(random.below(kMaxScan)) : 0;
    plan.emplace_back(kind, draw_item(random), length);
  }
  return plan;
}

InsertCounter::InsertCounter() : done_(new std::atomic<std::uint64_t>[kWindow]()) {}

void InsertCounter::reset(std::uint64_t items) {
  for (std::uint64_t i = 0; i < kWindow; ++i) done_[i].store(0);
  next_.store(items);
  acknowledged_.store(items);
}

std::optional<std::uint64_t> InsertCounter::try_next() {
  std::uint64_t item = next_.load();
  do {
    // A slot must not be used again before its last user's number was counted.
    if (item - acknowledged() >= kWindow) return std::nullopt;
  } while (!next_.compare_exchange_weak(item, item + 1));
  return item;
}

void InsertCounter::acknowledge(std::uint64_t item) {
  assert(item >= acknowledged() && item < next_.load());
  slot(item).store(item + 1);
  // Sequential consistency makes one of two neighbours see the other's mark, so that whoever is
  // last carries the count past both.
  std::uint64_t first = acknowledged_.load();
  while (slot(first).load() == first + 1) {
    if (acknowledged_.compare_exchange_weak(first, first + 1)) ++first;
  }
}

}  // namespace pando::lab
