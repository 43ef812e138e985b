#include "index/common/combining.h"

#include <utility>

#include "base/mutants.h"
#include "base/random.h"
#include "index/common/items.h"

namespace pando::index {

using base::Mutant;
using base::mutated;

namespace {

constexpr std::size_t kBuckets = 128;

std::uint64_t hash_of(Key key) {
  return key.type() == KeyType::kInteger ? base::mix64(key.integer()) : hash_key(key.bytes(), 0);
}

bool same(Key a, Key b) {
  return a.type() == KeyType::kInteger ? a.integer() == b.integer() : a.bytes() == b.bytes();
}

}  // namespace

struct Combined::Bucket {
  std::mutex mutex;
  Member* leaders = nullptr;  // one for each key that an execution is under way for

  Member** find(const Member& member) {
    Member** link = &leaders;
    while (*link != nullptr && ((*link)->hash != member.hash || !same((*link)->key, member.key))) {
      link = &(*link)->next;
    }
    return link;
  }
};

Combined::Combined(pool::ComputeNode& node, std::unique_ptr<Tree> tree)
    : node_(node), tree_(std::move(tree)), buckets_(std::make_unique<Bucket[]>(kBuckets)) {
  node_.budget().take(pool::Part::kIndexTables, kBuckets * sizeof(Bucket));
}

Combined::~Combined() {
  node_.budget().give_back(pool::Part::kIndexTables, kBuckets * sizeof(Bucket));
}

Combined::Bucket& Combined::bucket(std::uint64_t hash) { return buckets_[hash % kBuckets]; }

// --- Members ---

Combined::Member::Member(Combined& combined, Key its_key, std::optional<PutMode> mode,
                         std::string_view its_value)
    : all(combined), key(its_key), hash(hash_of(its_key)), write(mode), value(its_value) {}

// True: wait; the role says what for when resumed.
bool Combined::Member::await_suspend(std::coroutine_handle<> handle) {
  Bucket& in = all.bucket(hash);
  const std::scoped_lock lock(in.mutex);
  Member* leader = *in.find(*this);
  if (leader == nullptr) {
    role = Role::kLeading;
    next = std::exchange(in.leaders, this);
    return false;
  }
  if (mutated(Mutant::kLateDelegation) && !write) {
    role = Role::kServed;
    waiter = handle;
    next = std::exchange(leader->served, this);
    return true;
  }
  if (write && leader->gathered_write && *leader->gathered_write != *write) {
    role = Role::kAlone;
    return false;
  }
  if (write) leader->gathered_write = write;
  role = Role::kWaiting;
  waiter = handle;
  next = nullptr;
  (leader->first_gathered == nullptr ? leader->first_gathered : leader->last_gathered->next) = this;
  leader->last_gathered = this;
  return true;
}

// Destroyed in the middle: others must not wait for it, nor write to it.
Combined::Member::~Member() {
  if (role == Role::kNone || role == Role::kAlone) return;
  Bucket& in = all.bucket(hash);
  const std::scoped_lock lock(in.mutex);
  Member* leader = *in.find(*this);
  if (role == Role::kLeading) {
    for (Member* each = served; each != nullptr;) {
      Member* const member = std::exchange(each, each->next);
      member->role = Role::kAgain;
      member->worker->wake(member->waiter);
    }
    pass_on(in, *this);
  } else if (role == Role::kWaiting || role == Role::kServed) {
    Member** link = role == Role::kWaiting ? &leader->first_gathered : &leader->served;
    Member* before = nullptr;
    while (*link != this) {
      before = *link;
      link = &before->next;
    }
    *link = next;
    if (leader->last_gathered == this) leader->last_gathered = before;
  }
}

// The leader is done. The first of those who have gathered leads now, and serves the others.
void Combined::pass_on(Bucket& bucket, Member& leader) {
  Member** const link = bucket.find(leader);
  Member* const first = leader.first_gathered;
  leader.role = Role::kNone;
  if (first == nullptr) {
    *link = leader.next;
    return;
  }
  first->role = Role::kLeading;
  first->served = first->next;
  for (Member* each = first->served; each != nullptr; each = each->next) each->role = Role::kServed;
  first->next = leader.next;
  *link = first;
  first->worker->wake(first->waiter);
}

// --- Executions ---

Task<Status> Combined::execute(Operation& op, Member& leader) {
  // What came last is written. Its coroutine may go while we write, so it is copied.
  std::optional<PutMode> write = leader.write;
  std::string_view value = leader.value;
  std::string copy;
  if (leader.waiter) {  // it waited, so others may have gathered with it
    const std::scoped_lock lock(bucket(leader.hash).mutex);
    const Member* last = &leader;
    for (const Member* each = leader.served; each != nullptr; each = each->next) {
      if (each->write) last = each;
    }
    if (last != &leader) {
      write = last->write;
      value = copy = last->value;
    }
  }
  Status outcome;
  std::string found;
  if (write) {
    outcome = co_await tree_->put(op, leader.key, value, *write);
    if (!leader.write && outcome) found = value;
  } else {
    Result<std::string> got = co_await tree_->get(op, leader.key);
    if (got) {
      found = std::move(*got);
    } else {
      outcome = fail(got.error());
    }
  }
  serve(leader, outcome, write ? value : std::string_view(found));
  leader.found = std::move(found);
  co_return outcome;
}

void Combined::serve(Member& leader, const Status& outcome, std::string_view found) {
  Bucket& in = bucket(leader.hash);
  const std::scoped_lock lock(in.mutex);
  for (Member* each = std::exchange(leader.served, nullptr); each != nullptr;) {
    Member* const member = std::exchange(each, each->next);
    (member->write ? shared_writes_ : shared_reads_).fetch_add(1, std::memory_order_relaxed);
    member->role = Role::kDone;
    member->outcome = outcome;
    if (outcome && !member->write) member->found = found;
    member->worker->wake(member->waiter);
  }
  pass_on(in, leader);
}

Task<Result<std::string>> Combined::get(Operation& op, Key key) {
  Member member(*this, key, std::nullopt, {});
  member.worker = &op.worker();
  for (;;) {
    co_await member;
    if (member.role == Role::kAlone) co_return co_await tree_->get(op, key);
    if (member.role == Role::kAgain) continue;
    Status outcome = member.role == Role::kLeading ? co_await execute(op, member) : member.outcome;
    if (!outcome) co_return fail(outcome.error());
    co_return std::move(member.found);
  }
}

Task<Status> Combined::put(Operation& op, Key key, std::string_view value, PutMode mode) {
  if (mode == PutMode::kInsert) co_return co_await tree_->put(op, key, value, mode);
  Member member(*this, key, mode, value);
  member.worker = &op.worker();
  for (;;) {
    co_await member;
    if (member.role == Role::kAlone) co_return co_await tree_->put(op, key, value, mode);
    if (member.role == Role::kAgain) continue;
    if (member.role == Role::kLeading) co_return co_await execute(op, member);
    co_return member.outcome;
  }
}

IndexStats Combined::stats() const {
  IndexStats stats = tree_->stats();
  stats.counts.emplace_back("combined_reads", shared_reads_.load());
  stats.counts.emplace_back("combined_writes", shared_writes_.load());
  stats.compute.parts.emplace_back("combining", kBuckets * sizeof(Bucket));
  stats.compute.bytes += kBuckets * sizeof(Bucket);
  return stats;
}

}  // namespace pando::index
