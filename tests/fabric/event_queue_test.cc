#include "fabric/sim/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "base/random.h"

namespace pando::fabric::sim {
namespace {

// Against a sorted map, with events from this very moment to far beyond the wheel, some of them
// late, and moments that many share.
TEST(EventQueue, TakesTheEarliestAndOfThoseTheFirstAdded) {
  EventQueue queue;
  std::map<std::pair<Time, std::uint64_t>, std::uint64_t> model;
  base::Random random(1);
  Time now = 0;
  std::uint64_t pushed = 0;
  const auto push = [&](Time at) {
    queue.push(at, {.detail = pushed});
    model.emplace(std::pair(at, pushed), pushed);
    ++pushed;
  };
  for (int round = 0; round < 200'000; ++round) {
    // Now many more come than go, now the other way round, down to none.
    const bool grows = round % 2'000 < 1'000;
    if (model.empty() || random.below(100) < (grows ? 60 : 40)) {
      constexpr Time kAhead[] = {1, 20 * kNanosecond, 2 * kMicrosecond, 100 * kMicrosecond,
                                 10 * kMillisecond};
      const Time ahead = random.below(kAhead[random.below(5)]);
      const bool late = random.below(50) == 0;
      push(late ? now - std::min(now, ahead) : now + ahead);
      if (random.below(20) == 0) push(now + ahead);
      continue;
    }
    const auto first = model.begin();
    ASSERT_EQ(queue.size(), model.size());
    ASSERT_EQ(queue.next_at(), first->first.first) << "round " << round;
    ASSERT_EQ(queue.pop().detail, first->second) << "round " << round;
    now = std::max(now, first->first.first);
    model.erase(first);
  }
}

}  // namespace
}  // namespace pando::fabric::sim
