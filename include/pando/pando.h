// Pando: ordered key-value indexes in disaggregated memory.
//
//   auto pool = pando::Pool::open("embedded:1GiB?nodes=2").value();
//   auto users = pool.create_index("users").value();
//   users.put(42, "Ada").value();
//   std::string name = users.get(42).value();
//   for (const auto& [key, value] : users.range(0)) use(key, value);
//
// Threads: Pool and Index are handles, cheap to copy; every method may be called from any thread
// at any time. Worker and Range belong to the thread that uses them.
//
// Two forms of each operation: plain calls, which return when the work is done; and coroutines on
// a Worker, many of which share a thread and overlap their round trips:
//
//   pando::Worker worker = pool.make_worker().value();
//   worker.spawn(transfer(worker, users));   // Task<void> transfer(Worker&, Index) { … co_await
//   worker.run();                            //   users.get(worker, 42) … }
//
// Inside a coroutine that a Worker runs, a plain call would stop the worker and could wait for what
// only that worker can go on with. So it is refused at once, on every fabric: kInvalidArgument says
// what to do. That holds for each plain call of an Index or Pool that may wait (all but
// make_worker, Index::info and Index::stats), and for Pool::open. Worker::run, which has no result
// to say so, throws std::logic_error there. Handles may go away anywhere: what the last one of an
// index or a pool closes inside a coroutine is closed when that worker has a moment, before its
// run() returns.
//
// Promises: single-key operations are linearizable across all compute nodes; scans return each
// key that was present throughout, ascending, without duplicates. After an error other than
// kTimeout, kIndeterminate, kUnavailable or kFenced a write has changed nothing.
//
// Lifetimes: a Pool lives until its last handle, Index and Worker are gone. Keys and values given
// to the coroutine forms must live until the task has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <pando/key.h>
#include <pando/options.h>
#include <pando/result.h>
#include <pando/stats.h>
#include <pando/task.h>

namespace pando {

class Index;
namespace api {
struct PoolState;
struct IndexState;
struct WorkerState;
struct Internals;
}  // namespace api

// A key of either type, owned.
class OwnedKey {
 public:
  OwnedKey() = default;
  explicit OwnedKey(std::uint64_t integer) : integer_(integer) {}
  explicit OwnedKey(std::string bytes) : bytes_(std::move(bytes)), type_(KeyType::kBytes) {}
  explicit OwnedKey(Key key) : integer_(key.integer()), bytes_(key.bytes()), type_(key.type()) {}

  KeyType type() const { return type_; }
  std::uint64_t integer() const { return integer_; }
  const std::string& bytes() const { return bytes_; }
  operator Key() const {  // NOLINT: a view of this object
    return type_ == KeyType::kInteger ? Key(integer_) : Key(std::string_view(bytes_));
  }
  friend bool operator==(const OwnedKey& a, const OwnedKey& b) = default;

 private:
  std::uint64_t integer_ = 0;
  std::string bytes_;
  KeyType type_ = KeyType::kInteger;
};

struct Entry {
  OwnedKey key;
  std::string value;
};

// A thread's place to run coroutines. Not thread-safe: one thread uses it.
class Worker {
 public:
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  ~Worker();  // tasks still unfinished are destroyed

  // The task starts within run(); it ends on this thread.
  void spawn(Task<void> task);
  // Runs until every spawned task has ended. Not from within a task: std::logic_error.
  void run();
  // Runs one task to its end (others that were spawned make progress meanwhile). The same holds.
  template <class T>
  T run(Task<T> task) {
    start(task.handle());
    while (!task.done()) step();
    return task.handle().promise().take();
  }
  // Lets the worker's other tasks run.
  Task<void> yield();

  // What this worker's operations have cost so far.
  Counters counters() const;

 private:
  friend class Pool;
  friend struct api::Internals;
  explicit Worker(std::unique_ptr<api::WorkerState> state);
  void start(std::coroutine_handle<> task);
  void step();

  std::unique_ptr<api::WorkerState> state_;
};

// The handle of one compute node on memory nodes.
class Pool {
 public:
  // `embedded:SIZE[?nodes=N]`: memory nodes inside this process, SIZE in all, e.g.
  // "embedded:4GiB?nodes=2". `tcp:HOST:PORT,…`, `rdma:HOST:PORT,…`, `mapped:unix:PATH,…`: other
  // processes, all in the same order; or `tcp:?etcd=URL&cluster=NAME` (docs/operations.md).
  // `sim:SIZE[?nodes=N&preset=NAME]`: simulated ones, in simulated time, for one thread.
  static Result<Pool> open(std::string_view url, const PoolOptions& options = {});
  // A further compute node on the same memory nodes, with caches, tables and budget of its own.
  Result<Pool> attach(const PoolOptions& options) const;

