// Peers: stores that anyone might use instead, run with the same operations, checks and threads as
// an index. LMDB and RocksDB are libraries; Redis and memcached are servers, each started by us on
// loopback for as long as it is used.
//
// The libraries keep their files in shared memory (no disk is involved), in a folder of their own
// that is removed with the target. Both keep integer keys as 8 big-endian bytes. Neither syncs
// anything.
//   lmdb     MDB_NOSYNC | MDB_NOMETASYNC | MDB_WRITEMAP; one transaction an operation; a read
//            transaction is reset and renewed, not made anew
//   rocksdb  a block cache of 2 GiB, no write-ahead log; all else as it comes. Inserts do not look
//            whether the key is present, which favours it
// The servers persist nothing, have one thread for requests, and know no scans. Clients keep their
// tasks' requests in flight on one connection, and send those together that are there together.
//   redis      SET and GET; inserts are SET NX
//   memcached  set, add and get, with keys as hexadecimal digits; as much memory as it may want
// For all, an update replaces without asking whether the key is present, which favours them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lab/target.h"
#include <pando/key.h>
#include <pando/result.h>

namespace pando::lab {

struct PeerOptions {
  KeyType key_type = KeyType::kInteger;
  std::uint64_t data_bytes = 0;  // keys and values expected in all, for stores that must know
};

std::span<const std::string_view> peer_names();
bool peer_scans(std::string_view name);  // whether it knows an order
// kInvalidArgument, naming those there are, for any other name.
Result<std::unique_ptr<Target>> open_peer(std::string_view name, const PeerOptions& options);

Result<std::unique_ptr<Target>> open_lmdb(const PeerOptions& options);
Result<std::unique_ptr<Target>> open_rocksdb(const PeerOptions& options);
// kUnavailable where the program is not on this machine.
Result<std::unique_ptr<Target>> open_redis(const PeerOptions& options);
Result<std::unique_ptr<Target>> open_memcached(const PeerOptions& options);

}  // namespace pando::lab
