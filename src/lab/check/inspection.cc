#include "lab/check/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "index/registry.h"
#include "pool/layout.h"
#include "pool/memory/census.h"
#include "pool/memory/ledger.h"
#include "pool/memory/recycler.h"

namespace pando::lab::check {
namespace {

// Runs and magazines that a compute node may have been taking when it died.
constexpr std::uint64_t kTakenAtOnce = 8 * pool::kChunkBytes;
// Of the plans' values and nodes.
constexpr std::uint64_t kLargestBlock = 8 << 10;
// Of a history, before it is given up as too hard: a second or so.
constexpr std::size_t kConfigurations = 300'000;

}  // namespace

void Inspection::inspect(const std::function<ComputeNode*()>& newcomer) {
  if (outcome_.failed()) return;
  wait_until_declared_dead();
  add_up_counts();
  ComputeNode* const inspector = lost_memory_ ? survivor() : newcomer();
  if (inspector == nullptr) return check_history();
  look_at_all(*inspector);
  // A newcomer, alone, learns only now whose locks may be left because they died.
  let_time_pass(3 * kLeaseTime);
  if (!lost_memory_) check_structure(*inspector);
  check_history();
  if (!lost_memory_) check_leaks(*inspector);
  check_fences();
}

// The dead are found out, and faults that are still to come have come and gone.
void Inspection::wait_until_declared_dead() {
  let_time_pass(kBuried);
  while (simulation_->time() < last_fault_ + kBuried) let_time_pass(kLeaseTime);
  faults_over_ = true;
}

void Inspection::add_up_counts() {
  for (const ComputeNode& node : nodes_) {
    if (node.index) outcome_.coverage.add_index_counts(node.index->stats().counts);
    for (const Crew& crew : node.crews) {
      outcome_.coverage.retries += crew.worker.counters().retries;
    }
  }
}

// ---- Looking

void Inspection::look_at_all(ComputeNode& inspector) {
  RecordedIndex& view = inspector.views.emplace_back(*inspector.index, recorder_, inspector.client);
  for (const OwnedKey& key : requests_.universe())
    look(inspector, view, {.kind = RequestKind::kGet, .key = key});
  // Each leaf is written, in any order: whatever was left half done there is found.
  const base::Permutation order(requests_.universe().size(), random_.next());
  for (std::size_t i = 0; i < requests_.universe().size(); ++i) {
    const OwnedKey& key = requests_.universe()[order(i)];
    look(inspector, view, {.kind = RequestKind::kPut, .key = key, .value = requests_.new_value()});
  }
  look_through(inspector, view);
  for (const OwnedKey& key : requests_.universe()) {
    if (random_.below(2) == 0) look(inspector, view, {.kind = RequestKind::kErase, .key = key});
  }
  look_through(inspector, view);
}

void Inspection::look_through(const ComputeNode& inspector, RecordedIndex& view) {
  constexpr std::size_t kPart = 1000;
  for (std::size_t i = 0; i < requests_.universe().size(); i += kPart) {
    look(inspector, view,
         {.kind = RequestKind::kScan, .key = requests_.universe()[i], .limit = kPart + 1});
  }
}

void Inspection::look(const ComputeNode& inspector, RecordedIndex& view, const Request& request) {
  note_ends();
  RequestSpan span(observer_, *simulation_, inspector.client, view, request);
  if (request.kind == RequestKind::kGet) span.end(view.get(request.key));
  if (request.kind == RequestKind::kPut) span.end(view.put(request.key, request.value));
  if (request.kind == RequestKind::kErase) span.end(view.erase(request.key));
  if (request.kind == RequestKind::kScan)
    span.end(view.scan(requests_.universe(), request.key, request.limit));
}

Inspection::ComputeNode* Inspection::survivor() {
  for (ComputeNode& node : nodes_) {
    if (!node.absent() && !simulation_->is_fenced(node.client)) return &node;
  }
  return nullptr;
}

// ---- Judging

void Inspection::check_structure(ComputeNode& node) {
  if (const Status sound = node.index->check(); !sound) {
    problem("the structure: " + sound.error().message());
  }
}

void Inspection::check_history() {
  const KeyedHistory history = recorder_.history();
  outcome_.history = history.operations();
  const Verdict verdict = history.check({.configurations = kConfigurations});
  if (verdict.linearizable()) return;
  if (verdict.kind == Verdict::Kind::kUndecided) {
    ++outcome_.coverage.undecided;
    return;
  }
  problem(verdict.explanation);
  outcome_.suspect.emplace(verdict.key, history.of_key(verdict.key));
}

void Inspection::check_fences() {
  for (const ComputeNode& node : nodes_) {
    if (node.struck || !simulation_->is_fenced(node.client)) continue;
    problem(fmt::format("compute node {} was taken for dead, though nothing had happened to it",
                        node.client));
  }
}

// ---- Counting memory

void Inspection::check_leaks(ComputeNode& inspector) {
  for (ComputeNode& node : nodes_) {
    if (node.absent()) continue;
    dismiss_all(node);
    node.index.reset();
  }
  const auto wait = [this] { let_time_pass(2 * kLeaseTime); };
  Status dropped = inspector.pool->drop_index(kCheckedIndex);
  for (int i = 0; i < 8 && !dropped && dropped.error().code() == ErrorCode::kBusy; ++i) {
    wait();  // those who died unseen have yet to be found out
    dropped = inspector.pool->drop_index(kCheckedIndex);
  }
  if (!dropped) {
    return problem("dropping the index: " + dropped.error().message());
  }
  if (plan_.faults.has(Fault::kIndexes)) side_indexes_->check(*inspector.pool, wait);
  // A long list of retired blocks waits in blocks of its own, until its epoch is over.
  for (int i = 0; i < 50 && unbalanced(); ++i) wait();
  if (unbalanced()) {
    problem(
        fmt::format("{} blocks were allocated and {} freed, though the index is gone; {} tasks "
                    "were dropped",
                    allocated(), freed(), cut_short_));
  }
  count_memory(inspector);
}

void Inspection::count_memory(ComputeNode& inspector) {
  let_time_pass(kBuried);  // what the dead held free is given back
  std::vector<const pool::Allocator*> living;
  for (const ComputeNode& node : nodes_) {
    if (node.absent() || simulation_->is_fenced(node.client)) continue;
    living.push_back(&node.allocator());
  }
  if (short_of_memory()) {  // all that there is
    api::Internals::of(*inspector.pool).compute_node.recycler().request();
    let_time_pass(4 * kLeaseTime);
  }
  const auto count = [&] {
    simulation_->set_instant(true);
    simulation_->set_alone(true);
    auto counted = api::Internals::of(*inspector.pool).run([&](pool::Operation& op) {
      return pool::take_census(op, living);
    });
    simulation_->set_alone(false);
    simulation_->set_instant(false);
    return counted;
  };
  auto census = count();
  for (int i = 0; i < 50 && !census && census.error().code() == ErrorCode::kBusy; ++i) {
    let_time_pass(2 * kLeaseTime);  // memory is being recycled
    census = count();
  }
  if (!census) return problem("counting free memory: " + census.error().message());
  for (const std::string& twice : census->twice) problem(twice);
  for (const std::string& unfinished : census->unfinished) problem(unfinished);
  outcome_.coverage.lost_bytes += census->other;
  add_up_recyclings();
  if (const Losses most = may_be_lost(); census->other > most.bytes()) {
    problem(fmt::format("{} bytes of far memory are lost, of which faults explain {}: {}",
                        census->other, most.bytes(), most.describe()));
  }
}

void Inspection::add_up_recyclings() {
  for (const ComputeNode& node : nodes_) {
    outcome_.coverage.recovered_blocks += node.pool ? node.allocator().recovered() : node.recovered;
    if (node.pool) {
      outcome_.coverage.recyclings +=
          api::Internals::of(*node.pool).compute_node.recycler().rounds();
      outcome_.coverage.recycled_chunks +=
          api::Internals::of(*node.pool).compute_node.recycler().chunks();
    }
  }
}

std::uint64_t Inspection::Losses::bytes() const {
  return ledgers * pool::Ledger::kMaxPages * sizeof(pool::LedgerPage) + in_hand * kLargestBlock +
         unknown * pool::kChunkBytes + dead * kTakenAtOnce + held + unlisted;
}

std::string Inspection::Losses::describe() const {
  return fmt::format(
      "{} blocks in hand, {} runs or magazines and {} ledgers of unknown outcome, {} dead that "
      "held {} bytes, {} bytes that a full pool had no room to list",
      in_hand, unknown, ledgers, dead, held, unlisted);
}

Inspection::Losses Inspection::may_be_lost() const {
  Losses losses;
  for (const ComputeNode& node : nodes_)
    losses.unlisted += node.left_behind ? *node.left_behind : 0;
  if (!lossy()) return losses;
  losses.in_hand = allocated() - std::min(allocated(), freed());
  losses.unknown = watch_.unknown_takings();
  losses.ledgers = watch_.unknown_ledgers();
  for (const ComputeNode& node : nodes_) {
    if (!node.held && !simulation_->is_fenced(node.client)) continue;
    ++losses.dead;
    losses.held += node.pool ? held_bytes(node.allocator()) : node.held_bytes;
  }
  return losses;
}

bool Inspection::broken() const {
  const CheckCoverage& seen = outcome_.coverage;
  return seen.kills + seen.pauses + seen.cuts + seen.restarts + seen.losses > 0;
}

// Blocks of the dead, and those of unknown outcome, are not given back; nor are those that the
// last WRITE of a dropped task was about to link or unlink.
bool Inspection::unbalanced() const {
  const index::Kind& kind = *index::find_kind(plan_.index.kind).value();
  const std::uint64_t most = broken() ? allocated() : kind.blocks_linked_at_once() * cut_short_;
  return freed() > allocated() || allocated() - freed() > most;
}

std::uint64_t Inspection::allocated() const {
  std::uint64_t sum = 0;
  for (const ComputeNode& node : nodes_)
    sum += node.pool ? node.allocator().allocated() : node.allocated;
  return sum;
}

std::uint64_t Inspection::freed() const {
  std::uint64_t sum = 0;
  for (const ComputeNode& node : nodes_) sum += node.pool ? node.allocator().freed() : node.freed;
  return sum;
}

}  // namespace pando::lab::check
