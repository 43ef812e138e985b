// Pando's public API on a std::map: the conformance suite is linked with this instead of the
// library, to see that the suite passes where everything is right and fails where something is
// wrong. PANDO_REFERENCE_FAULT in the environment names a defect to have: see faults.h.
//
// Slow on purpose nowhere, clever nowhere: one mutex, one map an index. Round trips and compute
// memory are what a good index would report.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include "sensitivity/reference/faults.h"
#include <pando/pando.h>

namespace pando {

namespace task {
void* allocate_frame(std::size_t bytes) { return ::operator new(bytes); }
void free_frame(void* frame, std::size_t) noexcept { ::operator delete(frame); }
}  // namespace task

namespace {

using reference::Fault;
using reference::has_fault;

constexpr std::uint64_t kOverhead = 48;  // bytes an entry costs beside key and value
constexpr std::uint64_t kPoolTables = 256 << 10;
constexpr std::uint64_t kFloor = 64 << 10;

struct Stored {
  std::string value;
  std::string previous;  // for faults that show old values
  bool replaced = false;
};

// An index as the memory nodes hold it.
struct Data {
  IndexInfo info;
  std::map<std::string, Stored> entries;
  int users = 0;
};

struct Memory {
  std::mutex mutex;
  std::uint64_t size = 0;
  std::uint64_t used = kPoolTables;
  std::uint64_t most_used = kPoolTables;
  std::map<std::string, std::shared_ptr<Data>, std::less<>> indexes;
  std::vector<std::uint64_t> node_sizes;

  // True once in a while: defects that always show are too easily found. It depends on the pool's
  // own history alone, so that the same operations fail in the same place. Under the mutex.
  bool now_and_then() { return ++dice % 29 == 0; }
  std::uint64_t dice = 0;
};

std::string order_bytes(Key key) {
  if (key.type() == KeyType::kBytes) return std::string(key.bytes());
  std::string bytes(8, '\0');
  std::uint64_t n = key.integer();
  for (std::size_t i = 8; i-- > 0; n >>= 8) bytes[i] = static_cast<char>(n & 0xff);
  return bytes;
}

OwnedKey owned_key(KeyType type, const std::string& bytes) {
  if (type == KeyType::kBytes) return OwnedKey(bytes);
  std::uint64_t n = 0;
  for (const char byte : bytes) n = (n << 8) | static_cast<unsigned char>(byte);
  return OwnedKey(n);
}

// What the index makes of the key: the identity, but for faults.
std::string stored_key(Key key) {
  std::string bytes = order_bytes(key);
  if (key.type() == KeyType::kBytes) {
    if (has_fault(Fault::kLongKeysCut)) bytes.resize(std::min<std::size_t>(bytes.size(), 1024));
    if (has_fault(Fault::kKeysEndAtZero)) bytes.resize(std::min(bytes.size(), bytes.find('\0')));
  } else if (has_fault(Fault::kSignedIntegers)) {
    bytes[0] = static_cast<char>(static_cast<unsigned char>(bytes[0]) ^ 0x80);
  }
  return bytes;
}

std::uint64_t cost_of(const std::string& key, std::string_view value) {
  return key.size() + value.size() + kOverhead;
}

}  // namespace

namespace api {

struct PoolState {
  std::shared_ptr<Memory> memory;
  PoolOptions options;
  bool first = false;  // the compute node that opened the pool, not a later one
  std::mutex mutex;
  Counters operations;

  void count(Counters* cost, std::uint64_t round_trips) {
    const std::lock_guard lock(mutex);
    operations.round_trips += round_trips;
    if (cost != nullptr) cost->round_trips += round_trips;
  }
};

struct IndexState {
  std::shared_ptr<PoolState> pool;
  std::shared_ptr<Data> data;
  std::map<std::string, std::string> cache;  // for the fault of a stale cache; under memory->mutex

  IndexState(std::shared_ptr<PoolState> on, std::shared_ptr<Data> of)
      : pool(std::move(on)), data(std::move(of)) {
    ++data->users;
  }
  ~IndexState() {
    const std::lock_guard lock(pool->memory->mutex);
    --data->users;
  }
  IndexState(const IndexState&) = delete;
  IndexState& operator=(const IndexState&) = delete;

