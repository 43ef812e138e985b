#include "lab/check/campaign.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"

namespace pando::lab::check {
namespace {

using Clock = std::chrono::steady_clock;

class Campaign {
 public:
  Campaign(const CampaignOptions& options, const RunCheck& run) : options_(options), run_(run) {
    report_.coverage.resize(options.indexes.size());
  }

  CampaignReport run(Progress& progress) {
    std::vector<std::jthread> threads;
    auto count = static_cast<unsigned>(std::min<std::uint64_t>(options_.jobs, planned()));
    if (options_.lasts) count = options_.jobs;
    start_counting(count);
    for (unsigned i = count; i > 0; --i) threads.emplace_back([this] { work(); });
    watch(progress);
    threads.clear();
    const base::MutexLock lock(mutex_);
    report_.interrupted = interrupted();
    return std::move(report_);
  }

 private:
  struct Run {
    CheckPlan plan;
    CheckOutcome outcome;
  };

  // ---- The threads

  void start_counting(unsigned threads) {
    const base::MutexLock lock(mutex_);
    running_ = threads;
  }

  void work() {
    while (const auto number = begin()) {
      Run run = carry_out(*number);
      end(*number, std::move(run));
    }
    const base::MutexLock lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  std::optional<std::uint64_t> begin() {
    const base::MutexLock lock(mutex_);
    const bool time_left = options_.lasts && Clock::now() - began_ < *options_.lasts;
    if (interrupted() || next_ >= stop_at_ || (next_ >= planned() && !time_left)) {
      return std::nullopt;
    }
    return next_++;
  }

  Run carry_out(std::uint64_t number) const {
    const std::string& index = options_.indexes[number % options_.indexes.size()];
    auto plan = draw_plan(seed_of(number), index, options_.faults, options_.sizes, options_.fabric);
    if (!plan) {
      // Others of this index had a plan: it depends on the seed, and is as wrong as a failed run.
      Run run{.plan = {.seed = seed_of(number), .index_words = index, .faults = options_.faults},
              .outcome = {}};
      run.outcome.problems.push_back("there is no plan: " + plan.error().message());
      return run;
    }
    CheckOutcome outcome = run_(*plan);
    return {.plan = std::move(*plan), .outcome = std::move(outcome)};
  }

  void end(std::uint64_t number, Run run) {
    const base::MutexLock lock(mutex_);
    if (run.outcome.failed() && !options_.keep_going) stop_at_ = std::min(stop_at_, number + 1);
    ended_.emplace(number, std::move(run));
    while (!ended_.empty() && ended_.begin()->first == report_.runs && report_.runs < stop_at_) {
      add(ended_.begin()->first, std::move(ended_.begin()->second));
      ended_.erase(ended_.begin());
    }
  }

  void add(std::uint64_t number, Run run) PANDO_REQUIRES(mutex_) {
    ++report_.runs;
    report_.last_seed = seed_of(number);
    report_.coverage[number % options_.indexes.size()] += run.outcome.coverage;
    report_.digest = base::mix64(report_.digest, run.outcome.digest);
    if (run.outcome.failed()) {
      report_.failures.push_back({std::move(run.plan), std::move(run.outcome)});
    }
  }

  // ---- The one that looks on

  void watch(Progress& progress) {
    constexpr std::chrono::milliseconds kOften{100};
    std::string label = "check";
    for (const std::string& index : options_.indexes) label += " " + index;
    while (const std::optional<std::uint64_t> done = runs_after(kOften)) {
      const auto elapsed = Clock::now() - began_;
      const std::uint64_t total = std::max(planned(), estimate(*done, elapsed));
      progress.show(label, *done, total, elapsed);  // without the lock: a terminal takes its time
    }
    progress.clear();
  }

  // Those that have ended, when this time is over or a thread has ended; nothing: all threads have.
  std::optional<std::uint64_t> runs_after(std::chrono::milliseconds time) {
    const base::MutexLock lock(mutex_);
    if (running_ == 0) return std::nullopt;
    changed_.wait_until(mutex_, std::chrono::steady_clock::now() + time);
    return report_.runs;
  }

  // How many there will be when the time is over, at this rate.
  std::uint64_t estimate(std::uint64_t done, std::chrono::nanoseconds elapsed) const {
    if (!options_.lasts || elapsed.count() == 0) return 0;
    return static_cast<std::uint64_t>(static_cast<double>(done) *
                                      std::max(1.0, std::chrono::duration<double>(*options_.lasts) /
                                                        std::chrono::duration<double>(elapsed)));
  }

  // ---- Both

  bool interrupted() const { return options_.interrupted != nullptr && *options_.interrupted; }
  std::uint64_t planned() const {
    return (options_.last_seed - options_.first_seed + 1) * options_.indexes.size();
  }
  std::uint64_t seed_of(std::uint64_t number) const {
    return options_.first_seed + number / options_.indexes.size();
  }

  const CampaignOptions& options_;
  const RunCheck& run_;
  const Clock::time_point began_ = Clock::now();
  base::Mutex mutex_;
  base::CondVar changed_;
  unsigned running_ PANDO_GUARDED_BY(mutex_) = 0;  // threads
  std::uint64_t next_ PANDO_GUARDED_BY(mutex_) = 0;
  // This run and those after it are not wanted.
  std::uint64_t stop_at_ PANDO_GUARDED_BY(mutex_) = ~std::uint64_t{0};
  std::map<std::uint64_t, Run> ended_ PANDO_GUARDED_BY(mutex_);  // they wait for one before them
  CampaignReport report_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace

Status validate(const CampaignOptions& options) {
  for (const std::string& index : options.indexes) {
    const auto plan =
        draw_plan(options.first_seed, index, options.faults, options.sizes, options.fabric);
    if (!plan) return fail(plan.error());
  }
  return {};
}

CampaignReport run_campaign(const CampaignOptions& options, const RunCheck& run,
                            Progress& progress) {
  assert(validate(options));
  return Campaign(options, run).run(progress);
}

}  // namespace pando::lab::check
