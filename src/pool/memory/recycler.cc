#include "pool/memory/recycler.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/mutex.h"
#include "pool/compute_node.h"
#include "pool/format.h"
#include "pool/layout.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/shared_stack.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::kLineBytes;
using fabric::NodeId;

// At one look: so that the heart beats, and the epoch moves, between them.
constexpr std::size_t kMagazinesAtOnce = 512;
constexpr std::size_t kChunksAtOnce = 16;
constexpr std::size_t kZerosAtOnce = 64 << 10;
constexpr std::uint64_t kLeastZeros = 4 << 10;
constexpr task::Duration kFirstWait = std::chrono::microseconds(50);
constexpr task::Duration kLongestWait = std::chrono::milliseconds(1);

constexpr Address kHolderWord = tables_field(offsetof(PoolTables, recycler_word));
constexpr Address kCallWord = tables_field(offsetof(PoolTables, call_word));

Address taken_address(NodeId node, std::size_t of_class) {
  return superblock_field(node, offsetof(Superblock, taken_words) + of_class * 8);
}

Address stack_of(NodeId node, std::size_t of_class) {
  return stack_address(node, kind_at(of_class), size_class_at(of_class));
}

std::vector<std::uint64_t> words_of(const std::byte* from, std::size_t count) {
  std::vector<std::uint64_t> words(count);
  std::memcpy(words.data(), from, count * 8);
  return words;
}

}  // namespace

Recycler::Holder Recycler::Holder::from_word(std::uint64_t word) {
  return {.owner = static_cast<OwnerId>(word >> 32),
          .edition = static_cast<std::uint32_t>(word >> 8) & 0xff'ff'ff,
          .phase = static_cast<Phase>(word & 0xff)};
}

std::uint64_t Recycler::Holder::word() const {
  return std::uint64_t{owner} << 32 | std::uint64_t{edition & 0xff'ff'ff} << 8 |
         static_cast<std::uint64_t>(phase);
}

// ---- Asking for it ----

void Recycler::request() {
  requested_.store(true);
  node_.wake();
}

bool Recycler::exhausted(task::TimePoint now) {
  const base::MutexLock lock(mutex_);
  if (!serving_.load()) return true;
  // Until the next one may begin, what has been freed meanwhile does not count.
  return in_vain_ && (now < ended_at_ + lasted_ || node_.allocator().freed() == freed_then_);
}

Task<bool> Recycler::recycle(Session& session, task::TimePoint until) {
  task::Worker& worker = session.worker();
  if (!serving_.load()) co_return false;
  bool known = false;
  {
    const base::MutexLock lock(mutex_);
    known = in_vain_;
    const bool nothing_new = in_vain_ && node_.allocator().freed() == freed_then_;
    if (nothing_new && worker.now() < ended_at_ + task::Duration(node_.options().lease)) {
      co_return false;
    }
  }
  const std::uint64_t progress = progress_.load();
  // One that is under way may have taken the stacks before the caller's blocks came to them.
  const std::uint64_t end = ends_.load() + (running_.load() || others_.load() ? 2 : 1);
  request();
  for (task::Duration wait = kFirstWait; serving_.load();
       wait = std::min<task::Duration>(2 * wait, kLongestWait)) {
    if (progress_.load() != progress) co_return true;
    if (ends_.load() >= end) co_return !known;
    if (worker.now() >= until) break;
    co_await worker.sleep_for(wait);
  }
  co_return false;
}

// ---- The housekeeper's look ----

Task<Status> Recycler::look(Operation& op) {
  const PoolView view = node_.membership().view();
  observe(view);
  co_await answer(op, view);
  Status done;
  if (!mine_) done = co_await begin(op, view);
  if (mine_ && done) done = co_await step(op, view);
  busy_ = mine_ || requested_.load() || view.call_word >> 8 > answered_;
  co_return done;
}

