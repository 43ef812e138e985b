// What is left when a compute node dies at any verb of an operation: the sweep.
//
// For each script and each of its verbs: build the tree, let a victim die there, and let survivors
// go over everything: one that has seen nothing yet, and one whose caches are from before. What had
// been acknowledged is there, what was under way has happened or not and stays so, everything can
// be read, written, scanned, and no operation runs into its deadline.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "index/crash_cluster.h"
#include "support/scale.h"

namespace pando::testing {
namespace {

// How the survivors go about it. Who meets a node first is who must repair it, and by which way.
struct Approach {
  bool stale_first = false;
  bool descending = false;
  enum First { kRead, kWrite, kErase } first = kRead;
};
constexpr Approach kApproaches[] = {
    {.stale_first = false, .descending = false, .first = Approach::kRead},
    {.stale_first = true, .descending = true, .first = Approach::kWrite},
    {.stale_first = false, .descending = true, .first = Approach::kErase},
    {.stale_first = true, .descending = false, .first = Approach::kErase},
    {.stale_first = false, .descending = true, .first = Approach::kWrite},
    {.stale_first = true, .descending = false, .first = Approach::kRead},
    {.stale_first = false, .descending = false, .first = Approach::kWrite},
    {.stale_first = true, .descending = true, .first = Approach::kRead},
    {.stale_first = false, .descending = false, .first = Approach::kErase},
    {.stale_first = true, .descending = true, .first = Approach::kErase},
};

struct Script {
  std::string name;
  KeyNames names = KeyNames::kInteger;
  std::uint64_t keys = 0;       // numbers in use: 0 … keys - 1
  std::vector<Step> before;     // by one that lives
  std::vector<Step> by_victim;  // by the one that dies
  bool shared_locks = false;
  std::string index = kSmallSherman;
  bool native_masked_cas = true;
  // What was under way and has not been seen may still happen, once someone repairs the node.
  bool late = false;

  CrashCluster::Options cluster() const {
    return {.index = index,
            .names = names,
            .shared_locks = shared_locks,
            .native_masked_cas = native_masked_cas};
  }
};

std::string value_for(std::uint64_t key, std::string_view tag) {
  return fmt::format("{}{}", tag, key);
}

void apply_to(Model& model, const Step& step) {
  if (step.kind == Step::kErase) {
    model.erase(step.key);
  } else {
    model.insert_or_assign(step.key, step.value);
  }
}

// The first thing that is wrong, if anything.
using Problem = std::optional<std::string>;

std::string shown(const std::optional<std::string>& value) {
  if (!value) return "nothing";
  return value->size() > 24 ? fmt::format("'{}…'", value->substr(0, 20))
                            : fmt::format("'{}'", *value);
}

class Inspection {
 public:
  Inspection(const Script& script, const Approach& approach, Model model)
      : script_(script), approach_(approach), model_(std::move(model)) {}

  // The operation that was under way has happened or has not. `thorough`, where the script is a
  // late one, reads whole leaves.
  Problem settle(const Survivor& who, const Step& doubtful, const Survivor* thorough) {
    bool happened = false;
    if (Problem wrong = look_for(who, doubtful, happened)) return wrong;
    if (script_.late) {
      // Whoever reads the whole leaf finishes what was begun.
      const bool seen = happened;
      for (const Survivor* each : {&who, thorough}) {
        if (const auto scanned = each->scan(doubtful.key, 1); !scanned) {
          return "scan from a doubtful key: " + scanned.error().message();
        }
      }
      if (Problem wrong = look_for(who, doubtful, happened)) return wrong;
      if (seen && !happened) return fmt::format("doubtful {} was undone", doubtful.key);
    }
    if (happened) apply_to(model_, doubtful);
    return {};
  }

  Problem read_all(const Survivor& who) const {
    for (const std::uint64_t key : in_order()) {
      if (Problem wrong = read_one(who, key)) return wrong;
    }
    return scan_all(who);
  }

  Problem write_all(const Survivor& who, std::string_view tag) {
    for (const std::uint64_t key : in_order()) {
      const bool present = model_.contains(key);
      const auto expect = [&](Step::Kind kind, Status outcome,
                              std::optional<ErrorCode> code) -> Problem {
        const bool as_expected = outcome ? !code : code && outcome.error().code() == *code;
        if (as_expected) return {};
        return fmt::format("{} {} of {}: {}", tag,
                           std::array{"put", "insert", "update", "erase"}[kind], key,
                           outcome ? "succeeded" : outcome.error().message());
      };
      const std::string value = value_for(key, tag);
      const std::optional<ErrorCode> fine;
      if (present) {
        if (Problem wrong =
                expect(Step::kInsert, who.apply({Step::kInsert, key, value}), ErrorCode::kExists))
          return wrong;
        if (Problem wrong = expect(Step::kUpdate, who.apply({Step::kUpdate, key, value}), fine))
          return wrong;
        model_[key] = value;
        if (Problem wrong = read_one(who, key)) return wrong;
      } else {
        if (Problem wrong =
                expect(Step::kUpdate, who.apply({Step::kUpdate, key, value}), ErrorCode::kNotFound))
          return wrong;
        if (Problem wrong = expect(Step::kInsert, who.apply({Step::kInsert, key, value}), fine))
          return wrong;
        model_[key] = value;
        if (Problem wrong = read_one(who, key)) return wrong;
        if (key % 3 == 0) continue;
        if (Problem wrong = expect(Step::kErase, who.apply({Step::kErase, key, {}}), fine))
          return wrong;
        model_.erase(key);
        if (Problem wrong = read_one(who, key)) return wrong;
        if (Problem wrong =
                expect(Step::kErase, who.apply({Step::kErase, key, {}}), ErrorCode::kNotFound))
          return wrong;
      }
    }
    return {};
  }

