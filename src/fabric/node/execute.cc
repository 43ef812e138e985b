#include <fmt/format.h>

#include <algorithm>

#include "fabric/local_endpoint.h"
#include "fabric/node/loop.h"
#include "fabric/node/process.h"

namespace pando::fabric::node {

// ---- Redo slots ----

Result<std::size_t> Server::Loop::give_redo_slot(const Connection& connection) {
  for (std::size_t i = 0; i < kMaxRedoSlots; ++i) {
    if (i == kServerRedoSlot || memory_.redo_slot(i).client != 0) continue;
    RedoSlot& slot = memory_.redo_slot(i);
    slot.process = wire::peer_process(connection.socket);
    slot.started = process_started(slot.process);
    slot.length = 0;
    slot.client = connection.client;
    ++counts_.redo_slots;
    return i;
  }
  return fail(ErrorCode::kBusy,
              fmt::format("{} threads map the memory node already", kMaxRedoSlots - 1));
}

void Server::Loop::take_redo_slot(std::size_t slot) {
  const std::size_t finished = memory_.finish(slot);
  counts_.finished_stripes += finished;
  memory_.redo_slot(slot).client = 0;
  --counts_.redo_slots;
}

// Redo slots that were given by a former process of this node: when their own processes are gone,
// no connection tells.
void Server::Loop::look_at_redo_slots() {
  orphans_ = 0;
  for (std::size_t i = 0; i < kMaxRedoSlots; ++i) {
    const RedoSlot& slot = memory_.redo_slot(i);
    if (i == kServerRedoSlot || slot.client == 0) continue;
    if (std::ranges::any_of(connections_,
                            [i](const auto& each) { return each.second->redo_slot == i; })) {
      continue;
    }
    if (process_started(slot.process) == slot.started) {
      ++orphans_;
    } else {
      ++counts_.redo_slots;  // the former process has counted it
      take_redo_slot(i);
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
