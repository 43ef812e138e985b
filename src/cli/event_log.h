// EventLog: what a daemon has to say, one line an event, for people or for machines.
//
//   text   2026-11-15T15:04:05.678Z let in: client 3 for verbs
//   json   {"time":"2026-11-15T15:04:05.678Z","event":"let in","detail":"client 3 for verbs"}
//
// A line that cannot be written (a full disk) is counted and left out: the work goes on, and stderr
// hears of it once. Thread-safe.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "fabric/node/server.h"
#include <pando/result.h>

namespace pando::cli {

class EventLog final : public fabric::node::ServerLog {
 public:
  enum class Format : std::uint8_t { kText, kJson };

  // To the end of the file, or to stderr where there is none.
  static Result<std::unique_ptr<EventLog>> open(const std::string& path, Format format);
  ~EventLog() override;
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void event(std::string_view what, std::string_view detail) override;

 private:
  EventLog(std::FILE* out, std::string path, Format format)
      : out_(out), path_(std::move(path)), format_(format) {}

  base::Mutex mutex_;  // held by who writes a line
  std::FILE* const out_;
  const std::string path_;
  const Format format_;
  std::uint64_t left_out_ PANDO_GUARDED_BY(mutex_) = 0;
};

}  // namespace pando::cli
