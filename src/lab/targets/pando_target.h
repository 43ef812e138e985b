// An index of Pando's under test, through the public interface, on real fabrics.
//
// A client is a thread with a Worker: a lone operation at a time runs on it directly, several run
// as tasks that overlap their round trips.
#pragma once

#include <memory>
#include <string>

#include "lab/target.h"
#include <pando/options.h>

namespace pando::lab {

struct PandoTargetOptions {
  std::string index_text;  // "sherman:leaf_bytes=2048"; the user's words, for reports
  IndexOptions index;
  PoolOptions pool;
  unsigned compute_nodes = 1;
};

// "embedded" of "embedded:1GiB?nodes=2".
std::string fabric_of(const std::string& pool_url);

Result<std::unique_ptr<Target>> open_pando_target(const std::string& pool_url,
                                                  const PandoTargetOptions& options);

}  // namespace pando::lab
