// Reports of campaigns: text for people, JSON for programs. Nothing in them tells one machine, or
// one number of threads, from another.
//
// JSON, version 1:
//   {"version":1,"indexes":["sherman"],"faults":"all","seeds":{"first","last"},"runs",
//    "interrupted":false,"digest":"…","coverage":[{"index","counts":{"operations":…}}],
//    "failures":[{"seed","index","problems":["…"],"command","smallest":{"problems","command"}}]}
// "smallest" is there for the failure that was shrunk.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "lab/check/campaign.h"
#include "lab/check/shrink.h"

namespace pando::lab::check {

// What was covered, one column an index, and the digest.
std::string format_coverage(const CampaignOptions& options, const CampaignReport& report);

// What went wrong in the smallest plan that was found, the history that shows it, and how to see it
// again.
std::string format_failure(const CheckFailure& first, const Shrunk& shrunk);

// One line, and the command.
std::string format_further_failure(const CheckFailure& failure);

// `shrunk`: of the first failure.
nlohmann::ordered_json to_json(const CampaignOptions& options, const CampaignReport& report,
                               const std::optional<Shrunk>& shrunk);

}  // namespace pando::lab::check
