#include "base/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pando::base {
namespace {

using testing::HasSubstr;

TEST(ParseSize, UnderstandsUnits) {
  EXPECT_EQ(parse_size("0").value(), 0u);
  EXPECT_EQ(parse_size("65536").value(), 65536u);
  EXPECT_EQ(parse_size("7B").value(), 7u);
  EXPECT_EQ(parse_size("1K").value(), 1024u);
  EXPECT_EQ(parse_size("64KiB").value(), 65536u);
  EXPECT_EQ(parse_size("64kb").value(), 65536u);
  EXPECT_EQ(parse_size("3MB").value(), 3u << 20);
  EXPECT_EQ(parse_size("4GiB").value(), std::uint64_t{4} << 30);
  EXPECT_EQ(parse_size("2t").value(), std::uint64_t{2} << 40);
  EXPECT_EQ(parse_size("18446744073709551615").value(), ~std::uint64_t{0});
}

TEST(ParseSize, RefusesTheRestAndQuotesIt) {
  for (const char* text : {"", "K", "GiB", "1.5GiB", "-1", "+1", " 1", "1 ", "1X", "1KiBs", "1KK",
                           "1iB", "0x10", "18446744073709551616", "16777216T"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(size.error().detail(), HasSubstr(std::string("'") + text + "'"));
  }
  EXPECT_THAT(parse_size("budget", "many").error().detail(), HasSubstr("budget: 'many'"));
}

TEST(FormatSize, IsUndoneByParseSize) {
  EXPECT_EQ(format_size(0), "0B");
  EXPECT_EQ(format_size(1000), "1000B");
  EXPECT_EQ(format_size(1024), "1KiB");
  EXPECT_EQ(format_size(std::uint64_t{1536} << 20), "1536MiB");
  EXPECT_EQ(format_size(std::uint64_t{4} << 30), "4GiB");
  EXPECT_EQ(format_size(std::uint64_t{1} << 62), "4194304TiB");
  for (std::uint64_t size = 1; size != 0 && size < (std::uint64_t{1} << 63); size = size * 3 + 1) {
    EXPECT_EQ(parse_size(format_size(size)).value(), size);
  }
}

TEST(ParseBool, KnowsFourWords) {
  EXPECT_TRUE(parse_bool("huge", "on").value());
  EXPECT_TRUE(parse_bool("huge", "true").value());
  EXPECT_FALSE(parse_bool("huge", "off").value());
  EXPECT_FALSE(parse_bool("huge", "false").value());
  EXPECT_THAT(parse_bool("huge", "yes").error().detail(), HasSubstr("huge: 'yes'"));
}

TEST(ParseUnsigned, ChecksFormAndRange) {
  EXPECT_EQ(parse_unsigned("nodes", "12").value(), 12u);
  EXPECT_EQ(parse_unsigned("nodes", "1", 1, 4).value(), 1u);
  EXPECT_EQ(parse_unsigned("nodes", "4", 1, 4).value(), 4u);
  for (const char* text : {"0", "5", "99999999999999999999999"}) {
    const auto number = parse_unsigned("nodes", text, 1, 4);
    ASSERT_FALSE(number) << text;
    EXPECT_THAT(number.error().detail(), HasSubstr("nodes: "));
    EXPECT_THAT(number.error().detail(), HasSubstr("between 1 and 4"));
  }
  for (const char* text : {"", "-1", "1.0", "1x", "x", " 1"}) {
    const auto number = parse_unsigned("nodes", text);
    ASSERT_FALSE(number) << text;
    EXPECT_THAT(number.error().detail(), HasSubstr("not an unsigned integer"));
  }
}

TEST(ParseSettings, KeepsOrderAndValues) {
  const auto settings = parse_settings("b=1&a=x=y&c=", '&').value();
  const Settings expected = {{"b", "1"}, {"a", "x=y"}, {"c", ""}};
  EXPECT_EQ(settings, expected);
  EXPECT_TRUE(parse_settings("", ',').value().empty());
}

TEST(ParseSettings, RefusesWhatIsNoSetting) {
  for (const char* text : {"a", "=1", "a=1,", ",a=1", "a=1,,b=2", ","}) {
    EXPECT_THAT(parse_settings(text, ',').error().detail(), HasSubstr("name=value")) << text;
  }
  EXPECT_THAT(parse_settings("a=1,b=2,a=3", ',').error().detail(), HasSubstr("'a' is set twice"));
}

}  // namespace
}  // namespace pando::base