  // Enough new keys that every node of the old tree, its inner ones too, is locked by someone
  // alive.
  Problem grow(const Survivor& who) {
    for (std::uint64_t key = 0; key < 6 * script_.keys; ++key) {
      const std::string value = value_for(key, "grown");
      if (Status done = who.apply({Step::kPut, key, value}); !done) {
        return fmt::format("growing, put of {}: {}", key, done.error().message());
      }
      model_[key] = value;
    }
    return {};
  }
  Problem shrink(const Survivor& who) {
    std::vector<std::uint64_t> keys;
    for (const auto& [key, value] : model_) keys.push_back(key);
    if (approach_.descending) std::ranges::reverse(keys);
    for (const std::uint64_t key : keys) {
      if (key % 16 == 0) continue;
      if (Status done = who.apply({Step::kErase, key, {}}); !done) {
        return fmt::format("shrinking, erase of {}: {}", key, done.error().message());
      }
      model_.erase(key);
    }
    return {};
  }
  const Model& model() const { return model_; }
  static Problem check(const Survivor& who, std::string_view when, bool inner_locks = false) {
    const Status checked = who.check();
    if (checked) return {};
    const std::string& detail = checked.error().detail();
    if (inner_locks && detail.ends_with("locked") && !detail.contains("level 0")) return {};
    return fmt::format("check {}: {}", when, checked.error().message());
  }

 private:
  std::vector<std::uint64_t> in_order() const {
    std::vector<std::uint64_t> order(script_.keys);
    for (std::uint64_t i = 0; i < script_.keys; ++i) {
      order[i] = approach_.descending ? script_.keys - 1 - i : i;
    }
    return order;
  }

  Problem look_for(const Survivor& who, const Step& doubtful, bool& happened) const {
    std::optional<std::string> before, after;
    if (const auto at = model_.find(doubtful.key); at != model_.end()) before = at->second;
    if (doubtful.kind != Step::kErase) after = doubtful.value;
    Result<std::string> now = who.get(doubtful.key);
    if (!now && now.error().code() != ErrorCode::kNotFound) {
      return fmt::format("get of doubtful {}: {}", doubtful.key, now.error().message());
    }
    const std::optional<std::string> found = now ? std::optional(*now) : std::nullopt;
    if (found != before && found != after) {
      return fmt::format("doubtful {} is {}", doubtful.key, shown(found));
    }
    happened = found == after;
    return {};
  }

  Problem read_one(const Survivor& who, std::uint64_t key) const {
    const Result<std::string> value = who.get(key);
    const auto expected = model_.find(key);
    if (!value && value.error().code() != ErrorCode::kNotFound) {
      return fmt::format("get of {}: {}", key, value.error().message());
    }
    const std::optional<std::string> found = value ? std::optional(*value) : std::nullopt;
    const std::optional<std::string> wanted =
        expected != model_.end() ? std::optional(expected->second) : std::nullopt;
    if (found == wanted) return {};
    return fmt::format("get of {}: {}, not {}", key, shown(found), shown(wanted));
  }

  Problem scan_all(const Survivor& who) const {
    const Result<std::vector<Entry>> entries = who.scan(0, model_.size() + 10);
    if (!entries) return "scan: " + entries.error().message();
    auto expected = model_.begin();
    for (const Entry& entry : *entries) {
      if (expected == model_.end() || entry.key != name_of(script_.names, expected->first)) {
        return fmt::format("scan: entry {} of {} is not the key it should be ({})",
                           &entry - entries->data(), entries->size(),
                           expected == model_.end() ? "none" : std::to_string(expected->first));
      }
      if (entry.value != expected->second) {
        return fmt::format("scan: key {} has {}, not {}", expected->first, shown(entry.value),
                           shown(expected->second));
      }
      ++expected;
    }
    if (expected == model_.end()) return {};
    return fmt::format("scan: ends before key {}", expected->first);
  }

