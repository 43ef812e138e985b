// Who comes to a memory node in tests: with a key, or as a stranger.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "fabric/open.h"
#include "fabric/wire/socket.h"
#include "support/memory_nodes.h"

namespace pando::fabric {

inline Error error_of_opening(const std::string& url) {
  const auto fabric = open_fabric(url);
  EXPECT_FALSE(fabric) << url;
  return fabric ? Error(ErrorCode::kNotFound) : fabric.error();
}

// A key in a file, as long as this lives.
class KeyFile {
 public:
  explicit KeyFile(const std::string& key) {
    std::ofstream(path_) << key << "\n";
    chmod(path_.c_str(), 0600);
  }
  ~KeyFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = ::testing::TempDir() + "pando-key-" + std::to_string(getpid());
};

// A connection that speaks for itself, by TLS where it is given a context.
class Stranger {
 public:
  explicit Stranger(const pando::testing::MemoryNodes& nodes, const wire::TlsContext* tls = nullptr)
      : place_(wire::parse_place(nodes.tcp_url().substr(4)).value()),
        socket_(wire::begin_connect(place_, tls).value()) {
    wait(POLLOUT);
  }
  void send(const wire::Bytes& bytes) {
    wire::Outbox outbox;
    outbox.bytes() = bytes;
    while (outbox.flush(socket_) && outbox.waiting() > 0) wait(POLLOUT);
  }
  // The node's next message; none: it has closed the connection.
  std::optional<wire::Frame> receive(wire::Bytes& body) {
    for (;;) {
      const auto frame = wire::parse_frame(inbox_.bytes(), wire::kMaxBytes).value();
      if (frame) {
        const auto at = inbox_.bytes().subspan(sizeof(wire::Frame), frame->bytes);
        body.assign(at.begin(), at.end());
        inbox_.drop(sizeof(wire::Frame) + frame->bytes);
        return frame;
      }
      wait(POLLIN);
      if (!inbox_.fill(socket_)) return std::nullopt;
    }
  }
  bool is_closed() {
    wire::Bytes body;
    return !receive(body).has_value();
  }

 private:
  void wait(short events) const {
    pollfd waiting = {.fd = socket_.get(), .events = socket_.events(events), .revents = 0};
    ASSERT_GT(::poll(&waiting, 1, 20'000), 0);
  }
  wire::Place place_;
  wire::Socket socket_;
  wire::Inbox inbox_;
};

}  // namespace pando::fabric
