// The options of `pando check`: what the user wrote, and what is meant by it.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/check/campaign.h"
#include <pando/result.h>

namespace pando::cli {

// As written. Defaults are those that --help shows.
struct CheckWords {
  std::vector<std::string> indexes;  // none: every kind there is
  std::string seeds;
  std::string seed;
  std::string faults = "all";
  std::string fabric = "sim";
  std::optional<double> minutes;
  unsigned jobs = 0;  // 0: one a core
  lab::check::CheckSizes sizes;
  bool keep_going = false;
  std::string trace;
  std::string json;
  bool quiet = false;
};

struct Check {
  lab::check::CampaignOptions campaign;
  std::string trace;  // what its files' names begin with; empty: none
  std::string json;
  bool quiet = false;
};

void add_options(CLI::App& parser, CheckWords& words);

// kInvalidArgument names the option and the word, and what is valid instead.
Result<Check> understand(const CheckWords& words);

}  // namespace pando::cli