  const Script& script_;
  const Approach approach_;
  Model model_;
};

// An inner node that the dead had locked stays locked until somebody has to change it.
constexpr bool kInnerLocksMayRemain = true;

Problem inspect(const Survivor& first, const Survivor& second, Inspection& inspection,
                const Approach& approach) {
  if (approach.first == Approach::kErase) {
    if (Problem wrong = inspection.shrink(first)) return wrong;
  }
  if (approach.first == Approach::kRead) {
    if (Problem wrong = inspection.read_all(first)) return wrong;
  }
  if (Problem wrong = inspection.write_all(first, "first")) return wrong;
  if (Problem wrong = inspection.read_all(first)) return wrong;
  if (Problem wrong = inspection.read_all(second)) return wrong;
  if (Problem wrong = inspection.write_all(second, "second")) return wrong;
  if (Problem wrong = inspection.read_all(first)) return wrong;
  if (Problem wrong = Inspection::check(first, "after writing", kInnerLocksMayRemain)) return wrong;
  if (Problem wrong = inspection.grow(first)) return wrong;
  if (Problem wrong = inspection.read_all(second)) return wrong;
  if (Problem wrong = Inspection::check(second, "after growing")) return wrong;
  if (Problem wrong = inspection.shrink(second)) return wrong;
  if (Problem wrong = inspection.read_all(first)) return wrong;
  return Inspection::check(first, "after shrinking");
}

// The tree before the victim comes, built by a compute node that leaves again.
Model build(const CrashCluster& cluster, const Script& script) {
  Survivor builder(cluster);
  builder.create(cluster);
  Model model;
  for (const Step& step : script.before) {
    builder.apply(step).value();
    apply_to(model, step);
  }
  return model;
}

struct Run {
  Problem wrong;
  std::vector<std::size_t> verbs;  // of the victim, until it died
  bool second_lived = false;
};

// Runs steps until the victim dies. Acknowledged ones go into the model, the one under way becomes
// doubtful.
Problem run_victim(Victim& victim, const std::vector<Step>& steps, Model& model,
                   std::vector<Step>& doubtful) {
  for (const Step& step : steps) {
    const Status done = victim.apply(step);
    if (!done && !victim.faults->dead()) {
      return "the victim's own operation: " + done.error().message();
    }
    if (done) apply_to(model, step);
    if (!done) doubtful.push_back(step);
    if (victim.faults->dead()) break;  // where done: acknowledged, with its tidying unfinished
  }
  return {};
}

// Keys on both sides of those that the first victim worked on.
std::vector<Step> second_steps(const Script& script, const Model& model) {
  std::vector<Step> steps;
  const std::uint64_t middle = script.by_victim.front().key;
  for (auto above = model.upper_bound(middle); above != model.end() && steps.size() < 2; ++above) {
    steps.push_back({Step::kPut, above->first, "second"});
  }
  for (auto below = model.lower_bound(middle); below != model.begin() && steps.size() < 4;) {
    --below;
    steps.push_back({Step::kPut, below->first, "second"});
  }
  return steps;
}

// One point of the sweep; where `stop` is none, the victim lives. With `second`, another victim
// comes to the scene first, and dies at that WRITE.
Run run(const Script& script, std::optional<StopAt> stop, const Approach& approach,
        std::optional<StopAt> second = std::nullopt) {
  const CrashCluster cluster(script.cluster());
  Model model = build(cluster, script);
  Survivor stale(cluster);
  stale.open(cluster);
  Run result;
  Inspection before(script, approach, model);
  result.wrong = before.read_all(stale);
  if (result.wrong) return result;

  auto victim = std::make_unique<Victim>(cluster, stale.index());
  for (const Step& step : script.by_victim) (void)victim->get(step.key);  // its cache is warm
  victim->faults->count_from_here();
  if (stop) victim->faults->die_at(*stop);
  std::vector<Step> doubtful;
  result.wrong = run_victim(*victim, script.by_victim, model, doubtful);
  if (result.wrong) return result;
  result.verbs = victim->faults->verbs();
  victim.reset();

  if (second) {
    // It settles what is doubtful by looking, as everyone would; the first is dead for certain.
    // (Not where looking would repair: that is for the second one.)
    Inspection looking(script, approach, model);
    for (const Step& step : doubtful) {
      if (script.late) break;
      result.wrong = looking.settle(stale, step, nullptr);
      if (result.wrong) return result;
    }
    model = looking.model();
    if (!script.late) doubtful.clear();
    victim = std::make_unique<Victim>(cluster, stale.index());
    victim->faults->count_from_here(Counted::kWrites);
    victim->faults->die_at(*second);
    const std::vector<Step> steps = second_steps(script, model);
    result.wrong = run_victim(*victim, steps, model, doubtful);
    if (result.wrong) return result;
    result.second_lived = !victim->faults->dead();
    victim.reset();
  }

  Survivor fresh(cluster);
  fresh.open(cluster);
  Survivor& first = approach.stale_first ? stale : fresh;
  Survivor& other = approach.stale_first ? fresh : stale;
  Inspection inspection(script, approach, std::move(model));
  std::unique_ptr<Survivor> thorough;
  if (script.late && !doubtful.empty()) {
    thorough = std::make_unique<Survivor>(cluster);
    thorough->open(cluster, "exclude", "off");
  }
  for (const Step& step : doubtful) {
    // Where the first one is to start with something else, the other one looks.
    result.wrong =
        inspection.settle(approach.first == Approach::kRead ? first : other, step, thorough.get());
    if (result.wrong) return result;
  }
  result.wrong = inspect(first, other, inspection, approach);
  return result;
}

struct Point {
  StopAt stop;
  Approach approach;
  std::string describe(const std::vector<std::size_t>& verbs) const {
    return fmt::format(
        "dies at verb {} of {}, {} of its {} lines landed in order {}; {} first, {}, {}", stop.verb,
        verbs.size(), stop.lines, verbs[stop.verb], stop.line_order,
        approach.stale_first ? "stale" : "fresh", approach.descending ? "descending" : "ascending",
        std::array{"reads first", "writes first", "erases first"}[approach.first]);
  }
};

std::vector<Point> points_of(const std::vector<std::size_t>& verbs) {
  std::vector<Point> points;
  std::size_t turn = 0;
  for (std::uint64_t verb = 0; verb < verbs.size(); ++verb) {
    for (const Approach& approach :
         {kApproaches[0], kApproaches[1], kApproaches[2 + turn++ % (std::size(kApproaches) - 2)]}) {
      points.push_back({{.verb = verb}, approach});
    }
    for (std::size_t lines = 1; lines < verbs[verb]; ++lines) {
      for (std::uint64_t order = 0; order < 2; ++order) {
        points.push_back({{.verb = verb, .lines = lines, .line_order = order},
                          kApproaches[turn++ % std::size(kApproaches)]});
      }
    }
  }
  // Under sanitizers, an even sample of them.
  const std::size_t kept = scaled(points.size(), std::min<std::size_t>(points.size(), 12));
  if (kept >= points.size()) return points;
  std::vector<Point> sample;
  sample.reserve(kept);
  for (std::size_t i = 0; i < kept; ++i) sample.push_back(points[i * points.size() / kept]);
  return sample;
}

// Runs every point. Most of a point's time is waiting for leases, so several run at a time.
template <class Each, class RunPoint>
void run_all(const std::string& name, const std::vector<Each>& points, RunPoint run_point) {
  constexpr std::size_t kEnough = 8;
  constexpr std::size_t kThreads = 6;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> problems;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < points.size(); at = next++) {
        const Problem wrong = run_point(points[at]);
        const std::lock_guard guard(mutex);
        if (wrong) problems.push_back(*wrong);
        if (problems.size() >= kEnough) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : problems) ADD_FAILURE() << name << " " << problem;
}

void sweep(const Script& script) {
  const Run whole = run(script, std::nullopt, kApproaches[0]);
  ASSERT_FALSE(whole.wrong) << script.name << " without a crash: " << *whole.wrong;
  run_all(script.name, points_of(whole.verbs), [&](const Point& point) -> Problem {
    const Run result = run(script, point.stop, point.approach);
    if (!result.wrong) return {};
    return point.describe(whole.verbs) + ": " + *result.wrong;
  });
}

// The one who repairs what the first victim left dies as well.
void sweep_repairs(const Script& script) {
  const Run whole = run(script, std::nullopt, kApproaches[0]);
  ASSERT_FALSE(whole.wrong) << script.name << " without a crash: " << *whole.wrong;
  std::vector<std::uint64_t> first_deaths;
  const std::size_t deaths =
      scaled(whole.verbs.size(), std::min<std::size_t>(whole.verbs.size(), 4));
  first_deaths.reserve(deaths);
  for (std::size_t i = 0; i < deaths; ++i) {
    first_deaths.push_back(i * whole.verbs.size() / deaths);
  }
  run_all(script.name, first_deaths, [&](std::uint64_t verb) -> Problem {
    for (std::uint64_t write = 0;; ++write) {
      const Point point{{.verb = verb}, kApproaches[(verb + write) % std::size(kApproaches)]};
      const Run result = run(script, point.stop, point.approach,
                             StopAt{.verb = write, .lines = write % 3, .line_order = verb});
      if (result.wrong) {
        return fmt::format("{}; the second dies at WRITE {}: {}", point.describe(whole.verbs),
                           write, *result.wrong);
      }
      if (result.second_lived) return {};
    }
  });
}

// ---- Scripts

// Every second number, so that keys can be inserted between. Ascending order leaves full leaves.
std::vector<Step> ascending(std::uint64_t count, std::string_view tag = "v") {
  std::vector<Step> steps;
  steps.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    steps.push_back({Step::kPut, 2 * i, value_for(2 * i, tag)});
  }
  return steps;
}

