#include "fabric/etcd/registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace pando::fabric::etcd {
namespace {

constexpr std::size_t kAttempts = 64;  // each failure means that another node has got through
constexpr std::size_t kMaxName = 63;
constexpr auto kBetweenAttempts = std::chrono::seconds(1);

// What is taken, as last read: every id with its memory's life.
struct Taken {
  std::uint64_t next = 0;
  std::int64_t next_revision = 0;
  struct Id {
    std::uint64_t life;
    std::int64_t revision;
  };
  std::vector<std::pair<NodeId, Id>> ids;
};

// To go by an id that somebody else has written down would be to give one twice.
Error explained(const Error& error, const std::string& keys) {
  if (error.code() != ErrorCode::kDenied) return error;
  return {
      error.code(),
      fmt::format("{}. Where the cluster got its key only now, remove etcd's keys under {}, and "
                  "start the nodes with the memory that they had: they know their ids",
                  error.detail(), keys)};
}

}  // namespace

Status RegistryOptions::check() const {
  if (endpoints.empty()) {
    return fail(ErrorCode::kInvalidArgument, "etcd: its addresses are missing");
  }
  const bool word = std::ranges::all_of(cluster, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (cluster.empty() || cluster.size() > kMaxName || !word) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("cluster: '{}' is no name that etcd can keep; with etcd a cluster has "
                            "one of letters, digits, '-', '_' and '.', {} at most",
                            cluster, kMaxName));
  }
  return {};
}

std::string Registry::key(std::string_view part) const {
  return fmt::format("/pando/{}/{}", cluster_, part);
}

Result<std::vector<MemoryNodeRecord>> Registry::memory_nodes(std::optional<Error>* left_out) {
  const std::string prefix = key("nodes/");
  auto found = client_.range(prefix);
  if (!found) return fail(found.error());
  std::vector<MemoryNodeRecord> nodes;
  std::optional<Error> first;
  for (const KeyValue& entry : *found) {
    auto node = parse_memory_node(entry, prefix, signing());
    if (node) {
      nodes.push_back(std::move(*node));
    } else if (key_.empty()) {
      return fail(node.error());
    } else if (!first) {
      first = node.error();
    }
  }
  if (nodes.empty() && first) return fail(ErrorCode::kDenied, first->detail());
  if (left_out != nullptr) *left_out = std::move(first);
  std::ranges::sort(nodes, {}, &MemoryNodeRecord::id);
  return nodes;
}

Result<NodeId> Registry::enter(const MemoryNodeRecord& node, std::optional<NodeId> remembered,
                               Lease lease) {
  const std::string ids = key("ids/");
  for (std::size_t i = 0; i < kAttempts; ++i) {
    // In one answer, so that it was so at one moment.
    auto found = client_.range(key(""));
    if (!found) return fail(found.error());
    Taken taken;
    for (const KeyValue& entry : *found) {
      if (entry.key == key("next")) {
        const auto next = parse_number(entry.value, 10);
        if (!next) {
          return fail(ErrorCode::kCorrupt, fmt::format("etcd's key '{}' is no number", entry.key));
        }
        taken.next = *next;
        taken.next_revision = entry.revision;
      } else if (entry.key.starts_with(ids)) {
        const auto is = parse_life(entry, ids, signing());
        if (!is) return fail(explained(is.error(), key("")));
        taken.ids.push_back({is->id, {is->life, entry.revision}});
      }
    }

    std::vector<Unchanged> where;
    std::vector<Put> puts;
    std::optional<NodeId> id;
    for (const auto& [each, what] : taken.ids) {
      if (what.life == node.life) {
        id = each;
        where.push_back({ids + name_of(each), what.revision});
      } else if (remembered == each) {
        return fail(ErrorCode::kIncompatible,
                    fmt::format("this memory was memory node {} of cluster '{}', which in etcd is "
                                "another one now; was etcd set up anew? Its keys are under {}",
                                each, cluster_, key("")));
      }
    }
    if (!id) {
      const std::uint64_t wanted = remembered ? std::uint64_t{*remembered} : taken.next;
      if (wanted >= kMaxNodes) {
        return fail(ErrorCode::kOutOfMemory,
                    fmt::format("cluster '{}' has had {} memory nodes, and no id is given twice",
                                cluster_, kMaxNodes));
      }
      id = static_cast<NodeId>(wanted);
      where.push_back({key("next"), taken.next_revision});
      where.push_back({ids + name_of(*id), 0});
      puts.push_back({key("next"), std::to_string(std::max(taken.next, wanted + 1))});
      puts.push_back({ids + name_of(*id), write_life(*id, node.life, signing())});
    }
    MemoryNodeRecord record = node;
    record.id = *id;
    puts.push_back({key("nodes/") + name_of(*id), write_memory_node(record, signing()), lease});
    auto done = client_.transact(where, puts);
    if (!done) return fail(done.error());
    if (*done) return *id;
  }
  return fail(ErrorCode::kBusy, "others register with etcd all the time");
}

// ---- Registration ----

Registration::Registration(const RegistryOptions& options, MemoryNodeRecord node,
                           std::optional<NodeId> remembered, Events events)
    : registry_(options),
      node_(std::move(node)),
      remembered_(remembered),
      events_(std::move(events)) {
  thread_ = std::thread([this] { keep(); });
}

Registration::~Registration() {
  {
    const base::MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // Best effort: where etcd does not hear it, the lease runs out.
  if (lease_ != 0) (void)registry_.client().revoke(lease_);
}

Status Registration::first_attempt() {
  const base::MutexLock lock(mutex_);
  while (!first_) changed_.wait(mutex_);
  return *first_;
}

void Registration::keep() {
  while (!is_stopping()) {
    const Status attempted = attempt();
    note(attempted);
    const std::chrono::milliseconds pause =
        attempted ? std::chrono::milliseconds(kLeaseTime) / 4 : kBetweenAttempts;
    const auto until = std::chrono::steady_clock::now() + pause;
    const base::MutexLock lock(mutex_);
    if (!first_) {
      first_ = attempted;
      changed_.notify_all();
    }
    while (!stopping_ && changed_.wait_until(mutex_, until)) continue;
  }
}

bool Registration::is_stopping() {
  const base::MutexLock lock(mutex_);
  return stopping_;
}

Status Registration::attempt() {
  if (lease_ != 0) {
    const auto alive = registry_.client().keep_alive(lease_);
    if (!alive) return fail(alive.error());
    if (*alive) return {};
    lease_ = 0;  // etcd was away for longer than the lease, or has forgotten
  }
  const auto lease = registry_.client().grant(kLeaseTime);
  if (!lease) return fail(lease.error());
  const auto id = registry_.enter(node_, remembered_, *lease);
  if (!id) {
    (void)registry_.client().revoke(*lease);
    return fail(id.error());
  }
  lease_ = *lease;
  remembered_ = *id;
  if (events_.entered) events_.entered(*id);
  return {};
}

void Registration::note(const Status& attempted) {
  if (!attempted && !failing_ && events_.failed) events_.failed(attempted.error());
  failing_ = !attempted;
}

}  // namespace pando::fabric::etcd
