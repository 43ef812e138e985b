#include <fmt/format.h>

#include "api/state.h"
#include <pando/pando.h>

namespace pando {

namespace {

using index::PutMode;
using pool::Operation;
using pool::Session;

Status check_key(const api::IndexState& index, const Key& key) {
  if (key.type() != index.info.options.key_type) {
    const bool wants_bytes = index.info.options.key_type == KeyType::kBytes;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("key: index '{}' has {} keys", index.info.name,
                            wants_bytes ? "byte-string" : "integer"));
  }
  if (key.negative()) {
    return fail(ErrorCode::kInvalidArgument, "key: negative integers are no keys");
  }
  if (key.bytes().size() > kMaxKeyBytes) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("key of {} bytes: at most {} are allowed",
                                                         key.bytes().size(), kMaxKeyBytes));
  }
  return {};
}

Status check_entry(const api::IndexState& index, const Key& key, std::string_view value) {
  if (value.size() > kMaxValueBytes) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("value of {} bytes: at most {} are allowed", value.size(), kMaxValueBytes));
  }
  return check_key(index, key);
}

// The smallest key after `key`; none after the largest integer.
std::optional<OwnedKey> successor(const OwnedKey& key) {
  if (key.type() == KeyType::kBytes) return OwnedKey(key.bytes() + '\0');
  if (key.integer() == ~std::uint64_t{0}) return std::nullopt;
  return OwnedKey(key.integer() + 1);
}

bool before(const Key& a, const Key& b) {
  return a.type() == KeyType::kInteger ? a.integer() < b.integer() : a.bytes() < b.bytes();
}

// --- The operations, on any session: plain calls and coroutines share them ---

Task<Result<std::string>> do_get(const api::IndexState& index, Session& session, Counters* cost,
                                 Key key) {
  if (Status ok = check_key(index, key); !ok) co_return fail(ok.error());
  Operation op(session, cost);
  co_return co_await index.tree->get(op, key);
}

// Out of memory, there may be blocks that wait for this very operation's epoch, or that are free
// for another size: end it, let them become free, and try again.
class MemoryWait {
 public:
  explicit MemoryWait(Session& session) : session_(session) {}

  // Between two operations. False: it is of no use to try again.
  Task<bool> reclaimed() {
    pool::ComputeNode& node = session_.compute_node();
    const task::TimePoint now = session_.worker().now();
    if (!deadline_) deadline_ = now + node.options().deadline;
    if (now >= *deadline_) co_return false;
    co_return co_await node.allocator().reclaimed(session_, *deadline_,
                                                  std::exchange(again_, true));
  }

 private:
  Session& session_;
  std::optional<task::TimePoint> deadline_;  // counted from the first time
  bool again_ = false;
};

bool out_of_memory(const Status& done) {
  return !done && done.error().code() == ErrorCode::kOutOfMemory;
}

Task<Status> do_put(const api::IndexState& index, Session& session, Counters* cost, Key key,
                    std::string_view value, PutMode mode) {
  if (Status ok = check_entry(index, key, value); !ok) co_return ok;
  for (MemoryWait memory(session);;) {
    Status done;
    {
      Operation op(session, cost);
      done = co_await index.tree->put(op, key, value, mode);
    }
    if (!out_of_memory(done) || !co_await memory.reclaimed()) co_return done;
  }
}

// An index may need memory to erase: for a smaller node, or a copy.
Task<Status> do_erase(const api::IndexState& index, Session& session, Counters* cost, Key key) {
  if (Status ok = check_key(index, key); !ok) co_return ok;
  for (MemoryWait memory(session);;) {
    Status done;
    {
      Operation op(session, cost);
      done = co_await index.tree->erase(op, key);
    }
    if (!out_of_memory(done) || !co_await memory.reclaimed()) co_return done;
  }
}

// `from` need not be a key that could be stored: the successor of the longest key is longer.
Task<Result<std::vector<Entry>>> scan_from(const api::IndexState& index, Session& session,
                                           Counters* cost, Key from, std::size_t limit) {
  std::vector<Entry> entries;
  Operation op(session, cost);
  Status done = co_await index.tree->scan(op, from, limit, entries);
  if (!done) co_return fail(done.error());
  co_return std::move(entries);
}

Task<Result<std::vector<Entry>>> do_scan(const api::IndexState& index, Session& session,
                                         Counters* cost, Key from, std::size_t limit) {
  if (Status ok = check_key(index, from); !ok) co_return fail(ok.error());
  co_return co_await scan_from(index, session, cost, from, limit);
}

using Values = std::vector<std::optional<std::string>>;

Task<Result<Values>> do_multi_get(const api::IndexState& index, Session& session, Counters* cost,
                                  std::span<const Key> keys) {
  for (const Key& key : keys) {
    if (Status ok = check_key(index, key); !ok) co_return fail(ok.error());
  }
  Values values(keys.size());
  Operation op(session, cost);
  Status done = co_await index.tree->multi_get(op, keys, values);
  if (!done) co_return fail(done.error());
  co_return std::move(values);
}

