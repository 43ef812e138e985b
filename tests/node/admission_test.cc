#include "fabric/node/admission.h"

#include <gtest/gtest.h>

#include <memory>

namespace pando::fabric::node {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Header> header_ = std::make_unique<Header>();
  Admission admission_{*header_};

  ErrorCode refusal(ClientId client) {
    const Status joined = admission_.join(client);
    EXPECT_FALSE(joined);
    return joined ? ErrorCode::kNotFound : joined.error().code();
  }
};

TEST_F(AdmissionTest, ClientsComeAndGo) {
  const ClientId first = admission_.new_client().value();
  const ClientId second = admission_.new_client().value();
  EXPECT_NE(first, second);
  EXPECT_FALSE(admission_.admitted(first));
  ASSERT_TRUE(admission_.join(first));
  ASSERT_TRUE(admission_.join(first)) << "again does no harm";
  EXPECT_TRUE(admission_.admitted(first));
  EXPECT_FALSE(admission_.admitted(second));
  EXPECT_EQ(admission_.count(), 1u);
  admission_.leave(first);
  EXPECT_FALSE(admission_.admitted(first));
  EXPECT_EQ(admission_.count(), 0u);
}

TEST_F(AdmissionTest, AFenceHoldsAgainstAJoinUnderWay) {
  (void)admission_.fence(7);
  EXPECT_EQ(refusal(7), ErrorCode::kFenced);
  EXPECT_TRUE(admission_.join(8));
  (void)admission_.fence(8);
  EXPECT_FALSE(admission_.admitted(8));
  EXPECT_EQ(refusal(8), ErrorCode::kFenced);
}

// Found by fuzz_node_conversation: who came next was refused with the id that it had just been
// given.
TEST_F(AdmissionTest, IdsThatWereFencedBeforehandAreNotGiven) {
  for (ClientId client = 1; client <= kMaxFenced + 2; ++client) (void)admission_.fence(client);
  const ClientId next = admission_.new_client().value();
  EXPECT_TRUE(admission_.join(next)) << next;
}

TEST_F(AdmissionTest, NoFencedClientIsEverForgotten) {
  constexpr ClientId kMany = 5 * kMaxFenced;
  for (ClientId client = 1; client <= kMany; ++client) {
    if (client % 3 == 0) continue;  // lives on
    (void)admission_.fence(client);
  }
  for (ClientId client = 1; client <= kMany; ++client) {
    if (client % 3 != 0) {
      ASSERT_EQ(refusal(client), ErrorCode::kFenced) << client;
    }
  }
  // One that has never been fenced may be too old to join, but the next one is not.
  EXPECT_TRUE(admission_.join(kMany + 1));
}

TEST_F(AdmissionTest, FencesInAnyOrder) {
  for (ClientId client = 4 * kMaxFenced; client > 0; --client) (void)admission_.fence(client);
  for (ClientId client = 1; client <= 4 * kMaxFenced; ++client) {
    ASSERT_EQ(refusal(client), ErrorCode::kFenced) << client;
  }
}

TEST_F(AdmissionTest, WhoWasNeverGivenAnIdIsNotFenced) {
  const ClientId last = admission_.new_client().value();
  for (const ClientId nobody : {ClientId{0}, last + 1, ClientId{1'000'000}}) {
    EXPECT_EQ(admission_.fence(nobody).error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(admission_.new_client().value(), last + 1) << "no id was used up";
  EXPECT_TRUE(admission_.fence(last));
}

TEST_F(AdmissionTest, WhoStaysIsToldFromThoseWhoPass) {
  for (const ClientId client : {3u, 5u, 7u}) ASSERT_TRUE(admission_.join(client));
  ASSERT_TRUE(admission_.stay(5, true));
  EXPECT_TRUE(admission_.stays(5));
  EXPECT_EQ(admission_.passing(), (std::vector<ClientId>{3, 7}));
  admission_.leave(5);
  EXPECT_FALSE(admission_.stays(5));
  EXPECT_EQ(admission_.stay(5, true).error().code(), ErrorCode::kFenced);
  ASSERT_TRUE(admission_.join(9)) << "in the place of the one that stayed";
  EXPECT_FALSE(admission_.stays(9));
  ASSERT_TRUE(admission_.stay(7, true));
  ASSERT_TRUE(admission_.stay(7, false));
  EXPECT_EQ(admission_.passing(), (std::vector<ClientId>{3, 9, 7}));
}

TEST_F(AdmissionTest, ThereIsRoomForSoMany) {
  for (ClientId client = 1; client <= kMaxClients; ++client) ASSERT_TRUE(admission_.join(client));
  EXPECT_EQ(refusal(kMaxClients + 1), ErrorCode::kBusy);
  (void)admission_.fence(5);
  EXPECT_TRUE(admission_.join(kMaxClients + 1));
  EXPECT_EQ(refusal(0), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pando::fabric::node
