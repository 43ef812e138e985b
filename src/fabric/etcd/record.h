// What a registry keeps in etcd, as text (docs/formats/etcd.md), and who has written it.
//
// Whoever can write to etcd can write these keys, too. So with a key of the cluster, records are
// signed with it: HMAC-SHA-256 over all that a record says, its cluster and its id, so that one
// cannot stand for another. Without a key nothing is signed, and everything is believed.
//
// A signature says that a node of the cluster has written this once, not that it is still so: who
// writes to etcd can put an old record back.
//
// Pure functions. Whatever stands in etcd, they end with a result or an error, and never throw.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/etcd/gateway.h"
#include "fabric/verbs.h"
#include "fabric/wire/socket.h"
#include <pando/result.h>

namespace pando::fabric::etcd {

// A memory node that is there.
struct MemoryNodeRecord {
  NodeId id = 0;
  std::uint64_t life = 0;
  std::uint64_t bytes = 0;
  std::vector<wire::Place> places;
};

// Whose records they are. The key is empty where the cluster has none.
struct Signing {
  std::string_view cluster;
  std::string_view key;
};

// Ids below this one are given, over all times of a cluster: what fits the formats of indexes.
inline constexpr std::uint64_t kMaxNodes = Fabric::kMaxGrown;

std::optional<std::uint64_t> parse_number(std::string_view text, int base);
std::optional<NodeId> parse_id(std::string_view text);
std::string name_of(NodeId id);

// nodes/ID. kCorrupt: it is none of this version's. kDenied: it is not signed with the cluster's
// key. Both name the key of etcd.
std::string write_memory_node(const MemoryNodeRecord& node, const Signing& by);
Result<MemoryNodeRecord> parse_memory_node(const KeyValue& entry, std::string_view prefix,
                                           const Signing& by);

// ids/ID: which memory has the id. Errors as above.
std::string write_life(NodeId id, std::uint64_t life, const Signing& by);
struct TakenId {
  NodeId id;
  std::uint64_t life;
};
Result<TakenId> parse_life(const KeyValue& entry, std::string_view prefix, const Signing& by);

}  // namespace pando::fabric::etcd