// Recycling by others ends, too.
void Recycler::observe(const PoolView& view) {
  if (view.recycler_word == seen_word_) return;
  const Holder before = Holder::from_word(std::exchange(seen_word_, view.recycler_word));
  const Holder now = Holder::from_word(seen_word_);
  const OwnerId self = node_.membership().self();
  others_.store(now.owner != 0 && now.owner != self);
  if (before.owner == self || now.owner == self) return;
  // Between two looks it may have gone through several phases.
  const bool freed = before.phase != Phase::kPuttingBack || before.edition != now.edition;
  if (now.phase == Phase::kZeroing || (now.owner == 0 && freed)) progress_.fetch_add(1);
  if (now.owner == 0) ends_.fetch_add(1);
}

Task<void> Recycler::answer(Operation& op, const PoolView& view) {
  const std::uint64_t number = view.call_word >> 8;
  if (number <= answered_) co_return;
  switch (static_cast<Call>(view.call_word & 0xff)) {
    case Call::kGiveBack:
      if (!co_await node_.allocator().give_back_free(op)) co_return;
      break;
    case Call::kForget:
      if (!co_await has_forgotten(op, number)) co_return;
      break;
  }
  answered_ = number;
  node_.membership().answer(number);
}

// The operation that looks now began before the caches were emptied, the first time.
Task<bool> Recycler::has_forgotten(Operation& op, std::uint64_t number) {
  if (forgotten_ != number) {
    node_.budget().forget();
    stamp_ = node_.epochs().stamp_barrier();
    forgotten_ = number;
    co_return false;
  }
  if (node_.epochs().oldest_pin_barrier() <= stamp_) co_return false;
  if (node_.abandoned_locks().any() || node_.in_doubt().any()) co_return false;
  co_return co_await node_.allocator().bring_ledger_up_to_date(op);
}

// ---- Phases ----

Task<Status> Recycler::begin(Operation& op, const PoolView& view) {
  Holder holder = Holder::from_word(view.recycler_word);
  const OwnerId self = node_.membership().self();
  if (holder.owner == self && view.recycler_word == given_up_) co_return Status{};  // an old view
  if (holder.owner == self) {  // by a swap whose outcome was not known
    mine_ = doubtful_ = taken_over_ = true;
    holder_ = holder;
    entered_ = Phase::kIdle;
    began_ = op.worker().now();
    co_return Status{};
  }
  const task::TimePoint now = op.worker().now();
  taken_over_ = holder.owner != 0;
  if (taken_over_) {
    if (!view.recycler_gone) co_return Status{};
    const bool undo = holder.phase != Phase::kTaking && holder.phase < Phase::kPuttingBack;
    if (undo) holder.phase = Phase::kPuttingBack;
  } else {
    if (!requested_.load() || !serving_.load()) co_return Status{};
    {
      const base::MutexLock lock(mutex_);
      if (now < ended_at_ + lasted_) co_return Status{};  // no more than half of the time
    }
    requested_.store(false);
    ++holder.edition;
    holder.phase = Phase::kCalling;
  }
  holder.owner = self;
  began_ = now;
  freed_at_start_ = node_.allocator().freed();
  Batch batch(op.cost());
  batch.compare_swap(kHolderWord, view.recycler_word, holder.word());
  if (Status swapped = co_await op.submit(batch); !swapped) {
    if (!taken_over_) requested_.store(true);
    co_return swapped;
  }
  if (!batch[0].succeeded()) {
    if (!taken_over_) requested_.store(true);  // another one was faster: look again
    co_return Status{};
  }
  mine_ = true;
  doubtful_ = false;
  holder_ = holder;
  entered_ = Phase::kIdle;
  running_.store(true);
  co_return Status{};
}

Task<Status> Recycler::advance(Operation& op, Phase phase) {
  Holder next = holder_;
  next.phase = phase;
  if (phase == Phase::kIdle) next.owner = 0;
  Batch batch(op.cost());
  batch.compare_swap(kHolderWord, holder_.word(), next.word());
  Status swapped = co_await op.submit(batch);
  doubtful_ = !swapped || !batch[0].succeeded();
  if (doubtful_) co_return swapped;
  if (phase == Phase::kIdle) given_up_ = holder_.word();
  holder_ = next;
  if (phase == Phase::kIdle) ended();
  co_return Status{};
}