void number_keys(Script& script) {
  for (const auto* steps : {&script.before, &script.by_victim}) {
    for (const Step& step : *steps) script.keys = std::max(script.keys, step.key + 2);
  }
}

// Of `candidates`, done after `before`, the one that takes most verbs, with its neighbours: where
// the tree changes most. Those before it join `before`.
Script around_costliest(std::string name, KeyNames names, std::vector<Step> before,
                        const std::vector<Step>& candidates, bool shared_locks = false,
                        std::string index = kSmallSherman) {
  Script script{std::move(name), names, 0, std::move(before), {}, shared_locks, std::move(index)};
  const CrashCluster cluster(script.cluster());
  (void)build(cluster, script);
  Survivor opener(cluster);
  opener.open(cluster);
  Victim dry(cluster, opener.index());
  std::size_t costliest = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    dry.faults->count_from_here();
    dry.apply(candidates[i]).value();
    if (dry.faults->verbs().size() > most) {
      most = dry.faults->verbs().size();
      costliest = i;
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (i < costliest) script.before.push_back(candidates[i]);
    if (i == costliest || i == costliest + 1) script.by_victim.push_back(candidates[i]);
  }
  number_keys(script);
  return script;
}

std::vector<Step> erase_all(std::uint64_t count, bool descending) {
  std::vector<Step> steps;
  steps.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    steps.push_back({Step::kErase, 2 * (descending ? count - 1 - i : i), {}});
  }
  return steps;
}

