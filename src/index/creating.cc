#include "index/creating.h"

#include <utility>

#include "index/registry.h"
#include "pool/operation.h"

namespace pando::index {
namespace {

using pool::IndexRecord;
using pool::Operation;
using pool::Session;

using MadeTree = Result<std::unique_ptr<Tree>>;

MadeTree tree_of(pool::ComputeNode& compute_node, const IndexRecord& record) {
  Result<IndexOptions> options = IndexOptions::parse(record.options);
  if (!options) return fail(options.error());
  Result<const Kind*> kind = find_kind(options->kind);
  if (!kind) return fail(kind.error());
  Result<IndexOptions> all = (*kind)->normalize(*options);
  if (!all) return fail(all.error());
  return (*kind)->make(compute_node, record, *all);
}

// Of an index that is being dropped. Where it is damaged, what is left of its blocks is lost, not
// the name. Where memory nodes do not answer, neither: dropping it again goes on.
Task<Status> free_blocks(Session& session, const IndexRecord& record, Tree& tree) {
  pool::Catalogue& catalogue = session.compute_node().catalogue();
  Status freed = co_await tree.destroy(session);
  Operation op(session);
  if (!freed && (freed.error().code() == ErrorCode::kUnavailable ||
                 freed.error().code() == ErrorCode::kIndeterminate ||
                 freed.error().code() == ErrorCode::kTimeout)) {
    (void)co_await catalogue.pause_drop(op, record);
    co_return freed;
  }
  Status finished = co_await catalogue.finish_drop(op, record);
  co_return finished ? freed : finished;
}

// `half`: only where it has been dropped by half.
Task<Status> drop(Session& session, const std::string& name, bool half) {
  pool::Catalogue& catalogue = session.compute_node().catalogue();
  Result<IndexRecord> record = half ? co_await catalogue.resume_drop(session, name)
                                    : co_await catalogue.begin_drop(session, name);
  if (!record) co_return fail(record.error());
  const MadeTree tree = tree_of(session.compute_node(), *record);
  if (tree) co_return co_await free_blocks(session, *record, **tree);
  // The kind or format is unknown here: the blocks are lost, not the name.
  Operation op(session);
  Status finished = co_await catalogue.finish_drop(op, *record);
  co_return finished ? Status(fail(tree.error())) : finished;
}

Task<Result<IndexRecord>> begin(Session& session, const std::string& name, const Kind& kind,
                                const std::string& stored) {
  for (bool half_dropped = false;; half_dropped = true) {
    Result<IndexRecord> begun = co_await session.compute_node().catalogue().begin_create(
        session, name, kind.format_version(), stored);
    if (begun || begun.error().code() != ErrorCode::kBusy || half_dropped) co_return begun;
    const Status dropped = co_await drop(session, name, true);
    if (!dropped && dropped.error().code() != ErrorCode::kNotFound) co_return fail(dropped.error());
  }
}

Task<Status> build(Session& session, Tree& tree) {
  pool::ComputeNode& compute_node = session.compute_node();
  const task::TimePoint deadline = session.worker().now() + compute_node.options().deadline;
  for (bool again = false;; again = true) {
    Status built;
    {
      Operation op(session);
      built = co_await tree.create(op);
    }
    if (built || built.error().code() != ErrorCode::kOutOfMemory) co_return built;
    if (!co_await compute_node.allocator().reclaimed(session, deadline, again)) co_return built;
  }
}

// An error: it is not there, or nobody knows; then the next create or drop of the name finds out.
Task<Status> publish(Session& session, const IndexRecord& record, Tree& tree) {
  pool::Catalogue& catalogue = session.compute_node().catalogue();
  Status withdrawn;
  Status published;
  {
    Operation op(session);
    published = co_await catalogue.publish(op, record);
    if (published) co_return published;
    withdrawn = co_await catalogue.withdraw(op, record);
  }
  // It may have happened though its answer was lost: then there is nothing to take back.
  if (!withdrawn && withdrawn.error().code() == ErrorCode::kNotFound) co_return Status{};
  if (withdrawn) (void)co_await free_blocks(session, record, tree);
  co_return published;
}

}  // namespace

Task<Result<Created>> create_index(Session& session, std::string name, const Kind& kind,
                                   IndexOptions settings, std::string stored) {
  Result<IndexRecord> record = co_await begin(session, name, kind, stored);
  if (!record) co_return fail(record.error());
  MadeTree tree = kind.make(session.compute_node(), *record, settings);
  const Status built = tree ? co_await build(session, **tree) : Status(fail(tree.error()));
  if (!built) {
    Operation op(session);
    (void)co_await session.compute_node().catalogue().abandon(op, *record);
    co_return fail(built.error());
  }
  if (Status published = co_await publish(session, *record, **tree); !published) {
    co_return fail(published.error());
  }
  co_return Created{std::move(*record), std::move(*tree)};
}

Task<Status> drop_index(Session& session, std::string name) {
  co_return co_await drop(session, name, false);
}

}  // namespace pando::index