void Recycler::ended() {
  mine_ = false;
  running_.store(false);
  node_.budget().give_back(BudgetUse::kFreeLists, counts_.capacity() * sizeof(Count));
  counts_ = {};
  cursor_ = {};
  const task::TimePoint now = since_;
  {
    const base::MutexLock lock(mutex_);
    in_vain_ = nothing_whole_;
    freed_then_ = freed_at_start_;
    ended_at_ = now;
    lasted_ = now - began_;
  }
  nothing_whole_ = false;
  rounds_.fetch_add(1, std::memory_order_relaxed);
  ends_.fetch_add(1);
}

void Recycler::enter() {
  cursor_ = {};
  zeroed_ = 0;
  zeros_in_a_batch_ = kChunkBytes;
  call_ = 0;
  nodes_ = node_.memory_nodes().all();
  if (holder_.phase != Phase::kPuttingBack && holder_.phase != Phase::kForgetting) {
    short_runs_.clear();
  }
  if (holder_.phase <= Phase::kCounting) chosen_ = 0;
}

Task<Status> Recycler::step(Operation& op, const PoolView& view) {
  if (doubtful_) {
    const auto word = co_await read_word(op, kHolderWord);
    if (!word) co_return fail(word.error());
    const Holder now = Holder::from_word(*word);
    doubtful_ = false;
    if (now.owner != node_.membership().self()) {
      since_ = op.worker().now();
      ended();
      co_return Status{};
    }
    if (now.phase != holder_.phase) holder_ = now;
    running_.store(true);
  }
  if (entered_ != holder_.phase) {
    entered_ = holder_.phase;
    enter();
    since_ = op.worker().now();
  }
  switch (holder_.phase) {
    case Phase::kIdle:
      co_return Status{};
    case Phase::kCalling:
      co_return co_await call(op, view);
    case Phase::kTaking:
      co_return co_await take_chains(op);
    case Phase::kCounting:
      co_return co_await count(op);
    case Phase::kForgetting:
      co_return co_await await_forgetting(op, view);
    case Phase::kPuttingBack:
      co_return co_await put_back(op);
    case Phase::kTurning:
      co_return co_await turn(op);
    case Phase::kZeroing:
      co_return co_await zero(op);
  }
  co_return Status{};
}

// ---- Calling ----

Task<Status> Recycler::raise(Operation& op, Call what, const PoolView& view) {
  for (std::uint64_t before = view.call_word;;) {
    const std::uint64_t number = (before >> 8) + 1;
    Batch batch(op.cost());
    batch.compare_swap(kCallWord, before, number << 8 | static_cast<std::uint64_t>(what));
    if (Status raised = co_await op.submit(batch); !raised) co_return raised;
    if (batch[0].succeeded()) {
      call_ = number;
      co_return Status{};
    }
    before = batch[0].previous;
  }
}

Task<Status> Recycler::call(Operation& op, const PoolView& view) {
  if (!serving_.load()) co_return co_await advance(op, Phase::kPuttingBack);
  if (call_ == 0) co_return co_await raise(op, Call::kGiveBack, view);
  const bool late = op.worker().now() - since_ >= task::Duration(node_.options().lease) / 4;
  if (view.answered < call_ && !late) co_return Status{};
  co_return co_await advance(op, Phase::kTaking);
}

Task<Status> Recycler::await_forgetting(Operation& op, const PoolView& view) {
  if (call_ == 0) co_return co_await raise(op, Call::kForget, view);
  if (view.answered >= call_ && !view.dead_ledgers) co_return co_await advance(op, Phase::kTurning);
  const bool late = op.worker().now() - since_ >= 2 * task::Duration(node_.options().lease);
  if (!late && serving_.load()) co_return Status{};
  co_return co_await advance(op, Phase::kPuttingBack);
}

// ---- Taking ----

Task<Status> Recycler::take_chains(Operation& op) {
  for (const NodeId node : nodes_) {
    if (Status taken = co_await take_chains(op, node); !taken) co_return taken;
  }
  co_return co_await advance(
      op, taken_over_ || !serving_.load() ? Phase::kPuttingBack : Phase::kCounting);
}

