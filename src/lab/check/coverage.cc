#include <algorithm>

#include "lab/check/scenario.h"

namespace pando::lab::check {

CheckCoverage& CheckCoverage::operator+=(const CheckCoverage& other) {
  runs += other.runs;
  operations += other.operations;
  fabric += other.fabric;
  kills += other.kills;
  pauses += other.pauses;
  cuts += other.cuts;
  restarts += other.restarts;
  losses += other.losses;
  leaves += other.leaves;
  drops += other.drops;
  joins += other.joins;
  recoverers_killed += other.recoverers_killed;
  recyclers_killed += other.recyclers_killed;
  ended_unknown += other.ended_unknown;
  side_indexes += other.side_indexes;
  retries += other.retries;
  undecided += other.undecided;
  lost_bytes += other.lost_bytes;
  recovered_blocks += other.recovered_blocks;
  out_of_memory += other.out_of_memory;
  recyclings += other.recyclings;
  recycled_chunks += other.recycled_chunks;
  add_index_counts(other.index);
  return *this;
}

void CheckCoverage::add_index_counts(
    const std::vector<std::pair<std::string, std::uint64_t>>& counts) {
  for (const auto& [name, count] : counts) {
    const auto at = std::ranges::find(index, name, &std::pair<std::string, std::uint64_t>::first);
    if (at == index.end()) {
      index.emplace_back(name, count);
    } else {
      at->second += count;
    }
  }
}

}  // namespace pando::lab::check
