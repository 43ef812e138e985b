#include "lab/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/random.h"

namespace pando::lab {

namespace {

using std::chrono::nanoseconds;

// `total` divided over `count` clients as evenly as can be.
std::uint64_t share_of(std::uint64_t total, unsigned count, unsigned client) {
  return total / count + (client < total % count ? 1 : 0);
}

std::string explain(const std::string& target, std::string_view workload,
                    const Failures& failures) {
  std::string text = fmt::format("{}, workload {}:", target, workload);
  for (const std::string& message : failures.messages()) text += "\n  " + message;
  const std::uint64_t more = failures.count() - failures.messages().size();
  if (more > 0) text += fmt::format("\n  and {} more", more);
  return text;
}

// Counts threads down, and lets another wait for them a moment at a time.
class Running {
 public:
  explicit Running(std::size_t count) : count_(count) {}

  void one_ended() {
    const std::scoped_lock lock(mutex_);
    if (--count_ == 0) changed_.notify_all();
  }
  bool all_ended_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_;
};

std::uint64_t sum_of(const std::vector<std::unique_ptr<ClientWork>>& works,
                     std::uint64_t (ClientWork::*what)() const) {
  std::uint64_t sum = 0;
  for (const auto& work : works) sum += (*work.*what)();
  return sum;
}

}  // namespace

Counters RunReport::cost() const {
  Counters sum;
  for (const PartResult& part : result.parts) sum += part.cost;
  return sum;
}

double RunReport::per_operation(std::uint64_t count) const {
  if (result.operations == 0) return 0;
  return static_cast<double>(count) / static_cast<double>(result.operations);
}

PhaseState Runner::make_phase(Failures& failures) {
  return {.keys = options_.key_space,
          .value_size = options_.value_size,
          .greatest_item = greatest_item_,
          .inserts = &inserts_,
          .failures = &failures,
          .now = options_.now};
}

Runner::Outcome Runner::load() {
  Failures failures;
  PhaseState phase = make_phase(failures);
  Works works;
  for (unsigned client = 0; client < options_.clients; ++client) {
    works.push_back(std::make_unique<ClientWork>(phase, client, options_.clients, options_.keys,
                                                 options_.tasks));
  }
  const Mix& mix = *find_mix("LOAD");
  const nanoseconds time = drive(works, target_.name() + " LOAD");
  inserts_.reset(options_.keys);
  return report(mix, works, failures, time);
}

Runner::Outcome Runner::run(const Mix& mix, std::optional<std::uint64_t> operations) {
  const std::uint64_t count = operations.value_or(options_.operations);
  Failures failures;
  if (mix.scan > 0 && !greatest_item_) greatest_item_ = find_greatest_item();
  PhaseState phase = make_phase(failures);
  phase.latest = options_.distribution.value_or(mix.distribution) == Distribution::kLatest;
  target_.settle();

  const std::string label = fmt::format("{} {}", target_.name(), mix.name);
  Works warm_up = plan(phase, mix, options_.warm_up.value_or(count / 10));
  drive(warm_up, label + " warm-up");
  if (failures.any()) return std::unexpected(explain(target_.name(), mix.name, failures));

  Works works = plan(phase, mix, count);
  const nanoseconds time = drive(works, label);
  return report(mix, works, failures, time);
}

Runner::Works Runner::plan(PhaseState& phase, const Mix& mix, std::uint64_t operations) {
  ++phase_number_;
  Works works;
  for (unsigned client = 0; client < options_.clients; ++client) {
    const PlanOptions options{.mix = &mix,
                              .distribution = options_.distribution.value_or(mix.distribution),
                              .theta = options_.theta,
                              .items = inserts_.acknowledged(),
                              .operations = share_of(operations, options_.clients, client),
                              .seed = options_.seed,
                              .phase = phase_number_,
                              .client = client};
    const std::uint64_t version_seed =
        base::mix64(base::mix64(options_.seed, phase_number_), ~client);
    works.push_back(
        std::make_unique<ClientWork>(phase, make_plan(options), version_seed, options_.tasks));
  }
  return works;
}

nanoseconds Runner::drive(Works& works, const std::string& label) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  nanoseconds begin{};
  std::vector<nanoseconds> ends(works.size());
  ClientWork::StartLine start(static_cast<std::ptrdiff_t>(works.size()),
                              [&] { begin = options_.now(); });
  Running running(works.size());
  std::vector<std::jthread> threads;
  for (unsigned client = 0; client < works.size(); ++client) {
    works[client]->set_start(&start);
    threads.emplace_back([&, client] {
      target_.run_client(client, *works[client]);
      if (!works[client]->started()) works[client]->ready();  // failed early: nobody waits for it
      ends[client] = options_.now();
      running.one_ended();
    });
  }
  const std::uint64_t total = sum_of(works, &ClientWork::total);
  const nanoseconds shown_from = options_.now();
  while (!running.all_ended_within(kBetweenLooks)) {
    if (options_.interrupted != nullptr && options_.interrupted->load()) {
      works.front()->failures().add("interrupted");
    }
    progress_.show(label, sum_of(works, &ClientWork::done), total, options_.now() - shown_from);
  }
  threads.clear();
  progress_.clear();
  return *std::ranges::max_element(ends) - begin;
}

Runner::Outcome Runner::report(const Mix& mix, const Works& works, const Failures& failures,
                               nanoseconds time) {
  if (failures.any()) return std::unexpected(explain(target_.name(), mix.name, failures));
  const auto memory = target_.memory();
  if (!memory) {
    return std::unexpected(
        fmt::format("{}, memory in use: {}", target_.name(), memory.error().message()));
  }
  RunReport report{.target = target_.name(),
                   .fabric = target_.fabric(),
                   .is_peer = target_.is_peer(),
                   .workload = std::string(mix.name),
                   .distribution = options_.distribution.value_or(mix.distribution),
                   .keys = options_.keys,
                   .seconds_ns = static_cast<std::uint64_t>(time.count()),
                   .memory = *memory};
  for (const auto& work : works) report.result.merge(work->result());
  return report;
}

std::uint64_t Runner::find_greatest_item() const {
  const KeySpace& keys = options_.key_space;
  KeySpace::Buffer buffers[2];
  std::uint64_t greatest = 0;
  for (std::uint64_t item = 1; item < options_.keys; ++item) {
    if (key_less(keys.key(greatest, buffers[0]), keys.key(item, buffers[1]))) {
      greatest = item;
    }
  }
  return greatest;
}

}  // namespace pando::lab
