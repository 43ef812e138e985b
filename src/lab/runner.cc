#include "lab/runner.h"

#include <fmt/format.h>

#include <cassert>
#include <chrono>
#include <future>

#include "base/random.h"

namespace pando::lab {

namespace {

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

std::uint64_t sum_of(const Works& works, std::uint64_t (ClientWork::*what)() const) {
  std::uint64_t sum = 0;
  for (const auto& work : works) sum += (*work.*what)();
  return sum;
}

}  // namespace

Counters RunReport::cost() const {
  Counters sum;
  for (const CallResult& calls : result.calls) sum += calls.cost;
  return sum;
}

double RunReport::per_operation(std::uint64_t count) const {
  if (result.operations == 0) return 0;
  return static_cast<double>(count) / static_cast<double>(result.operations);
}

double RunReport::ceiling_mops() const {
  assert(network);
  const double use = network->busiest().use;
  return use > 0 ? mops() / use : 0;
}

PhaseState Runner::make_phase(Failures& failures) {
  return {.keys = options_.key_space,
          .value_size = options_.value_size,
          .greatest_item = greatest_item_,
          .inserts = &inserts_,
          .failures = &failures,
          .now = target_.clock()};
}

Runner::Outcome Runner::load(unsigned clients) {
  Failures failures;
  PhaseState phase = make_phase(failures);
  const Mix& mix = *find_mix("LOAD");
  const Works works = divide_keys(phase, clients);
  const PhaseResult result = watch(works, fmt::format("{} {}", target_.name(), mix.name),
                                   [&] { return target_.run(works); });
  inserts_.reset(options_.keys);
  return report(mix, works, failures, result);
}

std::expected<void, std::string> Runner::populate(unsigned clients) {
  Failures failures;
  PhaseState phase = make_phase(failures);
  const Works works = divide_keys(phase, target_.populating_clients(clients));
  watch(works, target_.name() + " populate", [&] {
    target_.populate(works);
    return PhaseResult{};
  });
  inserts_.reset(options_.keys);
  if (failures.any()) return std::unexpected(explain(target_.name(), "LOAD", failures));
  return {};
}

Runner::Outcome Runner::run(const Mix& mix, unsigned clients,
                            std::optional<std::uint64_t> operations) {
  assert(!mix.is_load());
  const std::uint64_t count = operations.value_or(options_.operations);
  Failures failures;
  if (mix.scan > 0 && !greatest_item_) greatest_item_ = find_greatest_item();
  PhaseState phase = make_phase(failures);
  phase.latest = options_.distribution.value_or(mix.distribution) == Distribution::kLatest;
  target_.wait_until_idle();

  const std::string label = fmt::format("{} {}", target_.name(), mix.name);
  const Works warm_up = plan(phase, mix, clients, options_.warm_up.value_or(count / 10));
  watch(warm_up, label + " warm-up", [&] { return target_.run(warm_up); });
  if (failures.any()) return std::unexpected(explain(target_.name(), mix.name, failures));

  const Works works = plan(phase, mix, clients, count);
  const PhaseResult result = watch(works, label, [&] { return target_.run(works); });
  return report(mix, works, failures, result);
}

Works Runner::divide_keys(PhaseState& phase, unsigned clients) {
  Works works;
  for (unsigned client = 0; client < clients; ++client) {
    works.push_back(
        std::make_unique<ClientWork>(phase, client, clients, options_.keys, options_.tasks));
  }
  return works;
}

Works Runner::plan(PhaseState& phase, const Mix& mix, unsigned clients, std::uint64_t operations) {
  ++phase_number_;
  Works works;
  for (unsigned client = 0; client < clients; ++client) {
    const PlanOptions options{.mix = &mix,
                              .distribution = options_.distribution.value_or(mix.distribution),
                              .theta = options_.theta,
                              .items = inserts_.acknowledged(),
                              .operations = share_of(operations, clients, client),
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

PhaseResult Runner::watch(const Works& works, const std::string& label,
                          const std::function<PhaseResult()>& phase) {
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  // By the clock on the wall, whatever the target measures by: somebody is waiting.
  const Now now = steady_now();
  const auto begin = now();
  const std::uint64_t total = sum_of(works, &ClientWork::total);
  auto running = std::async(std::launch::async, phase);
  while (running.wait_for(kBetweenLooks) != std::future_status::ready) {
    if (options_.interrupted != nullptr && options_.interrupted->load()) {
      works.front()->failures().add("interrupted");
    }
    progress_.show(label, sum_of(works, &ClientWork::done), total, now() - begin);
  }
  progress_.clear();
  return running.get();
}

Runner::Outcome Runner::report(const Mix& mix, const Works& works, const Failures& failures,
                               const PhaseResult& phase) {
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
                   .clients = static_cast<unsigned>(works.size()),
                   .seconds_ns = static_cast<std::uint64_t>(phase.time.count()),
                   .memory = *memory,
                   .network = phase.network};
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
