#include "lab/check/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace pando::lab::check {
namespace {

using fabric::Address;
using fabric::Outcome;
using fabric::Verb;
using fabric::sim::Time;
using Json = nlohmann::ordered_json;

double microseconds(Time time) {
  return static_cast<double>(time) / static_cast<double>(fabric::sim::kMicrosecond);
}

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPending:
      return "pending";
    case Outcome::kExecuted:
      return "executed";
    case Outcome::kNotExecuted:
      return "not executed";
    case Outcome::kIndeterminate:
      return "indeterminate";
  }
  return "?";
}

std::string describe(Address address) {
  return fmt::format("{}:{}{}", address.node(), address.on_chip() ? "onchip:" : "",
                     address.offset_in_part());
}

// What came of it.
std::string describe_result(const Verb& verb) {
  std::string text(name_of(verb.outcome));
  const fabric::VerbTraits& traits = fabric::traits_of(verb.kind);
  if (verb.outcome != Outcome::kExecuted || !traits.is_atomic) return text;
  text += fmt::format(", was {:#x}", verb.previous);
  if (traits.compares) text += verb.succeeded() ? ", swapped" : ", kept";
  return text;
}

std::string describe(const Verb& verb) {
  return fmt::format("{:5} {} {}: {}", fabric::traits_of(verb.kind).short_name,
                     describe(verb.target), fabric::describe_operands(verb), describe_result(verb));
}

// ---- Text

// At one moment, what ends comes before what begins, and that before its verbs.
enum class Rank : std::uint8_t { kEnd, kFault, kBegin, kVerbs, kEndAtOnce };

// Of a batch, one a verb.
struct Line {
  Time when = 0;
  Rank rank = Rank::kVerbs;
  std::uint64_t order = 0;
  std::string text;
};

std::string as_comment(std::string_view text) {
  std::string comment;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    comment += fmt::format("# {}\n", line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return comment;
}

// ---- JSON

// Rows of a process are told apart by numbers that the viewer sorts by: those of workers come
// first, then those of clients, then the further ones.
constexpr std::uint64_t kClientRows = 1'000;
constexpr std::uint64_t kFurtherRows = 1'000'000;

std::string row_name(std::uint64_t row) {
  const std::uint64_t first = row % kFurtherRows;
  std::string name = first < kClientRows ? fmt::format("worker {}", first)
                                         : fmt::format("client {}", first - kClientRows);
  if (row >= kFurtherRows) name += fmt::format(" ({})", row / kFurtherRows + 1);
  return name;
}

struct Place {
  std::uint64_t process = 0;
  std::uint64_t row = 0;
  auto operator<=>(const Place&) const = default;
};

class ChromeEvents {
 public:
  void span(Place place, std::string name, Time from, Time to, Json arguments) {
    events_.push_back({{"name", std::move(name)},
                       {"ph", "X"},
                       {"pid", place.process},
                       {"tid", place.row},
                       {"ts", microseconds(from)},
                       {"dur", microseconds(to - from)},
                       {"args", std::move(arguments)}});
    places_.insert(place);
  }

  void instant(std::string_view name, Time when) {
    events_.push_back({{"name", name},
                       {"ph", "i"},
                       {"s", "g"},
                       {"pid", 0},
                       {"tid", 0},
                       {"ts", microseconds(when)}});
  }

  // The first of the place's rows that is free from then on.
  Place free_row(Place place, Time from, Time to) {
    std::vector<Time>& busy = busy_until_[place];
    const auto free = std::ranges::find_if(busy, [from](Time until) { return until <= from; });
    place.row += static_cast<std::uint64_t>(free - busy.begin()) * kFurtherRows;
    if (free == busy.end()) {
      busy.push_back(to);
    } else {
      *free = to;
    }
    return place;
  }

  // An event a line, for those who search.
  std::string text() && {
    for (const Place& place : places_) {
      name("process_name", place, fmt::format("compute node {}", place.process));
      name("thread_name", place, row_name(place.row));
    }
    std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    for (bool first = true; const Json& event : events_) {
      text += (std::exchange(first, false) ? "\n" : ",\n") + event.dump();
    }
    return text + "\n]}\n";
  }

 private:
  void name(std::string_view what, Place place, const std::string& name) {
    events_.push_back({{"name", what},
                       {"ph", "M"},
                       {"pid", place.process},
                       {"tid", place.row},
                       {"args", {{"name", name}}}});
  }

  std::vector<Json> events_;
  std::set<Place> places_;
  std::map<Place, std::vector<Time>> busy_until_;
};

}  // namespace

