#include "index/common/combined_kind.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/parse.h"
#include "index/common/combining.h"
#include "index/common/settings.h"

namespace pando::index {
namespace {

constexpr std::string_view kCombine = "combine";
constexpr std::string_view kAuto = "auto";

// As it is spelled in full: on, off or auto.
Result<std::string> spell_combine(const IndexOptions& options) {
  const auto at = options.settings.find(kCombine);
  if (at == options.settings.end() || at->second == kAuto) return std::string(kAuto);
  const Result<bool> on = base::parse_bool(kCombine, at->second);
  if (on) return *on ? "on" : "off";
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' is not on, off or auto", kCombine, at->second));
}

// Sharing spares verbs that travel. Where they complete at once it spares less than it costs.
bool wanted(std::string_view combine, const fabric::Caps& caps) {
  return combine == kAuto ? !caps.completes_inline : combine == "on";
}

IndexOptions without_combine(IndexOptions options) {
  if (const auto at = options.settings.find(kCombine); at != options.settings.end()) {
    options.settings.erase(at);
  }
  return options;
}

}  // namespace

std::vector<Setting> CombinedKind::settings() const {
  std::vector<Setting> all = kind_.settings();
  all.push_back({.name = std::string(kCombine),
                 .default_value = std::string(kAuto),
                 .meaning = "operations of the compute node on one key at the same time share "
                            "executions: on, off, or auto: on where verbs travel (tcp, rdma, sim)",
                 .format = false,
                 .trials = {"on", "off"}});
  return all;
}

Result<IndexOptions> CombinedKind::normalize(const IndexOptions& options) const {
  if (Status known = check_names(name(), settings(), options); !known) return fail(known.error());
  Result<std::string> combine = spell_combine(options);
  if (!combine) return fail(combine.error());
  Result<IndexOptions> spelled = kind_.normalize(without_combine(options));
  if (spelled) spelled->settings.emplace(kCombine, std::move(*combine));
  return spelled;
}

Result<std::unique_ptr<Tree>> CombinedKind::make(pool::ComputeNode& node,
                                                 const pool::IndexRecord& record,
                                                 const IndexOptions& options) const {
  const Result<std::string> combine = spell_combine(options);
  if (!combine) return fail(combine.error());
  Result<std::unique_ptr<Tree>> tree = kind_.make(node, record, without_combine(options));
  if (tree && wanted(*combine, node.fabric().caps())) {
    return std::make_unique<Combined>(node, std::move(*tree));
  }
  return tree;
}

}  // namespace pando::index
