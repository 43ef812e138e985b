#include "lab/network_use.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

namespace pando::lab {

CardLimit busiest_limit(const CardUse& card) {
  using fabric::sim::NicUse;
  constexpr std::array kLimits = {std::pair("verbs", &NicUse::verbs),
                                  std::pair("out", &NicUse::out), std::pair("in", &NicUse::in),
                                  std::pair("dma", &NicUse::dma)};
  const auto* found = std::ranges::max_element(
      kLimits, {}, [&card](const auto& limit) { return card.use.*limit.second; });
  return {card.node + " " + found->first, card.use.*found->second};
}

const CardUse& busiest_card(const std::vector<CardUse>& cards) {
  assert(!cards.empty());
  return *std::ranges::max_element(cards, {},
                                   [](const CardUse& card) { return busiest_limit(card).use; });
}

CardLimit NetworkUse::busiest() const {
  CardLimit memory = busiest_limit(busiest_card(memory_nodes));
  CardLimit compute = busiest_limit(busiest_card(compute_nodes));
  return compute.use > memory.use ? compute : memory;
}

std::string NetworkUse::bound_by() const {
  constexpr double kBound = 0.9;
  const CardLimit limit = busiest();
  return limit.use >= kBound ? limit.name : "latency";
}

}  // namespace pando::lab
