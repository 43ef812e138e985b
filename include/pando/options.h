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
  // A heartbeat moves every 10 ms where all is well, but one lost segment of TCP costs 200 ms, and
  // a busy machine holds a thread up for some time slices: whoever waits for less than this takes
  // healthy compute nodes for dead, and shuts them out.
  static constexpr std::chrono::milliseconds kMinLease{250};
  // So long a dead compute node's locks are nobody's.
  static constexpr std::chrono::milliseconds kMaxLease{std::chrono::hours(1)};
  // A heartbeat: within less, epochs do not move on and no freed memory comes back.
  static constexpr std::chrono::milliseconds kMinDeadline{10};
  static constexpr std::chrono::milliseconds kMaxDeadline{std::chrono::hours(24)};

  // What this compute node may keep in its own memory: caches, lock tables, lists of free
  // blocks; everything but transfer buffers. Below 64 KiB, 64 KiB are used for the tables that
  // nothing works without, and no node is cached. At most what the machine has.
  std::uint64_t compute_budget = std::uint64_t{64} << 20;
  // An operation that has not ended by then answers kTimeout. Where it is shorter than the lease,
  // so do operations that meet a dead compute node's lock before it can be taken over.
  std::chrono::milliseconds deadline{10'000};
  // A compute node whose heartbeat stands still for this long is suspected dead, fenced, and its
  // locks are taken over. It is how long this compute node waits for the others, not how long they
  // wait for it: of several that differ, the shortest decides for all how long a pause may last.
  // Give every process of a pool the same.
  std::chrono::milliseconds lease{1'000};

  // kInvalidArgument, naming the option, its value and what would do, where they cannot work.
  Status check() const;
};

// An index kind with its settings. In text: `sherman`, `sherman:leaf_bytes=2048,handovers=0`.
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
