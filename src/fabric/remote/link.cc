#include "fabric/remote/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>

#include "base/mutants.h"

namespace pando::fabric::remote {
namespace {

// To connect, within the time that an answer may take; but not for ever shorter times.
constexpr int kAttempts = 100;
constexpr task::Duration kLeastBetweenAttempts = std::chrono::microseconds(200);

// What is known of verbs that were sent and not answered.
void mark_unknown(Batch& batch, std::span<const std::uint32_t> verbs) {
  for (const std::uint32_t i : verbs) {
    batch[i].outcome = outcome_unanswered(batch[i].kind);
  }
}

void mark_not_executed(const NodeBatch& node_batch) {
  Batch* const batch = node_batch.flight->batch;
  if (batch == nullptr) return;
  for (const std::uint32_t i : node_batch.verbs) (*batch)[i].outcome = Outcome::kNotExecuted;
}

bool has_atomic(const Batch& batch, std::span<const std::uint32_t> verbs) {
  return std::ranges::any_of(verbs, [&](std::uint32_t i) { return is_atomic(batch[i].kind); });
}

}  // namespace

std::string Link::name() const {
  return fmt::format("memory node {} at {}", id_, cluster_.memory_node(id_).place().to_string());
}

// A connection that nobody has used for a while may have ended: better to know before anything is
// sent over it, whose outcome would be unknown.
void Link::look_again(task::TimePoint now) {
  const bool quiet = now - used_at_ > between_attempts();
  used_at_ = now;
  if (quiet && state_ == State::kUp && idle()) talk();
}

void Link::post(NodeBatch node_batch, task::TimePoint now) {
  look_again(now);
  // Somebody else's connection broke: this one will be closed by the node, too.
  if (state_ != State::kDown && renewed()) {
    lost(Error(ErrorCode::kUnavailable, name() + ": the connection is being renewed"));
  }
  waiting_.push_back(std::move(node_batch));
  if (state_ == State::kUp) {
    send_waiting();
  } else if (state_ == State::kDown) {
    connect(now);
  }
}

void Link::ask(Fencing& fencing, task::TimePoint now) {
  look_again(now);
  questions_.push_back({.fencing = &fencing});
  if (in_) {
    send_questions();
  } else if (state_ == State::kDown) {
    connect(now);
  }
}

void Link::send_questions() {
  for (Question& question : questions_) {
    if (question.tag != 0) continue;
    question.tag = ++last_question_;
    wire::append(outbox_.bytes(), wire::Kind::kFence, std::uint64_t{question.fencing->client},
                 question.tag);
  }
}

void Link::poll(task::TimePoint now) {
  if (idle() && state_ != State::kComingIn) return;
  // First: who has not looked for long, because it was stopped, finds answers that came in time.
  if (state_ != State::kDown) work(now);
  end_late(now);
  if (state_ == State::kDown && (!waiting_.empty() || !questions_.empty())) connect(now);
}

void Link::talk() {
  if (!outbox_.flush(socket_)) {
    hung_up(": " + wire::system_reason(errno));
    return;
  }
  while (receive()) {
  }
}

// True where there may be more.
bool Link::receive() {
  const std::size_t before = inbox_.bytes().size();
  if (!inbox_.fill(socket_)) {
    hung_up(" has closed the connection");
    return false;
  }
  const bool got_any = inbox_.bytes().size() > before;
  while (state_ != State::kDown) {
    const auto bytes = inbox_.bytes();
    auto frame = wire::parse_frame(bytes, wire::kMaxBytes);
    if (!frame) {
      lost(frame.error());
      return false;
    }
    if (!*frame) break;
    const auto body = bytes.subspan(sizeof(wire::Frame), (*frame)->bytes);
    if (!take_message(**frame, body)) return false;
    inbox_.drop(sizeof(wire::Frame) + (*frame)->bytes);
  }
  return got_any && state_ != State::kDown && !(sent_.empty() && questions_.empty());
}

// False: the link is down now.
bool Link::take_message(const wire::Frame& frame, std::span<const std::byte> body) {
  if (!in_) return come_in(frame, body);
  if (frame.kind == wire::Kind::kDone && take_answer(frame, body)) return true;
  return take(frame, body);
}

// False: it is none to a fence.
bool Link::take_answer(const wire::Frame& frame, std::span<const std::byte> body) {
  if (frame.tag == 0 || frame.tag > last_question_) return false;
  const auto question = std::ranges::find(questions_, frame.tag, &Question::tag);
  if (question == questions_.end()) return true;  // nobody waits for it any more
  Fencing& fencing = *question->fencing;
  questions_.erase(question);
  owner_.answered(fencing, wire::parse_status(body));
  return true;
}

task::TimePoint Link::due() const {
  if (idle()) return task::TimePoint::max();
  task::TimePoint first = task::TimePoint::max();
  if (!sent_.empty()) first = sent_.front().flight->until;
  if (!waiting_.empty()) first = std::min(first, waiting_.front().flight->until);
  for (const Question& each : questions_) first = std::min(first, each.fencing->until);
  first += task::Duration(1);  // it is late once that moment is over
  return state_ == State::kDown ? std::min(first, connect_from_) : first;
}

// ---- Coming in ----

task::Duration Link::between_attempts() const {
  return std::max(task::Duration(cluster_.options().timeout) / kAttempts, kLeastBetweenAttempts);
}

void Link::connect(task::TimePoint now) {
  if (now < connect_from_) return;
  connect_from_ = now + between_attempts();
  Cluster::MemoryNode& node = cluster_.memory_node(id_);
  Result<wire::Socket> socket = wire::begin_connect(node.place(), cluster_.tls(),
                                                    *cluster_.options().network, &owner_.worker());
  if (!socket) {
    last_failure_ = socket.error();
    return;
  }
  socket_ = std::move(*socket);
  generation_ = node.generation.load();
  handshake_.emplace(cluster_.handshake(id_, generation_));
  handshake_->begin(outbox_.bytes());
  state_ = State::kComingIn;
}

// False: the link is down now.
bool Link::come_in(const wire::Frame& frame, std::span<const std::byte> body) {
  Result<bool> in = handshake_->take(frame, body, outbox_.bytes());
  if (!in) {
    const Error error(in.error().code(), fmt::format("{}: {}", name(), in.error().detail()));
    if (error.code() == ErrorCode::kUnavailable) {
      lost(error);  // for now: it comes again
    } else {
      refused(error);
    }
    return false;
  }
  // Somebody else's connection broke while this one came in: nothing may be sent over it, since the
  // next one of theirs could be let in before what is sent here arrives.
  if (*in && renewed() && !base::mutated(base::Mutant::kOldGeneration)) {
    lost(Error(ErrorCode::kUnavailable, name() + ": the connection is being renewed"));
    return false;
  }
  if (*in) {
    in_ = true;
    let_in(handshake_->welcome());
    if (state_ != State::kDown) send_questions();
  }
  if (state_ != State::kDown && !outbox_.flush(socket_)) {
    hung_up(" went away");
  }
  return state_ != State::kDown;
}

void Link::come_up() {
  last_failure_.reset();
  state_ = State::kUp;
  send_waiting();
}

bool Link::add_descriptors(std::vector<pollfd>& to) const {
  assert(!idle());
  if (!socket_) return false;  // about to connect
  const auto events = static_cast<short>(POLLIN | (outbox_.waiting() > 0 ? POLLOUT : 0));
  to.push_back({.fd = socket_.get(), .events = socket_.events(events), .revents = 0});
  return true;
}

// ---- Ends ----

void Link::close() {
  socket_.close();
  inbox_ = {};
  outbox_ = {};
  handshake_.reset();
  in_ = false;
  state_ = State::kDown;
}

template <class Ends>
void Link::end_questions(Ends ends, const Error& error) {
  for (auto each = questions_.begin(); each != questions_.end();) {
    if (!ends(*each)) {
      ++each;
      continue;
    }
    Fencing& fencing = *each->fencing;
    each = questions_.erase(each);
    owner_.answered(fencing, fail(error));
  }
}

void Link::lost(const Error& error) {
  close();
  last_failure_ = error;
  end_questions([](const Question& each) { return each.tag != 0; }, error);
  if (sent_.empty()) return;
  // Before anyone hears of it: what comes afterwards goes by a newer generation.
  std::uint32_t old = generation_;
  cluster_.memory_node(id_).generation.compare_exchange_strong(old, old + 1);
  owner_.left_in_doubt(id_);
  std::deque<NodeBatch> sent = std::exchange(sent_, {});
  for (NodeBatch& node_batch : sent) {
    Batch* const batch = node_batch.flight->batch;
    ErrorCode code = error.code();
    if (batch != nullptr) {
      mark_unknown(*batch, node_batch.verbs);
      if (code == ErrorCode::kUnavailable && has_atomic(*batch, node_batch.verbs)) {
        code = ErrorCode::kIndeterminate;
      }
    }
    owner_.ended(std::move(node_batch), fail(code, error.detail()));
  }
}

// The connection is at its end; where TLS knows why, it may be for good.
void Link::hung_up(std::string_view what) {
  const std::optional<Error> problem = socket_.problem();
  if (!problem) {
    lost(Error(ErrorCode::kUnavailable, fmt::format("{}{}", name(), what)));
    return;
  }
  const Error error(problem->code(), fmt::format("{}: {}", name(), problem->detail()));
  if (error.code() == ErrorCode::kUnavailable) {
    lost(error);
  } else {
    refused(error);
  }
}

void Link::refused(const Error& error) {
  lost(error);
  end_waiting(error);
  end_questions([](const Question&) { return true; }, error);
}

void Link::end_waiting(const Error& error) {
  std::deque<NodeBatch> waiting = std::exchange(waiting_, {});
  for (NodeBatch& node_batch : waiting) {
    mark_not_executed(node_batch);
    owner_.ended(std::move(node_batch), fail(error));
  }
}

void Link::drop_waiting() {
  questions_.clear();
  end_waiting(Error(ErrorCode::kUnavailable));
}

void Link::end_late(task::TimePoint now) {
  if (!sent_.empty() && now > sent_.front().flight->until) {
    lost(Error(ErrorCode::kUnavailable, fmt::format("{} has not answered for {} ms", name(),
                                                    cluster_.options().timeout.count())));
  }
  while (!waiting_.empty() && now > waiting_.front().flight->until) {
    NodeBatch node_batch = std::move(waiting_.front());
    waiting_.pop_front();
    mark_not_executed(node_batch);
    owner_.ended(std::move(node_batch), fail(last_failure_ ? *last_failure_ : stays_out()));
    // The attempt may hang: begin anew with the next one.
    if (state_ == State::kComingIn) close();
  }
  const auto late = [&](const Question& each) { return now > each.fencing->until; };
  if (std::ranges::none_of(questions_, late)) return;
  const Error error = last_failure_ ? *last_failure_ : stays_out();
  // It hangs, or has died without anyone hearing of it: the next one is asked over another.
  if (sent_.empty()) lost(error);
  end_questions(late, error);
}

Error Link::stays_out() const {
  return {ErrorCode::kUnavailable,
          fmt::format("{} {}", name(), in_ ? "does not answer" : "does not let us in")};
}

}  // namespace pando::fabric::remote
