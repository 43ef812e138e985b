// HistoryRecorder: what many clients did, and when, for the linearizability checker.
//
// Time is a counter that every client takes a number from before and after each call: if one call
// ended before another began, its second number is smaller than the other's first. A call that has
// not answered when the history is looked at may have happened, or may happen later: until its end,
// where it is known that nothing of its compute node can happen any more.
//
// What is wrong by itself, without a history, is a problem(): an error that nobody expects, a scan
// out of order.
//
// Thread safety: add_client() and now() may be called by any thread. A Client belongs to one
// thread at a time. All others want the clients at rest.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "lab/check/linearizability.h"
#include <pando/pando.h>

namespace pando::lab::check {

// The key as bytes whose order is the order of keys.
std::string order_bytes(Key key);
OwnedKey from_order_bytes(KeyType type, std::string_view bytes);

class HistoryRecorder {
 public:
  class Client {
   public:
    Client(HistoryRecorder& recorder, std::uint32_t id, std::uint32_t compute_node)
        : recorder_(recorder), id_(id), compute_node_(compute_node) {}

    std::uint64_t now() { return recorder_.now(); }
    // A call begins; respond() with what it gives back when it has answered.
    std::size_t invoke(Key key, OperationKind kind, std::string_view value);
    void respond(std::size_t call, const Status& status);
    // For a get: what it found.
    void respond(std::size_t call, const Result<std::string>& result);
    // Of each key of `universe` (ascending) that the scan passed, it is a get: the key had that
    // value, or was absent, at some moment of the scan. A key that was there throughout and is
    // missing, or a value that was never there, so becomes a history without a legal order.
    void record_scan(std::span<const OwnedKey> universe, Key from, std::size_t limit,
                     std::uint64_t invoked, const Result<std::vector<Entry>>& result);
    // Whoever made its calls has been destroyed: those without an answer will have none.
    void abandon();
    std::uint32_t id() const { return id_; }

   private:
    friend class HistoryRecorder;
    struct Call {
      std::string key;
      Operation operation;
      bool counts = true;  // false: nothing happened, nothing was learnt
      // When nobody waited for a certain answer any more.
      std::uint64_t given_up = Operation::kNever;
    };
    void problem(std::string_view what, const Error& error);
    void give_up(std::size_t call, std::uint64_t when);

    HistoryRecorder& recorder_;
    const std::uint32_t id_;
    const std::uint32_t compute_node_;
    std::deque<Call> calls_;
    std::vector<std::size_t> running_;   // calls that have not answered
    std::vector<std::size_t> given_up_;  // of unknown outcome, and without an end
  };

  // `expected`: the errors that faults excuse, beside kNotFound and kExists; default none.
  explicit HistoryRecorder(std::function<bool(ErrorCode)> expected = {})
      : expected_(std::move(expected)) {}

  // `compute_node`: whose it is, for those who tell of ends.
  Client& add_client(std::uint32_t compute_node = 0);
  std::uint64_t now() { return clock_.fetch_add(1) + 1; }
  // What a key held before the first recorded operation.
  void set_initial(Key key, std::string_view value);
  void add_problem(std::string what);

  // Whether the compute node has calls that were given up and may happen later.
  bool has_open(std::uint32_t compute_node) const;
  // Nothing of the compute node is under way at this moment: its calls without a certain answer are
  // over. But not those that may be continued by one that has not answered: it was there already
  // when they were given up, and may have taken them on (combining).
  void nothing_under_way(std::uint32_t compute_node);
  // The compute node can do nothing any more, whatever it is at.
  void shut_out(std::uint32_t compute_node);
  // Calls whose end was told.
  std::uint64_t ended() const { return ended_; }

  KeyedHistory history() const;
  std::vector<std::string> problems() const;

 private:
  void end_calls(std::uint32_t compute_node, std::uint64_t before) PANDO_REQUIRES(mutex_);

  const std::function<bool(ErrorCode)> expected_;
  std::atomic<std::uint64_t> clock_{0};
  std::uint64_t ended_ = 0;
  std::vector<std::pair<std::string, std::string>> initial_;
  mutable base::Mutex mutex_;
  std::deque<Client> clients_ PANDO_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ PANDO_GUARDED_BY(mutex_);
};

// An index as one client sees it: each call is made and recorded. The coroutine forms take their
// keys and values by value, so that temporaries may be given.
class RecordedIndex {
 public:
  RecordedIndex(Index index, HistoryRecorder& recorder, std::uint32_t compute_node = 0)
      : index_(std::move(index)), client_(&recorder.add_client(compute_node)) {}
  // Its coroutines have been destroyed.
  void abandon() { client_->abandon(); }

  Result<std::string> get(Key key);
  Status put(Key key, std::string_view value);
  Status insert(Key key, std::string_view value);
  Status update(Key key, std::string_view value);
  Status erase(Key key);
  Result<std::vector<Entry>> scan(std::span<const OwnedKey> universe, Key from, std::size_t limit);

  Task<Result<std::string>> get(Worker& worker, OwnedKey key);
  Task<Status> put(Worker& worker, OwnedKey key, std::string value);
  Task<Status> insert(Worker& worker, OwnedKey key, std::string value);
  Task<Status> update(Worker& worker, OwnedKey key, std::string value);
  Task<Status> erase(Worker& worker, OwnedKey key);
  Task<Status> multi_get(Worker& worker, std::vector<OwnedKey> keys);
  Task<Status> scan(Worker& worker, std::span<const OwnedKey> universe, OwnedKey from,
                    std::size_t limit);

  const Index& index() const { return index_; }
  std::uint32_t client() const { return client_->id(); }
  // What all calls have cost so far; and the name that their verbs go by in a trace.
  const Counters& account() const { return account_; }

 private:
  Counters account_;
  Index index_;
  HistoryRecorder::Client* client_;
};

}  // namespace pando::lab::check
