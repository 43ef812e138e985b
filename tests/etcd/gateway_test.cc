#include "fabric/etcd/gateway.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace pando::fabric::etcd {
namespace {

using ::testing::HasSubstr;

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode::kExists : result.error().code();
}

TEST(Base64, ThereAndBack) {
  for (const std::string& bytes :
       {std::string(), std::string("f"), std::string("fo"), std::string("foo"),
        std::string("\0\xff\x80", 3), std::string(1000, 'x')}) {
    EXPECT_EQ(from_base64(base64(bytes)), bytes);
  }
  EXPECT_EQ(base64("/pando/a"), "L3BhbmRvL2E=");
  for (const char* const bad : {"L", "L3B", "L3B*", "=L3B", "L3==Bh==", " L3B", "====", "L3A"}) {
    EXPECT_EQ(from_base64(bad), std::nullopt) << bad;
  }
}

TEST(Gateway, SaysWhatEtcdUnderstands) {
  EXPECT_EQ(range_request("/p"), R"({"key":"L3A=","range_end":"L3E="})");
  EXPECT_EQ(grant_request(std::chrono::seconds(10)), R"({"TTL":"10"})");
  EXPECT_EQ(lease_request(7), R"({"ID":"7"})");
  const std::vector<Unchanged> where = {{"/pa", 0}};
  const std::vector<Put> puts = {{"/pa", "1"}, {"/pb", "2", 7}};
  EXPECT_EQ(transact_request(where, puts),
            R"({"compare":[{"key":"L3Bh","mod_revision":"0","result":"EQUAL","target":"MOD"}],)"
            R"("success":[{"request_put":{"key":"L3Bh","value":"MQ=="}},)"
            R"({"request_put":{"key":"L3Bi","lease":"7","value":"Mg=="}}]})");
}

// As etcd 3.4.23 answered.
TEST(Gateway, UnderstandsWhatEtcdSays) {
  const std::string header =
      R"("header":{"cluster_id":"10144879847569953045","revision":"2","raft_term":"2"})";
  EXPECT_THAT(parse_range("{" + header + "}").value(), ::testing::IsEmpty());
  EXPECT_THAT(parse_range("{" + header +
                          R"(,"kvs":[{"key":"L3Bh","create_revision":"2","mod_revision":"2",)"
                          R"("version":"1","value":"MQ=="},{"key":"L3Bi","mod_revision":"3"}],)"
                          R"("count":"2"})")
                  .value(),
              ::testing::ElementsAre(KeyValue{"/pa", "1", 2}, KeyValue{"/pb", "", 3}));
  EXPECT_TRUE(parse_transact("{" + header + R"(,"succeeded":true,"responses":[]})").value());
  EXPECT_FALSE(parse_transact("{" + header + "}").value());
  EXPECT_EQ(parse_grant("{" + header + R"(,"ID":"1418811868430884358","TTL":"10"})").value(),
            1418811868430884358);
  EXPECT_TRUE(parse_keep_alive(R"({"result":{"ID":"7","TTL":"10"}})").value());
  EXPECT_FALSE(parse_keep_alive(R"({"result":{"ID":"7"}})").value());
  EXPECT_EQ(parse_failure(R"({"error":"lease not found","message":"lease not found","code":5})"),
            "lease not found");
  EXPECT_EQ(parse_failure("404 page not found\n"), "404 page not found");
}

// Whatever is at that address.
TEST(Gateway, BelievesNothingElse) {
  for (const std::string& bad :
       {std::string(), std::string("<html>"), std::string("[]"), std::string("{"),
        std::string("null"), std::string(R"({"kvs":[]})"),
        std::string(R"({"header":{},"kvs":{},"succeeded":1,"ID":"x","result":3})"),
        std::string(R"({"header":{},"kvs":[1],"succeeded":"yes","ID":{},"result":{"TTL":[]}})"),
        std::string(R"({"header":{},"kvs":[{"key":"*"}],"succeeded":null,"ID":"0","result":null})"),
        std::string(R"({"header":{},"kvs":[{"mod_revision":"1x"}],"succeeded":[],"ID":""})"),
        std::string(R"({"header":{},"kvs":[{"key":5}],"succeeded":{},"ID":1.5})"),
        std::string(R"({"header":{},"kvs":[],"more":true,"succeeded":0})"),
        std::string(100'000, '['), std::string("\xff\xfe{}", 4)}) {
    EXPECT_EQ(code_of(parse_range(bad)), ErrorCode::kCorrupt) << bad.substr(0, 100);
    EXPECT_EQ(code_of(parse_transact(bad)), ErrorCode::kCorrupt) << bad.substr(0, 100);
    EXPECT_EQ(code_of(parse_grant(bad)), ErrorCode::kCorrupt) << bad.substr(0, 100);
    EXPECT_EQ(code_of(parse_keep_alive(bad)), ErrorCode::kCorrupt) << bad.substr(0, 100);
    EXPECT_LE(parse_failure(bad).size(), 200u);
  }
}

}  // namespace
}  // namespace pando::fabric::etcd
