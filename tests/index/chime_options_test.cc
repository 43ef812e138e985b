// Chime's settings: what may be asked for, and how the refusal of the rest is worded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "index/chime/options.h"

namespace pando::index::chime {
namespace {

using ::testing::HasSubstr;

Result<Options> parse(std::string_view text) {
  Result<IndexOptions> options = IndexOptions::parse(text);
  if (!options) return fail(options.error());
  return Options::parse(*options);
}

void expect_refused(std::string_view text, std::string_view setting) {
  const Result<Options> options = parse(text);
  ASSERT_FALSE(options) << text;
  EXPECT_EQ(options.error().code(), ErrorCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(options.error().message()), HasSubstr(std::string(setting))) << text;
}

void expect_taken(std::string_view text) {
  const Result<Options> options = parse(text);
  EXPECT_TRUE(options) << text << ": " << (options ? "" : options.error().message());
}

TEST(ChimeOptions, Defaults) {
  const Options options = parse("chime").value();
  EXPECT_EQ(options.key_type, KeyType::kInteger);
  EXPECT_EQ(options.leaf.span, 64);
  EXPECT_EQ(options.leaf.neighbourhood, 8);
  EXPECT_EQ(options.leaf.value_bytes, 8);
  EXPECT_FALSE(options.leaf.fences);
  EXPECT_EQ(options.leaf.bytes, 1600) << "it is arranged";
  EXPECT_EQ(options.hotspot_bytes, 30 << 20) << "as in the paper";
  EXPECT_EQ(parse("chime:keys=bytes").value().leaf.bytes, 1664);
}

TEST(ChimeOptions, DefaultsAreSpelledOut) {
  const std::map<std::string, std::string, std::less<>> expected = {
      {"span", "64"},
      {"neighbourhood", "8"},
      {"inner_bytes", "1024"},
      {"inline_value", "8"},
      {"sibling_validation", "on"},
      {"ordered_homes", "off"},
      {"cache", "on"},
      {"handovers", "16"},
      {"lock_with_read", "on"},
      {"unlock_with_write", "on"},
      {"vacancy", "on"},
      {"replicas", "on"},
      {"speculation", "on"},
      {"hotspot_bytes", std::to_string(30 << 20)},
      {"merge", "on"},
      {"parallel_scan", "on"},
      {"exclude", "on"},
  };
  for (const std::string_view text : {"chime", "chime:keys=bytes"}) {
    const IndexOptions spelled = parse(text).value().spell();
    EXPECT_EQ(spelled.kind, "chime");
    for (const auto& [name, value] : expected) {
      const auto at = spelled.settings.find(name);
      ASSERT_NE(at, spelled.settings.end()) << name;
      EXPECT_EQ(at->second, value) << name;
    }
    EXPECT_EQ(spelled.key_type == KeyType::kBytes, text != "chime");
  }
}

TEST(ChimeOptions, RefusesBadSpans) {
  for (const char* value : {"0", "1", "7", "257", "300", "65536", "18446744073709551608"}) {
    expect_refused(std::string("chime:neighbourhood=2,span=") + value, "span");
  }
  for (const char* value : {"", "x", "-8", "8.5"}) {
    expect_refused(std::string("chime:span=") + value, "span");
  }
}

TEST(ChimeOptions, RefusesBadNeighbourhoods) {
  for (const char* value : {"0", "1", "17", "32", "64"}) {
    expect_refused(std::string("chime:neighbourhood=") + value, "neighbourhood");
  }
  // Within the limits, but the span is no multiple.
  expect_refused("chime:neighbourhood=3", "neighbourhood");
  expect_refused("chime:span=65", "span");
  expect_refused("chime:span=8,neighbourhood=16", "neighbourhood");
  expect_refused("chime:span=24,neighbourhood=16", "neighbourhood");
}

TEST(ChimeOptions, RefusesBadSizes) {
  expect_refused("chime:inline_value=7", "inline_value");
  expect_refused("chime:inline_value=0", "inline_value");
  expect_refused("chime:inline_value=51", "inline_value");
  expect_refused("chime:inline_value=9,keys=bytes", "inline_value");
  for (const char* value : {"0", "255", "192", "1000", "65600", "1M"}) {
    expect_refused(std::string("chime:inner_bytes=") + value, "inner_bytes");
  }
  expect_refused("chime:handovers=1001", "handovers");
}

TEST(ChimeOptions, RefusesWhatDoesNotGoTogether) {
  expect_refused("chime:hotspot_bytes=0", "hotspot_bytes");
  expect_refused("chime:hotspot_bytes=0,speculation=on", "speculation");
  expect_taken("chime:hotspot_bytes=0,speculation=off");
  expect_refused("chime:keys=bytes,sibling_validation=off", "sibling_validation");
  expect_taken("chime:keys=bytes,sibling_validation=on");
  expect_taken("chime:sibling_validation=off");
}

TEST(ChimeOptions, RefusesWhatItDoesNotKnow) {
  expect_refused("chime:leaf_bytes=1024", "leaf_bytes");
  expect_refused("chime:Span=64", "Span");
  expect_refused("chime:local_locks=off", "local_locks");   // of sherman; here they are needed
  expect_refused("chime:neighborhood=8", "neighbourhood");  // it tells what it has
  for (const char* name :
       {"sibling_validation", "cache", "lock_with_read", "unlock_with_write", "vacancy", "replicas",
        "speculation", "merge", "parallel_scan", "exclude", "ordered_homes"}) {
    expect_refused(std::string("chime:") + name + "=1", name);
    expect_refused(std::string("chime:") + name + "=", name);
  }
}

TEST(ChimeOptions, TakesTheLimits) {
  for (const char* text :
       {"span=8,neighbourhood=2", "span=8,neighbourhood=8", "span=256,neighbourhood=16",
        "span=256,neighbourhood=2", "span=255,neighbourhood=15", "inline_value=8",
        "inline_value=50", "inline_value=50,neighbourhood=16", "inner_bytes=256", "inner_bytes=64K",
        "handovers=0", "handovers=1000", "hotspot_bytes=1"}) {
    expect_taken(std::string("chime:") + text);
  }
  // Every shape that goes, and no other.
  for (std::size_t span = 1; span <= 300; ++span) {
    for (std::size_t n = 1; n <= 20; ++n) {
      const bool good = span >= kMinSpan && span <= kMaxSpan && n >= kMinNeighbourhood &&
                        n <= kMaxNeighbourhood && span % n == 0;
      const Result<Options> options =
          parse("chime:span=" + std::to_string(span) + ",neighbourhood=" + std::to_string(n));
      ASSERT_EQ(options.has_value(), good) << span << "/" << n;
    }
  }
}

TEST(ChimeOptions, TechniquesCanBeSwitchedOff) {
  const Options plain = parse("chime:vacancy=off,replicas=off,speculation=off").value();
  EXPECT_FALSE(plain.vacancy || plain.replicas || plain.speculation);
  EXPECT_TRUE(plain.sibling_validation);
  const Options fences = parse("chime:sibling_validation=off").value();
  EXPECT_FALSE(fences.sibling_validation);
  EXPECT_TRUE(fences.leaf.fences);
  EXPECT_FALSE(parse("chime:lock_with_read=off").value().tree.locks.lock_with_read);
  EXPECT_FALSE(parse("chime:cache=off").value().tree.cache);
  EXPECT_FALSE(parse("chime:merge=off").value().merge);
  EXPECT_FALSE(parse("chime:parallel_scan=off").value().parallel_scan);
  EXPECT_FALSE(parse("chime:exclude=off").value().exclude);
  EXPECT_TRUE(parse("chime:ordered_homes=on").value().leaf.ordered);
}

// One by one, what was asked for is spelled, and what is spelled gives the same again.
TEST(ChimeOptions, EveryValueSurvives) {
  const std::map<std::string, std::vector<std::string>> values = {
      {"span", {"8", "16", "64", "256"}},        {"neighbourhood", {"2", "4", "8", "16"}},
      {"inner_bytes", {"256", "1024", "65536"}}, {"inline_value", {"8", "13", "50"}},
      {"handovers", {"0", "1", "1000"}},         {"hotspot_bytes", {"1", "4096", "1000000000"}},
  };
  std::set<std::string> tried = {"keys"};
  for (const Setting& setting : Options::settings()) {
    if (setting.name == "keys") continue;
    tried.insert(setting.name);
    const auto numbers = values.find(setting.name);
    const std::vector<std::string> all =
        numbers == values.end() ? std::vector<std::string>{"on", "off"} : numbers->second;
    for (const std::string& value : all) {
      std::string text = "chime:" + setting.name + "=" + value;
      if (setting.name == "span" && value == "8") text += ",neighbourhood=8";
      const Result<Options> options = parse(text);
      ASSERT_TRUE(options) << text << ": " << options.error().message();
      const IndexOptions spelled = options->spell();
      EXPECT_EQ(spelled.settings.at(setting.name), value);
      const Result<Options> again = Options::parse(spelled);
      ASSERT_TRUE(again) << text;
      EXPECT_EQ(again->spell().settings, spelled.settings) << text;
      EXPECT_EQ(again->leaf.bytes, options->leaf.bytes) << text;
      EXPECT_EQ(again->leaf.fences, options->leaf.fences) << text;
    }
  }
  // Nothing is described that is not spelled, and the other way round.
  std::set<std::string> spelled = {"keys"};
  for (const auto& [name, value] : parse("chime").value().spell().settings) spelled.insert(name);
  EXPECT_EQ(tried, spelled);
}

TEST(ChimeOptions, DescribesItsDefaultsAndTrials) {
  const IndexOptions defaults = parse("chime").value().spell();
  for (const Setting& setting : Options::settings()) {
    if (setting.name == "keys") continue;
    EXPECT_EQ(defaults.settings.at(setting.name), setting.default_value) << setting.name;
    EXPECT_FALSE(setting.meaning.empty()) << setting.name;
  }
  // Of the format is what the leaves' bytes depend on.
  std::set<std::string> format;
  for (const Setting& setting : Options::settings()) {
    if (setting.format) format.insert(setting.name);
  }
  EXPECT_EQ(format, (std::set<std::string>{"keys", "span", "neighbourhood", "inner_bytes",
                                           "inline_value", "sibling_validation", "ordered_homes"}));
}

TEST(ChimeOptions, SizesMayHaveUnits) {
  EXPECT_EQ(parse("chime:hotspot_bytes=64K").value().hotspot_bytes, 65'536);
  EXPECT_EQ(parse("chime:hotspot_bytes=1GiB").value().spell().settings.at("hotspot_bytes"),
            std::to_string(1 << 30));
}

}  // namespace
}  // namespace pando::index::chime