TEST(CrashSweep, PutIntoAnEmptyTree) {
  sweep({"integer", KeyNames::kInteger, 12, {}, {{Step::kPut, 5, "new"}}});
  sweep({"bytes", KeyNames::kShortBytes, 12, {}, {{Step::kPut, 5, "new"}}});
}

TEST(CrashSweep, UpdateOfAValueOutOfLine) {
  const std::string old_value(100, 'o');
  const std::string new_value(300, 'n');
  sweep({"update",
         KeyNames::kInteger,
         24,
         ascending(10, old_value),
         {{Step::kUpdate, 6, new_value}, {Step::kPut, 7, new_value}, {Step::kErase, 6, {}}}});
}

TEST(CrashSweep, FirstLeafSplits) {
  sweep({"integer", KeyNames::kInteger, 20, ascending(9), {{Step::kInsert, 7, "new"}}});
  sweep({"bytes", KeyNames::kLongBytes, 14, ascending(6), {{Step::kInsert, 5, "new"}}});
}

TEST(CrashSweep, LeafSplits) {
  sweep(
      {"into the left half", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}});
  sweep(
      {"into the right half", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 35, "new"}}});
  sweep({"by appending", KeyNames::kInteger, 60, ascending(27), {{Step::kInsert, 55, "new"}}});
}

TEST(CrashSweep, LeafOfLongKeysSplits) {
  sweep({"long separators", KeyNames::kLongBytes, 40, ascending(18), {{Step::kInsert, 15, "new"}}});
}

TEST(CrashSweep, LeafAndInnerNodeSplitAndTheRootGrows) {
  sweep({"integer", KeyNames::kInteger, 164, ascending(81), {{Step::kInsert, 75, "new"}}});
}

TEST(CrashSweep, LongKeysSplitLeafAndInnerNodeAndTheRootGrows) {
  sweep({"long separators", KeyNames::kLongBytes, 52, ascending(24), {{Step::kInsert, 21, "new"}}});
}

TEST(CrashSweep, NodesThatShareLocks) {
  sweep({"split", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}, true});
  sweep(around_costliest("merge", KeyNames::kInteger, ascending(27), erase_all(27, false), true));
  sweep(around_costliest("long merge", KeyNames::kLongBytes, ascending(18), erase_all(18, true),
                         true));
}

TEST(CrashSweep, RepairersOfSplits) {
  sweep_repairs({"split", KeyNames::kInteger, 56, ascending(27), {{Step::kInsert, 19, "new"}}});
  sweep_repairs(
      {"long split", KeyNames::kLongBytes, 52, ascending(24), {{Step::kInsert, 21, "new"}}});
}

TEST(CrashSweep, RepairersOfMerges) {
  sweep_repairs(
      around_costliest("leaves", KeyNames::kInteger, ascending(27), erase_all(27, false)));
  sweep_repairs(
      around_costliest("inner nodes", KeyNames::kLongBytes, ascending(48), erase_all(48, false)));
}

TEST(CrashSweep, LeavesMerge) {
  sweep(around_costliest("integer", KeyNames::kInteger, ascending(27), erase_all(27, false)));
}

TEST(CrashSweep, LeavesOfLongKeysMerge) {
  sweep(around_costliest("long separators", KeyNames::kLongBytes, ascending(18),
                         erase_all(18, false)));
}

TEST(CrashSweep, InnerNodesMerge) {
  sweep(around_costliest("ascending", KeyNames::kInteger, ascending(110), erase_all(110, false)));
  sweep(around_costliest("descending", KeyNames::kInteger, ascending(110), erase_all(110, true)));
}

TEST(CrashSweep, InnerNodesOfLongKeysMerge) {
  sweep(around_costliest("long separators", KeyNames::kLongBytes, ascending(48),
                         erase_all(48, false)));
}

// ---- Chime

