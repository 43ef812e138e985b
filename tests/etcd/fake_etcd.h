// FakeEtcd: as much of etcd's gateway as a registry uses, on a thread of this process. Leases do
// not run out by themselves. One request a connection.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "fabric/etcd/gateway.h"
#include "fabric/wire/socket.h"

namespace pando::fabric::etcd {

class FakeEtcd {
 public:
  FakeEtcd();
  ~FakeEtcd();
  FakeEtcd(const FakeEtcd&) = delete;
  FakeEtcd& operator=(const FakeEtcd&) = delete;

  std::string url() const;
  // As if the lease had run out.
  void end_lease(Lease lease);
  void forget_everything();
  // Answers nothing from now on, or again.
  void set_away(bool away) { away_ = away; }

 private:
  struct Entry {
    std::string value;
    std::int64_t revision;
    Lease lease;
  };
  void serve();
  std::string answer(std::string_view path, std::string_view body);

  wire::Socket listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> away_{false};
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::map<Lease, bool> leases_;  // alive
  std::int64_t revision_ = 1;
  Lease last_lease_ = 100;
  std::thread thread_;
};

}  // namespace pando::fabric::etcd