  KeyType key_type() const { return data->info.options.key_type; }
};

struct WorkerState {
  std::deque<std::coroutine_handle<>> ready;
  std::vector<Task<void>> spawned;
  Counters counters;
};

struct Internals {
  static WorkerState& of(const Worker& worker) { return *worker.state_; }
};

}  // namespace api

// ---- Options ----

namespace {

// The one setting of the format that this index knows.
constexpr std::string_view kFormatSetting = "leaf_bytes";

Status check_options(const IndexOptions& options) {
  if (options.kind != "sherman") {
    return fail(ErrorCode::kInvalidArgument, "no index kind '" + options.kind + "'");
  }
  for (const auto& [name, value] : options.settings) {
    if (name != kFormatSetting) {
      return fail(ErrorCode::kInvalidArgument, "no setting '" + name + "'");
    }
  }
  return {};
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t number = 0;
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    number = number * 10 + static_cast<std::uint64_t>(text[digits++] - '0');
  }
  const std::map<std::string_view, unsigned> units{{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  const auto unit = units.find(text.substr(digits));
  if (digits == 0 || digits > 12 || unit == units.end()) {
    return fail(ErrorCode::kInvalidArgument, "no size: '" + std::string(text) + "'");
  }
  return number << unit->second;
}

Result<std::uint64_t> parse_nodes(std::string_view query) {
  if (query.empty()) return 1;
  if (!query.starts_with("nodes=")) {
    return fail(ErrorCode::kInvalidArgument, "unknown option '" + std::string(query) + "'");
  }
  const auto nodes = parse_size(query.substr(6));
  if (!nodes || *nodes == 0) return fail(ErrorCode::kInvalidArgument, "nodes is no such number");
  return *nodes;
}

}  // namespace

Result<IndexOptions> IndexOptions::parse(std::string_view text) {
  IndexOptions options;
  const std::size_t colon = text.find(':');
  options.kind = text.substr(0, colon);
  if (options.kind.empty()) return fail(ErrorCode::kInvalidArgument, "no index kind");
  std::string_view rest = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == item.npos || equals == 0) {
      return fail(ErrorCode::kInvalidArgument, "no setting: '" + std::string(item) + "'");
    }
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (name != "keys") {
      options.settings[std::string(name)] = value;
    } else if (value == "integer" || value == "bytes") {
      options.key_type = value == "bytes" ? KeyType::kBytes : KeyType::kInteger;
    } else {
      return fail(ErrorCode::kInvalidArgument, "keys is integer or bytes");
    }
  }
  return options;
}

std::string IndexOptions::to_string() const {
  std::string text = kind + (key_type == KeyType::kBytes ? ":keys=bytes" : ":keys=integer");
  for (const auto& [name, value] : settings) text += "," + name + "=" + value;
  return text;
}

// ---- Pool ----

Result<Pool> Pool::open(std::string_view url, const PoolOptions& options) {
  constexpr std::string_view kScheme = "embedded:";
  if (!url.starts_with(kScheme)) {
    return fail(ErrorCode::kInvalidArgument, "no fabric for '" + std::string(url) + "'");
  }
  url.remove_prefix(kScheme.size());
  const std::size_t question = url.find('?');
  const auto size = parse_size(url.substr(0, question));
  if (!size) return fail(size.error());
  const auto nodes =
      parse_nodes(question == url.npos ? std::string_view() : url.substr(question + 1));
  if (!nodes) return fail(nodes.error());
  if (*size < 2 * kPoolTables) return fail(ErrorCode::kInvalidArgument, "the pool is too small");

  auto memory = std::make_shared<Memory>();
  memory->size = *size;
  memory->node_sizes.assign(*nodes, *size / *nodes);
  auto state = std::make_shared<api::PoolState>();
  state->memory = std::move(memory);
  state->options = options;
  state->first = true;
  return Pool(std::move(state));
}

Result<Pool> Pool::attach(const PoolOptions& options) const {
  auto state = std::make_shared<api::PoolState>();
  state->memory = state_->memory;
  state->options = options;
  return Pool(std::move(state));
}

