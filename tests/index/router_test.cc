// Routes are hints: whatever a router says within its promises, the answers are right.
#include "index/blink/router.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/state.h"
#include "fabric/embedded/embedded.h"
#include "index/chime/chime.h"
#include "index/sherman/sherman.h"
#include <pando/pando.h>

namespace pando::index {
namespace {

constexpr std::uint64_t kRoutedKeys = 3000;

// For a BLink that is asked for routes alone.
class NoLeaves final : public Leaves<IntKeys> {
  std::size_t leaf_bytes() const override { return 0; }
  bool absorb(Node<IntKeys>, Node<IntKeys>) override { return false; }
  Task<Status> purge(Operation&, Node<IntKeys>) override { co_return Status{}; }
};

// Leads to a lower key's leaf, or to a former leaf in the block of the key's. Nothing else is known
// to it.
class Liar final : public Router<IntKeys> {
 public:
  enum class Lie : std::uint8_t { kOtherLeaf, kFormerLeaf };

  Liar(pool::ComputeNode& compute_node, const pool::IndexRecord& record, Lie lie)
      : honest_(compute_node, record, {}, leaves_), lie_(lie) {}

  bool known_route(View key, Route<IntKeys>& route) override {
    Route<IntKeys> found;
    if (!honest_.known_route(asked(key), found)) return false;
    route = lie(found);
    return true;
  }
  Task<Result<Route<IntKeys>>> find_route(pool::Operation& op, View key) override {
    Result<Route<IntKeys>> found = co_await honest_.find_route(op, asked(key));
    if (!found) co_return fail(found.error());
    co_return lie(*found);
  }
  void misled(const Route<IntKeys>&) override { ++misled_; }

  int times_misled() const { return misled_; }

 private:
  std::uint64_t asked(std::uint64_t key) const { return lie_ == Lie::kOtherLeaf ? key / 2 : key; }
  Route<IntKeys> lie(const Route<IntKeys>& found) const {
    if (lie_ == Lie::kOtherLeaf) return {found.node};
    return {NodeRef(found.node.address, found.node.birth + 1)};
  }

  NoLeaves leaves_;
  BLink<IntKeys> honest_;
  const Lie lie_;
  int misled_ = 0;
};

struct ShermanCase {
  using Index = sherman::Sherman<IntKeys>;
  using Options = sherman::Options;
  static constexpr const char* kName = "sherman";
};
struct ChimeCase {
  using Index = chime::Chime<IntKeys>;
  using Options = chime::Options;
  static constexpr const char* kName = "chime";
};

template <class Case>
class LyingRouter : public ::testing::Test {
 protected:
  LyingRouter() {
    for (std::uint64_t key = 0; key < kRoutedKeys; ++key) {
      EXPECT_TRUE(put(*index_->tree, key, std::to_string(key)));
    }
  }

  auto lied_to(Liar& liar) {
    IndexOptions own = index_->settings;
    own.settings.erase("combine");  // the registry's
    return std::make_unique<typename Case::Index>(pool_->compute_node, index_->record,
                                                  Case::Options::parse(own).value(), &liar);
  }
  Status put(Tree& tree, std::uint64_t key, const std::string& value) {
    return pool_->run(
        [&](pool::Operation& op) { return tree.put(op, Key(key), value, PutMode::kPut); });
  }
  Result<std::string> get(Tree& tree, std::uint64_t key) {
    return pool_->run([&](pool::Operation& op) { return tree.get(op, Key(key)); });
  }

  void expect_right(Liar::Lie lie) {
    Liar liar(pool_->compute_node, index_->record, lie);
    const std::unique_ptr<Tree> tree = lied_to(liar);
    for (std::uint64_t key = 0; key < kRoutedKeys; ++key) {  // so that the liar knows all leaves
      ASSERT_TRUE(pool_->run([&](pool::Operation& op) { return liar.find_route(op, key); }));
    }
    for (std::uint64_t key = 0; key < kRoutedKeys; key += 7) {
      EXPECT_EQ(get(*tree, key).value(), std::to_string(key));
      EXPECT_TRUE(put(*tree, key, "new"));
      EXPECT_EQ(get(*index_->tree, key).value(), "new");
    }
    std::vector<Key> keys;
    for (std::uint64_t key = 0; key < 200; ++key) keys.emplace_back(key * 10 + 1);
    std::vector<std::optional<std::string>> values(keys.size());
    ASSERT_TRUE(pool_->run([&](pool::Operation& op) { return tree->multi_get(op, keys, values); }));
    for (std::uint64_t key = 0; key < 200; ++key) {
      const std::uint64_t number = key * 10 + 1;
      EXPECT_EQ(values[key], number % 7 == 0 ? "new" : std::to_string(number));
    }
    std::vector<Entry> entries;
    ASSERT_TRUE(pool_->run(
        [&](pool::Operation& op) { return tree->scan(op, Key(std::uint64_t{5}), 500, entries); }));
    ASSERT_EQ(entries.size(), 500u);
    for (std::uint64_t i = 0; i < entries.size(); ++i) {
      EXPECT_EQ(entries[i].value, (i + 5) % 7 == 0 ? "new" : std::to_string(i + 5));
    }
    EXPECT_GT(liar.times_misled(), 0);
  }

  const std::unique_ptr<fabric::Fabric> memory_ =
      fabric::open_embedded({.bytes = 16 << 20, .nodes = 1, .huge_pages = false}).value();
  const std::shared_ptr<api::PoolState> pool_ =
      api::PoolState::open(memory_->attach().value(), {}).value();
  const std::shared_ptr<api::IndexState> index_ =
      pool_->create_index("index", IndexOptions::parse(Case::kName).value()).value();
};

using Cases = ::testing::Types<ShermanCase, ChimeCase>;
TYPED_TEST_SUITE(LyingRouter, Cases);

TYPED_TEST(LyingRouter, OfAnotherLeafChangesNoAnswer) { this->expect_right(Liar::Lie::kOtherLeaf); }
TYPED_TEST(LyingRouter, OfAFormerLeafChangesNoAnswer) {
  this->expect_right(Liar::Lie::kFormerLeaf);
}

}  // namespace
}  // namespace pando::index
