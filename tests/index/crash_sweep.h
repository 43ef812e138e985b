// What is left when a compute node dies at any verb of an operation: the sweep.
//
// For each script and each of its verbs: build the tree, let a victim die there, and let survivors
// go over everything: one that has seen nothing yet, and one whose caches are from before. What had
// been acknowledged is there, what was under way has happened or not and stays so, everything can
// be read, written, scanned, and no operation runs into its deadline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "index/crash_cluster.h"

namespace pando::testing {

struct Script {
  std::string name;
  KeyNames names = KeyNames::kInteger;
  std::uint64_t keys = 0;       // numbers in use: 0 … keys - 1
  std::vector<Step> before;     // by one that lives
  std::vector<Step> by_victim;  // by the one that dies
  bool shared_locks = false;
  std::string index = kSmallSherman;
  bool native_masked_cas = true;

  CrashCluster::Options cluster() const {
    return {.index = index,
            .names = names,
            .shared_locks = shared_locks,
            .native_masked_cas = native_masked_cas};
  }
};

// Every point of the script at which its victim can die.
void sweep(const Script& script);
// The one who repairs what the first victim left dies as well.
void sweep_repairs(const Script& script);

// ---- Scripts

std::string value_for(std::uint64_t key, std::string_view tag);
// Every second number, so that keys can be inserted between. Ascending order leaves full leaves.
std::vector<Step> ascending(std::uint64_t count, std::string_view tag = "v");
std::vector<Step> erase_all(std::uint64_t count, bool descending);
std::vector<Step> erase_ascending(std::uint64_t count);
std::vector<Step> erase_descending(std::uint64_t count);
// Inserts of the odd numbers, in no particular order.
std::vector<Step> between(std::uint64_t count);
std::vector<Step> beyond(std::uint64_t count);

void number_keys(Script& script);
// Of `candidates`, done after `before`, the one that takes most verbs, with its neighbours: where
// the tree changes most. Those before it join `before`.
Script around_costliest(std::string name, KeyNames names, std::vector<Step> before,
                        const std::vector<Step>& candidates, bool shared_locks = false,
                        std::string index = kSmallSherman);

// What an operation adds to one of the index's counts.
struct Wish {
  std::string_view count;
  std::uint64_t least = 0;
  std::uint64_t most = ~std::uint64_t{0};
};
inline constexpr Wish kNoSplit{"splits", 0, 0};
inline constexpr Wish kOneSplit{"splits", 1, 1};
inline constexpr Wish kTwoSplits{"splits", 2};
inline constexpr Wish kNoHop{"hops", 0, 0};
inline constexpr Wish kOneHop{"hops", 1, 1};
inline constexpr Wish kSeveralHops{"hops", 2};
inline constexpr Wish kOneMerge{"merges", 1, 1};
inline constexpr Wish kTwoMerges{"merges", 2};

// Of `candidates`, done after the script's `before`, the first that has the wishes; those before it
// join `before`. Whether there was one.
bool choose_first(Script& script, const std::vector<Step>& candidates,
                  const std::vector<Wish>& wishes);
// The same, in the smallest tree of at least so many keys where there is one.
using Candidates = std::vector<Step> (*)(std::uint64_t count);
Script with_first(const Script& wanted, Candidates candidates, const std::vector<Wish>& wishes);

}  // namespace pando::testing