constexpr const char* kTinyChime = "chime:span=8,neighbourhood=4,inner_bytes=256";

// An operation that was under way may happen late. A split whose writer died right after its commit
// (the header of the left leaf) has not happened for those who read neighbourhoods, which still
// agree with their replicas; whoever reads the whole leaf finishes it.
Script chime_script(std::string name, KeyNames names, std::uint64_t keys) {
  return {.name = std::move(name),
          .names = names,
          .before = ascending(keys),
          .index = kSmallChime,
          .late = true};
}

// What an operation adds to one of the index's counts.
struct Wish {
  std::string_view count;
  std::uint64_t least = 0;
  std::uint64_t most = ~std::uint64_t{0};
};
constexpr Wish kNoSplit{"splits", 0, 0};
constexpr Wish kOneSplit{"splits", 1, 1};
constexpr Wish kTwoSplits{"splits", 2};
constexpr Wish kNoHop{"hops", 0, 0};
constexpr Wish kOneHop{"hops", 1, 1};
constexpr Wish kSeveralHops{"hops", 2};
constexpr Wish kOneMerge{"merges", 1, 1};
constexpr Wish kTwoMerges{"merges", 2};

// Of `candidates`, done after the script's `before`, the first that has the wishes; those before it
// join `before`. Whether there was one.
bool choose_first(Script& script, const std::vector<Step>& candidates,
                  const std::vector<Wish>& wishes) {
  const CrashCluster cluster(script.cluster());
  (void)build(cluster, script);
  Survivor opener(cluster);
  opener.open(cluster);
  Victim dry(cluster, opener.index());
  for (const Step& candidate : candidates) {
    std::vector<std::uint64_t> before;
    for (const Wish& wish : wishes) before.push_back(dry.count(wish.count));
    dry.apply(candidate).value();
    bool wanted = true;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      const std::uint64_t added = dry.count(wishes[i].count) - before[i];
      wanted &= added >= wishes[i].least && added <= wishes[i].most;
    }
    if (wanted) {
      script.by_victim = {candidate};
      number_keys(script);
      return true;
    }
    script.before.push_back(candidate);
  }
  return false;
}

// The same, in the smallest tree of at least so many keys where there is one.
using Candidates = std::vector<Step> (*)(std::uint64_t count);
Script with_first(const Script& wanted, Candidates candidates, const std::vector<Wish>& wishes) {
  const std::uint64_t least = wanted.before.size();
  for (std::uint64_t keys = least; keys < 2 * least + 20; ++keys) {
    Script script = wanted;
    script.before = ascending(keys);
    if (choose_first(script, candidates(keys), wishes)) return script;
  }
  throw std::logic_error(wanted.name + ": no tree where it happens");
}

// Inserts of the odd numbers, in no particular order.
std::vector<Step> between(std::uint64_t count) {
  std::uint64_t stride = 37;
  while (std::gcd(stride, count) != 1) ++stride;
  std::vector<Step> steps;
  steps.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t key = 2 * (i * stride % count) + 1;
    steps.push_back({Step::kInsert, key, value_for(key, "new")});
  }
  return steps;
}
std::vector<Step> beyond(std::uint64_t count) {
  std::vector<Step> steps;
  for (std::uint64_t key = 2 * count; key < 2 * count + 50; key += 2) {
    steps.push_back({Step::kInsert, key, value_for(key, "new")});
  }
  return steps;
}
std::vector<Step> erase_ascending(std::uint64_t count) { return erase_all(count, false); }
std::vector<Step> erase_descending(std::uint64_t count) { return erase_all(count, true); }

// Integer keys, and byte strings that have an item for every separator.
class ChimeCrashSweep : public ::testing::TestWithParam<KeyNames> {
 protected:
  static Script script(std::string name, std::uint64_t keys) {
    return chime_script(std::move(name), GetParam(), keys);
  }
  static bool integer() { return GetParam() == KeyNames::kInteger; }
};

TEST_P(ChimeCrashSweep, PutIntoAnEmptyTree) {
  Script empty = script("empty", 0);
  empty.by_victim = {{Step::kPut, 5, "new"}};
  empty.keys = 12;
  sweep(empty);
}

// The victim knows where the keys stand: it reads and writes one entry.
TEST_P(ChimeCrashSweep, Update) {
  Script update = script("update", 27);
  update.by_victim = {{Step::kUpdate, 20, "new"}, {Step::kPut, 22, "new"}};
  number_keys(update);
  sweep(update);
}

TEST_P(ChimeCrashSweep, EraseAndInsertInItsPlace) {
  Script erase = script("erase", 27);
  erase.by_victim = {{Step::kErase, 20, {}}, {Step::kErase, 22, {}}, {Step::kInsert, 20, "new"}};
  number_keys(erase);
  sweep(erase);
}

TEST_P(ChimeCrashSweep, InsertIntoAFreePlace) {
  sweep(with_first(script("insert", 12), between, {kNoSplit, kNoHop}));
}

