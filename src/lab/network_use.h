// How busy the network cards of a simulated cluster were during a run, and so what bounds it.
//
// Each card has four limits: the verbs it can start or serve (verbs), its link in each direction
// (out, in), and the bus to its memory (dma). A run that keeps one of them busy all the time cannot
// become faster by more clients, only by asking less of it.
#pragma once

#include <string>
#include <vector>

#include "fabric/sim/nic.h"

namespace pando::lab {

struct CardUse {
  std::string node;  // "memory 0", "compute 3"
  fabric::sim::NicUse use;
};

// One of a card's limits, and the part of the time for which it was in use.
struct CardLimit {
  std::string name;  // "memory 0 out"
  double use = 0;
};

// The busiest limit of one card.
CardLimit busiest_limit(const CardUse& card);

struct NetworkUse {
  std::string preset;
  std::vector<CardUse> memory_nodes;
  std::vector<CardUse> compute_nodes;

  // REQUIRES: there are cards.
  CardLimit busiest() const;
  // The busiest limit where it leaves no room; else "latency": clients wait for round trips.
  std::string bound_by() const;
};

// Of several cards the one that is nearest to a limit. REQUIRES: there is one.
const CardUse& busiest_card(const std::vector<CardUse>& cards);

}  // namespace pando::lab
