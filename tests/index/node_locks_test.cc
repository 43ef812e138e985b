// NodeLocks: what their words look like to others while they are held.
#include "index/common/node_locks.h"

#include <gtest/gtest.h>

#include "../pool/cluster.h"

namespace pando::index {
namespace {

// With masked compare-and-swap native and emulated.
class NotedLocks : public ::testing::TestWithParam<bool> {
 protected:
  static Task<Status> submit(Operation& op, fabric::Batch& batch) {
    co_return co_await op.submit(batch);
  }
  void leave_note(std::uint32_t note) {
    Operation op(*maker_.session);
    fabric::Batch batch;
    maker_locks_.add_note(batch, block_.address, note);
    EXPECT_TRUE(maker_.run(submit(op, batch)));
  }
  std::uint64_t word() { return pool::read_word(maker_, block_.address); }
  LockTarget target() const {
    return {.node = block_.address, .image = nullptr, .parts = {}, .word = LockWord::kNoted};
  }

  pool::Cluster cluster_{16 << 20, 1, GetParam()};
  pool::Member maker_ = cluster_.join();
  pool::Member holder_ = cluster_.join();
  NodeLocks maker_locks_{*maker_.node, {}};
  NodeLocks holder_locks_{*holder_.node, {}};
  pool::Block block_ = maker_.allocate(pool::BlockKind::kNotedNode, 256).value();
};

TEST_P(NotedLocks, ANewNodesNoteReachesWhoLocksIt) {
  leave_note(0x123);
  EXPECT_EQ(word(), 0x123u);
  Operation op(*holder_.session);
  NodeLock lock(holder_locks_);
  ASSERT_TRUE(holder_.run(holder_locks_.lock(op, lock, target())));
  EXPECT_EQ(lock.note(), 0x123u);
  ASSERT_TRUE(holder_.run(holder_locks_.unlock(op, lock)));
}

// Who holds it by an old pointer unlocks by a WRITE. An atomic that stores to the word meanwhile
// may undo that WRITE, and the lock would be held by nobody for ever.
TEST_P(NotedLocks, NoNoteIsLeftInAWordThatIsHeld) {
  Operation op(*holder_.session);
  NodeLock lock(holder_locks_);
  ASSERT_TRUE(holder_.run(holder_locks_.lock(op, lock, target())));
  const std::uint64_t held = word();
  ASSERT_NE(held, 0u);
  leave_note(0x123);
  EXPECT_EQ(word(), held);
  ASSERT_TRUE(holder_.run(holder_locks_.unlock(op, lock)));
  EXPECT_EQ(word(), 0u);
  leave_note(0x123);
  EXPECT_EQ(word(), 0x123u);
}

INSTANTIATE_TEST_SUITE_P(All, NotedLocks, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "native" : "emulated"; });

}  // namespace
}  // namespace pando::index