// The coroutine forms keep the index alive themselves: the handle may be a temporary.
template <class T, class... Parameters, class... Arguments>
Task<T> on_worker(std::shared_ptr<api::IndexState> index, Worker& worker, Counters* cost,
                  Task<T> (*operation)(const api::IndexState&, Session&, Counters*, Parameters...),
                  Arguments... arguments) {
  api::WorkerState& state = api::Internals::of(worker);
  if (state.pool != index->pool) {
    co_return fail(ErrorCode::kInvalidArgument, "worker: it belongs to another pool handle");
  }
  co_return co_await operation(*index, *state.lane->session, cost, arguments...);
}

}  // namespace

// --- Plain calls ---

Result<std::string> Index::get(Key key, Counters* cost) const {
  return state_->pool->run_on_session(
      [&](Session& session) { return do_get(*state_, session, cost, key); });
}

Status Index::put(Key key, std::string_view value, Counters* cost) const {
  return state_->pool->run_on_session(
      [&](Session& session) { return do_put(*state_, session, cost, key, value, PutMode::kPut); });
}

Status Index::insert(Key key, std::string_view value, Counters* cost) const {
  return state_->pool->run_on_session([&](Session& session) {
    return do_put(*state_, session, cost, key, value, PutMode::kInsert);
  });
}

Status Index::update(Key key, std::string_view value, Counters* cost) const {
  return state_->pool->run_on_session([&](Session& session) {
    return do_put(*state_, session, cost, key, value, PutMode::kUpdate);
  });
}

Status Index::erase(Key key, Counters* cost) const {
  return state_->pool->run_on_session(
      [&](Session& session) { return do_erase(*state_, session, cost, key); });
}

Result<std::vector<Entry>> Index::scan(Key from, std::size_t limit, Counters* cost) const {
  return state_->pool->run_on_session(
      [&](Session& session) { return do_scan(*state_, session, cost, from, limit); });
}

Result<Values> Index::multi_get(std::span<const Key> keys, Counters* cost) const {
  return state_->pool->run_on_session(
      [&](Session& session) { return do_multi_get(*state_, session, cost, keys); });
}

Range Index::range(Key from, std::optional<Key> until) const { return {state_, from, until}; }

const IndexInfo& Index::info() const { return state_->info; }

IndexStats Index::stats() const {
  IndexStats stats = state_->tree->stats();
  stats.compute.budget = state_->pool->compute_node.budget().limit();
  return stats;
}

Status Index::check() const {
  if (Status may = api::check_may_block("Index::check"); !may) return may;
  return state_->pool->run([&](Operation& op) { return state_->tree->check(op); });
}

// --- Coroutines ---

Task<Result<std::string>> Index::get(Worker& worker, Key key, Counters* cost) const {
  return on_worker(state_, worker, cost, do_get, key);
}

Task<Status> Index::put(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  return on_worker(state_, worker, cost, do_put, key, value, PutMode::kPut);
}

Task<Status> Index::insert(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  return on_worker(state_, worker, cost, do_put, key, value, PutMode::kInsert);
}

Task<Status> Index::update(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  return on_worker(state_, worker, cost, do_put, key, value, PutMode::kUpdate);
}

Task<Status> Index::erase(Worker& worker, Key key, Counters* cost) const {
  return on_worker(state_, worker, cost, do_erase, key);
}

Task<Result<std::vector<Entry>>> Index::scan(Worker& worker, Key from, std::size_t limit,
                                             Counters* cost) const {
  return on_worker(state_, worker, cost, do_scan, from, limit);
}

Task<Result<Values>> Index::multi_get(Worker& worker, std::span<const Key> keys,
                                      Counters* cost) const {
  return on_worker(state_, worker, cost, do_multi_get, keys);
}

// --- Range ---

Range::Range(std::shared_ptr<api::IndexState> index, Key from, std::optional<Key> until)
    : index_(std::move(index)), next_(from), status_(check_key(*index_, from)) {
  if (status_ && until) status_ = check_key(*index_, *until);
  if (until) until_ = OwnedKey(*until);
  more_ = status_.has_value();
}

Range::Iterator Range::begin() {
  if (position_ == page_.size()) fetch();
  return Iterator(this);
}

void Range::advance() {
  if (++position_ == page_.size()) fetch();
}

void Range::fetch() {
  constexpr std::size_t kPage = 256;
  page_.clear();
  position_ = 0;
  if (!more_) return;
  status_ = api::check_may_block("a Range", "co_await scan() with the worker, page by page");
  more_ = status_.has_value();
  if (!more_) return;
  Result<std::vector<Entry>> page = index_->pool->run_on_session(
      [&](Session& session) { return scan_from(*index_, session, nullptr, next_, kPage); });
  if (!page) {
    status_ = fail(page.error());
    more_ = false;
    return;
  }
  page_ = std::move(*page);
  more_ = page_.size() == kPage;
  while (until_ && !page_.empty() && !before(page_.back().key, *until_)) {
    page_.pop_back();
    more_ = false;
  }
  if (!more_) return;
  const std::optional<OwnedKey> next = successor(page_.back().key);
  more_ = next.has_value();
  if (next) next_ = *next;
}

}  // namespace pando
