#include "index/common/combining.h"

#include <cassert>
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

Combined::Combined(pool::ComputeNode& node, std::unique_ptr<Tree> tree)
    : node_(node), tree_(std::move(tree)), buckets_(std::make_unique<Bucket[]>(kBuckets)) {
  node_.budget().take(pool::BudgetUse::kIndexTables, kBuckets * sizeof(Bucket));
}

Combined::~Combined() {
  for (std::size_t i = 0; i < kBuckets; ++i) assert(buckets_[i].leaders == nullptr);
  node_.budget().give_back(pool::BudgetUse::kIndexTables, kBuckets * sizeof(Bucket));
}

Combined::Member** Combined::Bucket::find(const Member& member) {
  Member** link = &leaders;
  while (*link != nullptr && ((*link)->hash != member.hash || !same((*link)->key, member.key))) {
    link = &(*link)->next;
  }
  return link;
}

Combined::Bucket& Combined::bucket(std::uint64_t hash) { return buckets_[hash % kBuckets]; }

// --- Members ---

Combined::Member::Member(Combined& combined, Operation& its_op, Key its_key,
                         std::optional<PutMode> mode, std::string_view its_value)
    : all(combined),
      op(its_op),
      key(its_key),
      hash(hash_of(its_key)),
      write(mode),
      value(its_value) {}

// True: wait; the role says what for when resumed.
bool Combined::Member::await_suspend(std::coroutine_handle<> handle) {
  Bucket& in = all.bucket(hash);
  const base::MutexLock lock(in.mutex);
  Member* leader = *in.find(*this);
  if (leader == nullptr) {
    role = Role::kLeading;
    listed = true;
    next = std::exchange(in.leaders, this);
    return false;
  }
  if (write && leader->gathered_write && *leader->gathered_write != *write) {
    role = Role::kAlone;
    return false;
  }
  (void)op.deadline();  // the clock runs while it waits
  listed = true;
  waiter = handle;
  if (mutated(Mutant::kLateDelegation) && !write) {
    role = Role::kServed;
    next = std::exchange(leader->served, this);
    return true;
  }
  if (write) leader->gathered_write = write;
  role = Role::kWaiting;
  next = nullptr;
  (leader->first_gathered == nullptr ? leader->first_gathered : leader->last_gathered->next) = this;
  leader->last_gathered = this;
  return true;
}

// Destroyed in the middle: others must not wait for it, nor write to it.
Combined::Member::~Member() {
  if (!listed) return;
  Bucket& in = all.bucket(hash);
  const base::MutexLock lock(in.mutex);
  if (role == Role::kLeading) {
    for (Member* each = served; each != nullptr;) {
      Member* const member = std::exchange(each, each->next);
      const bool unknown = member->being_written && !mutated(Mutant::kWrittenTwice);
      if (unknown) {
        member->outcome = fail(ErrorCode::kIndeterminate,
                               "the coroutine that was writing the value for this one as well was "
                               "destroyed: the value may have been written");
      }
      end(*member, unknown ? Role::kDone : Role::kAlone);
    }
    pass_on(in, *this);
  } else if (role == Role::kWaiting || role == Role::kServed) {
    Member* const leader = *in.find(*this);
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

// Of a member that was served. Once it is woken it may be gone.
void Combined::end(Member& member, Role role) {
  member.role = role;
  member.op.worker().wake(member.waiter);
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
  first->op.worker().wake(first->waiter);
}

// --- Executions ---

// What is to be written: what came last. Its coroutine may go while we write, so it is copied.
std::optional<Combined::Write> Combined::begin(Member& leader) {
  const base::MutexLock lock(bucket(leader.hash).mutex);
  Member* last = leader.write ? &leader : nullptr;
  for (Member* each = leader.served; each != nullptr; each = each->next) {
    if (each->write) last = each;
  }
  if (last == nullptr) return std::nullopt;
  last->being_written = true;
  return Write{*last->write, std::string(last->value)};
}

Task<void> Combined::execute(Operation& op, Member& leader) {
  std::optional<Write> write = begin(leader);
  if (write) {
    const Status outcome = co_await tree_->put(op, leader.key, write->value, write->mode);
    serve(leader, outcome, write->value, true);
    if (!leader.write) leader.found = std::move(write->value);
  } else {
    Result<std::string> got = co_await tree_->get(op, leader.key);
    if (got) {
      serve(leader, {}, *got, false);
      leader.found = std::move(*got);
    } else {
      serve(leader, fail(got.error()), {}, false);
    }
  }
}

void Combined::serve(Member& leader, const Status& outcome, std::string_view found, bool written) {
  const bool shared = outcome || outcome.error().code() == ErrorCode::kNotFound;
  const auto end_member = [&](Member& member, bool own) {
    if (!shared && !own) return Role::kAlone;
    member.outcome = outcome;
    return Role::kDone;
  };
  Bucket& in = bucket(leader.hash);
  const base::MutexLock lock(in.mutex);
  for (Member* each = std::exchange(leader.served, nullptr); each != nullptr;) {
    Member* const member = std::exchange(each, each->next);
    const Role role = end_member(*member, written && member->being_written);
    if (role == Role::kDone) {
      if (outcome && !member->write) member->found = found;
      (member->write ? shared_writes_ : shared_reads_).fetch_add(1, std::memory_order_relaxed);
    }
    end(*member, role);
  }
  pass_on(in, leader);
  leader.role = end_member(leader, !written || leader.being_written);
  leader.listed = false;
}

Task<Result<std::string>> Combined::get(Operation& op, Key key) {
  Member member(*this, op, key, std::nullopt, {});
  const Role role = co_await member;
  if (role == Role::kLeading && !member.waiter) {
    // It did not wait, so it has nobody to serve: most operations are alone on their key.
    Result<std::string> got = co_await tree_->get(op, key);
    serve(member, got ? Status{} : fail(got.error()), got ? *got : std::string_view{}, false);
    co_return got;
  }
  if (role == Role::kLeading) co_await execute(op, member);
  if (member.role == Role::kAlone) co_return co_await tree_->get(op, key);
  if (!member.outcome) co_return fail(member.outcome.error());
  co_return std::move(member.found);
}

Task<Status> Combined::put(Operation& op, Key key, std::string_view value, PutMode mode) {
  if (mode == PutMode::kInsert) co_return co_await tree_->put(op, key, value, mode);
  Member member(*this, op, key, mode, value);
  const Role role = co_await member;
  if (role == Role::kLeading && !member.waiter) {
    member.being_written = true;
    Status done = co_await tree_->put(op, key, value, mode);
    serve(member, done, value, true);
    co_return done;
  }
  if (role == Role::kLeading) co_await execute(op, member);
  if (member.role == Role::kAlone) co_return co_await tree_->put(op, key, value, mode);
  co_return std::move(member.outcome);
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
