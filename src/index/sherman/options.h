// Sherman's settings. Every technique can be switched off, so that its worth can be measured.
#pragma once

#include <vector>

#include "index/blink/leaf_tree_options.h"
#include "index/common/settings.h"
#include "index/index.h"
#include "index/sherman/layout.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::index::sherman {

struct Options : LeafTreeOptions<LeafGeometry> {
  static Result<Options> parse(const IndexOptions& options);
  // All settings spelled out.
  IndexOptions spell() const;
  static std::vector<Setting> settings();

 private:
  SettingTable table();
};

}  // namespace pando::index::sherman