Result<Index> Pool::create_index(std::string_view name, const IndexOptions& options) {
  if (const Status checked = check_options(options); !checked) return fail(checked.error());
  if (name.empty() || name.size() > 128) {
    return fail(ErrorCode::kInvalidArgument, "the name of an index has 1 to 128 bytes");
  }
  Memory& memory = *state_->memory;
  const std::lock_guard lock(memory.mutex);
  if (memory.indexes.contains(name)) {
    return fail(ErrorCode::kExists, "index '" + std::string(name) + "'");
  }
  auto data = std::make_shared<Data>();
  data->info = {std::string(name), options, 1};
  data->info.options.settings.try_emplace(std::string(kFormatSetting), "1024");
  memory.indexes.emplace(name, data);
  return Index(std::make_shared<api::IndexState>(state_, std::move(data)));
}

Result<Index> Pool::open_index(std::string_view name) {
  const std::lock_guard lock(state_->memory->mutex);
  const auto found = state_->memory->indexes.find(name);
  if (found == state_->memory->indexes.end()) {
    return fail(ErrorCode::kNotFound, "index '" + std::string(name) + "'");
  }
  return Index(std::make_shared<api::IndexState>(state_, found->second));
}

Result<Index> Pool::open_index(std::string_view name, const IndexOptions& options) {
  auto index = open_index(name);
  if (!index) return index;
  const IndexOptions& stored = index->info().options;
  if (stored.key_type != options.key_type) return fail(ErrorCode::kIncompatible, "keys differ");
  for (const auto& [setting, value] : options.settings) {
    if (stored.settings.at(setting) != value) {
      return fail(ErrorCode::kIncompatible, setting + " differs");
    }
  }
  return index;
}

Status Pool::drop_index(std::string_view name) {
  Memory& memory = *state_->memory;
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.indexes.find(name);
  if (found == memory.indexes.end()) {
    return fail(ErrorCode::kNotFound, "index '" + std::string(name) + "'");
  }
  if (found->second->users > 0 && !has_fault(Fault::kDropInUse)) {
    return fail(ErrorCode::kBusy, "index '" + std::string(name) + "' is open");
  }
  if (!has_fault(Fault::kMemoryLeak)) {
    for (const auto& [key, stored] : found->second->entries) {
      memory.used -= cost_of(key, stored.value);
    }
  }
  memory.indexes.erase(found);
  return {};
}

Result<std::vector<IndexInfo>> Pool::list_indexes() const {
  const std::lock_guard lock(state_->memory->mutex);
  std::vector<IndexInfo> infos;
  for (const auto& [name, data] : state_->memory->indexes) infos.push_back(data->info);
  return infos;
}

Result<PoolStats> Pool::stats() const {
  PoolStats stats;
  const std::lock_guard memory_lock(state_->memory->mutex);
  const std::lock_guard lock(state_->mutex);
  const std::uint64_t reserved =
      has_fault(Fault::kMemoryLeak) ? state_->memory->most_used : state_->memory->used;
  for (const std::uint64_t size : state_->memory->node_sizes) {
    const bool is_first = stats.memory_nodes.empty();
    stats.memory_nodes.push_back(
        {static_cast<std::uint16_t>(stats.memory_nodes.size()), size, is_first ? reserved : 0});
  }
  stats.operations = state_->operations;
  stats.compute.budget = std::max(state_->options.compute_budget, kFloor);
  stats.compute.bytes = stats.compute.budget / 2;
  if (has_fault(Fault::kOverBudget)) stats.compute.bytes = stats.compute.budget * 103 / 100;
  stats.compute.parts = {{"tables", stats.compute.bytes}};
  return stats;
}

Result<Worker> Pool::make_worker() const { return Worker(std::make_unique<api::WorkerState>()); }

// ---- Worker ----

Worker::Worker(std::unique_ptr<api::WorkerState> state) : state_(std::move(state)) {}
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::~Worker() = default;

