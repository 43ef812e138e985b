#include "cli/check_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <thread>

#include "base/parse.h"
#include "cli/words.h"
#include "index/registry.h"

namespace pando::cli {

namespace {

using lab::check::CampaignOptions;
using lab::check::FaultSet;

constexpr std::string_view kDefaultSeeds = "1..1000";
constexpr double kMostMinutes = 60.0 * 24 * 365;

constexpr const char* kCheckFooter =
    R"(Each seed stands for one simulated run: compute nodes with clients work on an index while lines tear,
batches are late, links break and nodes die. After it every history must be linearizable, the
structure sound, nothing stuck and nothing leaked. The same seed gives the same run everywhere; what
a range of seeds prints does not depend on --jobs or on the machine.

Faults: tear (lines of READs and WRITEs interleave), delay (batches are held up), kill and pause (of
compute nodes), cut (of links), restart and lose (of memory nodes, with and without their memory),
leave (compute nodes close their pool), drop (of workers with their tasks), indexes (others are
created, used and dropped beside), join (of memory nodes), atomics (their load and store are two
moments for WRITEs). Each run has some of those that are allowed. Fences take time, and fail at
memory nodes that are out of reach.

A write of unknown outcome may take effect until its compute node is fenced, has left, or has nothing
under way; not later. Memory that is lost must be explained by the faults of the run, and the failure
says by which. After lose, neither memory nor structure is judged. docs/simulation.md has the rest.

With --fabric tcp, tear cuts what is sent and received into pieces, delay holds segments up, and cut
is whatever may become of a connection: held back one way or both, reset, half closed, dead without
a word, connects that hang; kill is also of clients that are on their way in. There is no join
(a list of memory nodes stays as it is) and no atomics (memory nodes execute verbs one by one).

A failure is shrunk: its seed is tried with fewer faults, clients, operations and keys. What is
printed then replays it exactly. --trace writes PREFIX.txt for people and PREFIX.json for a trace
viewer (chrome://tracing, ui.perfetto.dev).

Exit codes: 0 no failure, 1 a failure, 2 a word is wrong, 130 interrupted.

Examples:
  pando check
  pando check --index sherman --seeds 1..20000 --faults tear,kill
  pando check --fabric tcp --seeds 1..2000
  pando check --seeds 1..1 --minutes 60 --keep-going
  pando check --index sherman --seed 17 --ops-per-task 10 --trace /tmp/seventeen)";

Result<std::uint64_t> parse_seed(std::string_view option, std::string_view text) {
  return base::parse_unsigned(option, text, 0, CampaignOptions::kMaxSeed);
}

Status read_seeds(const CheckWords& words, Check& check) {
  CampaignOptions& campaign = check.campaign;
  if (!words.seed.empty()) {
    if (!words.seeds.empty()) return invalid("--seed", "there is --seeds too; give one of them");
    const auto seed = parse_seed("--seed", words.seed);
    if (!seed) return fail(seed.error());
    campaign.first_seed = campaign.last_seed = *seed;
    return {};
  }
  const std::string_view text = words.seeds.empty() ? kDefaultSeeds : std::string_view(words.seeds);
  constexpr std::string_view kDots = "..";
  const std::size_t dots = text.find(kDots);
  if (dots == std::string_view::npos) {
    return invalid("--seeds", fmt::format("'{}' is no range, such as 1..1000", text));
  }
  const auto first = parse_seed("--seeds", text.substr(0, dots));
  if (!first) return fail(first.error());
  const auto last = parse_seed("--seeds", text.substr(dots + kDots.size()));
  if (!last) return fail(last.error());
  if (*last < *first) {
    return invalid("--seeds",
                   fmt::format("'{}' is empty; the first seed comes first, as in 1..1000", text));
  }
  campaign.first_seed = *first;
  campaign.last_seed = *last;
  return {};
}

Status read_indexes(const CheckWords& words, Check& check) {
  std::vector<std::string>& indexes = check.campaign.indexes;
  for (const std::string& word : words.indexes) {
    std::ranges::move(split_indexes(word), std::back_inserter(indexes));
  }
  if (words.indexes.empty()) {
    for (const index::Kind* kind : index::kinds()) indexes.emplace_back(kind->name());
  }
  if (indexes.empty()) return invalid("--index", "names no index");
  return {};
}

Status read_faults(const CheckWords& words, Check& check) {
  if (words.faults.empty()) return invalid("--faults", "names none; 'none' is for runs without");
  const auto faults = FaultSet::parse(words.faults);
  if (!faults) return invalid("--faults", faults.error().detail());
  check.campaign.faults = *faults;
  return {};
}

Status read_fabric(const CheckWords& words, Check& check) {
  const auto fabric = lab::check::parse_checked_fabric(words.fabric);
  if (!fabric) return invalid("--fabric", fabric.error().detail());
  check.campaign.fabric = *fabric;
  return {};
}

Status read_effort(const CheckWords& words, Check& check) {
  if (words.minutes) {
    if (!(*words.minutes > 0 && *words.minutes <= kMostMinutes)) {
      return invalid("--minutes",
                     fmt::format("{} is not more than 0 and at most a year", *words.minutes));
    }
    check.campaign.lasts = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double, std::ratio<60>>(*words.minutes));
  }
  if (words.jobs > CampaignOptions::kMaxJobs) {
    return invalid("--jobs",
                   fmt::format("{} is more than {}", words.jobs, CampaignOptions::kMaxJobs));
  }
  check.campaign.jobs =
      words.jobs != 0 ? words.jobs : std::max(1u, std::thread::hardware_concurrency());
  return {};
}

Status read_trace(const CheckWords& words, Check& check) {
  const CampaignOptions& campaign = check.campaign;
  check.trace = words.trace;
  if (words.trace.empty()) return {};
  if (campaign.indexes.size() > 1 || campaign.first_seed != campaign.last_seed || campaign.lasts) {
    return invalid("--trace", "is of one run; give one --seed and one --index, and no --minutes");
  }
  if (words.json == words.trace + ".json" || words.json == words.trace + ".txt") {
    return invalid("--json", fmt::format("'{}' is a file of the trace", words.json));
  }
  return {};
}

}  // namespace

