#include "fabric/wire/control.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace pando::fabric::wire {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

ControlLink::ControlLink(ControlLink&& other) noexcept
    : socket_(std::move(other.socket_)),
      place_(std::move(other.place_)),
      inbox_(std::move(other.inbox_)),
      welcome_(other.welcome_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      last_tag_(other.last_tag_) {}

ControlLink& ControlLink::operator=(ControlLink&& other) noexcept {
  socket_ = std::move(other.socket_);
  place_ = std::move(other.place_);
  inbox_ = std::move(other.inbox_);
  welcome_ = other.welcome_;
  std::swap(descriptor_, other.descriptor_);
  last_tag_ = other.last_tag_;
  return *this;
}

ControlLink::~ControlLink() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<ControlLink> ControlLink::open(const Place& place, const std::string& key,
                                      std::string_view cluster, const Proof& wanted,
                                      std::chrono::milliseconds time, const TlsContext* tls) {
  const Deadline until = SteadyClock::now() + time;
  Result<Socket> socket = begin_connect(place, tls);
  if (!socket) return fail(socket.error());
  ControlLink link(std::move(*socket), place);
  if (Status made = link.wait_for(POLLOUT, until); !made) return fail(made.error());
  if (Status made = connected(link.socket_, place); !made) return fail(made.error());
  ClientHandshake handshake(key, cluster, wanted);
  Bytes out;
  handshake.begin(out);
  for (;;) {
    if (Status sent = link.send(std::move(out), until); !sent) return fail(sent.error());
    out.clear();
    Result<Frame> frame = link.receive(until);
    if (!frame) return fail(frame.error());
    Result<bool> done = handshake.take(*frame, link.body(*frame), out);
    link.inbox_.drop(sizeof(Frame) + frame->bytes);
    if (!done) {
      return fail(done.error().code(),
                  fmt::format("memory node at {}: {}", place.to_string(), done.error().detail()));
    }
    if (*done) break;
  }
  link.welcome_ = handshake.welcome();
  return link;
}

Status ControlLink::wait_for(short events, Deadline until) {
  if (wire::wait_for(socket_.get(), socket_.events(events), until)) return {};
  return fail(ErrorCode::kUnavailable,
              fmt::format("memory node at {} does not answer", place_.to_string()));
}

Status ControlLink::send(Bytes bytes, Deadline until) {
  Outbox outbox;
  outbox.bytes() = std::move(bytes);
  for (;;) {
    if (!outbox.flush(socket_)) break;
    if (outbox.waiting() == 0) return {};
    if (Status ready = wait_for(POLLOUT, until); !ready) return ready;
  }
  return fail(closed());
}

Error ControlLink::closed() const {
  if (const auto problem = socket_.problem()) {
    return {problem->code(),
            fmt::format("memory node at {}: {}", place_.to_string(), problem->detail())};
  }
  return {ErrorCode::kUnavailable,
          fmt::format("memory node at {} has closed the connection; its log says why",
                      place_.to_string())};
}

Result<Frame> ControlLink::receive(Deadline until) {
  for (;;) {
    auto frame = parse_frame(inbox_.bytes(), kMaxBytesOfStrangers);
    if (!frame) return fail(frame.error());
    if (*frame) return **frame;
    if (Status ready = wait_for(POLLIN, until); !ready) return fail(ready.error());
    bool open = true;
    if (place_.local() && descriptor_ < 0) {
      std::array<std::byte, kMaxBytesOfStrangers> bytes;
      const auto got = socket_.receive_with_descriptor(bytes, descriptor_);
      open = got.has_value();
      if (open) inbox_.put(std::span(bytes).first(*got));
    } else {
      open = inbox_.fill(socket_);
    }
    if (!open) return fail(closed());
  }
}

Status ControlLink::ask(Bytes request, std::uint64_t tag, std::chrono::milliseconds time) {
  const Deadline until = SteadyClock::now() + time;
  if (Status sent = send(std::move(request), until); !sent) return sent;
  Result<Frame> frame = receive(until);
  if (!frame) return fail(frame.error());
  const bool answers = frame->kind == Kind::kDone && frame->tag == tag;
  Status done = answers ? parse_status(body(*frame))
                        : Status(fail(ErrorCode::kCorrupt, "wire: an answer to something else"));
  inbox_.drop(sizeof(Frame) + frame->bytes);
  return done;
}

Status ControlLink::fence(ClientId client, std::chrono::milliseconds time) {
  Bytes request;
  append(request, Kind::kFence, std::uint64_t{client}, ++last_tag_);
  return ask(std::move(request), last_tag_, time);
}

Status ControlLink::leave(std::chrono::milliseconds time) {
  Bytes request;
  append_empty(request, Kind::kLeave, ++last_tag_);
  return ask(std::move(request), last_tag_, time);
}

Result<Door> ControlLink::enter(std::chrono::milliseconds time) {
  const Deadline until = SteadyClock::now() + time;
  Bytes request;
  append_empty(request, Kind::kEnter, ++last_tag_);
  if (Status sent = send(std::move(request), until); !sent) return fail(sent.error());
  Result<Frame> frame = receive(until);
  if (!frame) return fail(frame.error());
  Result<Door> door = parse_door(*frame, body(*frame));
  inbox_.drop(sizeof(Frame) + frame->bytes);
  return door;
}

}  // namespace pando::fabric::wire
