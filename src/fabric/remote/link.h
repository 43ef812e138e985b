// Link: one endpoint's connection to one memory node, and the verbs that wait for it or for their
// end.
//
// It begins with a socket and the handshake, comes back after a break, gives up in time, and keeps
// the client's generation. How verbs travel once the client is let in is up to those who derive
// from it: over the same socket (tcp), or beside it (rdma).
#pragma once

#include <poll.h>

#include <cassert>
#include <coroutine>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabric/remote/cluster.h"
#include "task/worker.h"

namespace pando::fabric::remote {

// A batch under way: it ends with the last of its node batches.
struct Flight {
  Batch* batch = nullptr;  // nullptr: abandoned
  std::size_t left = 0;    // node batches that have not ended
  task::TimePoint until;
  std::optional<Error> error;
};

// The verbs of a batch that go to one node in one message.
struct NodeBatch {
  Flight* flight = nullptr;
  std::vector<std::uint32_t> verbs;
};

// A fence under way: it is asked for at every node, and ends with the last answer. Lives with who
// waits for it.
struct Fencing {
  ClientId client = 0;
  task::TimePoint until;
  std::size_t left = 0;  // answers
  std::optional<Error> error;
  std::coroutine_handle<> waiter;
};

class Link {
 public:
  // Told of each node batch that has ended; what became of its verbs stands in the batch. And of
  // what the node says to a fence.
  class Owner {
   public:
    virtual void ended(NodeBatch node_batch, const Status& status) = 0;
    virtual void answered(Fencing& fencing, const Status& status) = 0;
    // WRITEs or atomics that were sent to the node may yet take effect, until something that goes
    // by a newer connection has.
    virtual void left_in_doubt(NodeId node) = 0;
    // Who polls the link.
    virtual task::Worker& worker() const = 0;

   protected:
    ~Owner() = default;
  };

  Link(Cluster& cluster, NodeId id, Owner& owner) : cluster_(cluster), id_(id), owner_(owner) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  void post(NodeBatch node_batch, task::TimePoint now);
  // Asks the node to fence. It lives until it was answered, or dropped with drop_waiting().
  void ask(Fencing& fencing, task::TimePoint now);
  // Sends, receives, connects and gives up, as far as can be done now.
  void poll(task::TimePoint now);
  // When poll() has something to do though nothing comes; TimePoint::max() where it has not.
  task::TimePoint due() const;
  bool idle() const { return sent_.empty() && waiting_.empty() && questions_.empty(); }
  // What is not sent is forgotten, and so are all fences.
  void drop_waiting();
  // Ends what is under way with this error, and has the node close what the client has open there.
  void break_off(const Error& error) { lost(error); }
  // As task::Poller has it. REQUIRES: not idle.
  virtual bool add_descriptors(std::vector<pollfd>& to) const;

 protected:
  enum class State : std::uint8_t { kDown, kComingIn, kUp };

  // ---- What those who derive do

  // The client is let in: verbs can travel at once (come_up()), or something comes first.
  virtual void let_in(const wire::Welcome& welcome) = 0;
  // Sends what waits, as much as can be on its way. REQUIRES: up.
  virtual void send_waiting() = 0;
  // What can be done now, while not down; talk() at least now and then.
  virtual void work(task::TimePoint now) = 0;
  // A message of the node's after the handshake. False: the link is down now.
  virtual bool take(const wire::Frame& frame, std::span<const std::byte> body) = 0;
  // Nothing of the connection is left, and nothing touches the memory of its verbs any more.
  virtual void close();

  // ---- What they use

  void come_up();
  // Sends and receives messages.
  void talk();
  // The connection cannot be used: what was sent ends.
  void lost(const Error& error);
  // Nothing can be had from this node: what waits ends, too.
  void refused(const Error& error);
  std::string name() const;
  // What a Refusal says. REQUIRES: connected.
  Error refusal(std::span<const std::byte> body) const {
    assert(handshake_);
    return handshake_->refusal(body);
  }

  Cluster& cluster() const { return cluster_; }
  NodeId id() const { return id_; }
  Owner& owner() const { return owner_; }
  State state() const { return state_; }
  wire::Outbox& outbox() { return outbox_; }
  std::deque<NodeBatch>& sent() { return sent_; }        // the oldest first
  std::deque<NodeBatch>& waiting() { return waiting_; }  // for the connection, or for room

 private:
  // A fence, and its number once it is sent.
  struct Question {
    Fencing* fencing = nullptr;
    std::uint64_t tag = 0;
  };

  bool renewed() const { return generation_ != cluster_.memory_node(id_).generation.load(); }
  task::Duration between_attempts() const;
  void look_again(task::TimePoint now);
  void connect(task::TimePoint now);
  bool receive();
  void hung_up(std::string_view what);
  bool come_in(const wire::Frame& frame, std::span<const std::byte> body);
  bool take_message(const wire::Frame& frame, std::span<const std::byte> body);
  void send_questions();
  bool take_answer(const wire::Frame& frame, std::span<const std::byte> body);
  template <class Ends>
  void end_questions(Ends ends, const Error& error);
  void end_waiting(const Error& error);
  void end_late(task::TimePoint now);
  Error stays_out() const;

  Cluster& cluster_;
  const NodeId id_;
  Owner& owner_;
  State state_ = State::kDown;
  wire::Socket socket_;
  wire::Inbox inbox_;
  wire::Outbox outbox_;
  std::optional<wire::ClientHandshake> handshake_;  // of this connection
  bool in_ = false;                                 // the node has let it in
  std::uint32_t generation_ = 0;
  std::deque<Question> questions_;
  std::uint64_t last_question_ = 0;
  std::deque<NodeBatch> sent_;
  std::deque<NodeBatch> waiting_;
  task::TimePoint connect_from_{};  // not earlier
  task::TimePoint used_at_{};
  std::optional<Error> last_failure_;
};

}  // namespace pando::fabric::remote
