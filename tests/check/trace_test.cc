// Traces of real runs: the text has every verb, and the JSON is what a viewer can show.
#include "lab/check/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "lab/check/plan.h"
#include "lab/check/scenario.h"

namespace pando::lab::check {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

struct Traced {
  CheckOutcome outcome;
  std::string text;
  Json json;
};

Traced trace(std::uint64_t seed, const CheckSizes& sizes = {.operations = 20}) {
  const CheckPlan plan = draw_plan(seed, "sherman", FaultSet::all(), sizes).value();
  TraceRecorder recorder;
  CheckOutcome outcome = run_check(plan, &recorder);
  EXPECT_EQ(outcome.digest, run_check(plan).digest) << "watching must change nothing";
  return {std::move(outcome), recorder.text("a title\nof two lines"),
          Json::parse(recorder.chrome_json())};
}

std::size_t count_lines(const std::string& text, const std::string& pattern) {
  const std::regex wanted(pattern);
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (std::regex_search(text.begin() + static_cast<std::ptrdiff_t>(at),
                          text.begin() + static_cast<std::ptrdiff_t>(end), wanted)) {
      ++count;
    }
    at = end + 1;
  }
  return count;
}

std::vector<Json> events_of(const Json& json, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

constexpr const char* kVerbLine = R"(^ *\d+\.\d{3} +\d+\.\d{3} .* (READ|WRITE|CAS|MCAS|FAA) +\d+:)";

TEST(Trace, TextHasAHeadAndEveryVerb) {
  const Traced traced = trace(3);
  EXPECT_THAT(traced.text, StartsWith("# a title\n# of two lines\n#    from us"));
  std::size_t verbs = 0;
  for (const Json& event : events_of(traced.json, "X")) {
    if (event["args"].contains("verbs")) verbs += event["args"]["verbs"].size();
  }
  EXPECT_GT(verbs, 100u);
  EXPECT_LE(verbs, traced.outcome.coverage.fabric.verbs);
  EXPECT_EQ(count_lines(traced.text, kVerbLine), verbs);
}

TEST(Trace, TextIsInOrderOfTime) {
  const std::string text = trace(3).text;
  double last = 0;
  std::size_t lines = 0;
  for (std::size_t at = 0; at < text.size(); ++lines) {
    const std::size_t end = text.find('\n', at);
    if (text[at] != '#') {
      const double when = std::stod(text.substr(at, 12));
      EXPECT_GE(when, last) << text.substr(at, end - at);
      last = when;
    }
    at = end + 1;
  }
  EXPECT_GT(lines, 100u);
}

TEST(Trace, HasEveryOperationAndFault) {
  std::size_t faults = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const Traced traced = trace(seed);
    const CheckCoverage& covered = traced.outcome.coverage;
    // A leave is told of twice: when it begins, and when the compute node is gone.
    const std::size_t told = covered.kills + covered.pauses + covered.cuts + covered.restarts +
                             covered.losses + 2 * covered.leaves + covered.drops + covered.joins;
    EXPECT_EQ(count_lines(traced.text, "  == "), told);
    EXPECT_EQ(events_of(traced.json, "i").size(), told);
    faults += told;
    // Those of the clients, and of the inspector after them.
    const std::size_t begun = count_lines(traced.text, " begins ");
    EXPECT_GE(begun, covered.operations);
    EXPECT_LE(count_lines(traced.text, " ends "), begun);
    const bool all_end = covered.kills + covered.leaves + covered.drops == 0;
    if (all_end) EXPECT_EQ(count_lines(traced.text, " ends "), begun) << seed;
  }
  EXPECT_GT(faults, 5u);
}

// Operations enclose their batches, and nothing overlaps halfway: viewers need that of a row.
TEST(Trace, SpansNest) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    // Many tasks on one worker: their batches overlap.
    const Traced traced = trace(seed, {.tasks = 4, .operations = 20});
    using Row = std::pair<std::uint64_t, std::uint64_t>;
    std::map<Row, std::vector<std::pair<double, double>>> rows;  // begin, end
    for (const Json& event : events_of(traced.json, "X")) {
      const double begin = event["ts"];
      const double duration = event["dur"];
      EXPECT_GE(duration, 0);
      rows[{event["pid"], event["tid"]}].emplace_back(begin, begin + duration);
    }
    std::size_t inside = 0;
    for (auto& [row, spans] : rows) {
      std::ranges::sort(spans, [](const auto& a, const auto& b) {
        return a.first < b.first || (a.first == b.first && a.second > b.second);
      });
      constexpr double kRounding = 1e-6;  // a picosecond, in microseconds
      std::vector<double> open;           // ends of those around
      for (const auto& [begin, end] : spans) {
        while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
        if (!open.empty()) {
          ++inside;
          EXPECT_LE(end, open.back() + kRounding)
              << "seed " << seed << " row " << row.first << "/" << row.second << " at " << begin;
        }
        open.push_back(end);
      }
    }
    EXPECT_GT(inside, 50u) << "batches lie in their operations";
  }
}

TEST(Trace, RowsHaveNames) {
  const Traced traced = trace(2);
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> names;
  for (const Json& event : events_of(traced.json, "M")) {
    if (event["name"] == "thread_name") {
      names[{event["pid"], event["tid"]}] = event["args"]["name"].get<std::string>();
    }
  }
  for (const Json& event : events_of(traced.json, "X")) {
    EXPECT_TRUE(names.contains({event["pid"], event["tid"]})) << event.dump();
  }
}

TEST(Trace, IsTheSameForTheSameSeed) {
  const Traced once = trace(9);
  const Traced again = trace(9);
  EXPECT_EQ(once.text, again.text);
  EXPECT_EQ(once.json, again.json);
}

}  // namespace
}  // namespace pando::lab::check
