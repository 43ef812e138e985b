// Creating and dropping an index: what its entry in the catalogue and its blocks go through
// together. Either may be cut short at any point, by an error or a death: the next create or drop
// of the name goes on from there (pool/catalogue/catalogue.h).
#pragma once

#include <memory>
#include <string>

#include "index/index.h"
#include "pool/catalogue/catalogue.h"
#include "pool/compute_node.h"
#include <pando/options.h>
#include <pando/result.h>
#include <pando/task.h>

namespace pando::index {

struct Created {
  pool::IndexRecord record;
  std::unique_ptr<Tree> tree;
};

// `settings` are normalized; `stored` is what the catalogue keeps of them. Where memory has run
// out, waits for some as a put does. kExists.
Task<Result<Created>> create_index(pool::Session& session, std::string name, const Kind& kind,
                                   IndexOptions settings, std::string stored);

// kNotFound; kBusy naming how many compute nodes use it.
Task<Status> drop_index(pool::Session& session, std::string name);

}  // namespace pando::index
