#include <fmt/format.h>

#include <algorithm>

#include "fabric/local_endpoint.h"
#include "fabric/node/loop.h"
#include "fabric/node/process.h"

namespace pando::fabric::node {

// ---- Pens ----

Result<std::size_t> Server::Loop::give_pen(const Connection& connection) {
  for (std::size_t i = 0; i < kMaxPens; ++i) {
    if (i == kServerPen || memory_.pen(i).client != 0) continue;
    Pen& pen = memory_.pen(i);
    pen.process = wire::peer_process(connection.socket);
    pen.started = process_started(pen.process);
    pen.length = 0;
    pen.client = connection.client;
    ++counts_.pens;
    return i;
  }
  return fail(ErrorCode::kBusy,
              fmt::format("{} threads map the memory node already", kMaxPens - 1));
}

void Server::Loop::take_pen(std::size_t pen) {
  const std::size_t finished = memory_.finish(pen);
  counts_.finished_stripes += finished;
  memory_.pen(pen).client = 0;
  --counts_.pens;
}

// Pens that were given by a former process of this node: when their own processes are gone, no
// connection tells.
void Server::Loop::look_at_pens() {
  orphans_ = 0;
  for (std::size_t i = 0; i < kMaxPens; ++i) {
    const Pen& pen = memory_.pen(i);
    if (i == kServerPen || pen.client == 0) continue;
    if (std::ranges::any_of(connections_,
                            [i](const auto& each) { return each.second->pen == i; })) {
      continue;
    }
    if (process_started(pen.process) == pen.started) {
      ++orphans_;
    } else {
      ++counts_.pens;  // the former process has counted it
      take_pen(i);
    }
  }
}

// ---- Work ----

bool Server::Loop::execute(Connection& connection, const wire::Frame& frame,
                           std::span<const std::byte> body) {
  const Status parsed =
      request_.parse(body, connection.region_key,
                     {.memory_bytes = memory_.bytes(), .onchip_bytes = memory_.onchip_bytes()});
  if (!parsed && parsed.error().code() != ErrorCode::kInvalidArgument) {
    return broken(connection, parsed.error());
  }
  if (!parsed) {
    wire::append_answer_error(connection.outbox.bytes(), frame.tag, parsed.error());
    return true;
  }
  execute_verbs(connection, frame.tag, request_.verbs(), request_.answer_bytes());
  ++counts_.batches;
  return true;
}

void Server::Loop::execute_verbs(Connection& connection, std::uint64_t tag, std::span<Verb> verbs,
                                 std::size_t answer_bytes) {
  wire::Answer answer(connection.outbox.bytes(), tag, answer_bytes);
  Counters done;
  for (Verb& verb : verbs) {
    const std::uint64_t offset = verb.target.offset_in_part();
    if (verb.kind == VerbKind::kRead) verb.local = answer.place_of_read();
    if (!fabric::execute(verb, verb.target.on_chip() ? onchip_lines_ : main_lines_, offset)) {
      answer.give_up(Error(ErrorCode::kUnavailable,
                           "a process that has stopped holds the memory that is asked for"));
      count(done);
      return;
    }
    answer.add(verb);
    fabric::count(done, verb);
  }
  answer.finish();
  count(done);
}

void Server::Loop::count(const Counters& done) {
  const auto add = [](std::atomic<std::uint64_t>& to, std::uint64_t number) {
    // This thread alone writes them.
    to.store(to.load(std::memory_order_relaxed) + number, std::memory_order_relaxed);
  };
  add(counts_.reads, done.reads);
  add(counts_.bytes_read, done.bytes_read);
  add(counts_.writes, done.writes);
  add(counts_.bytes_written, done.bytes_written);
  add(counts_.compare_swaps, done.compare_swaps);
  add(counts_.fetch_adds, done.fetch_adds);
}

}  // namespace pando::fabric::node