// By what is there, so that it can be begun anew at any point.
Task<Status> Recycler::take_chains(Operation& op, NodeId node) {
  constexpr std::size_t kBytes = kClasses * 8;
  Buffer buffer = op.buffer(2 * kBytes);
  for (;;) {
    Batch look(op.cost());
    look.read(stack_of(node, 0), buffer.data(), kBytes);
    look.read(taken_address(node, 0), buffer.data() + kBytes, kBytes);
    if (Status read = co_await op.submit(look); !read) co_return read;
    const std::vector<std::uint64_t> stacks = words_of(buffer.data(), kClasses);
    const std::vector<std::uint64_t> taken = words_of(buffer.data() + kBytes, kClasses);
    std::vector<std::uint64_t> places(kClasses);
    Batch batch(op.cost());
    for (std::size_t i = 0; i < kClasses; ++i) {
      places[i] = stack_place(stacks[i]);
      if (stack_sealed(stacks[i])) {
        batch.write_word(taken_address(node, i), &places[i]);
        batch.compare_swap(stack_of(node, i), stacks[i], next_stack_word(stacks[i], 0, false));
      } else if (places[i] != 0 && taken[i] == 0) {
        batch.compare_swap(stack_of(node, i), stacks[i],
                           next_stack_word(stacks[i], places[i], true));
      }
    }
    if (batch.empty()) co_return Status{};
    if (Status done = co_await op.submit(batch); !done) co_return done;
  }
}

// ---- Counting ----

std::size_t Recycler::chunks_on(NodeId node) const {
  const std::uint64_t size = node_.fabric().memory_node_size(node);
  return (size - first_chunk_of(node, size)) / kChunkBytes;
}

std::uint64_t Recycler::chunk_at(NodeId node, std::size_t chunk) const {
  return first_chunk_of(node, node_.fabric().memory_node_size(node)) + chunk * kChunkBytes;
}

std::size_t Recycler::chunk_of(Address address) const {
  return (address.offset() - chunk_at(address.node(), 0)) / kChunkBytes;
}

// The taken words and chunk states of the cursor's memory node.
Task<Status> Recycler::load(Operation& op, NodeId node) {
  const std::size_t words = chunk_state_words(node_.fabric().memory_node_size(node));
  Buffer buffer = op.buffer((kClasses + words) * 8);
  Batch batch(op.cost());
  batch.read(taken_address(node, 0), buffer.data(), kClasses * 8);
  batch.read(chunk_state_address(node, 0), buffer.data() + kClasses * 8, words * 8);
  if (Status read = co_await op.submit(batch); !read) co_return read;
  cursor_.taken = words_of(buffer.data(), kClasses);
  cursor_.states = words_of(buffer.data() + kClasses * 8, words);
  cursor_.loaded = true;
  co_return Status{};
}

Task<Status> Recycler::count(Operation& op) {
  for (std::size_t walked = 0; cursor_.node < nodes_.size();) {
    const NodeId node = nodes_[cursor_.node];
    if (!cursor_.loaded) {
      if (Status read = co_await load(op, node); !read) co_return read;
      node_.budget().give_back(BudgetUse::kFreeLists, counts_.capacity() * sizeof(Count));
      counts_ = std::vector<Count>(chunks_on(node));
      node_.budget().take(BudgetUse::kFreeLists, counts_.capacity() * sizeof(Count));
    }
    for (; cursor_.of_class < kClasses; ++cursor_.of_class, cursor_.place = 0) {
      const std::size_t of_class = cursor_.of_class;
      if (cursor_.place == 0) cursor_.place = cursor_.taken[of_class];
      while (cursor_.place != 0) {
        if (++walked > kMagazinesAtOnce) co_return Status{};
        const auto magazine = co_await read_magazine(op, node, kind_at(of_class),
                                                     size_class_at(of_class), cursor_.place);
        // What is no list any more ends here: its blocks are lost, as they were.
        if (!magazine && magazine.error().code() == ErrorCode::kCorrupt) break;
        if (!magazine) co_return fail(magazine.error());
        count_runs(node, magazine->runs);
        cursor_.place = magazine->next;
      }
    }
    if (Status chosen = co_await choose(op, node); !chosen) co_return chosen;
    cursor_ = {.node = cursor_.node + 1};
  }
  nothing_whole_ = chosen_ == 0;
  const bool go_on = chosen_ > 0 && serving_.load();
  co_return co_await advance(op, go_on ? Phase::kForgetting : Phase::kPuttingBack);
}

