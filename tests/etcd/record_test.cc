// What a registry keeps in etcd: who wrote it, and that nothing else is taken for it.
#include "fabric/etcd/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace pando::fabric::etcd {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr std::string_view kNodes = "/pando/a/nodes/";
constexpr std::string_view kIds = "/pando/a/ids/";
constexpr Signing kSigned{.cluster = "a", .key = "secret"};
constexpr Signing kKeyless{.cluster = "a", .key = ""};

MemoryNodeRecord record() {
  return {.id = 3,
          .life = 0xabcd,
          .bytes = 1 << 20,
          .places = {wire::parse_place("10.0.0.1:7470").value(),
                     wire::parse_place("unix:/run/pando/0").value()}};
}
bool is_good(const MemoryNodeRecord& node) {
  const MemoryNodeRecord good = record();
  return node.id == good.id && node.life == good.life && node.bytes == good.bytes &&
         node.places.size() == 2 && node.places[0].to_string() == good.places[0].to_string() &&
         node.places[1].to_string() == good.places[1].to_string();
}
KeyValue entry(std::string value, std::string key = "/pando/a/nodes/00003") {
  return {std::move(key), std::move(value), 1};
}

template <class T>
ErrorCode code_in(const Result<T>& result) {
  return result ? ErrorCode::kExists : result.error().code();
}

TEST(Record, ANodeIsReadAsItWasWritten) {
  for (const Signing& by : {kSigned, kKeyless}) {
    const MemoryNodeRecord read =
        parse_memory_node(entry(write_memory_node(record(), by)), kNodes, by).value();
    EXPECT_EQ(read.id, 3);
    EXPECT_EQ(read.life, 0xabcdu);
    EXPECT_EQ(read.bytes, 1u << 20);
    ASSERT_EQ(read.places.size(), 2u);
    EXPECT_EQ(read.places[0].to_string(), "10.0.0.1:7470");
    EXPECT_EQ(read.places[1].to_string(), "unix:/run/pando/0");
  }
  EXPECT_TRUE(parse_memory_node(entry(write_memory_node(record(), kSigned)), kNodes, kKeyless))
      << "who has no key asks for none";
}

TEST(Record, WhatWasChangedIsNotSigned) {
  const Json written = Json::parse(write_memory_node(record(), kSigned));
  const auto refused = [&](const char* field, const Json& value) {
    Json forged = written;
    forged[field] = value;
    return code_in(parse_memory_node(entry(forged.dump()), kNodes, kSigned)) == ErrorCode::kDenied;
  };
  EXPECT_TRUE(refused("life", "000000000000abce"));
  EXPECT_TRUE(refused("bytes", 1));
  EXPECT_TRUE(refused("places", {"10.0.0.66:7470", "unix:/run/pando/0"})) << "a relay";
  EXPECT_TRUE(refused("places", {"unix:/run/pando/0"})) << "without TLS";
  EXPECT_TRUE(refused("places", {"unix:/run/pando/0", "10.0.0.1:7470"}));
  EXPECT_TRUE(refused("places", {"10.0.0.1:7470unix:/run/pando/0"}));
  EXPECT_TRUE(refused("places", Json::array()));
  EXPECT_TRUE(refused("signature", ""));
  EXPECT_TRUE(refused("signature", nullptr));
  EXPECT_TRUE(refused("signature", std::string(64, '0')));

  const std::string value = written.dump();
  EXPECT_EQ(code_in(parse_memory_node(entry(value, "/pando/a/nodes/00004"), kNodes, kSigned)),
            ErrorCode::kDenied)
      << "another's id";
  EXPECT_EQ(code_in(parse_memory_node(entry(value), kNodes, {.cluster = "b", .key = "secret"})),
            ErrorCode::kDenied)
      << "another cluster's";
  EXPECT_EQ(code_in(parse_memory_node(entry(value), kNodes, {.cluster = "a", .key = "other"})),
            ErrorCode::kDenied);
  const auto keyless =
      parse_memory_node(entry(write_memory_node(record(), kKeyless)), kNodes, kSigned);
  ASSERT_EQ(code_in(keyless), ErrorCode::kDenied);
  EXPECT_THAT(keyless.error().detail(),
              HasSubstr("'/pando/a/nodes/00003' is not signed with the key of cluster 'a'"));
}

TEST(Record, SoWithIds) {
  const auto read = [](std::string value, const Signing& by, const char* key) {
    return parse_life(entry(std::move(value), key), kIds, by);
  };
  const std::string written = write_life(3, 0xabcd, kSigned);
  EXPECT_EQ(read(written, kSigned, "/pando/a/ids/00003")->life, 0xabcdu);
  EXPECT_EQ(read(written, kKeyless, "/pando/a/ids/00003")->life, 0xabcdu);
  EXPECT_EQ(write_life(3, 0xabcd, kKeyless), "000000000000abcd");
  EXPECT_EQ(read("000000000000abcd", kKeyless, "/pando/a/ids/00003")->id, 3);
  EXPECT_EQ(code_in(read("000000000000abcd", kSigned, "/pando/a/ids/00003")), ErrorCode::kDenied);
  EXPECT_EQ(code_in(read(written, kSigned, "/pando/a/ids/00002")), ErrorCode::kDenied);
  EXPECT_EQ(code_in(read("x", kSigned, "/pando/a/ids/00003")), ErrorCode::kCorrupt);
  // A node's record is no id's, though the words are alike.
  const std::string node = Json::parse(write_memory_node(record(), kSigned)).at("signature");
  EXPECT_EQ(code_in(read("000000000000abcd " + node, kSigned, "/pando/a/ids/00003")),
            ErrorCode::kDenied);
}

