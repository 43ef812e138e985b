// Kinds of Pando, and kinds that a program brings.
#include "index/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/outcome.h"
#include "support/toy_index.h"

namespace pando::index {
namespace {

using testing::failed_with;
using testing::succeeded;

// The toy under another name.
class RenamedKind final : public Kind {
 public:
  explicit RenamedKind(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  std::string_view summary() const override { return toy().summary(); }
  std::uint32_t format_version() const override { return toy().format_version(); }
  std::vector<Setting> settings() const override { return toy().settings(); }
  std::size_t blocks_linked_at_once() const override { return toy().blocks_linked_at_once(); }
  Result<IndexOptions> normalize(const IndexOptions& options) const override {
    return toy().normalize(options);
  }
  Result<std::unique_ptr<Tree>> make(pool::ComputeNode& compute_node,
                                     const pool::IndexRecord& record,
                                     const IndexOptions& options) const override {
    return toy().make(compute_node, record, options);
  }

 private:
  static const Kind& toy() { return testing::toy_kind(); }
  const std::string_view name_;
};

TEST(Registry, FindsWhatAProgramHasAdded) {
  static const RenamedKind kNew("new");
  EXPECT_TRUE(failed_with(find_kind("new"), ErrorCode::kInvalidArgument, "sherman"));
  EXPECT_TRUE(succeeded(add_kind(kNew)));
  const Result<const Kind*> found = find_kind("new");
  ASSERT_TRUE(succeeded(found));
  EXPECT_EQ((*found)->name(), "new");
  // It has what all kinds have.
  const std::vector<Setting> settings = (*found)->settings();
  EXPECT_EQ(std::ranges::count(settings, "combine", &Setting::name), 1);
  EXPECT_TRUE(failed_with(find_kind("newer"), ErrorCode::kInvalidArgument, ", new"));
  // Those who try all of Pando's do not try this one.
  EXPECT_EQ(std::ranges::count(kinds(), "new", &Kind::name), 0);
}

TEST(Registry, KeepsTheFirstOfAName) {
  static const RenamedKind kFirst("first");
  static const RenamedKind kSecond("first");
  static const RenamedKind kSherman("sherman");
  EXPECT_TRUE(succeeded(add_kind(kFirst)));
  const Kind* const found = find_kind("first").value();
  EXPECT_TRUE(succeeded(add_kind(kFirst)));
  EXPECT_TRUE(failed_with(add_kind(kSecond), ErrorCode::kExists, "first"));
  EXPECT_TRUE(failed_with(add_kind(kSherman), ErrorCode::kExists, "sherman"));
  EXPECT_EQ(find_kind("first").value(), found);
}

}  // namespace
}  // namespace pando::index