void Recycler::count_runs(NodeId node, std::span<const FreeRun> runs) {
  for (const FreeRun& run : runs) {
    const std::size_t size_class = run.block.size_class;
    const std::uint64_t at = run.block.address.offset() - chunk_at(node, 0);
    std::size_t chunk = at / kChunkBytes;
    if (chunks_for_run(size_class) > 1) chunk -= chunks_before(size_class, at % kChunkBytes);
    if (chunk >= counts_.size()) continue;
    Count& count = counts_[chunk];
    const auto of_class = static_cast<std::uint16_t>(class_index(run.block.kind, size_class));
    if (count.blocks > 0 && count.of_class != of_class) count.mixed = true;
    count.of_class = of_class;
    count.blocks += run.count;
  }
}

// Which runs of the node are free from end to end: they are to be turned.
Task<Status> Recycler::choose(Operation& op, NodeId node) {
  std::vector<std::size_t> chosen;
  std::vector<std::size_t> chosen_short;
  for (std::size_t chunk = 0; chunk < counts_.size(); ++chunk) {
    const Count& count = counts_[chunk];
    if (count.blocks == 0 || count.mixed) continue;
    const std::size_t size_class = size_class_at(count.of_class);
    const ChunkState state = chunk_state(cursor_.states[chunk / kChunksPerWord], chunk);
    const bool is_short = state == ChunkState::kShort;
    const std::size_t chunks = is_short ? chunks_for_one(size_class) : chunks_for_run(size_class);
    if (count.blocks != blocks_in(chunks, size_class)) continue;
    for (std::size_t i = 0; i < chunks; ++i) {
      (is_short && i == 0 ? chosen_short : chosen).push_back(chunk + i);
    }
    if (is_short) short_runs_.emplace_back(node, chunk_at(node, chunk));
    chosen_ += chunks;
  }
  if (Status set = co_await set_states(op, node, chosen, ChunkState::kPlain, ChunkState::kTurning);
      !set) {
    co_return set;
  }
  co_return co_await set_states(op, node, chosen_short, ChunkState::kShort, ChunkState::kTurning);
}

// Of chunks that are the recycler's; of others in the same words, anybody may change them
// meanwhile.
Task<Status> Recycler::set_states(Operation& op, NodeId node, std::span<const std::size_t> chunks,
                                  ChunkState from, ChunkState to) {
  for (std::size_t i = 0; i < chunks.size();) {
    const std::size_t word_number = chunks[i] / kChunksPerWord;
    std::size_t end = i;
    while (end < chunks.size() && chunks[end] / kChunksPerWord == word_number) ++end;
    for (std::uint64_t before = cursor_.states[word_number];;) {
      std::uint64_t after = before;
      for (const std::size_t chunk : chunks.subspan(i, end - i)) {
        if (chunk_state(before, chunk) == from) after = with_chunk_state(after, chunk, to);
      }
      Batch batch(op.cost());
      batch.compare_swap(chunk_state_address(node, chunks[i]), before, after);
      if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
      if (batch[0].succeeded()) {
        cursor_.states[word_number] = after;
        break;
      }
      before = batch[0].previous;
    }
    i = end;
  }
  co_return Status{};
}

// ---- Putting back ----