TEST_P(ChimeCrashSweep, InsertWithHops) {
  sweep(with_first(script("one hop", 27), between, {kNoSplit, kOneHop}));
  sweep(with_first(script("several hops", 27), between, {kNoSplit, kSeveralHops}));
}

// Lock and whole leaf in one round trip.
TEST_P(ChimeCrashSweep, InsertThatReadsTheLeaf) {
  Script insert = script("whole leaf", 27);
  insert.index += ",vacancy=off";
  sweep(with_first(insert, between, {kNoSplit, kNoHop}));
  insert.name = "whole leaf, hops";
  sweep(with_first(insert, between, {kNoSplit, kSeveralHops}));
}

TEST_P(ChimeCrashSweep, LeafSplits) {
  sweep(with_first(script("split", 27), between, {kOneSplit}));
}

TEST_P(ChimeCrashSweep, LeafAndInnerNodeSplit) {
  Script both = script("both", integer() ? 60 : 30);
  both.index = kTinyChime;
  sweep(with_first(both, between, {kTwoSplits}));
}

INSTANTIATE_TEST_SUITE_P(All, ChimeCrashSweep,
                         ::testing::Values(KeyNames::kInteger, KeyNames::kLongBytes),
                         [](const auto& info) {
                           return info.param == KeyNames::kInteger ? "integer" : "bytes";
                         });

TEST(ChimeCrashes, UpdateOfAValueOutOfLine) {
  Script script = chime_script("long values", KeyNames::kInteger, 0);
  script.before = ascending(10, std::string(100, 'o'));
  script.by_victim = {{Step::kUpdate, 6, std::string(300, 'n')},
                      {Step::kPut, 7, std::string(300, 'n')},
                      {Step::kErase, 6, {}}};
  script.keys = 24;
  sweep(script);
}

TEST(ChimeCrashes, SplitsOfTheFirstLeafAndTheLast) {
  sweep(with_first(chime_script("first", KeyNames::kInteger, 10), between, {kOneSplit}));
  sweep(with_first(chime_script("last", KeyNames::kInteger, 27), beyond, {kOneSplit}));
}

// Every verb in a round trip of its own.
TEST(ChimeCrashes, WithoutCombinedRoundTrips) {
  Script script = chime_script("apart", KeyNames::kInteger, 27);
  script.index += ",lock_with_read=off,unlock_with_write=off";
  sweep(with_first(script, between, {kNoSplit, kSeveralHops}));
}

