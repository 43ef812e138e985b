// Combined: an index whose compute node does the same work once. SMART's read delegation and write
// combining (Luo et al., OSDI '23), for every index.
//
// Operations of one compute node on the same key at the same time share executions. The first one
// is executed at once. Those that come while it is under way wait; when it ends, the first of them
// is executed for all that have gathered by then. One READ serves all reads; where there are
// writes, one write serves all, of the value that came last, and the reads get that value without a
// READ.
//
// Every operation that an execution serves was asked for before it began, and ends after it has
// ended: all take effect at its moment, the writes in the order they came, then the reads. An
// execution that began before an operation was asked for never serves it: its READ might be older
// than what the operation's client has seen already.
//
// Only gets, puts and updates share, writes only with those of the same kind; all else goes by
// itself. An error of an execution is the error of all that it serves.
//
// The table has no memory but its buckets: members live in the coroutines that wait. Thread-safe;
// members resume on their own workers. A coroutine may be destroyed at any time.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "index/index.h"
#include "pool/compute_node.h"
#include "task/worker.h"

namespace pando::index {

class Combined final : public Tree {
 public:
  Combined(pool::ComputeNode& node, std::unique_ptr<Tree> tree);
  ~Combined() override;  // REQUIRES: no operation is under way
  Combined(const Combined&) = delete;
  Combined& operator=(const Combined&) = delete;

  Task<Result<std::string>> get(Operation& op, Key key) override;
  Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) override;
  Task<Status> erase(Operation& op, Key key) override { return tree_->erase(op, key); }
  Task<Status> scan(Operation& op, Key from, std::size_t limit, std::vector<Entry>& out) override {
    return tree_->scan(op, from, limit, out);
  }
  Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                         std::span<std::optional<std::string>> values) override {
    return tree_->multi_get(op, keys, values);
  }
  Task<Status> create(Operation& op) override { return tree_->create(op); }
  Task<Status> destroy(Operation& op) override { return tree_->destroy(op); }
  Task<Status> check(Operation& op) override { return tree_->check(op); }
  IndexStats stats() const override;

 private:
  struct Bucket;

  enum class Role : std::uint8_t {
    kNone,     // in no list
    kAlone,    // cannot share with those who gather
    kLeading,  // executes, or is about to
    kWaiting,  // among those who gather behind a leader
    kServed,   // its leader executes for it
    kDone,     // its leader has
    kAgain,    // its leader was destroyed
  };

  // An operation that may share.
  class Member {
   public:
    Member(Combined& all, Key key, std::optional<PutMode> write, std::string_view value);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiter);
    void await_resume() const noexcept {}

    Combined& all;
    const Key key;
    const std::uint64_t hash;
    const std::optional<PutMode> write;  // none: a read
    const std::string_view value;        // to be written
    task::Worker* worker = nullptr;

    // Under the bucket's lock, but for a leader's and a done member's own.
    Role role = Role::kNone;
    std::coroutine_handle<> waiter;
    Member* next = nullptr;            // of leaders, of those who gather, of those served
    Member* first_gathered = nullptr;  // a leader's
    Member* last_gathered = nullptr;
    std::optional<PutMode> gathered_write;
    Member* served = nullptr;  // a leader's
    Status outcome;
    std::string found;  // a read's
  };

  Task<Status> execute(Operation& op, Member& leader);
  void serve(Member& leader, const Status& outcome, std::string_view found);
  static void pass_on(Bucket& bucket, Member& leader);
  Bucket& bucket(std::uint64_t hash);

  pool::ComputeNode& node_;
  std::unique_ptr<Tree> tree_;
  std::unique_ptr<Bucket[]> buckets_;
  std::atomic<std::uint64_t> shared_reads_{0};
  std::atomic<std::uint64_t> shared_writes_{0};
};

}  // namespace pando::index