Task<Status> Recycler::put_back(Operation& op) {
  for (; cursor_.node < nodes_.size(); cursor_ = {.node = cursor_.node + 1}) {
    const NodeId node = nodes_[cursor_.node];
    if (Status read = co_await load(op, node); !read) co_return read;
    if (Status done = co_await unmark(op, node); !done) co_return done;
    for (std::size_t i = 0; i < kClasses; ++i) {
      if (Status done = co_await put_back(op, node, i); !done) co_return done;
    }
  }
  since_ = op.worker().now();
  co_return co_await advance(op, Phase::kIdle);
}

Task<Status> Recycler::unmark(Operation& op, NodeId node) {
  std::vector<std::size_t> turning;
  std::vector<std::size_t> turning_short;
  for (std::size_t chunk = 0; chunk < chunks_on(node); ++chunk) {
    if (chunk_state(cursor_.states[chunk / kChunksPerWord], chunk) != ChunkState::kTurning)
      continue;
    const Address at(node, chunk_at(node, chunk));
    const bool is_short = std::ranges::find(short_runs_, at) != short_runs_.end();
    (is_short ? turning_short : turning).push_back(chunk);
  }
  if (Status set = co_await set_states(op, node, turning, ChunkState::kTurning, ChunkState::kPlain);
      !set) {
    co_return set;
  }
  co_return co_await set_states(op, node, turning_short, ChunkState::kTurning, ChunkState::kShort);
}

// By what is there, so that it can be begun anew at any point.
Task<Status> Recycler::put_back(Operation& op, NodeId node, std::size_t of_class) {
  const std::uint64_t chain = cursor_.taken[of_class];
  auto word = co_await read_word(op, stack_of(node, of_class));
  if (!word) co_return fail(word.error());
  if (chain == 0 && !stack_sealed(*word)) co_return Status{};
  while (!stack_sealed(*word)) {
    const std::uint64_t place = stack_place(*word) == 0 ? chain : stack_place(*word);
    const std::uint64_t sealed = next_stack_word(*word, place, true);
    Batch batch(op.cost());
    batch.compare_swap(stack_of(node, of_class), *word, sealed);
    if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
    *word = batch[0].succeeded() ? sealed : batch[0].previous;
  }
  if (chain != 0) {
    Status linked = co_await link(op, node, of_class, stack_place(*word), chain);
    if (!linked) co_return linked;
  }
  const std::uint64_t nothing = 0;
  Batch batch(op.cost());
  batch.write_word(taken_address(node, of_class), &nothing);
  batch.compare_swap(stack_of(node, of_class), *word,
                     next_stack_word(*word, stack_place(*word), false));
  co_return co_await op.submit(batch);
}

// Makes the last magazine from `from` on lead to `chain`, unless one does already.
Task<Status> Recycler::link(Operation& op, NodeId node, std::size_t of_class, std::uint64_t from,
                            std::uint64_t chain) {
  while (from != chain) {
    const auto magazine =
        co_await read_magazine(op, node, kind_at(of_class), size_class_at(of_class), from);
    // Where the stack is damaged, the chain is lost with what was below.
    if (!magazine && magazine.error().code() == ErrorCode::kCorrupt) co_return Status{};
    if (!magazine) co_return fail(magazine.error());
    from = magazine->next;
    if (from != 0) continue;
    const std::uint64_t linked = with_next(magazine->link_word, chain);
    Batch batch(op.cost());
    batch.write_word(magazine->link, &linked);
    co_return co_await op.submit(batch);
  }
  co_return Status{};
}

// ---- Turning ----

Task<Status> Recycler::turn(Operation& op) {
  for (std::size_t walked = 0; cursor_.node < nodes_.size();) {
    const NodeId node = nodes_[cursor_.node];
    if (!cursor_.loaded) {
      if (Status read = co_await load(op, node); !read) co_return read;
    }
    for (; cursor_.of_class < kClasses; ++cursor_.of_class) {
      while (cursor_.taken[cursor_.of_class] != 0) {
        if (++walked > kMagazinesAtOnce) co_return Status{};
        if (Status done = co_await turn_magazine(op, node); !done) co_return done;
      }
    }
    cursor_ = {.node = cursor_.node + 1};
  }
  co_return co_await advance(op, Phase::kZeroing);
}

