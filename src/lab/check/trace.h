// TraceRecorder: what a run did, verb by verb, for a person and for a trace viewer.
//
// As text, one line a verb, by the time it was posted, between the lines of the operations and
// faults. As JSON, in the Chrome trace event format (chrome://tracing, ui.perfetto.dev): a process
// a compute node, a row a client, operations with their batches inside; verbs that serve no
// operation (heartbeats, epochs) in a row of their worker. Batches of one operation that overlap
// get further rows, because events of one row must nest.
//
// Everything is kept until it is written: for one run, not for a campaign.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/check/observer.h"

namespace pando::lab::check {

class TraceRecorder final : public CheckObserver {
 public:
  void verb(const fabric::sim::TracedVerb& verb) override;
  void operation(const TracedOperation& operation) override;
  void fault(fabric::sim::Time when, std::string_view what) override;

  // `title` may have several lines; it comes first, as a comment.
  std::string text(std::string_view title) const;
  std::string chrome_json() const;

 private:
  using Time = fabric::sim::Time;
  struct Batch {
    fabric::ClientId compute_node = 0;
    std::uint32_t worker = 0;
    std::uint64_t number = 0;
    Time posted = 0;
    Time ended = 0;
    const Counters* account = nullptr;
    std::vector<fabric::Verb> verbs;  // their `local` is gone
  };
  struct Operation {
    std::uint32_t client = 0;
    fabric::ClientId compute_node = 0;
    Time began = 0;
    std::optional<Time> ended;
    std::string what;
    std::string answer;
  };
  struct Fault {
    Time when = 0;
    std::string what;
  };

  // The client whose operation the batch was part of.
  std::optional<std::uint32_t> client_of(const Batch& batch) const;

  std::vector<Batch> batches_;  // by when they ended
  std::vector<Operation> operations_;
  std::vector<Fault> faults_;
  std::map<const Counters*, std::uint32_t> clients_;  // by account
  Time last_ = 0;
};

}  // namespace pando::lab::check
