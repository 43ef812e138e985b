#include "cli/event_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>

namespace pando::cli {
namespace {

std::string now_as_text() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest.count());
}

}  // namespace

Result<std::unique_ptr<EventLog>> EventLog::open(const std::string& path, Format format) {
  std::FILE* out = stderr;
  if (!path.empty()) out = std::fopen(path.c_str(), "ae");
  if (out == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--log-file: '{}': {}", path, std::generic_category().message(errno)));
  }
  return std::unique_ptr<EventLog>(new EventLog(out, path, format));
}

EventLog::~EventLog() {
  if (out_ != stderr) std::fclose(out_);  // every line was flushed
}

void EventLog::event(std::string_view what, std::string_view detail) {
  std::string line;
  if (format_ == Format::kJson) {
    const nlohmann::ordered_json object = {
        {"time", now_as_text()}, {"event", what}, {"detail", detail}};
    line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  } else {
    line = fmt::format("{} {}: {}\n", now_as_text(), what, detail);
  }
  const base::MutexLock lock(mutex_);
  const bool written =
      std::fwrite(line.data(), 1, line.size(), out_) == line.size() && std::fflush(out_) == 0;
  if (written) return;
  if (left_out_++ == 0) {
    fmt::print(stderr,
               "pando: the log '{}' cannot be written: {}; events are left out until it can\n",
               path_, std::generic_category().message(errno));
  }
  std::clearerr(out_);
}

}  // namespace pando::cli
