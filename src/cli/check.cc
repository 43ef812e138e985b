// `pando check`: many simulated runs with faults, and what is wrong with them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/check_options.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "lab/check/campaign.h"
#include "lab/check/report.h"
#include "lab/check/scenario.h"
#include "lab/check/shrink.h"
#include "lab/check/trace.h"
#include "lab/progress.h"

namespace pando::cli {

namespace {

using lab::check::CampaignReport;
using lab::check::CheckPlan;
using lab::check::Shrunk;

// Opened before the run, so that it is not in vain.
struct Outputs {
  std::optional<OutputFile> trace_text;
  std::optional<OutputFile> trace_json;
  std::optional<OutputFile> json;
};

Status open_into(std::optional<OutputFile>& file, std::string_view option,
                 const std::string& path) {
  auto opened = open_output(option, path);
  if (!opened) return fail(opened.error());
  file.emplace(std::move(*opened));
  return {};
}

Status open_outputs(const Check& check, Outputs& outputs) {
  if (!check.trace.empty()) {
    if (Status ok = open_into(outputs.trace_text, "--trace", check.trace + ".txt"); !ok) return ok;
    if (Status ok = open_into(outputs.trace_json, "--trace", check.trace + ".json"); !ok) return ok;
  }
  return check.json.empty() ? Status{} : open_into(outputs.json, "--json", check.json);
}

Status write_trace(const Check& check, const lab::check::TraceRecorder& trace, Outputs& outputs) {
  const lab::check::CampaignOptions& campaign = check.campaign;
  const auto plan = draw_plan(campaign.first_seed, campaign.indexes.front(), campaign.faults,
                              campaign.sizes, campaign.fabric);
  if (!plan) return fail(plan.error());
  const std::string title = plan->describe() + "\n" + plan->command();
  if (Status ok = outputs.trace_text->commit(trace.text(title)); !ok) return ok;
  return outputs.trace_json->commit(trace.chrome_json());
}

// Wall-clock time is no part of what a seed gives, so it stays off stdout.
void print_time(const CampaignReport& report, std::chrono::nanoseconds elapsed) {
  fmt::print(stderr, "{} runs in {:.1f} s{}\n", report.runs,
             std::chrono::duration<double>(elapsed).count(),
             report.interrupted ? "; interrupted" : "");
}

Shrunk print_failures(const CampaignReport& report, const std::atomic<bool>& interrupted,
                      lab::Progress& progress) {
  Shrunk shrunk = lab::check::shrink(
      report.failures.front(), [](const CheckPlan& plan) { return lab::check::run_check(plan); },
      {.interrupted = &interrupted}, progress);
  fmt::print("\n{}", lab::check::format_failure(report.failures.front(), shrunk));
  for (std::size_t i = 1; i < report.failures.size(); ++i) {
    fmt::print("\n{}", lab::check::format_further_failure(report.failures[i]));
  }
  return shrunk;
}

int run_check_command(const CheckWords& words) {
  auto check = understand(words);
  if (!check) return complain("check", check.error());
  Outputs outputs;
  if (const Status opened = open_outputs(*check, outputs); !opened) {
    return complain("check", opened.error());
  }
  const std::atomic<bool>& interrupted = stop_on_signals();
  check->campaign.interrupted = &interrupted;

  using Style = lab::Progress::Style;
  lab::Progress progress(check->quiet ? Style::kNone : lab::Progress::style_for_stderr(),
                         {.name = "runs/s", .size = 1});
  lab::check::TraceRecorder trace;
  lab::check::CheckObserver* const observer = outputs.trace_text ? &trace : nullptr;
  const auto began = std::chrono::steady_clock::now();
  const CampaignReport report = run_campaign(
      check->campaign,
      [observer](const CheckPlan& plan) { return lab::check::run_check(plan, observer); },
      progress);
  if (!check->quiet) {
    print_time(report, std::chrono::steady_clock::now() - began);
  }

  fmt::print("{}", format_coverage(check->campaign, report));
  std::fflush(stdout);  // shrinking takes a while
  std::optional<Shrunk> shrunk;
  if (!report.failures.empty()) shrunk = print_failures(report, interrupted, progress);
  if (observer != nullptr) {
    if (const Status ok = write_trace(*check, trace, outputs); !ok) {
      return complain("check", ok.error());
    }
  }
  if (outputs.json) {
    const auto json = to_json(check->campaign, report, shrunk);
    if (const Status ok = outputs.json->commit(json.dump(2) + "\n"); !ok) {
      return complain("check", ok.error());
    }
  }
  if (!report.failures.empty()) return kFailure;
  return report.interrupted ? kInterrupted : kSuccess;
}

}  // namespace

Command add_check(CLI::App& app) {
  CLI::App* parser = app.add_subcommand(
      "check", "Try to break an index on a simulated cluster, seed by seed, and say how.");
  const auto words = std::make_shared<CheckWords>();
  add_options(*parser, *words);
  return {parser, [words] { return run_check_command(*words); }};
}

}  // namespace pando::cli