// The first of the cursor's class: what lies outside turning chunks is given to the stack, once the
// taken word leads past it. Where there is nothing, that word may be behind.
Task<Status> Recycler::turn_magazine(Operation& op, NodeId node) {
  const std::size_t of_class = cursor_.of_class;
  std::uint64_t& taken = cursor_.taken[of_class];
  const Address word = taken_address(node, of_class);
  if (!rest_.runs.empty()) {  // whether the taken word was written is not known
    const auto now = co_await read_word(op, word);
    if (!now) co_return fail(now.error());
    Rest rest = std::exchange(rest_, {});
    taken = *now;
    if (taken == rest.next) co_await node_.allocator().give(op, std::move(rest.runs));
    co_return Status{};
  }
  const auto magazine =
      co_await read_magazine(op, node, kind_at(of_class), size_class_at(of_class), taken);
  if (!magazine && magazine.error().code() != ErrorCode::kCorrupt) co_return fail(magazine.error());
  std::vector<FreeRun> kept;
  const std::uint64_t next = magazine ? magazine->next : 0;
  for (const FreeRun& run : magazine ? magazine->runs : std::vector<FreeRun>{}) {
    const std::size_t chunk = chunk_of(run.block.address);
    const ChunkState state = chunk_state(cursor_.states[chunk / kChunksPerWord], chunk);
    if (state != ChunkState::kTurning) kept.push_back(run);
  }
  if (kept.empty() && next != 0) {
    taken = next;
    co_return Status{};
  }
  rest_ = {kept, next};
  Batch batch(op.cost());
  batch.write_word(word, &rest_.next);
  if (Status written = co_await op.submit(batch); !written) co_return written;
  rest_ = {};
  taken = next;
  if (!kept.empty()) co_await node_.allocator().give(op, std::move(kept));
  co_return Status{};
}

// ---- Zeroing ----

Task<Status> Recycler::zero(Operation& op) {
  for (std::size_t zeroed = 0; cursor_.node < nodes_.size();) {
    const NodeId node = nodes_[cursor_.node];
    if (!cursor_.loaded) {
      if (Status read = co_await load(op, node); !read) co_return read;
    }
    for (std::size_t chunk = 0; chunk < chunks_on(node); ++chunk) {
      const ChunkState state = chunk_state(cursor_.states[chunk / kChunksPerWord], chunk);
      if (state != ChunkState::kTurning) continue;
      if (++zeroed > kChunksAtOnce) co_return Status{};
      if (Status done = co_await zero_chunk(op, node, chunk); !done) co_return done;
    }
    cursor_ = {.node = cursor_.node + 1};
  }
  since_ = op.worker().now();
  co_return co_await advance(op, Phase::kIdle);
}

Task<Status> Recycler::zero_chunk(Operation& op, NodeId node, std::size_t chunk) {
  Buffer zeros = op.buffer(kZerosAtOnce);
  std::memset(zeros.data(), 0, kZerosAtOnce);
  const Address at(node, chunk_at(node, chunk));
  while (zeroed_ < kChunkBytes) {
    Batch batch(op.cost());
    const std::uint64_t end = zeroed_ + zeros_in_a_batch_;
    for (std::uint64_t done = zeroed_; done < end; done += kZerosAtOnce) {
      batch.write(at + done, zeros.data(), std::min<std::uint64_t>(kZerosAtOnce, end - done));
    }
    if (Status written = co_await op.submit(batch); !written) {
      // It may have been too much for a slow link to carry in time.
      zeros_in_a_batch_ = std::max(kLeastZeros, zeros_in_a_batch_ / 2);
      co_return written;
    }
    zeroed_ = end;
  }
  zeroed_ = 0;
  Status set = co_await set_states(op, node, {&chunk, 1}, ChunkState::kTurning, ChunkState::kFree);
  // Where it is not known whether this chunk is free, somebody may have it already.
  if (!set) cursor_ = {.node = cursor_.node};
  if (!set) co_return set;
  chunks_.fetch_add(1, std::memory_order_relaxed);
  progress_.fetch_add(1);
  co_return Status{};
}

}  // namespace pando::pool