void add_options(CLI::App& parser, CheckWords& words) {
  parser
      .add_option("--index", words.indexes,
                  "Index, with those settings that are not to be drawn after a colon; several: "
                  "',' or ';' between, or again")
      ->type_name("KIND[:NAME=VALUE,...]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->default_str("every kind");
  parser.add_option("--seeds", words.seeds, "From A to B, both included")
      ->type_name("A..B")
      ->default_str(std::string(kDefaultSeeds));
  parser.add_option("--seed", words.seed, "One seed")->type_name("N");
  parser.add_option("--faults", words.faults, "What may go wrong, with commas; all; none")
      ->type_name("LIST")
      ->capture_default_str();
  parser
      .add_option("--fabric", words.fabric,
                  "sim, or tcp: the real client and memory node on simulated sockets")
      ->type_name("sim|tcp")
      ->capture_default_str();
  parser.add_option("--minutes", words.minutes, "Go on with further seeds for so long")
      ->type_name("N");
  parser.add_option("--jobs", words.jobs, "Runs at a time")
      ->type_name("N")
      ->default_str("one a core");
  parser.add_flag("--keep-going", words.keep_going, "Do not stop at the first failure");
  parser
      .add_option("--memory-nodes", words.sizes.memory_nodes,
                  "Memory nodes; drawn where not given, as are the next five")
      ->type_name("N");
  parser.add_option("--compute-nodes", words.sizes.compute_nodes, "Compute nodes")->type_name("N");
  parser.add_option("--clients-per-node", words.sizes.clients, "Clients of each compute node")
      ->type_name("N");
  parser.add_option("--tasks", words.sizes.tasks, "Operations that a client keeps in flight")
      ->type_name("N");
  parser.add_option("--ops-per-task", words.sizes.operations, "Operations of each task")
      ->type_name("N");
  parser.add_option("--keys", words.sizes.keys, "Keys")->type_name("N");
  parser.add_option("--trace", words.trace, "Write what the run did to PREFIX.txt and PREFIX.json")
      ->type_name("PREFIX");
  parser.add_option("--json", words.json, "Write the results there")->type_name("FILE");
  parser.add_flag("--quiet", words.quiet, "No progress");
  // For bench these are of all clients together.
  reject_old_name(parser, "--clients", "--clients-per-node");
  reject_old_name(parser, "--ops", "--ops-per-task");
  parser.footer(kCheckFooter);
}

Result<Check> understand(const CheckWords& words) {
  Check check{.campaign = {.sizes = words.sizes, .keep_going = words.keep_going},
              .json = words.json,
              .quiet = words.quiet};
  // The trace comes last: it needs to know how many runs there are.
  for (const auto read :
       {read_seeds, read_indexes, read_faults, read_fabric, read_effort, read_trace}) {
    if (const Status status = read(words, check); !status) return fail(status.error());
  }
  if (const Status valid = lab::check::validate(check.campaign); !valid) return fail(valid.error());
  return check;
}

}  // namespace pando::cli