void Worker::spawn(Task<void> task) {
  state_->ready.push_back(task.handle());
  state_->spawned.push_back(std::move(task));
}
void Worker::run() {
  while (!state_->ready.empty()) step();
  state_->spawned.clear();
}
void Worker::start(std::coroutine_handle<> task) { task.resume(); }
void Worker::step() {
  if (state_->ready.empty()) return;
  const std::coroutine_handle<> next = state_->ready.front();
  state_->ready.pop_front();
  next.resume();
}
Counters Worker::counters() const { return state_->counters; }

namespace {
struct YieldAwaiter {
  api::WorkerState& worker;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const { worker.ready.push_back(waiter); }
  void await_resume() const noexcept {}
};
}  // namespace

Task<void> Worker::yield() { co_await YieldAwaiter{*state_}; }

// ---- Index ----

namespace {

Status check_key(const api::IndexState& index, Key key) {
  if (key.negative()) return fail(ErrorCode::kInvalidArgument, "a negative key");
  if (key.type() != index.key_type()) return fail(ErrorCode::kInvalidArgument, "wrong key type");
  if (key.bytes().size() > kMaxKeyBytes) {
    return fail(ErrorCode::kInvalidArgument,
                "a key of " + std::to_string(key.bytes().size()) + " bytes");
  }
  return {};
}

Status check_value(std::string_view value) {
  if (value.size() <= kMaxValueBytes) return {};
  return fail(ErrorCode::kInvalidArgument, "a value of " + std::to_string(value.size()) + " bytes");
}

enum class Mode : std::uint8_t { kPut, kInsert, kUpdate };

Status store(api::IndexState& index, Key key, std::string_view value, Mode mode) {
  Memory& memory = *index.pool->memory;
  std::map<std::string, Stored>& entries = index.data->entries;
  const std::string bytes = stored_key(key);
  std::unique_lock lock(memory.mutex);
  bool present = entries.contains(bytes);
  if (mode == Mode::kInsert && has_fault(Fault::kInsertRace)) {
    // Looks, lets others run, then believes what it saw.
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    if (!present) mode = Mode::kPut;
    present = entries.contains(bytes);
  }
  if (mode == Mode::kInsert && present) return fail(ErrorCode::kExists);
  if (mode == Mode::kUpdate && !present) return fail(ErrorCode::kNotFound);
  if (present && has_fault(Fault::kLostUpdate) && memory.now_and_then()) return {};
  if (has_fault(Fault::kBigValuesCut)) value = value.substr(0, 65'535);

  const std::uint64_t added = cost_of(bytes, value);
  const std::uint64_t removed = present ? cost_of(bytes, entries[bytes].value) : 0;
  if (memory.used + added - removed > memory.size) {
    if (has_fault(Fault::kOutOfMemoryLosesAKey)) entries.erase(entries.begin());
    return fail(ErrorCode::kOutOfMemory, "no room for " + std::to_string(added) + " bytes");
  }
  memory.used += added - removed;
  memory.most_used += added;
  Stored& stored = entries[bytes];
  stored.replaced = present;
  stored.previous = std::exchange(stored.value, std::string(value));
  index.cache.insert_or_assign(bytes, stored.value);
  return {};
}

Status erase_key(api::IndexState& index, Key key) {
  Memory& memory = *index.pool->memory;
  const std::string bytes = stored_key(key);
  const std::lock_guard lock(memory.mutex);
  const auto found = index.data->entries.find(bytes);
  if (found == index.data->entries.end()) return fail(ErrorCode::kNotFound);
  if (has_fault(Fault::kEraseResurrects) && memory.now_and_then()) return {};
  if (!has_fault(Fault::kMemoryLeak)) memory.used -= cost_of(bytes, found->second.value);
  index.data->entries.erase(found);
  index.cache.erase(bytes);
  return {};
}

Result<std::string> look_up(api::IndexState& index, Key key) {
  Memory& memory = *index.pool->memory;
  const std::string bytes = stored_key(key);
  const std::lock_guard lock(memory.mutex);
  if (has_fault(Fault::kStaleCache) && !index.pool->first) {
    const auto cached = index.cache.find(bytes);
    if (cached != index.cache.end()) return cached->second;
  }
  const auto found = index.data->entries.find(bytes);
  if (found == index.data->entries.end()) return fail(ErrorCode::kNotFound);
  const Stored& stored = found->second;
  if (has_fault(Fault::kStaleRead) && stored.replaced && memory.now_and_then())
    return stored.previous;
  if (has_fault(Fault::kTornRead) && stored.replaced && memory.now_and_then()) {
    const std::size_t half = std::min(stored.value.size(), stored.previous.size()) / 2;
    return stored.value.substr(0, half) + stored.previous.substr(half);
  }
  index.cache.insert_or_assign(bytes, stored.value);
  return stored.value;
}

std::vector<Entry> collect(api::IndexState& index, Key from, std::size_t limit) {
  Memory& memory = *index.pool->memory;
  const std::lock_guard lock(memory.mutex);
  const std::map<std::string, Stored>& entries = index.data->entries;
  std::vector<Entry> found;
  for (auto at = entries.lower_bound(stored_key(from)); at != entries.end(); ++at) {
    if (found.size() >= limit) break;
    found.push_back({owned_key(index.key_type(), at->first), at->second.value});
  }
  if (found.size() > 2 && has_fault(Fault::kScanMisses) && memory.now_and_then()) {
    found.erase(found.begin() + 1);
  }
  if (found.size() > 2 && has_fault(Fault::kScanRepeats) && memory.now_and_then()) {
    found[1] = found[0];
  }
  if (found.size() > 2 && has_fault(Fault::kScanUnordered) && memory.now_and_then()) {
    std::swap(found[0], found[1]);
  }
  return found;
}

// Lets the worker's other tasks run before each operation, as a real round trip would.
struct OneOperation {
  Worker& worker;
  api::IndexState& index;
  Counters* cost;
  std::uint64_t round_trips;
  Task<void> begin() const {
    if (!api::Internals::of(worker).ready.empty())
      co_await YieldAwaiter{api::Internals::of(worker)};
    index.pool->count(cost, round_trips);
    api::Internals::of(worker).counters.round_trips += round_trips;
  }
};

std::uint64_t trips_of_get(const api::IndexState& index) {
  if (!has_fault(Fault::kExtraRoundTrip)) return 1;
  const std::lock_guard lock(index.pool->memory->mutex);
  return index.pool->memory->now_and_then() ? 2 : 1;
}

Status write(api::IndexState& index, Key key, std::string_view value, Mode mode) {
  if (Status checked = check_key(index, key); !checked) return checked;
  if (Status checked = check_value(value); !checked) return checked;
  return store(index, key, value, mode);
}

Result<std::string> read(api::IndexState& index, Key key) {
  if (const Status checked = check_key(index, key); !checked) return fail(checked.error());
  return look_up(index, key);
}

Status remove(api::IndexState& index, Key key) {
  if (Status checked = check_key(index, key); !checked) return checked;
  return erase_key(index, key);
}

Result<std::vector<Entry>> read_range(api::IndexState& index, Key from, std::size_t limit) {
  if (const Status checked = check_key(index, from); !checked) return fail(checked.error());
  return collect(index, from, limit);
}

Result<std::vector<std::optional<std::string>>> read_many(api::IndexState& index,
                                                          std::span<const Key> keys) {
  std::vector<std::optional<std::string>> answers;
  std::set<std::string> seen;
  for (const Key& key : keys) {
    const auto answer = read(index, key);
    if (!answer && answer.error().code() != ErrorCode::kNotFound) return fail(answer.error());
    const bool repeated = !seen.insert(order_bytes(key)).second;
    const bool dropped = repeated && has_fault(Fault::kMultiGetDropsRepeats);
    answers.push_back(answer && !dropped ? std::optional(*answer) : std::nullopt);
  }
  return answers;
}

}  // namespace

Result<std::string> Index::get(Key key, Counters* cost) const {
  state_->pool->count(cost, trips_of_get(*state_));
  return read(*state_, key);
}
Status Index::put(Key key, std::string_view value, Counters* cost) const {
  state_->pool->count(cost, 2);
  return write(*state_, key, value, Mode::kPut);
}
Status Index::insert(Key key, std::string_view value, Counters* cost) const {
  state_->pool->count(cost, 2);
  return write(*state_, key, value, Mode::kInsert);
}
Status Index::update(Key key, std::string_view value, Counters* cost) const {
  state_->pool->count(cost, 2);
  return write(*state_, key, value, Mode::kUpdate);
}
Status Index::erase(Key key, Counters* cost) const {
  state_->pool->count(cost, 2);
  return remove(*state_, key);
}
Result<std::vector<Entry>> Index::scan(Key from, std::size_t limit, Counters* cost) const {
  state_->pool->count(cost, 2);
  return read_range(*state_, from, limit);
}
Result<std::vector<std::optional<std::string>>> Index::multi_get(std::span<const Key> keys,
                                                                 Counters* cost) const {
  state_->pool->count(cost, 1);
  return read_many(*state_, keys);
}

Task<Result<std::string>> Index::get(Worker& worker, Key key, Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, trips_of_get(*state)}.begin();
  co_return read(*state, key);
}
Task<Status> Index::put(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 2}.begin();
  co_return write(*state, key, value, Mode::kPut);
}
Task<Status> Index::insert(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 2}.begin();
  co_return write(*state, key, value, Mode::kInsert);
}
Task<Status> Index::update(Worker& worker, Key key, std::string_view value, Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 2}.begin();
  co_return write(*state, key, value, Mode::kUpdate);
}
Task<Status> Index::erase(Worker& worker, Key key, Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 2}.begin();
  co_return remove(*state, key);
}
Task<Result<std::vector<Entry>>> Index::scan(Worker& worker, Key from, std::size_t limit,
                                             Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 2}.begin();
  co_return read_range(*state, from, limit);
}
Task<Result<std::vector<std::optional<std::string>>>> Index::multi_get(Worker& worker,
                                                                       std::span<const Key> keys,
                                                                       Counters* cost) const {
  const auto state = state_;
  co_await OneOperation{worker, *state, cost, 1}.begin();
  co_return read_many(*state, keys);
}