TEST(Record, KeysOfAnyLengthAreRefusedAndNoMore) {
  const std::string value = write_memory_node(record(), kSigned);
  for (const char* const key :
       {"", "x", "/pando/a/nodes", "/pando/a/nodes/", "/pando/b/nodes/00003", "/pando/a/nodes/x",
        "/pando/a/nodes/00256", "/pando/a/nodes/99999999999999999999", "/pando/a/nodes/3/4"}) {
    EXPECT_EQ(code_in(parse_memory_node(entry(value, key), kNodes, kSigned)), ErrorCode::kCorrupt)
        << key;
    EXPECT_EQ(code_in(parse_life(entry("1", key), kIds, kKeyless)), ErrorCode::kCorrupt) << key;
  }
}

// ---- JSON of any shape ----

class AnyJson {
 public:
  explicit AnyJson(unsigned seed) : random_(seed) {}

  Json value(int depth = 0) {
    switch (draw(depth < 4 ? 11 : 8)) {
      case 0:
        return nullptr;
      case 1:
        return draw(2) == 0;
      case 2:
        return static_cast<std::int64_t>(random_()) * (draw(2) == 0 ? 1 : -1);
      case 3:
        return random_();
      case 4:
        return 1e300 * static_cast<double>(draw(100));
      case 5:
      case 6:
      case 7:
        return text();
      case 8: {
        Json array = Json::array();
        for (unsigned i = draw(5); i > 0; --i) array.push_back(value(depth + 1));
        return array;
      }
      default: {
        Json object = Json::object();
        for (unsigned i = draw(6); i > 0; --i) object[name()] = value(depth + 1);
        return object;
      }
    }
  }
  std::string text() {
    static constexpr std::array kTexts = {"",         "0",    "-1",   "18446744073709551616",
                                          "L3BhbmRv", "eA==", "abcd", "unix:",
                                          "unix:/x",  "a:1",  "a:x",  ":",
                                          "[::1]:1",  "=",    "true", "/pando/a/nodes/0",
                                          "\xff\xfe", "{\"}"};
    return draw(4) == 0 ? std::string(draw(300), static_cast<char>(draw(256)))
                        : kTexts[draw(kTexts.size())];
  }
  unsigned draw(std::size_t below) { return static_cast<unsigned>(random_() % below); }

 private:
  std::string name() {
    static constexpr std::array kNames = {"header", "kvs",   "key",    "value",     "mod_revision",
                                          "more",   "ID",    "result", "TTL",       "succeeded",
                                          "life",   "bytes", "places", "signature", "message"};
    return draw(8) == 0 ? text() : kNames[draw(kNames.size())];
  }

  std::mt19937_64 random_;
};

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore);
}

// Whatever etcd, or who stands in its place, answers: a result or an error, of every function that
// takes it apart; and no more is believed than what was signed.
TEST(Record, NothingThatEtcdAnswersThrows) {
  const Json good = Json::parse(write_memory_node(record(), kSigned));
  for (unsigned seed = 1; seed <= 20'000; ++seed) {
    AnyJson any(seed);
    Json json = any.draw(2) == 0 ? any.value() : good;
    if (json == good)
      json[any.draw(3) == 0 ? "places" : any.draw(2) == 0 ? "life" : "bytes"] = any.value();
    std::string text = dumped(json);
    for (unsigned i = any.draw(4); i > 0 && !text.empty(); --i) {
      text[any.draw(text.size())] = static_cast<char>(any.draw(256));
    }
    if (any.draw(8) == 0) text.resize(any.draw(text.size() + 1));
    SCOPED_TRACE(seed);
    ASSERT_NO_THROW({
      (void)parse_range(text);
      (void)parse_range(dumped({{"header", {}}, {"kvs", any.value()}}));
      (void)parse_range(dumped({{"header", {}}, {"kvs", {any.value(), any.value()}}}));
      (void)parse_transact(text);
      (void)parse_grant(text);
      (void)parse_keep_alive(text);
      (void)parse_failure(text);
      const KeyValue odd = entry(text, any.draw(2) == 0 ? any.text() : "/pando/a/nodes/00003");
      (void)parse_memory_node(odd, kNodes, kKeyless);
      (void)parse_life(entry(any.text(), any.text()), kIds, kKeyless);
      if (const auto believed = parse_memory_node(odd, kNodes, kSigned))
        EXPECT_TRUE(is_good(*believed));
      EXPECT_FALSE(parse_life(entry(any.text(), "/pando/a/ids/00003"), kIds, kSigned));
    });
  }
}

}  // namespace
}  // namespace pando::fabric::etcd
