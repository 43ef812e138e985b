// An index of Pando's under test, through the public interface.
//
// Each compute node is a Pool of its own (the first is opened, the others attached), with its own
// budget and caches; clients are dealt out over them in turn. A client is a thread with a Worker:
// a lone operation at a time runs on it directly, several run as tasks that overlap their round
// trips.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lab/target.h"
#include <pando/pando.h>

namespace pando::lab {

struct PandoTargetOptions {
  std::string pool_url;    // "embedded:1GiB?nodes=2"
  std::string index_text;  // "sherman:leaf_bytes=2048"; the user's words, for reports
  IndexOptions index;
  PoolOptions pool;
  unsigned compute_nodes = 1;
};

Result<std::unique_ptr<Target>> open_pando_target(const PandoTargetOptions& options);

}  // namespace pando::lab
