#include "support/fault_fabric.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>

namespace pando::testing {

using fabric::Batch;
using fabric::kLineBytes;
using fabric::Outcome;
using fabric::Verb;
using fabric::VerbKind;

// ---- Faults

void Faults::count_from_here(Counted what) {
  const std::lock_guard guard(mutex_);
  counted_ = what;
  verbs_.clear();
}

std::vector<std::size_t> Faults::verbs() const {
  const std::lock_guard guard(mutex_);
  return verbs_;
}

void Faults::die_at(const StopAt& where) {
  const std::lock_guard guard(mutex_);
  death_ = where;
}

void Faults::die_now() {
  const std::lock_guard guard(mutex_);
  dead_ = true;
  changed_.notify_all();
}

bool Faults::dead() const {
  const std::lock_guard guard(mutex_);
  return dead_;
}

void Faults::hold_up_at(std::uint64_t verb) {
  const std::lock_guard guard(mutex_);
  hold_up_ = verb;
}

bool Faults::wait_until_held_up(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, at_most, [&] { return held_up_; });
}

void Faults::go_on() {
  const std::lock_guard guard(mutex_);
  hold_up_.reset();
  released_ = true;
  changed_.notify_all();
}

void Faults::hold_one_up_at(std::uint64_t verb) {
  const std::lock_guard guard(mutex_);
  verbs_.clear();
  hold_up_ = verb;
  one_ = true;
  released_ = false;
}

void Faults::cut(fabric::NodeId node, Fate fate) {
  const std::lock_guard guard(mutex_);
  cut_[node] = fate;
}

void Faults::mend(fabric::NodeId node) {
  const std::lock_guard guard(mutex_);
  cut_.erase(node);
}

std::optional<Fate> Faults::cut_off(fabric::NodeId node) const {
  const std::lock_guard guard(mutex_);
  const auto at = cut_.find(node);
  return at == cut_.end() ? std::nullopt : std::optional(at->second);
}

Faults::Permission Faults::next(std::size_t lines, StopAt& cut) {
  std::unique_lock lock(mutex_);
  if (dead_) return Permission::kDead;
  if (counted_ == Counted::kWrites && lines == 0) return Permission::kExecute;
  if (hold_up_ && verbs_.size() >= *hold_up_) {
    held_up_ = true;
    if (std::exchange(one_, false)) {
      hold_up_.reset();
      changed_.notify_all();
      changed_.wait(lock, [&] { return released_ || dead_; });
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return !hold_up_ || dead_; });
    held_up_ = false;
  }
  if (dead_) return Permission::kDead;
  if (death_ && verbs_.size() >= death_->verb) {
    dead_ = true;
    cut = *death_;
    return cut.lines == 0 ? Permission::kDead : Permission::kCutShort;
  }
  verbs_.push_back(std::max<std::size_t>(lines, 1));
  return Permission::kExecute;
}

namespace {

// A WRITE's part within one line.
struct Piece {
  std::size_t from;
  std::size_t length;
};

std::vector<Piece> lines_of(const Verb& verb) {
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < verb.length;) {
    const std::size_t in_line = (verb.target.offset() + at) % kLineBytes;
    const std::size_t length = std::min<std::size_t>(verb.length - at, kLineBytes - in_line);
    pieces.push_back({at, length});
    at += length;
  }
  return pieces;
}

// ---- Endpoint

class FaultEndpoint final : public fabric::Endpoint {
 public:
  FaultEndpoint(std::unique_ptr<fabric::Endpoint> inner, std::vector<std::uint64_t> node_sizes,
                std::shared_ptr<Faults> faults)
      : Endpoint(inner->caps(), inner->worker()),
        inner_(std::move(inner)),
        node_sizes_(std::move(node_sizes)),
        faults_(std::move(faults)) {}

  bool poll() override { return false; }  // batches complete inline
  bool pending() const override { return false; }
  void deliver() {
    for (Late& each : std::exchange(late_, {})) {
      if (each.verb.kind == VerbKind::kWrite) each.verb.local = each.bytes.data();
      (void)execute(each.verb);
    }
  }
  Task<Status> fence(fabric::ClientId client) override { return inner_->fence(client); }

