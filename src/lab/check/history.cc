#include "lab/check/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lab/keys.h"

namespace pando::lab::check {
namespace {

// nullopt where the error says that nothing happened: such a call is no part of the history.
std::optional<OperationResult> result_of(const Status& status) {
  if (status) return OperationResult::kDone;
  switch (status.error().code()) {
    case ErrorCode::kNotFound:
      return OperationResult::kNotFound;
    case ErrorCode::kExists:
      return OperationResult::kExists;
    case ErrorCode::kTimeout:
    case ErrorCode::kIndeterminate:
    case ErrorCode::kUnavailable:
    case ErrorCode::kFenced:
    case ErrorCode::kDataLost:
      return OperationResult::kUnknown;
    default:
      return std::nullopt;
  }
}

template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return fail(result.error());
}

}  // namespace

std::string order_bytes(Key key) {
  if (key.type() == KeyType::kBytes) return std::string(key.bytes());
  const BigEndian bytes = big_endian(key.integer());
  return {bytes.data(), bytes.size()};
}

OwnedKey from_order_bytes(KeyType type, std::string_view bytes) {
  if (type == KeyType::kBytes) return OwnedKey(std::string(bytes));
  return OwnedKey(from_big_endian(bytes));
}

// ---- Client ----

void HistoryRecorder::Client::problem(std::string_view what, const Error& error) {
  if (recorder_.expected_ && recorder_.expected_(error.code())) return;
  recorder_.add_problem(fmt::format("client {}: {}: {}", id_, what, error.message()));
}

std::size_t HistoryRecorder::Client::invoke(Key key, OperationKind kind, std::string_view value) {
  calls_.push_back({order_bytes(key),
                    {.kind = kind,
                     .result = OperationResult::kUnknown,
                     .value = std::string(value),
                     .invoked = now(),
                     .client = id_}});
  running_.push_back(calls_.size() - 1);
  return running_.back();
}

void HistoryRecorder::Client::respond(std::size_t call, const Status& status) {
  Call& made = calls_[call];
  const std::uint64_t responded = now();
  std::erase(running_, call);
  const std::optional<OperationResult> result = result_of(status);
  if (!result || *result == OperationResult::kUnknown) {
    problem(to_string(made.operation), status.error());
  }
  if (!result) {
    made.counts = false;
    return;
  }
  made.operation.result = *result;
  if (*result == OperationResult::kUnknown) {
    give_up(call, responded);
  } else {
    made.operation.responded = responded;
  }
}

void HistoryRecorder::Client::give_up(std::size_t call, std::uint64_t when) {
  calls_[call].given_up = when;
  // It may have been told already that nothing of the compute node can happen.
  if (calls_[call].operation.responded == Operation::kNever) given_up_.push_back(call);
}

void HistoryRecorder::Client::abandon() {
  const std::uint64_t when = now();
  for (const std::size_t call : std::exchange(running_, {})) give_up(call, when);
}

void HistoryRecorder::Client::respond(std::size_t call, const Result<std::string>& result) {
  if (result) calls_[call].operation.value = *result;
  respond(call, status_of(result));
}

void HistoryRecorder::Client::record_scan(std::span<const OwnedKey> universe, Key from,
                                          std::size_t limit, std::uint64_t invoked,
                                          const Result<std::vector<Entry>>& result) {
  const std::uint64_t responded = now();
  if (!result) return problem("scan", result.error());
  if (result->size() > limit) recorder_.add_problem("a scan returned more than it was asked for");
  std::map<std::string, const std::string*> found;
  std::string last = order_bytes(from);
  for (const Entry& entry : *result) {
    std::string bytes = order_bytes(entry.key);
    if (found.empty() ? bytes < last : bytes <= last) {
      recorder_.add_problem(fmt::format("client {}: a scan returned {} out of order or twice", id_,
                                        describe(entry.key)));
    }
    last = bytes;
    found.emplace(std::move(bytes), &entry.value);
  }
  const bool reached_end = result->size() < limit;
  for (const OwnedKey& key : universe) {
    const std::string bytes = order_bytes(key);
    if (bytes < order_bytes(from) || (!reached_end && bytes > last)) continue;
    const auto at = found.find(bytes);
    const bool present = at != found.end();
    calls_.push_back({bytes,
                      {.kind = OperationKind::kGet,
                       .result = present ? OperationResult::kDone : OperationResult::kNotFound,
                       .value = present ? *at->second : std::string(),
                       .invoked = invoked,
                       .responded = responded,
                       .client = id_}});
    if (present) found.erase(at);
  }
  for (const auto& [bytes, value] : found) {
    recorder_.add_problem(
        fmt::format("client {}: a scan returned {}, a key that nobody ever inserted", id_,
                    describe(from_order_bytes(from.type(), bytes))));
  }
}

