// The loop that every client runs, whatever is under test: draw, time, do, check.
//
// A Client is what a target offers to one thread. Each of these is awaited:
//   get(Key, Counters*)                        -> Result<std::string>
//   insert(Key, std::string_view, Counters*)   -> Status, kExists where the key is present
//   update(Key, std::string_view, Counters*)   -> Status
//   scan(Key from, std::size_t, Counters*)     -> Result<std::vector<Entry>>
// Libraries whose calls block answer Ready<T>, which never suspends: the loop is then an ordinary
// function but for one frame.
//
// Timing: an operation's latency spans the calls and neither making keys and values nor checking
// answers; throughput contains both, for everyone alike.
//
// Checked: a searched key is found, with a sound value (values.h); an insert or update succeeds;
// a scan begins with the key it was asked for (which is present), ascends without duplicates, has
// sound values, and is only short where it came to the greatest key.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/client_work.h"
#include "lab/keys.h"
#include <pando/pando.h>

namespace pando::lab {

// One operation under way, from drawing it to its last check. One a task.
class OperationRun {
 public:
  explicit OperationRun(ClientWork& work) : work_(work) {}

  // Draws the next operation and starts its clock; false at the end of the work.
  bool begin();
  bool searches() const {
    return kind_ == OperationKind::kSearch || kind_ == OperationKind::kReadModifyWrite;
  }
  bool inserts() const { return kind_ == OperationKind::kInsert; }
  // A read-modify-write updates only what it has read.
  bool updates() const {
    return kind_ == OperationKind::kUpdate ||
           (kind_ == OperationKind::kReadModifyWrite && !failed_);
  }
  bool scans() const { return kind_ == OperationKind::kScan; }

  const Key& key() const { return key_; }
  std::string_view value() const { return value_; }
  std::size_t scan_length() const { return scan_length_; }
  Counters* cost(CallKind kind) { return &work_.result().calls_of(kind).cost; }

  // The answers: each ends the call's clock, then checks.
  void found(const Result<std::string>& answer);
  void inserted(const Status& answer);
  void updated(const Status& answer);
  void scanned(const Result<std::vector<Entry>>& answer);
  void end();

 private:
  void draw_planned(std::uint64_t position);
  void end_call(CallKind kind);
  void make_value(std::uint64_t version);
  void fail(std::string_view what, std::string_view why);
  void check_scan(const std::vector<Entry>& entries);
  void check_short_scan(const std::vector<Entry>& entries);

  ClientWork& work_;
  OperationKind kind_ = OperationKind::kSearch;
  std::uint64_t item_ = 0;
  std::size_t scan_length_ = 0;
  KeySpace::Buffer key_bytes_;
  Key key_{0};
  std::string value_;
  bool failed_ = false;
  std::chrono::nanoseconds begin_{};
  std::chrono::nanoseconds call_begin_{};
};

template <class Client>
Task<void> client_loop(Client& client, ClientWork& work) {
  OperationRun run(work);
  while (run.begin()) {
    if (run.searches()) {
      run.found(co_await client.get(run.key(), run.cost(CallKind::kSearch)));
    }
    if (run.inserts()) {
      run.inserted(co_await client.insert(run.key(), run.value(), run.cost(CallKind::kInsert)));
    }
    if (run.updates()) {
      run.updated(co_await client.update(run.key(), run.value(), run.cost(CallKind::kUpdate)));
    }
    if (run.scans()) {
      run.scanned(co_await client.scan(run.key(), run.scan_length(), run.cost(CallKind::kScan)));
    }
    run.end();
  }
}

// An answer that is there already.
template <class T>
struct Ready {
  T value;
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  T await_resume() { return std::move(value); }
};

// Makes a Client of a session whose calls block: get(Key), insert(Key, value), update(Key, value),
// scan(Key, limit).
template <class Session>
class BlockingClient {
 public:
  explicit BlockingClient(Session& session) : session_(session) {}

  Ready<Result<std::string>> get(Key key, Counters*) { return {session_.get(key)}; }
  Ready<Status> insert(Key key, std::string_view value, Counters*) {
    return {session_.insert(key, value)};
  }
  Ready<Status> update(Key key, std::string_view value, Counters*) {
    return {session_.update(key, value)};
  }
  Ready<Result<std::vector<Entry>>> scan(Key from, std::size_t limit, Counters*) {
    return {session_.scan(from, limit)};
  }

 private:
  Session& session_;
};

// Runs a client's work on a session whose calls block. One operation is in flight at a time.
template <class Session>
void run_blocking(Session& session, ClientWork& work) {
  BlockingClient client(session);
  work.ready();
  const Task<void> loop = client_loop(client, work);
  loop.handle().resume();  // never suspends, so it is done
}

}  // namespace pando::lab
