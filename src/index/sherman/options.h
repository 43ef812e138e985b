// Sherman's settings. Every technique can be switched off, so that its worth can be measured.
#pragma once

#include <vector>

#include "index/common/blink.h"
#include "index/index.h"
#include "index/sherman/layout.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::index::sherman {

struct Options {
  // Of the format.
  KeyType key_type = KeyType::kInteger;
  LeafGeometry leaf;
  // Of this compute node's handle. BLinkOptions::inner_bytes is of the format too.
  BLinkOptions tree;
  bool merge = true;          // leaves and inner nodes that empty become one with a neighbour
  bool parallel_scan = true;  // leaves of a scan are read in one batch

  static Result<Options> parse(const IndexOptions& options);
  // All settings spelled out.
  IndexOptions spell() const;
  static std::vector<Setting> settings();
};

}  // namespace pando::index::sherman