void TraceRecorder::verb(const fabric::sim::TracedVerb& verb) {
  if (batches_.empty() || batches_.back().number != verb.batch) {
    batches_.push_back({.compute_node = verb.client,
                        .worker = verb.worker,
                        .number = verb.batch,
                        .posted = verb.posted,
                        .ended = verb.ended,
                        .account = verb.account,
                        .verbs = {}});
  }
  Verb& copy = batches_.back().verbs.emplace_back(*verb.verb);
  copy.local = nullptr;
  last_ = std::max(last_, verb.ended);
}

void TraceRecorder::operation(const TracedOperation& operation) {
  operations_.push_back({.client = operation.client,
                         .compute_node = operation.compute_node,
                         .began = operation.began,
                         .ended = operation.ended,
                         .what = std::string(operation.what),
                         .answer = std::string(operation.answer)});
  clients_.emplace(operation.account, operation.client);
  last_ = std::max(last_, operation.ended.value_or(operation.began));
}

void TraceRecorder::fault(Time when, std::string_view what) {
  faults_.push_back({when, std::string(what)});
  last_ = std::max(last_, when);
}

std::optional<std::uint32_t> TraceRecorder::client_of(const Batch& batch) const {
  const auto found = clients_.find(batch.account);
  return found == clients_.end() ? std::nullopt : std::optional(found->second);
}

std::string TraceRecorder::text(std::string_view title) const {
  std::vector<Line> lines;
  lines.reserve(faults_.size() + 2 * operations_.size() + batches_.size());
  for (const Fault& fault : faults_) {
    lines.push_back({fault.when, Rank::kFault, 0,
                     fmt::format("{:12.3f}  == {}", microseconds(fault.when), fault.what)});
  }
  for (const Operation& operation : operations_) {
    const auto add = [&](Time when, Rank rank, std::string_view what) {
      lines.push_back(
          {when, rank, operation.client,
           fmt::format("{:12.3f} {:12} {:4} {:>6} {:6} {:>8}  {} {}", microseconds(when), "",
                       operation.compute_node, "", operation.client, "", what, operation.what)});
    };
    add(operation.began, Rank::kBegin, "begins");
    if (!operation.ended) continue;
    const bool at_once = *operation.ended == operation.began;
    add(*operation.ended, at_once ? Rank::kEndAtOnce : Rank::kEnd, "ends");
    lines.back().text += ": " + operation.answer;
  }
  for (const Batch& batch : batches_) {
    const auto client = client_of(batch);
    const std::string place =
        fmt::format("{:12.3f} {:12.3f} {:4} {:6} {:>6} {:8}", microseconds(batch.posted),
                    microseconds(batch.ended), batch.compute_node, batch.worker,
                    client ? fmt::format("{}", *client) : "", batch.number);
    std::string verbs;
    for (const Verb& verb : batch.verbs) {
      verbs += fmt::format("{}{}  {}", verbs.empty() ? "" : "\n", place, describe(verb));
    }
    lines.push_back({batch.posted, Rank::kVerbs, batch.number, std::move(verbs)});
  }
  std::ranges::sort(lines, {},
                    [](const Line& line) { return std::tuple(line.when, line.rank, line.order); });

  std::string text = as_comment(title);
  text += fmt::format("# {:>10} {:>12} {:>4} {:>6} {:>6} {:>8}\n", "from us", "to us", "node",
                      "worker", "client", "batch");
  for (const Line& line : lines) text += line.text + "\n";
  return text;
}

std::string TraceRecorder::chrome_json() const {
  ChromeEvents events;
  for (const Operation& operation : operations_) {
    events.span({operation.compute_node, kClientRows + operation.client}, operation.what,
                operation.began, operation.ended.value_or(last_),
                {{"answer", operation.ended ? operation.answer : "never ended"}});
  }
  std::vector<const Batch*> by_time;
  by_time.reserve(batches_.size());
  for (const Batch& batch : batches_) by_time.push_back(&batch);
  std::ranges::sort(by_time, {},
                    [](const Batch* batch) { return std::tuple(batch->posted, batch->number); });
  for (const Batch* batch : by_time) {
    const auto client = client_of(*batch);
    const Place place{batch->compute_node, client ? kClientRows + *client : batch->worker};
    std::string name;
    Json verbs = Json::array();
    for (const Verb& verb : batch->verbs) {
      name += fmt::format("{}{}", name.empty() ? "" : " ", fabric::traits_of(verb.kind).short_name);
      verbs.push_back(describe(verb));
    }
    events.span(events.free_row(place, batch->posted, batch->ended), std::move(name), batch->posted,
                batch->ended,
                {{"batch", batch->number}, {"worker", batch->worker}, {"verbs", std::move(verbs)}});
  }
  for (const Fault& fault : faults_) events.instant(fault.what, fault.when);
  return std::move(events).text();
}

}  // namespace pando::lab::check
