#include "api/state.h"

#include <fmt/format.h>

#include "index/creating.h"
#include "index/registry.h"

namespace pando::api {

namespace {

std::size_t favourite_place() {
  static std::atomic<std::size_t> threads{0};
  thread_local const std::size_t kMine = threads.fetch_add(1, std::memory_order_relaxed);
  return kMine;
}

// The settings that are stored with an index.
IndexOptions format_options(const index::Kind& kind, const IndexOptions& all) {
  IndexOptions stored = all;
  for (const index::Setting& setting : kind.settings()) {
    if (!setting.format) stored.settings.erase(setting.name);
  }
  return stored;
}

// Stored settings with the given ones on top; those of the format must agree.
Result<IndexOptions> combine(const index::Kind& kind, const IndexOptions& stored,
                             const IndexOptions& given, std::string_view name) {
  if (given.kind != stored.kind) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("index '{}' is of kind {}, not {}", name, stored.kind, given.kind));
  }
  if (given.key_type != stored.key_type) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("keys: index '{}' has {} keys", name,
                            stored.key_type == KeyType::kBytes ? "bytes" : "integer"));
  }
  Result<IndexOptions> spelled = kind.normalize(given);
  if (!spelled) return fail(spelled.error());
  IndexOptions combined = stored;
  for (const auto& [key, text] : given.settings) {
    const auto at = stored.settings.find(key);
    const std::string& value = spelled->settings.find(key)->second;
    if (at != stored.settings.end() && at->second != value) {
      return fail(
          ErrorCode::kIncompatible,
          fmt::format("{}: index '{}' was created with {}, not {}", key, name, at->second, value));
    }
    combined.settings.insert_or_assign(key, text);
  }
  return kind.normalize(combined);
}

}  // namespace

Status check_may_block(std::string_view call, std::string_view instead) {
  if (!task::inside_task()) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} inside a coroutine would stop the worker that runs it: {}", call, instead));
}

Status check_may_block(std::string_view call) {
  return check_may_block(call, "call it before the tasks run, or on another thread");
}

Error PoolState::refuse_plain_call() {
  return check_may_block("a plain call", "co_await the form that takes the worker").error();
}

Result<std::shared_ptr<PoolState>> PoolState::open(std::unique_ptr<fabric::Fabric> fabric,
                                                   const PoolOptions& options) {
  std::shared_ptr<PoolState> state(new PoolState(std::move(fabric), options), [](PoolState* last) {
    task::run_outside_tasks([last] { delete last; });
  });
  Result<std::unique_ptr<Lane>> lane = state->make_lane();
  if (!lane) return fail(lane.error());
  Status opened = (*lane)->worker.run(state->compute_node.open(*(*lane)->session));
  if (!opened) return fail(opened.error());
  state->housekeeper_lane_ = std::move(*lane);
  if (state->compute_node.fabric().clock().simulated()) {
    Lane& own = *state->housekeeper_lane_;
    own.worker.spawn(state->compute_node.housekeeping(*own.session));
  } else {
    state->housekeeper_ = std::thread([self = state.get()] {
      Lane& own = *self->housekeeper_lane_;
      own.worker.run(self->compute_node.housekeeping(*own.session));
    });
  }
  // With the heart beating: it may take a while.
  if (Status stays = state->compute_node.fabric().stay(true); !stays) return fail(stays.error());
  return state;
}

Result<Pool> PoolState::open_pool(std::unique_ptr<fabric::Fabric> fabric,
                                  const PoolOptions& options) {
  Result<std::shared_ptr<PoolState>> state = open(std::move(fabric), options);
  if (!state) return fail(state.error());
  return Pool(std::move(*state));
}

PoolState::~PoolState() {
  // What they have under way ends before this compute node says that it leaves.
  for (auto& place : parked_) delete place.exchange(nullptr);
  spare_.clear();
  if (housekeeper_lane_ != nullptr) {
    // From here on the memory nodes need not remember it, should it not come to say that it leaves.
    Status passes = compute_node.fabric().stay(false);
    compute_node.stop();
    if (housekeeper_.joinable()) housekeeper_.join();
    housekeeper_lane_->worker.run();  // the simulated one
    // Where any of this fails, it is found out by the others, as after a crash.
    task::Worker& worker = housekeeper_lane_->worker;
    const Result<bool> all_given = worker.run(compute_node.rest(*housekeeper_lane_->session));
    // A memory node that could not be told would remember it for ever: once the slot is given up,
    // nobody fences it.
    if (all_given && !passes) passes = compute_node.fabric().stay(false);
    if (all_given && passes) {
      (void)worker.run(compute_node.give_up_slot(*housekeeper_lane_->session, *all_given));
    }
  }
}

Result<std::unique_ptr<Lane>> PoolState::make_lane() {
  auto lane = std::make_unique<Lane>(compute_node.fabric().clock());
  Result<std::unique_ptr<pool::Session>> session = compute_node.make_session(lane->worker);
  if (!session) return fail(session.error());
  lane->session = std::move(*session);
  return lane;
}

Result<std::unique_ptr<Lane>> PoolState::take_lane() {
  auto& place = parked_[favourite_place() % kParked];
  if (Lane* mine = place.exchange(nullptr, std::memory_order_acquire)) {
    return std::unique_ptr<Lane>(mine);
  }
  {
    const base::MutexLock lock(spare_mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<Lane> lane = std::move(spare_.back());
      spare_.pop_back();
      return lane;
    }
  }
  return make_lane();
}

