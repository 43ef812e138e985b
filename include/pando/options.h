// Options of pools and indexes. All are validated when a pool or index is opened, with a message
// that names the option.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <pando/key.h>
#include <pando/result.h>

namespace pando {

struct PoolOptions {
  // What this compute node may keep in its own memory: caches, lock tables, lists of free
  // blocks; everything but transfer buffers. Below 64 KiB, 64 KiB are used for the tables that
  // nothing works without, and no node is cached.
  std::uint64_t compute_budget = std::uint64_t{64} << 20;
  // An operation that has not ended by then answers kTimeout.
  std::chrono::milliseconds deadline{10'000};
  // A compute node whose heartbeat stands still for this long is suspected dead, fenced, and its
  // locks are taken over.
  std::chrono::milliseconds lease{1'000};
};

// An index kind with its settings. In text: `sherman`, `sherman:leaf_bytes=2048,handover=off`.
struct IndexOptions {
  std::string kind = "sherman";
  KeyType key_type = KeyType::kInteger;
  // Settings of the kind, by name; `pando indexes sherman` lists them. Those of the format are kept
  // with the index and must agree (or be absent) when it is opened; the others hold for this
  // compute node's handle alone.
  std::map<std::string, std::string, std::less<>> settings;

  // Parses the text form; the key type is a setting there: `sherman:keys=bytes`.
  static Result<IndexOptions> parse(std::string_view text);
  std::string to_string() const;
};

struct IndexInfo {
  std::string name;
  IndexOptions options;  // those of the format
  std::uint32_t format_version = 0;
};

}  // namespace pando
