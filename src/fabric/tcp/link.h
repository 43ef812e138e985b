// Link: one endpoint's connection to one memory node, and the verbs that wait for it or for its
// answers.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "fabric/tcp/cluster.h"
#include "task/worker.h"

namespace pando::fabric::tcp {

// A batch under way: it ends with the last of its parts.
struct Flight {
  Batch* batch = nullptr;  // nullptr: abandoned
  std::size_t parts = 0;
  task::TimePoint until;
  std::optional<Error> error;
};

// The verbs of a batch that go to one node in one message.
struct Part {
  Flight* flight = nullptr;
  std::vector<std::uint32_t> verbs;
};

class Link {
 public:
  // Told of each part that has ended; what became of its verbs stands in the batch.
  class Owner {
   public:
    virtual void ended(Part part, const Status& status) = 0;

   protected:
    ~Owner() = default;
  };

  Link(Cluster& cluster, NodeId id, Owner& owner) : cluster_(cluster), id_(id), owner_(owner) {}

  void post(Part part, task::TimePoint now);
  // Sends, receives, connects and gives up, as far as can be done now.
  void poll(task::TimePoint now);
  bool idle() const { return sent_.empty() && waiting_.empty(); }
  // What is not sent is forgotten.
  void drop_waiting();
  // Ends what is under way with this error, and has the node close what the client has open there.
  void break_off(const Error& error);

  int descriptor() const { return socket_.get(); }
  bool wants_to_send() const { return outbox_.waiting() > 0; }

 private:
  enum class State : std::uint8_t { kDown, kComingIn, kUp };

  void send_waiting();
  void connect(task::TimePoint now);
  bool receive();
  bool take(const wire::Frame& frame, std::span<const std::byte> body);
  void come_in(const wire::Frame& frame, std::span<const std::byte> body);
  void close();
  // The connection cannot be used: what was sent ends.
  void lost(const Error& error);
  // Nothing can be had from this node: what waits ends, too.
  void refused(const Error& error);
  void end_waiting(const Error& error);
  void end_late(task::TimePoint now);
  std::string name() const;

  Cluster& cluster_;
  const NodeId id_;
  Owner& owner_;
  State state_ = State::kDown;
  wire::Socket socket_;
  wire::Inbox inbox_;
  wire::Outbox outbox_;
  std::optional<wire::ClientHandshake> handshake_;
  std::uint32_t generation_ = 0;
  std::uint64_t region_key_ = 0;
  std::uint64_t last_tag_ = 0;
  std::uint64_t answered_tag_ = 0;
  std::deque<Part> sent_;           // the oldest first, as the answers come
  std::deque<Part> waiting_;        // for the connection
  task::TimePoint connect_from_{};  // not earlier
  std::optional<Error> last_failure_;
};

}  // namespace pando::fabric::tcp
