// The two forms of each operation, plain calls and coroutines, answer alike.
#include <algorithm>
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

class Forms : public ConformanceTest {};

TEST_P(Forms, CoroutinesAnswerAsPlainCallsDo) {
  Pool pool = open_pool();
  const Index plain = create_index(pool, "plain");
  const Index awaited = create_index(pool, "awaited");
  Worker worker = must(pool.make_worker());
  std::mt19937_64 random(1);
  for (std::size_t step = 0; step < scaled(5'000, 500); ++step) {
    const OwnedKey target = key(random() % 300);
    const std::string value = numbered_value(step);
    switch (random() % 6) {
      case 0:
        ASSERT_TRUE(
            same_outcome(worker.run(awaited.put(worker, target, value)), plain.put(target, value)));
        break;
      case 1:
        ASSERT_TRUE(same_outcome(worker.run(awaited.insert(worker, target, value)),
                                 plain.insert(target, value)));
        break;
      case 2:
        ASSERT_TRUE(same_outcome(worker.run(awaited.update(worker, target, value)),
                                 plain.update(target, value)));
        break;
      case 3:
        ASSERT_TRUE(same_outcome(worker.run(awaited.erase(worker, target)), plain.erase(target)));
        break;
      case 4:
        ASSERT_TRUE(same_entries(must(worker.run(awaited.scan(worker, target, 20))),
                                 must(plain.scan(target, 20))));
        break;
      default:
        ASSERT_TRUE(same_outcome(worker.run(awaited.get(worker, target)), plain.get(target)));
    }
  }
}

TEST_P(Forms, MultiGetAnswersAlike) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  fill(index, 0, 500);
  std::vector<OwnedKey> owned;
  for (std::uint64_t n = 0; n < 1'000; n += 7) owned.push_back(key(n));
  const std::vector<Key> keys(owned.begin(), owned.end());
  Worker worker = must(pool.make_worker());
  EXPECT_EQ(must(worker.run(index.multi_get(worker, keys))), must(index.multi_get(keys)));
}

TEST_P(Forms, BadArgumentsAnswerAlike) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Worker worker = must(pool.make_worker());
  const OwnedKey wrong =
      key_type() == KeyType::kInteger ? OwnedKey(std::string("text")) : OwnedKey(std::uint64_t{1});
  const std::string too_long(kMaxValueBytes + 1, 'v');
  const std::vector<Key> wrong_keys{wrong};
  using enum ErrorCode;
  EXPECT_TRUE(failed_with(worker.run(index.get(worker, wrong)), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.get(worker, -1)), kInvalidArgument));
  EXPECT_TRUE(failed_with(worker.run(index.put(worker, wrong, "v")), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.put(worker, key(1), too_long)), kInvalidArgument));
  EXPECT_TRUE(failed_with(worker.run(index.insert(worker, wrong, "v")), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.update(worker, wrong, "v")), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.erase(worker, wrong)), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.scan(worker, wrong, 1)), kInvalidArgument, "key"));
  EXPECT_TRUE(failed_with(worker.run(index.multi_get(worker, wrong_keys)), kInvalidArgument));
  EXPECT_TRUE(holds_exactly(index, Model(key_type())));
}

PANDO_FOR_ALL_CASES(Forms);

}  // namespace
}  // namespace pando::testing