void PoolState::return_lane(std::unique_ptr<Lane> lane) {
  auto& place = parked_[favourite_place() % kParked];
  Lane* nobody = nullptr;
  if (place.compare_exchange_strong(nobody, lane.get(), std::memory_order_release)) {
    (void)lane.release();
    return;
  }
  const base::MutexLock lock(spare_mutex_);
  spare_.push_back(std::move(lane));
}

Result<std::shared_ptr<IndexState>> PoolState::share(const pool::IndexRecord& record,
                                                     const IndexOptions& options,
                                                     std::unique_ptr<index::Tree> tree) {
  Result<const index::Kind*> kind = index::find_kind(options.kind);
  if (!kind) return fail(kind.error());
  auto* raw = new IndexState{shared_from_this(), record, {}, options, std::move(tree)};
  raw->info = {record.name, format_options(**kind, options), record.format_version};
  std::shared_ptr<IndexState> state(raw, [](IndexState* index) {
    task::run_outside_tasks([pool = index->pool, index] { pool->close_index(index); });
  });
  indexes_.insert_or_assign(record.name, state);
  return state;
}

void PoolState::close_index(IndexState* index) {
  const base::MutexLock lock(indexes_mutex_);
  const std::unique_ptr<IndexState> dying(index);
  const auto at = indexes_.find(index->info.name);
  // It may have been opened anew meanwhile; the catalogue counts.
  if (at != indexes_.end() && at->second.expired()) indexes_.erase(at);
  dying->tree.reset();
  (void)run([&](pool::Operation& op) { return compute_node.catalogue().close(op, dying->record); });
}

Result<std::shared_ptr<IndexState>> PoolState::create_index(std::string_view name,
                                                            const IndexOptions& options) {
  if (Status may = check_may_block("create_index"); !may) return fail(may.error());
  Result<const index::Kind*> kind = index::find_kind(options.kind);
  if (!kind) return fail(kind.error());
  Result<IndexOptions> spelled = (*kind)->normalize(options);
  if (!spelled) return fail(spelled.error());
  const std::string stored = format_options(**kind, *spelled).to_string();

  const base::MutexLock lock(indexes_mutex_);
  Result<index::Created> created = run_on_session([&](pool::Session& session) {
    return index::create_index(session, std::string(name), **kind, *spelled, stored);
  });
  if (!created) return fail(created.error());
  Result<pool::IndexRecord> opened =
      run([&](pool::Operation& op) { return compute_node.catalogue().open(op, name); });
  if (!opened) return fail(opened.error());
  if (opened->index_id != created->record.index_id) {
    (void)run([&](pool::Operation& op) { return compute_node.catalogue().close(op, *opened); });
    return fail(ErrorCode::kExists, fmt::format("index \"{}\", since just now", name));
  }
  return share(*opened, *spelled, std::move(created->tree));
}

Result<std::shared_ptr<IndexState>> PoolState::open_record(
    std::string_view name, const pool::IndexRecord& record, const IndexOptions* options,
    const std::shared_ptr<IndexState>& shared) {
  Result<IndexOptions> stored = IndexOptions::parse(record.options);
  if (!stored) return fail(ErrorCode::kCorrupt, "options: " + stored.error().detail());
  Result<const index::Kind*> kind = index::find_kind(stored->kind);
  if (!kind) return fail(ErrorCode::kIncompatible, kind.error().detail());
  if (record.format_version != (*kind)->format_version()) {
    return fail(ErrorCode::kIncompatible,
                fmt::format("index '{}' has format {} of {}; this program knows format {}", name,
                            record.format_version, stored->kind, (*kind)->format_version()));
  }
  Result<IndexOptions> all = combine(**kind, *stored, options ? *options : *stored, name);
  if (!all) return fail(all.error());
  if (shared && options == nullptr) return shared;
  if (shared) {
    for (const auto& [setting, value] : options->settings) {
      const std::string& now = shared->settings.settings.find(setting)->second;
      if (now != all->settings.find(setting)->second) {
        return fail(ErrorCode::kIncompatible,
                    fmt::format("{}: this compute node has index '{}' open with {}, not {}",
                                setting, name, now, value));
      }
    }
    return shared;
  }
  Result<std::unique_ptr<index::Tree>> tree = (*kind)->make(compute_node, record, *all);
  if (!tree) return fail(tree.error());
  return share(record, *all, std::move(*tree));
}

Result<std::shared_ptr<IndexState>> PoolState::open_index(std::string_view name,
                                                          const IndexOptions* options) {
  if (Status may = check_may_block("open_index"); !may) return fail(may.error());
  const base::MutexLock lock(indexes_mutex_);
  pool::Catalogue& catalogue = compute_node.catalogue();
  std::shared_ptr<IndexState> shared;
  if (const auto at = indexes_.find(name); at != indexes_.end()) shared = at->second.lock();
  Result<pool::IndexRecord> record =
      shared ? Result<pool::IndexRecord>(shared->record)
             : run([&](pool::Operation& op) { return catalogue.open(op, name); });
  if (!record) return fail(record.error());

  Result<std::shared_ptr<IndexState>> opened = open_record(name, *record, options, shared);
  if (!opened && !shared) {
    (void)run([&](pool::Operation& op) { return catalogue.close(op, *record); });
  }
  return opened;
}

}  // namespace pando::api
