// Client: asks etcd. Several endpoints of one etcd are tried in turn, beginning with the one that
// answered last. Every request ends in bounded time: kUnavailable where no endpoint answers or etcd
// has no quorum, kDenied where it wants to know who asks, kCorrupt where what answers is not etcd.
// Thread-safe, one request at a time.
//
// Why HTTP and not gRPC: the gateway is part of every etcd since 3.4, needs no generated code, and
// a registry asks about once a second.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "fabric/etcd/gateway.h"
#include <pando/result.h>

namespace pando::fabric::etcd {

// "http://a:2379,http://b:2379"; https too.
Result<std::vector<std::string>> parse_endpoints(std::string_view text);

class Client {
 public:
  // Connecting to one endpoint, and all of a request to it.
  static constexpr std::chrono::milliseconds kConnectTime{1000};
  static constexpr std::chrono::milliseconds kRequestTime{2000};

  explicit Client(std::vector<std::string> endpoints);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // All keys that begin with `prefix`, in their order.
  Result<std::vector<KeyValue>> range(std::string_view prefix);
  // Puts all, if all are unchanged, at once; false where one is not. After kUnavailable it may have
  // happened.
  Result<bool> transact(std::span<const Unchanged> where, std::span<const Put> puts);
  Result<Lease> grant(std::chrono::seconds time);
  Result<bool> keep_alive(Lease lease);  // false: it has run out
  Status revoke(Lease lease);

  // Ends the request under way and all later ones, soon.
  void cancel() { cancelled_.store(true); }

 private:
  struct Connection;
  Result<std::string> ask(const char* path, const std::string& request);

  const std::vector<std::string> endpoints_;
  std::atomic<bool> cancelled_{false};
  base::Mutex mutex_;
  std::size_t preferred_ PANDO_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Connection> connection_ PANDO_GUARDED_BY(mutex_);
};

}  // namespace pando::fabric::etcd
