#include "lab/node_metrics.h"

#include <gtest/gtest.h>

namespace pando::lab {
namespace {

TEST(NodeMetricsText, CountersAndNothingElse) {
  const NodeMetrics metrics = parse_metrics(
      "# HELP a_total Words.\n# TYPE a_total counter\n"
      "a_total{kind=\"read\"} 12\na_total{kind=\"write\"} 0\nb 7.5\nc\n\nd 18446744073709551615");
  EXPECT_EQ(metrics.size(), 3u);
  EXPECT_EQ(metrics.at("a_total{kind=\"read\"}"), 12u);
  EXPECT_EQ(metrics.at("d"), 18446744073709551615u);
}

}  // namespace
}  // namespace pando::lab