  Result<Index> create_index(std::string_view name, const IndexOptions& options = {});
  // Settings given here must agree with the stored ones; what is not given is taken from there.
  Result<Index> open_index(std::string_view name);
  Result<Index> open_index(std::string_view name, const IndexOptions& options);
  // kBusy while any compute node has the index open (all Index handles count).
  Status drop_index(std::string_view name);
  Result<std::vector<IndexInfo>> list_indexes() const;

  Result<Worker> make_worker() const;
  Result<PoolStats> stats() const;

 private:
  friend class Index;
  friend struct api::PoolState;
  friend struct api::Internals;
  explicit Pool(std::shared_ptr<api::PoolState> state) : state_(std::move(state)) {}
  std::shared_ptr<api::PoolState> state_;
};

// The entries of a key range, fetched page by page as the loop goes on. Single pass. An error
// ends the loop early: look at status() after it.
class Range {
 public:
  class Iterator {
   public:
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    const Entry& operator*() const { return range_->page_[range_->position_]; }
    const Entry* operator->() const { return &**this; }
    Iterator& operator++() {
      range_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.at_end(); }

   private:
    friend class Range;
    explicit Iterator(Range* range) : range_(range) {}
    bool at_end() const { return range_->position_ == range_->page_.size(); }
    Range* range_;
  };

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }
  const Status& status() const { return status_; }

 private:
  friend class Index;
  Range(std::shared_ptr<api::IndexState> index, Key from, std::optional<Key> until);
  void advance();
  void fetch();

  std::shared_ptr<api::IndexState> index_;
  OwnedKey next_;
  std::optional<OwnedKey> until_;
  bool more_ = true;
  std::vector<Entry> page_;
  std::size_t position_ = 0;
  Status status_;
};

// One compute node's handle of an index. `cost`, where given, is added what the operation cost.
class Index {
 public:
  // kNotFound where the key is absent.
  Result<std::string> get(Key key, Counters* cost = nullptr) const;
  // Inserts or replaces.
  Status put(Key key, std::string_view value, Counters* cost = nullptr) const;
  // kExists where the key is present, which is left as it is.
  Status insert(Key key, std::string_view value, Counters* cost = nullptr) const;
  // kNotFound where the key is absent.
  Status update(Key key, std::string_view value, Counters* cost = nullptr) const;
  Status erase(Key key, Counters* cost = nullptr) const;
  // Up to `limit` entries from the first key >= from.
  Result<std::vector<Entry>> scan(Key from, std::size_t limit, Counters* cost = nullptr) const;
  // One answer a key, in the order of `keys`; nullopt where absent.
  Result<std::vector<std::optional<std::string>>> multi_get(std::span<const Key> keys,
                                                            Counters* cost = nullptr) const;
  // Every entry with from <= key < until.
  Range range(Key from, std::optional<Key> until = std::nullopt) const;

  Task<Result<std::string>> get(Worker& worker, Key key, Counters* cost = nullptr) const;
  Task<Status> put(Worker& worker, Key key, std::string_view value, Counters* cost = nullptr) const;
  Task<Status> insert(Worker& worker, Key key, std::string_view value,
                      Counters* cost = nullptr) const;
  Task<Status> update(Worker& worker, Key key, std::string_view value,
                      Counters* cost = nullptr) const;
  Task<Status> erase(Worker& worker, Key key, Counters* cost = nullptr) const;
  Task<Result<std::vector<Entry>>> scan(Worker& worker, Key from, std::size_t limit,
                                        Counters* cost = nullptr) const;
  Task<Result<std::vector<std::optional<std::string>>>> multi_get(Worker& worker,
                                                                  std::span<const Key> keys,
                                                                  Counters* cost = nullptr) const;

  const IndexInfo& info() const;
  IndexStats stats() const;
  // Walks the whole index and checks its structure (fences, siblings, reachability, items).
  // For tests and tools, with no writers about (one that was killed is about until its lease is
  // over); kCorrupt says what is wrong and where.
  Status check() const;

 private:
  friend class Pool;
  explicit Index(std::shared_ptr<api::IndexState> state) : state_(std::move(state)) {}
  std::shared_ptr<api::IndexState> state_;
};

}  // namespace pando