// ---- HistoryRecorder ----

HistoryRecorder::Client& HistoryRecorder::add_client(std::uint32_t compute_node) {
  const base::MutexLock lock(mutex_);
  return clients_.emplace_back(*this, static_cast<std::uint32_t>(clients_.size()), compute_node);
}

// ---- Ends ----

bool HistoryRecorder::has_open(std::uint32_t compute_node) const {
  const base::MutexLock lock(mutex_);
  return std::ranges::any_of(clients_, [&](const Client& client) {
    return client.compute_node_ == compute_node && !client.given_up_.empty();
  });
}

void HistoryRecorder::nothing_under_way(std::uint32_t compute_node) {
  const base::MutexLock lock(mutex_);
  std::uint64_t first_running = Operation::kNever;
  for (const Client& client : clients_) {
    if (client.compute_node_ != compute_node) continue;
    for (const std::size_t call : client.running_) {
      first_running = std::min(first_running, client.calls_[call].operation.invoked);
    }
  }
  end_calls(compute_node, first_running);
}

void HistoryRecorder::shut_out(std::uint32_t compute_node) {
  const base::MutexLock lock(mutex_);
  end_calls(compute_node, Operation::kNever);
  const std::uint64_t end = now();
  for (Client& client : clients_) {
    if (client.compute_node_ != compute_node) continue;
    // One that answers yet tells of what had happened before.
    for (const std::size_t call : client.running_) client.calls_[call].operation.responded = end;
  }
}

// Those that were given up before `before`.
void HistoryRecorder::end_calls(std::uint32_t compute_node, std::uint64_t before) {
  const std::uint64_t end = now();
  for (Client& client : clients_) {
    if (client.compute_node_ != compute_node) continue;
    std::erase_if(client.given_up_, [&](std::size_t call) {
      Client::Call& made = client.calls_[call];
      if (made.given_up >= before) return false;
      made.operation.responded = end;
      ++ended_;
      return true;
    });
  }
}

void HistoryRecorder::set_initial(Key key, std::string_view value) {
  initial_.emplace_back(order_bytes(key), value);
}

void HistoryRecorder::add_problem(std::string what) {
  const base::MutexLock lock(mutex_);
  problems_.push_back(std::move(what));
}

std::vector<std::string> HistoryRecorder::problems() const {
  const base::MutexLock lock(mutex_);
  return problems_;
}

KeyedHistory HistoryRecorder::history() const {
  const base::MutexLock lock(mutex_);
  KeyedHistory history;
  for (const auto& [key, value] : initial_) history.set_initial(key, value);
  for (const Client& client : clients_) {
    for (const Client::Call& call : client.calls_) {
      // A get without an answer says nothing.
      const bool silent = call.operation.kind == OperationKind::kGet &&
                          call.operation.result == OperationResult::kUnknown;
      if (call.counts && !silent) history.add(call.key, call.operation);
    }
  }
  return history;
}

// ---- RecordedIndex: plain calls ----

Result<std::string> RecordedIndex::get(Key key) {
  const std::size_t call = client_->invoke(key, OperationKind::kGet, {});
  auto result = index_.get(key, &account_);
  client_->respond(call, result);
  return result;
}

