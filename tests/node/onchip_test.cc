// On-chip memory that is in a card while its node runs. Bytes of the process stand for the card's.

#include "fabric/node/onchip.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "fabric/node/admission.h"

namespace pando::fabric::node {
namespace {

constexpr std::uint64_t kOnChipBytes = 4 << 20;
constexpr std::byte kLock{0x5A};
constexpr std::byte kData{0xA5};

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  return std::ranges::all_of(bytes, [value](std::byte each) { return each == value; });
}

class FakeCard final : public CardMemory {
 public:
  Status fill(std::span<const std::byte> from) override {
    if (broken) return fail(ErrorCode::kUnavailable, "no way to the card");
    bytes.assign(from.begin(), from.end());
    return {};
  }
  Status fetch(std::span<std::byte> to) override {
    if (broken) return fail(ErrorCode::kUnavailable, "no way to the card");
    std::ranges::copy(bytes, to.begin());
    return {};
  }

  std::vector<std::byte> bytes;
  bool broken = false;
};

class OnChip : public ::testing::Test {
 protected:
  OnChip() { shm_unlink(("/" + name_).c_str()); }
  ~OnChip() override { shm_unlink(("/" + name_).c_str()); }

  NodeMemory make() const {
    return NodeMemory::make(
               {.bytes = kOnChipBytes, .onchip_bytes = 4096, .shm = name_, .cluster = "blue"})
        .value();
  }
  static std::span<std::byte> onchip(const NodeMemory& memory) {
    return {memory.onchip(), memory.onchip_bytes()};
  }
  static std::span<std::byte> data(const NodeMemory& memory) {
    return {memory.data(), memory.bytes()};
  }

  const std::string name_ = "pando-onchip" + std::to_string(getpid());
  FakeCard card_;
};

TEST_F(OnChip, AStayInTheCardThatEndsWellLosesNothing) {
  std::uint64_t life = 0;
  {
    const NodeMemory memory = make();
    life = memory.life();
    std::ranges::fill(onchip(memory), kData);
    std::ranges::fill(data(memory), kData);
    ASSERT_TRUE(move_to_card(memory, card_));
    EXPECT_EQ(card_.bytes.size(), 4096u);
    EXPECT_TRUE(all_are(card_.bytes, kData)) << "what the memory had is in the card";
    card_.bytes[64] = kLock;  // a client takes a lock, by the card
    ASSERT_TRUE(move_back(memory, card_));
  }
  const NodeMemory memory = make();
  EXPECT_TRUE(memory.survived());
  EXPECT_FALSE(memory.lost());
  EXPECT_EQ(memory.life(), life);
  EXPECT_EQ(onchip(memory)[64], kLock);
  EXPECT_EQ(onchip(memory)[63], kData);
  EXPECT_TRUE(all_are(data(memory), kData));
}

// The node's process is killed: nobody moves anything back.
TEST_F(OnChip, MemoryWhoseLocksWereInTheCardBeginsAnew) {
  std::uint64_t life = 0;
  {
    const NodeMemory memory = make();
    life = memory.life();
    std::ranges::fill(data(memory), kData);
    Admission admission(memory.header());
    ASSERT_TRUE(admission.join(admission.new_client().value()));
    memory.header().registered = 4;
    memory.redo_slot(7).client = 1;
    ASSERT_TRUE(move_to_card(memory, card_));
    card_.bytes[64] = kLock;
  }
  {
    const NodeMemory memory = make();
    EXPECT_FALSE(memory.survived());
    EXPECT_TRUE(memory.lost());
    EXPECT_NE(memory.life(), life) << "clients are told that all is lost";
    EXPECT_TRUE(all_are(data(memory), std::byte{0})) << "no pool is found in it";
    EXPECT_TRUE(all_are(onchip(memory), std::byte{0}));
    EXPECT_EQ(Admission(memory.header()).count(), 0u);
    EXPECT_EQ(memory.header().last_client, 0u);
    EXPECT_EQ(memory.header().registered, 0u) << "etcd's id was the old memory's";
    EXPECT_EQ(memory.redo_slot(7).client, 0u);
    EXPECT_STREQ(memory.header().cluster, "blue");
    life = memory.life();
  }
  const NodeMemory memory = make();
  EXPECT_TRUE(memory.survived()) << "that was it";
  EXPECT_EQ(memory.life(), life);
}

TEST_F(OnChip, BytesThatCannotBeHadBackAreLost) {
  {
    const NodeMemory memory = make();
    ASSERT_TRUE(move_to_card(memory, card_));
    card_.broken = true;
    EXPECT_FALSE(move_back(memory, card_));
  }
  EXPECT_TRUE(make().lost());
}

TEST_F(OnChip, ACardThatTakesNothingChangesNothing) {
  {
    const NodeMemory memory = make();
    std::ranges::fill(onchip(memory), kData);
    card_.broken = true;
    EXPECT_FALSE(move_to_card(memory, card_));
  }
  const NodeMemory memory = make();
  EXPECT_TRUE(memory.survived());
  EXPECT_TRUE(all_are(onchip(memory), kData));
}

TEST_F(OnChip, OnlySharedMemoryOutlivesItsProcess) {
  EXPECT_TRUE(make().outlives_process());
  EXPECT_FALSE(NodeMemory::make({.bytes = kOnChipBytes}).value().outlives_process());
}

// A second process must not take a node that runs for one that was killed.
TEST_F(OnChip, MemoryOfANodeThatRunsIsLeftAlone) {
  const NodeMemory memory = make();
  std::ranges::fill(data(memory), kData);
  ASSERT_TRUE(move_to_card(memory, card_));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto second = NodeMemory::make(
        {.bytes = kOnChipBytes, .onchip_bytes = 4096, .shm = name_, .cluster = "blue"});
    const bool right = !second && second.error().code() == ErrorCode::kBusy &&
                       second.error().detail().contains(std::to_string(getppid()));
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(all_are(data(memory), kData));
}

}  // namespace
}  // namespace pando::fabric::node
