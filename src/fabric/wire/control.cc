#include "fabric/wire/control.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace pando::fabric::wire {

ControlLink::ControlLink(ControlLink&& other) noexcept
    : socket_(std::move(other.socket_)),
      place_(std::move(other.place_)),
      inbox_(std::move(other.inbox_)),
      outbox_(std::move(other.outbox_)),
      handshake_(std::move(other.handshake_)),
      welcome_(other.welcome_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      last_tag_(other.last_tag_),
      answers_(std::move(other.answers_)),
      end_(std::move(other.end_)) {}

ControlLink& ControlLink::operator=(ControlLink&& other) noexcept {
  socket_ = std::move(other.socket_);
  place_ = std::move(other.place_);
  inbox_ = std::move(other.inbox_);
  outbox_ = std::move(other.outbox_);
  handshake_ = std::move(other.handshake_);
  welcome_ = other.welcome_;
  std::swap(descriptor_, other.descriptor_);
  last_tag_ = other.last_tag_;
  answers_ = std::move(other.answers_);
  end_ = std::move(other.end_);
  return *this;
}

ControlLink::~ControlLink() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<ControlLink> ControlLink::open(const Place& place, const std::string& key,
                                      std::string_view cluster, const Proof& wanted,
                                      std::chrono::milliseconds time, const TlsContext* tls,
                                      Network& network) {
  Result<Socket> socket = begin_connect(place, tls, network);
  if (!socket) return fail(socket.error());
  ControlLink link(std::move(*socket), place);
  const Deadline until = link.in(time);
  if (Status made = link.wait_for(POLLOUT, until); !made) return fail(made.error());
  if (Status made = connected(link.socket_, place); !made) return fail(made.error());
  ClientHandshake& handshake = link.handshake_.emplace(key, cluster, wanted);
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
  if (socket_.wait_for(events, until)) return {};
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

// False: the connection is at its end.
bool ControlLink::receive_some() {
  if (!place_.local() || descriptor_ >= 0) return inbox_.fill(socket_);
  std::array<std::byte, kMaxBytesOfStrangers> bytes;
  const auto got = socket_.receive_with_descriptor(bytes, descriptor_);
  if (got) inbox_.put(std::span(bytes).first(*got));
  return got.has_value();
}

Result<Frame> ControlLink::receive(Deadline until) {
  for (;;) {
    auto frame = parse_frame(inbox_.bytes(), kMaxBytesOfStrangers);
    if (!frame) return fail(frame.error());
    if (*frame) return **frame;
    if (Status ready = wait_for(POLLIN, until); !ready) return fail(ready.error());
    if (!receive_some()) return fail(closed());
  }
}

// ---- Requests ----

std::uint64_t ControlLink::begin_fence(ClientId client) {
  append(outbox_.bytes(), Kind::kFence, std::uint64_t{client}, ++last_tag_);
  return last_tag_;
}

// Where sending fails, what has come may still say why.
void ControlLink::take_answers() {
  constexpr std::size_t kMostKept = 64;  // of those whose askers are gone
  const bool sends = outbox_.flush(socket_);
  while (!end_) {
    const auto frame = parse_frame(inbox_.bytes(), kMaxBytesOfStrangers);
    if (!frame) {
      end_ = frame.error();
    } else if (!*frame) {
      const std::size_t before = inbox_.bytes().size();
      if (!receive_some()) end_ = closed();
      if (inbox_.bytes().size() == before) break;
    } else {
      take_answer(**frame);
      inbox_.drop(sizeof(Frame) + (*frame)->bytes);
    }
  }
  if (!sends && !end_) end_ = closed();
  while (answers_.size() > kMostKept) answers_.erase(answers_.begin());
}

void ControlLink::take_answer(const Frame& frame) {
  if (frame.kind == Kind::kRefusal) {  // shut out
    end_ = handshake_->refusal(body(frame));
  } else if (frame.kind == Kind::kDone) {
    answers_.insert_or_assign(frame.tag, parse_status(body(frame)));
  } else {
    end_ = Error(ErrorCode::kCorrupt, "wire: an answer to something else");
  }
}

std::optional<Status> ControlLink::answer(std::uint64_t number) {
  take_answers();
  if (const auto found = answers_.extract(number)) return found.mapped();
  if (end_) return fail(*end_);
  return std::nullopt;
}

Status ControlLink::ask(std::uint64_t number, std::chrono::milliseconds time) {
  const Deadline until = in(time);
  for (;;) {
    if (const std::optional<Status> done = answer(number)) return *done;
    const short out = outbox_.waiting() > 0 ? POLLOUT : 0;
    if (Status ready = wait_for(static_cast<short>(POLLIN | out), until); !ready) return ready;
  }
}

Status ControlLink::fence(ClientId client, std::chrono::milliseconds time) {
  return ask(begin_fence(client), time);
}

Status ControlLink::stay(bool stays, std::chrono::milliseconds time) {
  append(outbox_.bytes(), Kind::kStay, std::uint64_t{stays ? 1u : 0u}, ++last_tag_);
  return ask(last_tag_, time);
}

Status ControlLink::leave(std::chrono::milliseconds time) {
  append_empty(outbox_.bytes(), Kind::kLeave, ++last_tag_);
  return ask(last_tag_, time);
}

Result<RdmaOffer> ControlLink::ask_for_rdma(std::chrono::milliseconds time) {
  const Deadline until = in(time);
  Bytes request;
  append_empty(request, Kind::kRdmaRequest, ++last_tag_);
  if (Status sent = send(std::move(request), until); !sent) return fail(sent.error());
  Result<Frame> frame = receive(until);
  if (!frame) return fail(frame.error());
  Result<RdmaOffer> offer = parse_rdma_offer(*frame, body(*frame));
  inbox_.drop(sizeof(Frame) + frame->bytes);
  return offer;
}

}  // namespace pando::fabric::wire
