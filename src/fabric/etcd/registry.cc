#include "fabric/etcd/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/parse.h"

namespace pando::fabric::etcd {
namespace {

using Json = nlohmann::json;

// Of one cluster, over all times: what fits the formats of indexes (Fabric::kMaxGrown).
constexpr std::uint64_t kMaxNodes = Fabric::kMaxGrown;
constexpr std::size_t kAttempts = 64;  // each failure means that another node has got through
constexpr std::size_t kMaxName = 63;
constexpr auto kBetweenAttempts = std::chrono::seconds(1);

std::string write_record(const NodeRecord& node) {
  Json places = Json::array();
  for (const wire::Place& place : node.places) places.push_back(place.to_string());
  return Json{{"life", fmt::format("{:016x}", node.life)},
              {"bytes", node.bytes},
              {"places", std::move(places)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::uint64_t> parse_number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || problem != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<NodeId> parse_id(std::string_view text) {
  const auto id = parse_number(text, 10);
  if (!id || *id >= kMaxNodes) return std::nullopt;
  return static_cast<NodeId>(*id);
}

std::optional<std::uint64_t> life_in(const Json& json) {
  const auto at = json.find("life");
  if (at == json.end() || !at->is_string()) return std::nullopt;
  return parse_number(at->get_ref<const std::string&>(), 16);
}

std::optional<NodeRecord> parse_record(const KeyValue& entry, std::string_view prefix) {
  const Json json = Json::parse(entry.value, nullptr, false);
  const auto id = parse_id(std::string_view(entry.key).substr(prefix.size()));
  if (!json.is_object() || !id) return std::nullopt;
  const auto life = life_in(json);
  const auto bytes = json.find("bytes");
  const auto places = json.find("places");
  if (!life || bytes == json.end() || !bytes->is_number_unsigned() || places == json.end() ||
      !places->is_array()) {
    return std::nullopt;
  }
  NodeRecord node{.id = *id, .life = *life, .bytes = bytes->get<std::uint64_t>(), .places = {}};
  for (const Json& text : *places) {
    if (!text.is_string()) return std::nullopt;
    auto place = wire::parse_place(text.get_ref<const std::string&>());
    if (!place) return std::nullopt;
    node.places.push_back(std::move(*place));
  }
  return node;
}

std::string name_of(NodeId id) { return fmt::format("{:05}", id); }

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

Result<std::vector<NodeRecord>> Registry::nodes() {
  const std::string prefix = key("nodes/");
  auto found = client_.range(prefix);
  if (!found) return fail(found.error());
  std::vector<NodeRecord> nodes;
  for (const KeyValue& entry : *found) {
    auto node = parse_record(entry, prefix);
    if (!node) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("etcd's key '{}' was written by something else than this version's "
                              "memory nodes: {}",
                              entry.key, entry.value.substr(0, 100)));
    }
    nodes.push_back(std::move(*node));
  }
  std::ranges::sort(nodes, {}, &NodeRecord::id);
  return nodes;
}

Result<NodeId> Registry::enter(const NodeRecord& node, std::optional<NodeId> remembered,
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
        const auto id = parse_id(std::string_view(entry.key).substr(ids.size()));
        const auto life = parse_number(entry.value, 16);
        if (!id || !life) {
          return fail(ErrorCode::kCorrupt, fmt::format("etcd's key '{}' is not ours: {}", entry.key,
                                                       entry.value.substr(0, 100)));
        }
        taken.ids.push_back({*id, {*life, entry.revision}});
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
      puts.push_back({ids + name_of(*id), fmt::format("{:016x}", node.life)});
    }
    puts.push_back({key("nodes/") + name_of(*id), write_record(node), lease});
    auto done = client_.transact(where, puts);
    if (!done) return fail(done.error());
    if (*done) return *id;
  }
  return fail(ErrorCode::kBusy, "others register with etcd all the time");
}

// ---- Registration ----

Registration::Registration(const RegistryOptions& options, NodeRecord node,
                           std::optional<NodeId> remembered, Events events)
    : registry_(options),
      node_(std::move(node)),
      remembered_(remembered),
      events_(std::move(events)) {
  thread_ = std::thread([this] { keep(); });
}

Registration::~Registration() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  // Best effort: where etcd does not hear it, the lease runs out.
  if (lease_ != 0) (void)registry_.client().revoke(lease_);
}

Status Registration::first_attempt() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return first_.has_value(); });
  return *first_;
}

void Registration::keep() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const Status attempted = attempt();
    note(attempted);
    lock.lock();
    if (!first_) {
      first_ = attempted;
      changed_.notify_all();
    }
    const std::chrono::milliseconds pause =
        attempted ? std::chrono::milliseconds(kLeaseTime) / 4 : kBetweenAttempts;
    changed_.wait_for(lock, pause, [this] { return stopping_; });
  }
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