// Splits cut elsewhere.
TEST(ChimeCrashes, WithOrderedHomes) {
  Script script = chime_script("ordered", KeyNames::kInteger, 27);
  script.index += ",ordered_homes=on";
  sweep(with_first(script, between, {kOneSplit}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

// Replicas that hold fences.
TEST(ChimeCrashes, WithoutSiblingValidation) {
  Script script = chime_script("fences", KeyNames::kInteger, 27);
  script.index += ",sibling_validation=off";
  sweep(with_first(script, between, {kOneSplit}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, EmulatedMaskedCas) {
  Script script = chime_script("emulated", KeyNames::kInteger, 27);
  script.native_masked_cas = false;
  sweep(with_first(script, between, {kNoSplit, kSeveralHops}));
  sweep(with_first(script, erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, LeavesMerge) {
  sweep(with_first(chime_script("merge", KeyNames::kInteger, 40), erase_ascending, {kOneMerge}));
  sweep(
      with_first(chime_script("backwards", KeyNames::kInteger, 40), erase_descending, {kOneMerge}));
}

TEST(ChimeCrashes, InnerNodesMerge) {
  Script script = chime_script("inner merge", KeyNames::kInteger, 120);
  script.index = kTinyChime;
  sweep(with_first(script, erase_ascending, {kTwoMerges}));
}

TEST(ChimeCrashes, RepairersOfHops) {
  sweep_repairs(
      with_first(chime_script("hops", KeyNames::kInteger, 27), between, {kNoSplit, kSeveralHops}));
}

TEST(ChimeCrashes, RepairersOfSplits) {
  sweep_repairs(with_first(chime_script("split", KeyNames::kInteger, 27), between, {kOneSplit}));
}

TEST(ChimeCrashes, RepairersOfMerges) {
  sweep_repairs(
      with_first(chime_script("merge", KeyNames::kInteger, 40), erase_ascending, {kOneMerge}));
}

// Of two header lines, the second one has the low fence: a dead node keeps it.
TEST(ChimeCrashes, LeavesOfLongKeysMerge) {
  sweep(with_first(chime_script("merge", KeyNames::kLongBytes, 40), erase_ascending, {kOneMerge}));
}

TEST(ChimeCrashes, InnerNodesOfLongKeysMerge) {
  Script script = chime_script("inner merge", KeyNames::kLongBytes, 60);
  script.index = kTinyChime;
  sweep(with_first(script, erase_ascending, {kTwoMerges}));
}

TEST(ChimeCrashes, RepairersOfMergesOfLongKeys) {
  sweep_repairs(
      with_first(chime_script("merge", KeyNames::kLongBytes, 40), erase_ascending, {kOneMerge}));
}

// DISABLED: not mended yet, in sherman as in chime. A merger of inner nodes dies at the first WRITE
// of its last batch: the right node is dead, the left one absorbing, the parent still names the
// right one. Survivors go around it, but where none of them has to wait for the dead one's locks,
// nobody takes its entry out: check() calls the tree corrupt.
TEST(CrashSweep, DISABLED_InnerNodesOfLongKeysMergeUnderAParentThatNamesTheDead) {
  Script script{.name = "inner merge", .names = KeyNames::kLongBytes, .before = ascending(49)};
  ASSERT_TRUE(choose_first(script, erase_ascending(49), {kTwoMerges}));
  sweep(script);
}

// ---- Victims that stop while others wait

// A put into a leaf that is known: CAS and READ, then WRITE and unlock.
constexpr std::uint64_t kBetweenLockAndWrite = 2;

class Crash : public ::testing::TestWithParam<const char*> {};

TEST_P(Crash, ThoseWhoWaitForTheDeadGoOn) {
  const CrashCluster cluster({.index = GetParam()});
  Survivor survivor(cluster, 10s);
  survivor.create(cluster);
  for (std::uint64_t key = 0; key < 30; ++key) {
    ASSERT_TRUE(survivor.apply({Step::kPut, key, "before"}));
  }
  auto victim = std::make_unique<Victim>(cluster, survivor.index());
  ASSERT_TRUE(victim->get(4));
  victim->faults->count_from_here();
  victim->faults->hold_up_at(kBetweenLockAndWrite);
  std::thread dying([&] {
    EXPECT_FALSE(victim->apply({Step::kPut, 4, "victim"}));
    victim.reset();
  });
  const std::shared_ptr<Faults> faults = victim->faults;
  ASSERT_TRUE(faults->wait_until_held_up(5s));

  std::vector<std::thread> waiting;
  waiting.reserve(4);
  std::atomic<int> failures{0};
  for (std::uint64_t i = 0; i < 4; ++i) {
    waiting.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        if (!survivor.apply({Step::kPut, i, std::to_string(round)})) ++failures;
      }
    });
  }
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(survivor.get(4).value(), "before") << "reading needs no lock";
  faults->die_now();
  dying.join();
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(survivor.count("lock_takeovers"), 1);
  EXPECT_EQ(survivor.get(4).value(), "before");
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(survivor.get(i).value(), "19");
  const Status checked = survivor.check();
  EXPECT_TRUE(checked) << checked.error().message();
}

TEST_P(Crash, ThePausedAreNotTakenForDead) {
  const CrashCluster cluster({.index = GetParam()});
  Survivor survivor(cluster, 300ms);
  survivor.create(cluster);
  for (std::uint64_t key = 0; key < 30; ++key) {
    ASSERT_TRUE(survivor.apply({Step::kPut, key, "before"}));
  }
  Victim victim(cluster, survivor.index());
  ASSERT_TRUE(victim.get(4));
  victim.faults->count_from_here();
  victim.faults->hold_up_at(kBetweenLockAndWrite);
  std::thread paused([&] { EXPECT_TRUE(victim.apply({Step::kPut, 4, "victim"})); });
  ASSERT_TRUE(victim.faults->wait_until_held_up(5s));

  std::vector<std::thread> waiting;
  waiting.reserve(4);
  for (std::uint64_t i = 0; i < 3; ++i) {
    waiting.emplace_back([&, i] {
      const auto start = std::chrono::steady_clock::now();
      const Status put = survivor.apply({Step::kPut, i, "too late"});
      const auto took = std::chrono::steady_clock::now() - start;
      ASSERT_FALSE(put);
      EXPECT_EQ(put.error().code(), ErrorCode::kTimeout) << put.error().message();
      EXPECT_GE(took, 300ms);
      EXPECT_LT(took, 3s);
    });
  }
  for (std::uint64_t key = 20; key < 30; ++key) {
    EXPECT_TRUE(survivor.apply({Step::kPut, key, "meanwhile"})) << "another leaf";
  }
  EXPECT_EQ(survivor.get(4).value(), "before");
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(survivor.count("lock_takeovers"), 0);

  victim.faults->go_on();
  paused.join();
  EXPECT_EQ(survivor.get(4).value(), "victim");
  for (std::uint64_t key = 0; key < 3; ++key) {
    EXPECT_EQ(survivor.get(key).value(), "before") << "a timeout before the lock changes nothing";
    EXPECT_TRUE(survivor.apply({Step::kPut, key, "after"}));
  }
  const Status checked = survivor.check();
  EXPECT_TRUE(checked) << checked.error().message();
}

INSTANTIATE_TEST_SUITE_P(All, Crash, ::testing::Values(kSmallSherman, kSmallChime),
                         [](const auto& info) {
                           const std::string_view text = info.param;
                           return std::string(text.substr(0, text.find(':')));
                         });

}  // namespace
}  // namespace pando::testing
