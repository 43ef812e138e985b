#include "support/recorder.h"

#include <gtest/gtest.h>

#include <map>

#include "support/keys.h"

namespace pando::testing {
namespace {

using lab::Operation;
using lab::OperationKind;
using lab::OperationResult;

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
      return OperationResult::kUnknown;
    default:
      return std::nullopt;
  }
}

Status status_of(const Result<std::string>& result) {
  if (result) return {};
  return fail(result.error());
}

}  // namespace

void HistoryRecorder::Client::add(Key key, Operation operation) {
  operations_.emplace_back(order_bytes(key), std::move(operation));
}

void HistoryRecorder::Client::record(Key key, OperationKind kind, std::string_view value,
                                     std::uint64_t invoked, const Status& status) {
  const std::uint64_t responded = now();
  const std::optional<OperationResult> result = result_of(status);
  // No fabric under this suite fails by itself, so any such error is a defect.
  if (!result || *result == OperationResult::kUnknown) ADD_FAILURE() << status.error().message();
  if (!result) return;
  add(key, {kind, *result, std::string(value), invoked,
            *result == OperationResult::kUnknown ? Operation::kNever : responded, id_});
}

void HistoryRecorder::Client::record_get(Key key, std::uint64_t invoked,
                                         const Result<std::string>& result) {
  record(key, OperationKind::kGet, result ? std::string_view(*result) : std::string_view(), invoked,
         status_of(result));
}

void HistoryRecorder::Client::record_scan(const std::vector<OwnedKey>& universe, Key from,
                                          std::size_t limit, std::uint64_t invoked,
                                          const Result<std::vector<Entry>>& result) {
  const std::uint64_t responded = now();
  if (!result) {
    ADD_FAILURE() << "scan: " << result.error().message();
    return;
  }
  EXPECT_LE(result->size(), limit);
  std::map<std::string, const std::string*> found;
  std::string last = order_bytes(from);
  for (const Entry& entry : *result) {
    std::string bytes = order_bytes(entry.key);
    EXPECT_TRUE(found.empty() ? last <= bytes : last < bytes)
        << show(entry.key) << " is out of order or a duplicate";
    last = bytes;
    found.emplace(std::move(bytes), &entry.value);
  }
  const bool reached_end = result->size() < limit;
  for (const OwnedKey& key : universe) {
    const std::string bytes = order_bytes(key);
    if (bytes < order_bytes(from) || (!reached_end && bytes > last)) continue;
    const auto at = found.find(bytes);
    const bool present = at != found.end();
    add(key, {OperationKind::kGet, present ? OperationResult::kDone : OperationResult::kNotFound,
              present ? *at->second : std::string(), invoked, responded, id_});
    if (present) found.erase(at);
  }
  for (const auto& [bytes, value] : found) {
    ADD_FAILURE() << "scan returned a key that nobody ever inserted: "
                  << show(from_order_bytes(from.type(), bytes));
  }
}

HistoryRecorder::Client& HistoryRecorder::add_client() {
  const std::lock_guard lock(mutex_);
  return clients_.emplace_back(*this, static_cast<std::uint32_t>(clients_.size()));
}

void HistoryRecorder::set_initial(Key key, std::string_view value) {
  initial_.emplace_back(order_bytes(key), value);
}

lab::KeyedHistory HistoryRecorder::history() const {
  lab::KeyedHistory history;
  for (const auto& [key, value] : initial_) history.set_initial(key, value);
  for (const Client& client : clients_) {
    for (const auto& [key, operation] : client.operations_) history.add(key, operation);
  }
  return history;
}

Result<std::string> RecordedIndex::get(Key key) {
  const std::uint64_t invoked = client_->now();
  auto result = index_.get(key);
  client_->record_get(key, invoked, result);
  return result;
}

Status RecordedIndex::put(Key key, std::string_view value) {
  const std::uint64_t invoked = client_->now();
  Status status = index_.put(key, value);
  client_->record(key, OperationKind::kPut, value, invoked, status);
  return status;
}

Status RecordedIndex::insert(Key key, std::string_view value) {
  const std::uint64_t invoked = client_->now();
  Status status = index_.insert(key, value);
  client_->record(key, OperationKind::kInsert, value, invoked, status);
  return status;
}

Status RecordedIndex::update(Key key, std::string_view value) {
  const std::uint64_t invoked = client_->now();
  Status status = index_.update(key, value);
  client_->record(key, OperationKind::kUpdate, value, invoked, status);
  return status;
}

Status RecordedIndex::erase(Key key) {
  const std::uint64_t invoked = client_->now();
  Status status = index_.erase(key);
  client_->record(key, OperationKind::kErase, {}, invoked, status);
  return status;
}

Result<std::vector<Entry>> RecordedIndex::scan(const std::vector<OwnedKey>& universe, Key from,
                                               std::size_t limit) {
  const std::uint64_t invoked = client_->now();
  auto result = index_.scan(from, limit);
  client_->record_scan(universe, from, limit, invoked, result);
  return result;
}

Task<Result<std::string>> RecordedIndex::get(Worker& worker, OwnedKey key) {
  const std::uint64_t invoked = client_->now();
  auto result = co_await index_.get(worker, key);
  client_->record_get(key, invoked, result);
  co_return result;
}

Task<Status> RecordedIndex::put(Worker& worker, OwnedKey key, std::string value) {
  const std::uint64_t invoked = client_->now();
  Status status = co_await index_.put(worker, key, value);
  client_->record(key, OperationKind::kPut, value, invoked, status);
  co_return status;
}

Task<Status> RecordedIndex::insert(Worker& worker, OwnedKey key, std::string value) {
  const std::uint64_t invoked = client_->now();
  Status status = co_await index_.insert(worker, key, value);
  client_->record(key, OperationKind::kInsert, value, invoked, status);
  co_return status;
}

Task<Status> RecordedIndex::update(Worker& worker, OwnedKey key, std::string value) {
  const std::uint64_t invoked = client_->now();
  Status status = co_await index_.update(worker, key, value);
  client_->record(key, OperationKind::kUpdate, value, invoked, status);
  co_return status;
}

Task<Status> RecordedIndex::erase(Worker& worker, OwnedKey key) {
  const std::uint64_t invoked = client_->now();
  Status status = co_await index_.erase(worker, key);
  client_->record(key, OperationKind::kErase, {}, invoked, status);
  co_return status;
}

}  // namespace pando::testing
