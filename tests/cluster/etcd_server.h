// EtcdServer: an etcd process of its own, on loopback, with its data in a temporary folder. Ended
// with the test.
#pragma once

#include <sys/types.h>

#include <string>

namespace pando::testing {

class EtcdServer {
 public:
  // Whether etcd is installed here.
  static bool installed();

  EtcdServer();  // starts it and waits until it answers; throws where it does not
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  const std::string& url() const { return url_; }
  void kill();
  // At the same address, with the data that it had. REQUIRES: killed.
  void start();
  // As if its disk had been lost. REQUIRES: killed.
  void lose_data();

 private:
  std::string folder_;
  std::string url_;
  std::string peer_url_;
  pid_t process_ = -1;
};

}  // namespace pando::testing
