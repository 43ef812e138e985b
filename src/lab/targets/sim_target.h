// An index of Pando's under test on a simulated cluster, in simulated time (fabric/sim).
//
// All clients run on one thread; a client is a worker of a compute node, as on real fabrics. Time
// passes for the network alone: what the index computes is free. So figures are the same on every
// machine, and tell what the network allows.
//
// run() simulates. populate() does not: a compute node of its own inserts with verbs that take no
// time, and leaves; those that are measured start with cold caches, all alike.
#pragma once

#include <memory>

#include "fabric/sim/simulation.h"
#include "lab/targets/pando_target.h"

namespace pando::lab {

// kInvalidArgument: an impossible cluster, an unknown preset.
Result<std::unique_ptr<Target>> open_sim_target(const fabric::sim::SimOptions& cluster,
                                                const PandoTargetOptions& options);

}  // namespace pando::lab
