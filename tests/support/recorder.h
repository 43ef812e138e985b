// HistoryRecorder: what many clients did, and when, for the linearizability checker.
//
// Time is a counter that every client takes a number from before and after each call: if one call
// ended before another began, its second number is smaller than the other's first.
//
// Thread safety: add_client() and now() may be called by any thread. A Client belongs to one
// thread at a time. history() wants all clients at rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/linearizability.h"
#include <pando/pando.h>

namespace pando::testing {

class HistoryRecorder {
 public:
  class Client {
   public:
    Client(HistoryRecorder& recorder, std::uint32_t id) : recorder_(recorder), id_(id) {}

    std::uint64_t now() { return recorder_.now(); }
    void record(Key key, lab::OperationKind kind, std::string_view value, std::uint64_t invoked,
                const Status& status);
    void record_get(Key key, std::uint64_t invoked, const Result<std::string>& result);
    // Of each key of `universe` (ascending) that the scan passed, it is a get: the key had that
    // value, or was absent, at some moment of the scan. A key that was there throughout and is
    // missing, or a value that was never there, so becomes a history without a legal order.
    void record_scan(const std::vector<OwnedKey>& universe, Key from, std::size_t limit,
                     std::uint64_t invoked, const Result<std::vector<Entry>>& result);
    std::uint32_t id() const { return id_; }

   private:
    friend class HistoryRecorder;
    void add(Key key, lab::Operation operation);

    HistoryRecorder& recorder_;
    const std::uint32_t id_;
    std::vector<std::pair<std::string, lab::Operation>> operations_;
  };

  Client& add_client();
  std::uint64_t now() { return clock_.fetch_add(1) + 1; }
  // What a key held before the first recorded operation.
  void set_initial(Key key, std::string_view value);

  lab::KeyedHistory history() const;

 private:
  std::atomic<std::uint64_t> clock_{0};
  std::mutex mutex_;
  std::deque<Client> clients_;
  std::vector<std::pair<std::string, std::string>> initial_;
};

// An index as one client sees it: each call is made and recorded. The coroutine forms take their
// keys and values by value, so that temporaries may be given.
class RecordedIndex {
 public:
  RecordedIndex(Index index, HistoryRecorder& recorder)
      : index_(std::move(index)), client_(&recorder.add_client()) {}

  Result<std::string> get(Key key);
  Status put(Key key, std::string_view value);
  Status insert(Key key, std::string_view value);
  Status update(Key key, std::string_view value);
  Status erase(Key key);
  Result<std::vector<Entry>> scan(const std::vector<OwnedKey>& universe, Key from,
                                  std::size_t limit);

  Task<Result<std::string>> get(Worker& worker, OwnedKey key);
  Task<Status> put(Worker& worker, OwnedKey key, std::string value);
  Task<Status> insert(Worker& worker, OwnedKey key, std::string value);
  Task<Status> update(Worker& worker, OwnedKey key, std::string value);
  Task<Status> erase(Worker& worker, OwnedKey key);

  const Index& index() const { return index_; }
  std::uint32_t client() const { return client_->id(); }

 private:
  Index index_;
  HistoryRecorder::Client* client_;
};

}  // namespace pando::testing
