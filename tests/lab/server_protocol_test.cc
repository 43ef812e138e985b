#include "lab/targets/server_protocol.h"

#include <gtest/gtest.h>

namespace pando::lab {
namespace {

// Every reply, whole and cut short at every byte.
void expect_parsed(const ServerProtocol& protocol, std::string_view in, ServerReply kind,
                   std::string_view text) {
  for (std::size_t bytes = 0; bytes < in.size(); ++bytes) {
    EXPECT_FALSE(protocol.parse(in.substr(0, bytes))) << bytes << " bytes of " << in;
  }
  const std::string two = std::string(in) + "more";
  const auto reply = protocol.parse(two);
  ASSERT_TRUE(reply) << in;
  EXPECT_EQ(reply->kind, kind) << in;
  EXPECT_EQ(reply->bytes, in.size()) << in;
  if (kind == ServerReply::kValue || kind == ServerReply::kError) EXPECT_EQ(reply->text, text);
}

TEST(ServerProtocol, RedisReplies) {
  const RedisProtocol redis;
  expect_parsed(redis, "+OK\r\n", ServerReply::kDone, "");
  expect_parsed(redis, "$-1\r\n", ServerReply::kAbsent, "");
  expect_parsed(redis, "$0\r\n\r\n", ServerReply::kValue, "");
  expect_parsed(redis, "$4\r\na\r\nb\r\n", ServerReply::kValue, "a\r\nb");
  expect_parsed(redis, "-ERR no\r\n", ServerReply::kError, "-ERR no");
  expect_parsed(redis, "$x\r\n", ServerReply::kError, "$x");
}

TEST(ServerProtocol, MemcachedReplies) {
  const MemcachedProtocol memcached;
  expect_parsed(memcached, "STORED\r\n", ServerReply::kDone, "");
  expect_parsed(memcached, "NOT_STORED\r\n", ServerReply::kRefused, "");
  expect_parsed(memcached, "END\r\n", ServerReply::kAbsent, "");
  expect_parsed(memcached, "VALUE 6b 0 4\r\na\r\nb\r\nEND\r\n", ServerReply::kValue, "a\r\nb");
  expect_parsed(memcached, "SERVER_ERROR out of memory\r\n", ServerReply::kError,
                "SERVER_ERROR out of memory");
}

TEST(ServerProtocol, RequestsHoldAnyBytes) {
  std::string out;
  RedisProtocol().insert(out, std::string_view("\r\n", 2), std::string_view("\0v", 2));
  EXPECT_EQ(out, std::string("*4\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$2\r\n\0v\r\n$2\r\nNX\r\n", 37));
  out.clear();
  MemcachedProtocol().update(out, std::string_view("\r\x00k", 3), "v");
  EXPECT_EQ(out, "set 0d006b 0 0 1\r\nv\r\n");
}

}  // namespace
}  // namespace pando::lab
