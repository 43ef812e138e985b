// An index of another format than this program knows is refused, and left as it is.
#include <gtest/gtest.h>

#include "api/state.h"
#include "support/outcome.h"
#include <pando/pando.h>

namespace pando::testing {
namespace {

// Puts an index into the catalogue as a later version of the program would.
void publish(Pool& pool, std::string_view name, std::uint32_t format, std::string_view options) {
  pool::Catalogue& catalogue = api::Internals::of(pool).compute_node.catalogue();
  const auto record = api::Internals::of(pool).run_on_session([&](pool::Session& session) {
    return catalogue.begin_create(session, name, format, options);
  });
  ASSERT_TRUE(record.has_value());
  const Status published = api::Internals::of(pool).run(
      [&](pool::Operation& op) { return catalogue.publish(op, *record); });
  ASSERT_TRUE(published.has_value());
}

TEST(Formats, NewerFormatIsIncompatible) {
  Pool pool = must(Pool::open("embedded:16MiB"));
  publish(pool, "later", 1000, "sherman:keys=integer");
  EXPECT_TRUE(failed_with(pool.open_index("later"), ErrorCode::kIncompatible, "1000"));
  EXPECT_EQ(must(pool.list_indexes()).size(), 1u);
  EXPECT_TRUE(failed_with(pool.create_index("later"), ErrorCode::kExists));
}

TEST(Formats, UnknownKindIsIncompatible) {
  Pool pool = must(Pool::open("embedded:16MiB"));
  publish(pool, "strange", 1, "oak:keys=integer");
  EXPECT_TRUE(failed_with(pool.open_index("strange"), ErrorCode::kIncompatible, "oak"));
}

// A refused open leaves no user behind that would keep the index busy.
TEST(Formats, RefusedOpenDoesNotCountAsUse) {
  Pool pool = must(Pool::open("embedded:16MiB"));
  must(pool.create_index("plain"));
  IndexOptions other = must(IndexOptions::parse("sherman:leaf_bytes=2048"));
  EXPECT_TRUE(failed_with(pool.open_index("plain", other), ErrorCode::kIncompatible, "leaf_bytes"));
  EXPECT_TRUE(succeeded(pool.drop_index("plain")));
}

}  // namespace
}  // namespace pando::testing
