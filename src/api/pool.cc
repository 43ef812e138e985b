#include <stdexcept>

#include "api/state.h"
#include "fabric/open.h"
#include "index/creating.h"
#include "index/registry.h"
#include <pando/pando.h>

namespace pando {

Result<Pool> Pool::open(std::string_view url, const PoolOptions& options) {
  if (Status may = api::check_may_block("Pool::open"); !may) return fail(may.error());
  if (Status valid = options.check(); !valid) return fail(valid.error());
  Result<std::unique_ptr<fabric::Fabric>> fabric = fabric::open_fabric(url);
  if (!fabric) return fail(fabric.error());
  return api::PoolState::open_pool(std::move(*fabric), options);
}

Result<Pool> Pool::attach(const PoolOptions& options) const {
  if (Status may = api::check_may_block("Pool::attach"); !may) return fail(may.error());
  if (Status valid = options.check(); !valid) return fail(valid.error());
  Result<std::unique_ptr<fabric::Fabric>> fabric = state_->compute_node.fabric().attach();
  if (!fabric) return fail(fabric.error());
  return api::PoolState::open_pool(std::move(*fabric), options);
}

Result<Index> Pool::create_index(std::string_view name, const IndexOptions& options) {
  Result<std::shared_ptr<api::IndexState>> state = state_->create_index(name, options);
  if (!state) return fail(state.error());
  return Index(std::move(*state));
}

Result<Index> Pool::open_index(std::string_view name) {
  Result<std::shared_ptr<api::IndexState>> state = state_->open_index(name, nullptr);
  if (!state) return fail(state.error());
  return Index(std::move(*state));
}

Result<Index> Pool::open_index(std::string_view name, const IndexOptions& options) {
  Result<std::shared_ptr<api::IndexState>> state = state_->open_index(name, &options);
  if (!state) return fail(state.error());
  return Index(std::move(*state));
}

Status Pool::drop_index(std::string_view name) {
  if (Status may = api::check_may_block("drop_index"); !may) return may;
  return state_->run_on_session(
      [&](pool::Session& session) { return index::drop_index(session, std::string(name)); });
}

Result<std::vector<IndexInfo>> Pool::list_indexes() const {
  if (Status may = api::check_may_block("list_indexes"); !may) return fail(may.error());
  Result<std::vector<pool::IndexRecord>> records =
      state_->run([&](pool::Operation& op) { return state_->compute_node.catalogue().list(op); });
  if (!records) return fail(records.error());
  std::vector<IndexInfo> infos;
  for (const pool::IndexRecord& record : *records) {
    Result<IndexOptions> options = IndexOptions::parse(record.options);
    infos.push_back({record.name,
                     options ? std::move(*options) : IndexOptions{record.options, {}, {}},
                     record.format_version});
  }
  return infos;
}

Result<Worker> Pool::make_worker() const {
  Result<std::unique_ptr<api::Lane>> lane = state_->make_lane();
  if (!lane) return fail(lane.error());
  auto state = std::make_unique<api::WorkerState>();
  state->pool = state_;
  state->lane = std::move(*lane);
  return Worker(std::move(state));
}

Result<PoolStats> Pool::stats() const {
  if (Status may = api::check_may_block("Pool::stats"); !may) return fail(may.error());
  return state_->run([&](pool::Operation& op) { return state_->compute_node.stats(op); });
}

// --- Worker ---

namespace {

// There is no result that could say so, and going on may never end.
void check_may_run() {
  const Status may = api::check_may_block("Worker::run", "co_await the task, or spawn it");
  if (!may) throw std::logic_error(may.error().detail());
}

}  // namespace

Worker::Worker(std::unique_ptr<api::WorkerState> state) : state_(std::move(state)) {}
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::~Worker() = default;

void Worker::spawn(Task<void> task) { state_->lane->worker.spawn(std::move(task)); }
void Worker::run() {
  check_may_run();
  state_->lane->worker.run();
}
void Worker::start(std::coroutine_handle<> task) {
  check_may_run();
  state_->lane->worker.start(task);
}
void Worker::step() { state_->lane->worker.step(); }
Counters Worker::counters() const { return state_->lane->session->endpoint().counters(); }

Task<void> Worker::yield() { co_await state_->lane->worker.yield(); }

}  // namespace pando