 private:
  std::span<const std::uint64_t> memory_node_sizes() const override { return node_sizes_; }
  bool post(Batch& batch) override {
    bool broken = false;
    bool atomic = false;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Verb& verb = batch[i];
      if (const auto fate = faults_->cut_off(verb.target.node())) {
        lose(verb, *fate);
        broken = true;
        atomic |= fabric::is_atomic(verb.kind);
        continue;
      }
      std::erase_if(
          late_, [&](const Late& each) { return each.verb.target.node() == verb.target.node(); });
      const std::size_t lines = verb.kind == VerbKind::kWrite ? lines_of(verb).size() : 0;
      StopAt cut;
      const Faults::Permission permission = faults_->next(lines, cut);
      if (permission == Faults::Permission::kExecute) {
        if (Status done = execute(verb); !done) return give_up(batch, i, done.error());
        continue;
      }
      if (permission == Faults::Permission::kCutShort && verb.kind == VerbKind::kWrite) {
        write_some_lines(verb, cut);
      }
      return give_up(batch, i, Error(ErrorCode::kFenced, "the client is dead"));
    }
    if (broken) {
      report_in_doubt(batch);
      batch.complete(
          Error(atomic ? ErrorCode::kIndeterminate : ErrorCode::kUnavailable, "the link is cut"));
    } else {
      batch.complete();
    }
    return true;
  }

  // Over a link that is cut.
  void lose(Verb& verb, Fate fate) {
    const bool reads = verb.kind == VerbKind::kRead;
    if (!reads && fate == Fate::kHappensUnheard) (void)execute(verb);
    if (!reads && fate == Fate::kHappensLater) {
      Late late{.verb = verb};
      if (verb.kind == VerbKind::kWrite) late.bytes.assign(verb.local, verb.local + verb.length);
      late_.push_back(std::move(late));
    }
    verb.outcome = reads ? Outcome::kNotExecuted : Outcome::kIndeterminate;
    verb.previous = 0xdb;
  }

  // The outcome of a WRITE that was cut short is for nobody: its client is dead.
  static bool give_up(Batch& batch, std::size_t from, Error error) {
    for (std::size_t i = from; i < batch.size(); ++i) batch[i].outcome = Outcome::kNotExecuted;
    batch.complete(std::move(error));
    return true;
  }

  // Its data go through a buffer of the inner endpoint, which knows no other.
  Status execute(Verb& verb) {
    Batch one;
    const bool moves_data = verb.kind == VerbKind::kRead || verb.kind == VerbKind::kWrite;
    const fabric::Buffer buffer = inner_->buffer(moves_data ? verb.length : 8);
    switch (verb.kind) {
      case VerbKind::kRead:
        one.read(verb.target, buffer.data(), verb.length);
        break;
      case VerbKind::kWrite:
        std::memcpy(buffer.data(), verb.local, verb.length);
        one.write(verb.target, buffer.data(), verb.length);
        break;
      case VerbKind::kCompareSwap:
        one.compare_swap(verb.target, verb.compare, verb.swap);
        break;
      case VerbKind::kMaskedCompareSwap:
        one.masked_compare_swap(verb.target, verb.compare, verb.swap, verb.compare_mask,
                                verb.swap_mask, verb.guess);
        break;
      case VerbKind::kFetchAdd:
        one.fetch_add(verb.target, verb.swap);
        break;
    }
    if (Status done = submit_and_wait(one); !done) return done;
    if (verb.kind == VerbKind::kRead) std::memcpy(verb.local, buffer.data(), verb.length);
    verb.previous = one[0].previous;
    verb.outcome = Outcome::kExecuted;
    return {};
  }

  void write_some_lines(const Verb& verb, const StopAt& cut) {
    std::vector<Piece> pieces = lines_of(verb);
    std::mt19937_64 random(cut.line_order);
    std::ranges::shuffle(pieces, random);
    pieces.resize(std::min(pieces.size(), cut.lines));
    for (const Piece& piece : pieces) {
      Batch one;
      const fabric::Buffer buffer = inner_->buffer(piece.length);
      std::memcpy(buffer.data(), verb.local + piece.from, piece.length);
      one.write(verb.target + piece.from, buffer.data(), piece.length);
      (void)submit_and_wait(one);
    }
  }

  Status submit_and_wait(Batch& one) {
    if (!inner_->submit(one).await_ready()) {
      one.waiter = std::noop_coroutine();  // who waits is this loop
      while (one[0].outcome == Outcome::kPending) inner_->poll();
    }
    return one.status();
  }

  struct Late {
    Verb verb;
    std::vector<std::byte> bytes = {};
  };

  std::unique_ptr<fabric::Endpoint> inner_;
  const std::vector<std::uint64_t> node_sizes_;
  std::shared_ptr<Faults> faults_;
  std::vector<Late> late_;
};

// ---- Fabric

class FaultFabric final : public fabric::Fabric {
 public:
  FaultFabric(std::unique_ptr<fabric::Fabric> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  const fabric::Caps& caps() const override { return inner_->caps(); }
  fabric::ClientId client() const override { return inner_->client(); }
  std::size_t memory_node_count() const override { return inner_->memory_node_count(); }
  std::uint64_t memory_node_size(fabric::NodeId node) const override {
    return inner_->memory_node_size(node);
  }
  Result<std::unique_ptr<fabric::Endpoint>> open_endpoint(task::Worker& worker) override {
    auto endpoint = inner_->open_endpoint(worker);
    if (!endpoint) return fail(endpoint.error());
    std::vector<std::uint64_t> sizes(memory_node_count());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = memory_node_size(static_cast<fabric::NodeId>(i));
    }
    return std::make_unique<FaultEndpoint>(std::move(*endpoint), std::move(sizes), faults_);
  }
  // The other client has no faults.
  Result<std::unique_ptr<fabric::Fabric>> attach() override { return inner_->attach(); }

 private:
  std::unique_ptr<fabric::Fabric> inner_;
  std::shared_ptr<Faults> faults_;
};

}  // namespace

void deliver(fabric::Endpoint& endpoint) { dynamic_cast<FaultEndpoint&>(endpoint).deliver(); }

std::unique_ptr<fabric::Fabric> with_faults(std::unique_ptr<fabric::Fabric> inner,
                                            std::shared_ptr<Faults> faults) {
  return std::make_unique<FaultFabric>(std::move(inner), std::move(faults));
}

}  // namespace pando::testing
