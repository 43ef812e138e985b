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
// itself.
//
// What is shared is what an execution found out about the key: its value, that it was written, or
// that it is not there (of reads and of updates). Any other error is heard by one member alone: the
// one whose value was to be written, or the one who executed the READ. It may be that member's own
// fault (a value too large for what memory is left, a deadline that began earlier), and nothing is
// known of the others: their values were never sent, so each of them is executed by itself. So no
// read fails because of a write, and no write because of another's value.
//
// The same where a coroutine is destroyed in the middle of an execution for others. The member
// whose value it was writing ends with kIndeterminate, as its value may have been written, and to
// write it again might bring it back after others have overwritten it. All others are executed by
// themselves.
//
// The table has no memory but its buckets: members live in the coroutines that wait. Thread-safe;
// members resume on their own workers. A coroutine may be destroyed at any time.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
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
  Task<Status> destroy(pool::Session& session) override { return tree_->destroy(session); }
  Task<Status> check(Operation& op) override { return tree_->check(op); }
  IndexStats stats() const override;

 private:
  class Member;
  struct Bucket {
    // Where the key's leader stands in the list; the list's end where it has none.
    Member** find(const Member& member) PANDO_REQUIRES(mutex);

    base::Mutex mutex;
    // One for each key that an execution is under way for.
    Member* leaders PANDO_GUARDED_BY(mutex) = nullptr;
  };

  enum class Role : std::uint8_t {
    kNone,     // in no list
    kAlone,    // in none any more: it is executed by itself
    kLeading,  // executes, or is about to
    kWaiting,  // among those who gather behind a leader
    kServed,   // its leader executes for it
    kDone,     // its outcome is known
  };

  // An operation that may share. It is awaited once: then it leads, is done, or goes alone.
  class Member {
   public:
    Member(Combined& all, Operation& op, Key key, std::optional<PutMode> write,
           std::string_view value);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiter);
    Role await_resume() noexcept {
      listed = role == Role::kLeading;
      return role;
    }

    Combined& all;
    Operation& op;
    const Key key;
    const std::uint64_t hash;
    const std::optional<PutMode> write;  // none: a read
    const std::string_view value;        // to be written

    // Its own thread's: others may reach it, until it has been resumed, or has led.
    bool listed = false;

    // Under the bucket's lock while it is listed, but for what a leader knows to be its own.
    Role role = Role::kNone;
    bool being_written = false;  // its value, by its leader or itself
    std::coroutine_handle<> waiter;
    Member* next = nullptr;            // of leaders, of those who gather, of those served
    Member* first_gathered = nullptr;  // a leader's
    Member* last_gathered = nullptr;
    std::optional<PutMode> gathered_write;
    Member* served = nullptr;  // a leader's
    Status outcome;
    std::string found;  // a read's
  };

  // What an execution writes; nothing where it reads.
  struct Write {
    PutMode mode;
    std::string value;
  };

  // Leaves the leader done or alone, and served whoever it was to serve.
  Task<void> execute(Operation& op, Member& leader);
  std::optional<Write> begin(Member& leader);
  void serve(Member& leader, const Status& outcome, std::string_view found, bool written);
  static void end(Member& member, Role role);
  static void pass_on(Bucket& bucket, Member& leader) PANDO_REQUIRES(bucket.mutex);
  Bucket& bucket(std::uint64_t hash);

  pool::ComputeNode& node_;
  std::unique_ptr<Tree> tree_;
  std::unique_ptr<Bucket[]> buckets_;
  std::atomic<std::uint64_t> shared_reads_{0};
  std::atomic<std::uint64_t> shared_writes_{0};
};

}  // namespace pando::index
