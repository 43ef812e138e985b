// Chime's settings. Every technique can be switched off, so that its worth can be measured:
//   the plain B+ tree            sherman
//   + hopscotch leaves           chime:vacancy=off,replicas=off,speculation=off
//   + vacancy map                chime:replicas=off,speculation=off
//   + replicated metadata        chime:speculation=off
//   + speculative reads          chime
// each with or without lock_with_read (ours).
#pragma once

#include <cstddef>
#include <vector>

#include "index/blink/leaf_tree_options.h"
#include "index/chime/layout.h"
#include "index/index.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::index::chime {

struct Options : LeafTreeOptions<LeafGeometry> {
  bool sibling_validation = true;  // of the format: replicas hold siblings, else high fences
  bool vacancy = true;             // inserts read what the vacancy map says, else the whole leaf
  bool replicas = true;            // point reads trust a replica, else they READ the header too
  bool exclude = true;      // scans leave out entries that cannot be in range, and the header
  bool speculation = true;  // read single entries where the hotspots know them
  std::size_t hotspot_bytes = 30 << 20;  // and no more than a quarter of what the budget has left

  static Result<Options> parse(const IndexOptions& options);
  // All settings spelled out.
  IndexOptions spell() const;
  static std::vector<Setting> settings();

 private:
  SettingTable table();
};

}  // namespace pando::index::chime
