#include "lab/targets/peers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace pando::lab {

namespace {

constexpr std::array<std::string_view, 4> kPeers = {"lmdb", "rocksdb", "redis", "memcached"};

}  // namespace

std::span<const std::string_view> peer_names() { return kPeers; }

bool peer_scans(std::string_view name) { return name == "lmdb" || name == "rocksdb"; }

Result<std::unique_ptr<Target>> open_peer(std::string_view name, const PeerOptions& options) {
  if (name == "lmdb") return open_lmdb(options);
  if (name == "rocksdb") return open_rocksdb(options);
  if (name == "redis") return open_redis(options);
  if (name == "memcached") return open_memcached(options);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("no peer '{}'; there are {}", name, fmt::join(peer_names(), ", ")));
}

}  // namespace pando::lab