Range Index::range(Key from, std::optional<Key> until) const { return Range(state_, from, until); }
const IndexInfo& Index::info() const { return state_->data->info; }
IndexStats Index::stats() const { return {}; }
Status Index::check() const { return {}; }

// ---- Range ----

namespace {

// The smallest key after this one. A key of full length has no longer one behind it.
std::optional<std::string> successor_of(std::string key) {
  if (key.size() < kMaxKeyBytes) return key + '\0';
  while (!key.empty() && key.back() == '\xff') key.pop_back();
  if (key.empty()) return std::nullopt;
  key.back() = static_cast<char>(static_cast<unsigned char>(key.back()) + 1);
  return key;
}

}  // namespace

Range::Range(std::shared_ptr<api::IndexState> index, Key from, std::optional<Key> until)
    : index_(std::move(index)), next_(from) {
  if (until) until_.emplace(*until);
}

Range::Iterator Range::begin() {
  fetch();
  return Iterator(this);
}

void Range::advance() {
  if (++position_ == page_.size()) fetch();
}

void Range::fetch() {
  constexpr std::size_t kPage = 100;
  position_ = 0;
  page_.clear();
  if (!more_) return;
  auto found = read_range(*index_, next_, kPage);
  if (!found) {
    status_ = fail(found.error());
    return;
  }
  page_ = *std::move(found);
  more_ = page_.size() == kPage;
  if (!page_.empty()) {
    std::string after = order_bytes(page_.back().key);
    if (index_->key_type() == KeyType::kBytes) {
      const std::optional<std::string> successor = successor_of(std::move(after));
      more_ = more_ && successor.has_value();
      next_ = OwnedKey(successor.value_or(""));
    } else {
      const std::uint64_t last = page_.back().key.integer();
      more_ = more_ && last != ~std::uint64_t{0};
      next_ = OwnedKey(last + 1);
    }
  }
  if (!until_) return;
  const auto past_end = std::ranges::find_if(
      page_, [this](const Entry& entry) { return order_bytes(entry.key) >= order_bytes(*until_); });
  if (past_end != page_.end()) more_ = false;
  page_.erase(past_end, page_.end());
}

}  // namespace pando