Status RecordedIndex::put(Key key, std::string_view value) {
  const std::size_t call = client_->invoke(key, OperationKind::kPut, value);
  Status status = index_.put(key, value, &account_);
  client_->respond(call, status);
  return status;
}

Status RecordedIndex::insert(Key key, std::string_view value) {
  const std::size_t call = client_->invoke(key, OperationKind::kInsert, value);
  Status status = index_.insert(key, value, &account_);
  client_->respond(call, status);
  return status;
}

Status RecordedIndex::update(Key key, std::string_view value) {
  const std::size_t call = client_->invoke(key, OperationKind::kUpdate, value);
  Status status = index_.update(key, value, &account_);
  client_->respond(call, status);
  return status;
}

Status RecordedIndex::erase(Key key) {
  const std::size_t call = client_->invoke(key, OperationKind::kErase, {});
  Status status = index_.erase(key, &account_);
  client_->respond(call, status);
  return status;
}

Result<std::vector<Entry>> RecordedIndex::scan(std::span<const OwnedKey> universe, Key from,
                                               std::size_t limit) {
  const std::uint64_t invoked = client_->now();
  auto result = index_.scan(from, limit, &account_);
  client_->record_scan(universe, from, limit, invoked, result);
  return result;
}

// ---- RecordedIndex: coroutines ----

Task<Result<std::string>> RecordedIndex::get(Worker& worker, OwnedKey key) {
  const std::size_t call = client_->invoke(key, OperationKind::kGet, {});
  auto result = co_await index_.get(worker, key, &account_);
  client_->respond(call, result);
  co_return result;
}

Task<Status> RecordedIndex::put(Worker& worker, OwnedKey key, std::string value) {
  const std::size_t call = client_->invoke(key, OperationKind::kPut, value);
  Status status = co_await index_.put(worker, key, value, &account_);
  client_->respond(call, status);
  co_return status;
}

Task<Status> RecordedIndex::insert(Worker& worker, OwnedKey key, std::string value) {
  const std::size_t call = client_->invoke(key, OperationKind::kInsert, value);
  Status status = co_await index_.insert(worker, key, value, &account_);
  client_->respond(call, status);
  co_return status;
}

Task<Status> RecordedIndex::update(Worker& worker, OwnedKey key, std::string value) {
  const std::size_t call = client_->invoke(key, OperationKind::kUpdate, value);
  Status status = co_await index_.update(worker, key, value, &account_);
  client_->respond(call, status);
  co_return status;
}

Task<Status> RecordedIndex::erase(Worker& worker, OwnedKey key) {
  const std::size_t call = client_->invoke(key, OperationKind::kErase, {});
  Status status = co_await index_.erase(worker, key, &account_);
  client_->respond(call, status);
  co_return status;
}

Task<Status> RecordedIndex::multi_get(Worker& worker, std::vector<OwnedKey> keys) {
  std::vector<Key> views(keys.begin(), keys.end());
  std::vector<std::size_t> calls(views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    calls[i] = client_->invoke(views[i], OperationKind::kGet, {});
  }
  auto result = co_await index_.multi_get(worker, views, &account_);
  if (result && result->size() != views.size()) {
    result = fail(ErrorCode::kCorrupt, "multi_get: as many answers as keys were asked for");
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!result) {
      client_->respond(calls[i], status_of(result));
    } else if ((*result)[i]) {
      client_->respond(calls[i], Result<std::string>(*(*result)[i]));
    } else {
      client_->respond(calls[i], Status(fail(ErrorCode::kNotFound)));
    }
  }
  co_return status_of(result);
}

Task<Status> RecordedIndex::scan(Worker& worker, std::span<const OwnedKey> universe, OwnedKey from,
                                 std::size_t limit) {
  const std::uint64_t invoked = client_->now();
  auto result = co_await index_.scan(worker, from, limit, &account_);
  client_->record_scan(universe, from, limit, invoked, result);
  co_return status_of(result);
}

}  // namespace pando::lab::check
