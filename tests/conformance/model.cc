// Random operations, each answer compared with std::map's.
#include <random>

#include "support/conformance.h"

namespace pando::testing {
namespace {

struct Mix {
  std::string_view name;
  std::uint64_t key_count;
  unsigned put, insert, update, erase, scan;  // in percent; the rest are gets
};

class ModelTest : public ConformanceTest {
 protected:
  void run(const Mix& mix, std::uint64_t seed, std::size_t steps) {
    Pool pool = open_pool();
    const Index index = create_index(pool);
    Model model(key_type());
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < steps; ++i) {
      ASSERT_TRUE(step(index, model, mix, random))
          << mix.name << ", step " << i << ", seed " << seed;
    }
    EXPECT_TRUE(holds_exactly(index, model)) << mix.name;
  }

 private:
  ::testing::AssertionResult step(const Index& index, Model& model, const Mix& mix,
                                  std::mt19937_64& random) const {
    const OwnedKey target = key(random() % mix.key_count);
    const std::string value = patterned_value(random() % 40, random());
    std::uint64_t dice = random() % 100;
    const auto chosen = [&dice](unsigned percent) {
      if (dice < percent) return true;
      dice -= percent;
      return false;
    };
    if (chosen(mix.put)) return same_outcome(index.put(target, value), model.put(target, value));
    if (chosen(mix.insert)) {
      return same_outcome(index.insert(target, value), model.insert(target, value));
    }
    if (chosen(mix.update)) {
      return same_outcome(index.update(target, value), model.update(target, value));
    }
    if (chosen(mix.erase)) return same_outcome(index.erase(target), model.erase(target));
    if (chosen(mix.scan)) {
      const std::size_t limit = random() % 120;
      const auto scanned = index.scan(target, limit);
      return scanned ? same_entries(*scanned, model.scan(target, limit)) : succeeded(scanned);
    }
    return same_outcome(index.get(target), model.get(target));
  }
};

TEST_P(ModelTest, FewKeys) { run({"few keys", 40, 15, 20, 15, 25, 5}, 1, scaled(20'000, 2'000)); }

TEST_P(ModelTest, ManyKeys) {
  run({"many keys", 20'000, 25, 20, 10, 15, 2}, 2, scaled(60'000, 5'000));
}

TEST_P(ModelTest, MostlyErasing) {
  run({"erasing", 3'000, 15, 10, 5, 45, 5}, 3, scaled(40'000, 4'000));
}

TEST_P(ModelTest, MostlyInserting) {
  run({"inserting", 1'000'000, 30, 40, 5, 5, 3}, 4, scaled(40'000, 4'000));
}

// Grows and shrinks in long waves, so that splits and merges each have their time.
TEST_P(ModelTest, Waves) {
  Pool pool = open_pool();
  const Index index = create_index(pool);
  Model model(key_type());
  std::mt19937_64 random(5);
  const std::uint64_t keys = scaled(5'000, 500);
  for (int wave = 0; wave < 6; ++wave) {
    for (std::uint64_t i = 0; i < keys; ++i) {
      const OwnedKey target = key(random() % keys);
      const std::string value = numbered_value(i, static_cast<std::uint64_t>(wave));
      if (wave % 2 == 0) {
        ASSERT_TRUE(same_outcome(index.put(target, value), model.put(target, value)));
      } else {
        ASSERT_TRUE(same_outcome(index.erase(target), model.erase(target)));
      }
    }
    ASSERT_TRUE(holds_exactly(index, model)) << "wave " << wave;
    ASSERT_TRUE(succeeded(index.check())) << "wave " << wave;
  }
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(ModelTest);

}  // namespace
}  // namespace pando::testing
