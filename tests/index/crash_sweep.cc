#include "index/crash_sweep.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

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

void apply_to(Contents& model, const Step& step) {
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
  Inspection(const Script& script, const Approach& approach, Contents model)
      : script_(script), approach_(approach), model_(std::move(model)) {}

  // The operation that was under way has happened or has not.
  Problem decide(const Survivor& who, const Step& doubtful) {
    bool happened = false;
    if (Problem wrong = look_for(who, doubtful, happened)) return wrong;
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
  const Contents& model() const { return model_; }
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
  Contents model_;
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
Contents build(const CrashCluster& cluster, const Script& script) {
  Survivor builder(cluster);
  builder.create(cluster);
  Contents model;
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
Problem run_victim(Victim& victim, const std::vector<Step>& steps, Contents& model,
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
std::vector<Step> second_steps(const Script& script, const Contents& model) {
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
  Contents model = build(cluster, script);
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
    // What is doubtful is seen by looking; the first is dead for certain.
    Inspection looking(script, approach, model);
    for (const Step& step : doubtful) {
      result.wrong = looking.decide(stale, step);
      if (result.wrong) return result;
    }
    model = looking.model();
    doubtful.clear();
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
  for (const Step& step : doubtful) {
    // Where the first one is to start with something else, the other one looks.
    result.wrong = inspection.decide(approach.first == Approach::kRead ? first : other, step);
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

// Under sanitizers, an even sample of them.
template <class Each>
std::vector<Each> sample(const std::vector<Each>& all, std::size_t most) {
  const std::size_t kept = scaled(all.size(), std::min(all.size(), most));
  std::vector<Each> some;
  some.reserve(kept);
  for (std::size_t i = 0; i < kept; ++i) some.push_back(all[i * all.size() / kept]);
  return some;
}

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
  return sample(points, 12);
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

}  // namespace

void sweep(const Script& script) {
  const Run whole = run(script, std::nullopt, kApproaches[0]);
  ASSERT_FALSE(whole.wrong) << script.name << " without a crash: " << *whole.wrong;
  run_all(script.name, points_of(whole.verbs), [&](const Point& point) -> Problem {
    const Run result = run(script, point.stop, point.approach);
    if (!result.wrong) return {};
    return point.describe(whole.verbs) + ": " + *result.wrong;
  });
}

void sweep_repairs(const Script& script) {
  const Run whole = run(script, std::nullopt, kApproaches[0]);
  ASSERT_FALSE(whole.wrong) << script.name << " without a crash: " << *whole.wrong;
  // Before each verb, and after some of its lines, in some order.
  std::vector<StopAt> first_deaths;
  for (std::uint64_t verb = 0; verb < whole.verbs.size(); ++verb) {
    for (std::size_t lines = 0; lines < whole.verbs[verb]; ++lines) {
      first_deaths.push_back({.verb = verb, .lines = lines, .line_order = verb + lines});
    }
  }
  first_deaths = sample(first_deaths, 4);
  run_all(script.name, first_deaths, [&](const StopAt& first) -> Problem {
    for (std::uint64_t write = 0;; ++write) {
      const Point point{first, kApproaches[(first.verb + write) % std::size(kApproaches)]};
      const Run result = run(script, point.stop, point.approach,
                             StopAt{.verb = write, .lines = write % 3, .line_order = first.verb});
      if (result.wrong) {
        return fmt::format("{}; the second dies at WRITE {}: {}", point.describe(whole.verbs),
                           write, *result.wrong);
      }
      if (result.second_lived) return {};
    }
  });
}

// ---- Scripts

std::string value_for(std::uint64_t key, std::string_view tag) {
  return fmt::format("{}{}", tag, key);
}

std::vector<Step> ascending(std::uint64_t count, std::string_view tag) {
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

Script around_costliest(std::string name, KeyNames names, std::vector<Step> before,
                        const std::vector<Step>& candidates, bool shared_locks, std::string index) {
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

Script with_first(const Script& wanted, Candidates candidates, const std::vector<Wish>& wishes) {
  const std::uint64_t least = wanted.before.size();
  for (std::uint64_t keys = least; keys < 2 * least + 20; ++keys) {
    Script script = wanted;
    script.before = ascending(keys);
    if (choose_first(script, candidates(keys), wishes)) return script;
  }
  throw std::logic_error(wanted.name + ": no tree where it happens");
}

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

}  // namespace pando::testing
