// CombinedKind: a kind as it is, and the setting `combine`, which decides whether its trees are
// wrapped (combining.h). The registry makes one of every kind.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "index/index.h"
#include <pando/options.h>
#include <pando/result.h>

namespace pando::index {

class CombinedKind final : public Kind {
 public:
  explicit CombinedKind(const Kind& kind) : kind_(kind) {}

  std::string_view name() const override { return kind_.name(); }
  std::string_view summary() const override { return kind_.summary(); }
  std::uint32_t format_version() const override { return kind_.format_version(); }
  std::vector<Setting> settings() const override;
  std::size_t blocks_linked_at_once() const override { return kind_.blocks_linked_at_once(); }
  Result<IndexOptions> normalize(const IndexOptions& options) const override;
  Result<std::unique_ptr<Tree>> make(pool::ComputeNode& node, const pool::IndexRecord& record,
                                     const IndexOptions& options) const override;

 private:
  const Kind& kind_;
};

}  // namespace pando::index
