// The Allocator and its ledger: listing what is held free, and recovering what the dead held.
//
// Recovering from a ledger: for each class that its pages list, look which of the blocks have not
// been begun (ledger.h); strike the pages; give the blocks away. In that order, so that whoever has
// the slot next, if this one dies in the middle, finds what has not been given yet, or nothing: a
// block is lost then, never given twice. Retired blocks are retired once more, as of now.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "base/mutants.h"
#include "base/mutex.h"
#include "pool/memory/allocator_state.h"
#include "pool/memory/ledger.h"
#include "pool/memory/shared_stack.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using base::Mutant;
using base::mutated;
using fabric::Address;
using fabric::Batch;
using fabric::Buffer;
using fabric::kLineBytes;

constexpr std::size_t kPageClass = block_class(BlockKind::kPage, sizeof(LedgerPage));
// From one writing of the ledger to the next: at most 64 KiB each time.
constexpr task::Duration kLedgerInterval = std::chrono::milliseconds(5);
constexpr task::Duration kHurriedLedgerInterval = std::chrono::milliseconds(1);
// How much memory that should be zero is read at once.
constexpr std::size_t kZeroReadBytes = 64 << 10;
// The dead may have begun to write other lines than the first, time and again, each time with an
// incarnation that its next user must not have.
constexpr std::uint32_t kIncarnationsSkipped = 256;

bool is_zero(const std::byte* bytes, std::size_t length) {
  return std::all_of(bytes, bytes + length, [](std::byte b) { return b == std::byte{0}; });
}

// Whether `length` bytes there can be far memory of this pool.
bool plausible(const fabric::Fabric& fabric, Address at, std::uint64_t length,
               std::uint64_t alignment = kLineBytes) {
  const std::uint64_t size = at.node() < fabric.memory_node_count()
                                 ? fabric.memory_node_size(at.node())
                                 : std::uint64_t{0};
  return at.offset() % alignment == 0 && at.offset() != 0 && length <= size &&
         at.offset() <= size - length;
}

Task<Status> strike(Operation& op, std::span<const Address> words) {
  const std::uint64_t nothing = 0;
  Batch batch(op.cost());
  for (const Address word : words) batch.write_word(word, &nothing);
  co_return co_await op.submit(batch);
}

std::vector<Address> addresses(std::span<const Ledger::Mark> marks) {
  std::vector<Address> words;
  words.reserve(marks.size());
  for (const Ledger::Mark& mark : marks) words.push_back(mark.at);
  return words;
}

Task<Result<std::uint64_t>> read_ledger_word(Operation& op, std::size_t slot) {
  return read_word(op, member_address(slot) + offsetof(MemberSlot, ledger_word));
}

// The pages from `head` on. A chain that leads nowhere ends there.
Task<Result<std::vector<FoundPage>>> read_chain(Operation& op, std::uint64_t head) {
  constexpr std::size_t kHeader = offsetof(LedgerPage, entries);
  std::vector<FoundPage> pages;
  Buffer buffer = op.buffer(kHeader);
  for (std::uint64_t next = head; next != 0 && pages.size() < Ledger::kMaxPages;) {
    const Address at = Address::from_raw(next);
    if (!plausible(op.compute_node().fabric(), at, sizeof(LedgerPage))) break;
    Batch batch(op.cost());
    batch.read(at, buffer.data(), kHeader);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    LedgerPage page;
    std::memcpy(&page, buffer.data(), kHeader);
    if (page.magic != LedgerPage::kMagic) break;
    const auto content = PageContent::from_word(page.content_word);
    pages.push_back(
        {.at = at,
         .edition = page.edition,
         .listed = content ? class_index(content->kind, content->size_class) : kClasses});
    next = page.next;
  }
  co_return pages;
}

// What a class's pages list: those that are whole, and of the newest edition that one of them has.
Task<Result<std::vector<Listed>>> read_rows(Operation& op, std::span<const FoundPage> pages) {
  std::vector<Listed> rows;
  std::uint64_t newest = 0;
  Buffer buffer = op.buffer(sizeof(LedgerPage));
  for (const FoundPage& found : pages) {
    Batch batch(op.cost());
    batch.read(found.at, buffer.data(), sizeof(LedgerPage));
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    LedgerPage page;
    std::memcpy(&page, buffer.data(), sizeof(page));
    const auto listed = decode_page(page);
    if (!listed || page.edition < newest) continue;
    if (page.edition > newest) rows.clear();
    newest = page.edition;
    for (const Listed& row : *listed) {
      const FreeRun& run = row.run;
      if (plausible(op.compute_node().fabric(), run.block.address, run.count * run.block.bytes(),
                    class_alignment(run.block.size_class))) {
        rows.push_back(row);
      }
    }
  }
  co_return rows;
}

// Of a run that was never used, what is zero.
Task<Result<std::vector<FreeRun>>> still_zero(Operation& op, const FreeRun& run) {
  const std::size_t each = run.block.bytes();
  const std::size_t at_once = std::max<std::size_t>(1, kZeroReadBytes / each);
  Buffer buffer = op.buffer(std::min<std::size_t>(at_once, run.count) * each);
  std::vector<FreeRun> zero;
  bool goes_on = false;
  for (std::size_t first = 0; first < run.count; first += at_once) {
    const std::size_t count = std::min(at_once, run.count - first);
    Batch batch(op.cost());
    batch.read(run.block.address + first * each, buffer.data(), count * each);
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_zero(buffer.data() + i * each, each) && !mutated(Mutant::kBegunIsFree)) {
        goes_on = false;
        continue;
      }
      if (!std::exchange(goes_on, true)) {
        zero.push_back({.block = run.block, .count = 0});
        zero.back().block.address = run.block.address + (first + i) * each;
      }
      ++zero.back().count;
    }
  }
  co_return zero;
}

// Whether a life began after the one that is listed; what seems to be later than now is long past.
bool begun_since(std::uint64_t birth, std::uint32_t listed, std::uint64_t epoch) {
  const std::uint32_t seen = birth_mark(birth);
  return birth != 0 && is_later(BlockKind::kBorn, seen, listed) &&
         !is_later(BlockKind::kBorn, seen, birth_mark(epoch + Epochs::kGrace));
}

// Of rows of one class, the blocks that nobody has begun to use.
Task<Result<std::vector<Listed>>> not_begun(Operation& op, std::span<const Listed> rows) {
  std::vector<Listed> free;
  Buffer buffer = op.buffer(std::max<std::size_t>(1, rows.size()) * kLineBytes);
  Batch batch(op.cost());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].run.block.incarnation == 0) continue;
    const Block& block = rows[i].run.block;
    batch.read(block.address, buffer.data() + i * kLineBytes, std::min(block.bytes(), kLineBytes));
  }
  if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FreeRun& run = rows[i].run;
    if (run.block.incarnation == 0) {
      auto zero = co_await still_zero(op, run);
      if (!zero) co_return fail(zero.error());
      for (const FreeRun& part : *zero) free.push_back({.run = part});
      continue;
    }
    const BlockDescription& described = description(run.block.kind);
    std::uint64_t word = 0;
    std::memcpy(&word, buffer.data() + i * kLineBytes + described.incarnation_at, sizeof(word));
    const bool begun = described.births
                           ? begun_since(word & kBirthMask, run.block.incarnation, op.epoch())
                           : static_cast<std::uint32_t>(word) > run.block.incarnation;
    if (begun && !mutated(Mutant::kBegunIsFree)) continue;
    free.push_back(rows[i]);
    if (!described.births) free.back().run.block.incarnation += kIncarnationsSkipped;
  }
  co_return free;
}

}  // namespace

// ---- Listing ----

Task<void> Allocator::State::keep_ledger(Operation& op) {
  if (mutated(Mutant::kNothingListed)) co_return;
  const task::TimePoint now = op.worker().now();
  if (!own_slot_recovered && now >= next_own_recovery) {
    if (Status done = co_await recover_own_slot(op); !done)
      next_own_recovery = now + node.options().lease;
  }
  // Until its slot's pages are known, new ones would cut them off.
  if (!chain_known) co_return;
  // Where much is retired, all pages change all the time; what was just taken is worth more.
  const task::Duration lease = node.options().lease;
  const task::Duration pause = unlisted.load(std::memory_order_relaxed)
                                   ? std::min<task::Duration>(kHurriedLedgerInterval, lease / 32)
                                   : std::min<task::Duration>(kLedgerInterval, lease / 8);
  if (ledger_written && now - *ledger_written < pause) co_return;
  ledger_written = now;
  unlisted.store(false, std::memory_order_relaxed);
  for (;;) {
    auto lacking = co_await write_ledger(op);
    if (!lacking) co_return;
    const std::size_t pages = ledger_pages();
    const std::size_t wanted = std::min(
        page_limit,
        std::max(pages + *lacking, own_slot_recovered ? Ledger::kFirstPages : std::size_t{0}));
    if (wanted <= pages || op.worker().now() < next_growth) co_return;
    if (Status grown = co_await grow_ledger(op, wanted - pages); !grown) {
      next_growth = op.worker().now() + node.options().lease;  // there may be no room
      co_return;
    }
  }
}

Task<void> Allocator::take_first_pages(Operation& op) {
  const auto head = co_await read_ledger_word(op, owner_slot(state_->node.membership().self()));
  if (head && *head == 0) co_await state_->keep_ledger(op);
}

Task<bool> Allocator::bring_ledger_up_to_date(Operation& op) {
  if (mutated(Mutant::kNothingListed)) co_return true;
  if (!state_->own_slot_recovered && !co_await state_->recover_own_slot(op)) co_return false;
  co_return (co_await state_->write_ledger(op)).has_value();
}

std::size_t Allocator::State::ledger_pages() {
  const base::MutexLock lock(mutex);
  return ledger.size();
}

class Allocator::State::WritingGuard {
 public:
  explicit WritingGuard(State& state) : state_(state) {}
  WritingGuard(const WritingGuard&) = delete;
  WritingGuard& operator=(const WritingGuard&) = delete;
  ~WritingGuard() {
    const base::MutexLock lock(state_.mutex);
    state_.ledger.set_writing(false);
  }

 private:
  State& state_;
};

// What is to be said of one class: rows for each of its pages, and pages that it needs no more.
struct Allocator::State::Draft {
  BlockKind kind;
  std::size_t size_class;
  std::vector<Listed> rows;
  std::uint64_t edition = 0;
  std::vector<Address> pages;
  std::vector<Ledger::Mark> unneeded;
};

// Drafts of the classes that have changed. `lacking`: pages that there are too few; unlisted_bytes
// says how much that leaves out.
std::vector<Allocator::State::Draft> Allocator::State::draft(std::size_t& lacking) {
  std::map<std::size_t, Draft> drafts;
  for (std::size_t i = 0; i < kClasses; ++i) {
    const BlockKind kind = kind_at(i);
    const std::size_t size_class = size_class_at(i);
    if (!free.take_change(kind, size_class)) continue;
    Draft& made = drafts[i];
    made.kind = kind;
    made.size_class = size_class;
    for (const FreeRun& run : free.held(kind, size_class)) made.rows.push_back({.run = run});
  }
  unlisted_bytes = 0;
  if (drafts.empty()) return {};
  std::size_t room = page_limit * LedgerPage::kEntries;
  retired.for_each([&](const Block& block, std::uint64_t stamp) {
    const auto of_class = drafts.find(class_index(block.kind, block.size_class));
    if (of_class == drafts.end()) return true;
    if (room == 0) {
      unlisted_bytes += block.bytes();
      return true;
    }
    of_class->second.rows.push_back({.run = {.block = block}, .retired = stamp != 0});
    --room;
    return true;
  });

  std::vector<Draft> all;
  for (auto& [index, made] : drafts) {
    made.edition = ledger.next_edition();
    const std::size_t needed = (made.rows.size() + LedgerPage::kEntries - 1) / LedgerPage::kEntries;
    while (made.pages.size() < needed) {
      const auto page = ledger.take(made.kind, made.size_class, made.edition);
      if (!page) break;
      made.pages.push_back(*page);
    }
    if (made.pages.size() < needed) {
      lacking += needed - made.pages.size();
      for (std::size_t i = made.pages.size() * LedgerPage::kEntries; i < made.rows.size(); ++i) {
        unlisted_bytes += made.rows[i].run.count * made.rows[i].run.block.bytes();
      }
      if (ledger.size() < page_limit) free.touch(made.kind, made.size_class);
    }
    made.unneeded = ledger.marks(made.kind, made.size_class);
    std::erase_if(made.unneeded,
                  [&](const Ledger::Mark& mark) { return mark.edition == made.edition; });
    all.push_back(std::move(made));
  }
  return all;
}

// Returns how many pages were lacking.
Task<Result<std::size_t>> Allocator::State::write_ledger(Operation& op) {
  std::size_t lacking = 0;
  std::vector<Draft> drafts;
  {
    const base::MutexLock lock(mutex);
    drafts = draft(lacking);
    if (drafts.empty()) co_return lacking;
    ledger.set_writing(true);
  }
  const WritingGuard guard(*this);
  std::size_t pages = 0;
  for (const Draft& each : drafts) pages += each.pages.size();
  Buffer buffer = op.buffer(std::max<std::size_t>(1, pages) * sizeof(LedgerPage));
  auto* page = reinterpret_cast<LedgerPage*>(buffer.data());
  constexpr std::size_t kFrom = offsetof(LedgerPage, content_word);
  const std::uint64_t nothing = 0;
  Batch batch(op.cost());
  for (const Draft& each : drafts) {
    std::span<const Listed> rows(each.rows);
    for (const Address at : each.pages) {
      const auto here = rows.first(std::min(rows.size(), LedgerPage::kEntries));
      rows = rows.subspan(here.size());
      encode_page(*page, here, each.edition);
      batch.write(at + kFrom, reinterpret_cast<std::byte*>(page) + kFrom, page_bytes(here.size()));
      ++page;
    }
    for (const Ledger::Mark& mark : each.unneeded) batch.write_word(mark.at, &nothing);
  }
  const Status written = co_await op.submit(batch);
  const base::MutexLock lock(mutex);
  for (const Draft& each : drafts) {
    if (written) {
      ledger.struck(each.unneeded);
    } else {
      free.touch(each.kind, each.size_class);
    }
  }
  if (!written) co_return fail(written.error());
  co_return lacking;
}

// So many more pages, before the others, or as many of them as there are.
Task<Status> Allocator::State::grow_ledger(Operation& op, std::size_t count) {
  std::vector<FreeRun> blocks;
  bool fetched = false;
  while (blocks.size() < count) {
    std::optional<Block> block = take(BlockKind::kPage, kPageClass);
    if (!block) {
      fetched = true;
      auto refilled = co_await refill(op, BlockKind::kPage, kPageClass);
      if (!refilled && !blocks.empty() && refilled.error().code() == ErrorCode::kOutOfMemory) {
        count = blocks.size();
        break;
      }
      if (!refilled) {
        requeue(blocks);
        co_return fail(refilled.error());
      }
      block = *refilled;
    }
    blocks.push_back({.block = *block});
  }
  Buffer buffer = op.buffer(count * sizeof(LedgerPage));
  std::memset(buffer.data(), 0, count * sizeof(LedgerPage));
  auto* const pages = reinterpret_cast<LedgerPage*>(buffer.data());
  std::uint64_t head = chain;
  Batch batch(op.cost());
  for (std::size_t i = 0; i < count; ++i) {
    const Block& block = blocks[i].block;
    pages[i].next = std::exchange(head, block.address.raw());
    pages[i].incarnation = block.incarnation;
    pages[i].magic = LedgerPage::kMagic;
    batch.write(block.address, buffer.data() + i * sizeof(LedgerPage), sizeof(LedgerPage));
  }
  if (Status written = co_await op.submit(batch); !written) {
    requeue(blocks);
    co_return written;
  }
  Batch link(op.cost());
  link.write_word(
      member_address(owner_slot(node.membership().self())) + offsetof(MemberSlot, ledger_word),
      &head);
  // Where this fails they may be part of the chain or not, and are lost.
  if (Status linked = co_await op.submit(link); !linked) co_return linked;
  chain = head;
  {
    const base::MutexLock lock(mutex);
    for (const FreeRun& each : blocks) ledger.add(each.block.address, 0);
  }
  // A chunk is for the ledgers of many.
  if (fetched) co_return co_await give_back(op, BlockKind::kPage, kPageClass);
  co_return Status{};
}

// What could not be pushed, though it may have been written into the last of them.
void Allocator::State::requeue_written(Operation& op, std::span<const FreeRun> runs) {
  std::vector<FreeRun> written(runs.begin(), runs.end());
  Block& container = written.back().block;
  if (container.incarnation == 0) {
    container.incarnation = description(container.kind).births ? birth_mark(op.epoch() - 1) : 1;
  }
  requeue(written);
}

Task<Status> Allocator::State::push(Operation& op, std::span<const FreeRun> runs) {
  const BlockKind kind = runs.front().block.kind;
  const std::size_t size_class = runs.front().block.size_class;
  std::vector<Ledger::Mark> marks;
  const auto look = [&] {
    const base::MutexLock lock(mutex);
    if (ledger.writing()) return false;
    marks = ledger.marks(kind, size_class);
    return true;
  };
  for (Pause pause(op); !look();) {
    if (Status waited = co_await pause.wait("the ledger to be written"); !waited) {
      requeue(runs);
      co_return waited;
    }
  }
  if (mutated(Mutant::kGivenWhileListed)) marks.clear();
  const Status pushed = co_await push_magazine(op, runs, addresses(marks));
  if (!pushed && pushed.error().code() != ErrorCode::kIndeterminate) {
    requeue_written(op, runs);
    co_return pushed;
  }
  if (!marks.empty()) unlisted.store(true, std::memory_order_relaxed);
  const base::MutexLock lock(mutex);
  ledger.struck(marks);
  free.touch(kind, size_class);
  co_return pushed;
}

// Everything that is held, as far as a ledger has room: this compute node goes and leaves it.
Task<Status> Allocator::State::finish_ledger(Operation& op) {
  page_limit = Ledger::kMaxPages;
  if (Status recalled = co_await recall_stashes(op); !recalled) co_return recalled;
  {
    const base::MutexLock lock(mutex);
    std::set<std::size_t> classes;
    retired.for_each([&classes](const Block& block, std::uint64_t /*stamp*/) {
      classes.insert(class_index(block.kind, block.size_class));
      return true;
    });
    for (const std::size_t each : classes) free.touch(kind_at(each), size_class_at(each));
  }
  for (;;) {
    const auto lacking = co_await write_ledger(op);
    if (!lacking) co_return fail(lacking.error());
    *left_behind = unlisted_bytes;
    const std::size_t room = page_limit - std::min(page_limit, ledger_pages());
    if (*lacking == 0 || room == 0) co_return Status{};
    if (Status grown = co_await grow_ledger(op, std::min(room, *lacking)); !grown) co_return grown;
  }
}

Task<Status> Allocator::State::close_ledger(Operation& op) {
  *left_behind = 0;
  std::vector<Ledger::Mark> marks;
  {
    const base::MutexLock lock(mutex);
    marks = ledger.marks();
  }
  if (marks.empty()) co_return Status{};
  Status struck = co_await strike(op, addresses(marks));
  const base::MutexLock lock(mutex);
  if (struck) ledger.struck(marks);
  co_return struck;
}

// ---- Recovering ----

// What the last compute node in this one's slot has left there.
Task<Status> Allocator::State::recover_own_slot(Operation& op) {
  auto head = co_await read_ledger_word(op, owner_slot(node.membership().self()));
  if (!head) co_return fail(head.error());
  if (!std::exchange(chain_known, true)) chain = *head;
  Status done = co_await recover(op, *head, true);
  own_slot_recovered = done.has_value();
  co_return done;
}

Task<Status> Allocator::State::recover_from_the_dead(Operation& op) {
  const task::TimePoint now = op.worker().now();
  if (now < next_recovery) co_return Status{};
  const task::Duration lease = node.options().lease;
  auto slot = co_await node.membership().take_dead_slot(op);
  if (!slot || !*slot) {
    next_recovery = now + lease / 4;
    co_return slot ? Status{} : fail(slot.error());
  }
  auto head = co_await read_ledger_word(op, **slot);
  Status done = head ? co_await recover(op, *head, false) : fail(head.error());
  if (done) done = co_await node.membership().recovered(op, **slot);
  if (!done) next_recovery = now + lease;  // a memory node does not answer
  co_return done;
}

// What cannot be recovered now is left as it is; the error says why. `own`: the pages that list
// nothing any more are this compute node's to use.
Task<Status> Allocator::State::recover(Operation& op, std::uint64_t head, bool own) {
  if (Status taken = co_await take_struck(op); !taken) co_return taken;
  auto found = co_await read_chain(op, head);
  if (!found) co_return fail(found.error());
  std::map<std::size_t, std::vector<FoundPage>> by_class;
  for (const FoundPage& page : *found) {
    const base::MutexLock lock(mutex);
    if (!own || !ledger.has(page.at)) by_class[page.listed].push_back(page);
  }
  Status all;
  for (const auto& [listed, pages] : by_class) {
    if (listed != kClasses) {
      if (Status done = co_await recover_class(op, pages); !done) {
        all = done;
        if (done.error().code() == ErrorCode::kUnavailable) co_return all;  // so will be the others
        continue;
      }
    }
    const base::MutexLock lock(mutex);
    for (const FoundPage& page : pages) {
      if (own) ledger.add(page.at, page.edition);
    }
  }
  co_return all;
}

Task<Status> Allocator::State::recover_class(Operation& op, std::span<const FoundPage> pages) {
  auto rows = co_await read_rows(op, pages);
  if (!rows) co_return fail(rows.error());
  auto unused = co_await not_begun(op, *rows);
  if (!unused) co_return fail(unused.error());
  Struck& struck = perhaps_struck.emplace_back();
  struck.rows = std::move(*unused);
  for (const FoundPage& page : pages) {
    struck.words.push_back(page.at + offsetof(LedgerPage, content_word));
  }
  co_return co_await take_struck(op);
}

Task<Status> Allocator::State::take_struck(Operation& op) {
  while (!perhaps_struck.empty()) {
    Struck last = std::move(perhaps_struck.back());
    perhaps_struck.pop_back();
    if (!mutated(Mutant::kRecoveredTwice)) {
      if (Status struck = co_await strike(op, last.words); !struck) {
        perhaps_struck.push_back(std::move(last));
        co_return struck;
      }
    }
    std::vector<FreeRun> free_now;
    for (const Listed& row : last.rows) {
      const Block& block = row.run.block;
      if (used_up(block)) continue;
      recovered_blocks.fetch_add(row.run.count, std::memory_order_relaxed);
      // One that has births waits: the dead may have begun a life of which its first line says
      // nothing.
      if (!row.retired && (block.incarnation == 0 || !description(block.kind).births)) {
        free_now.push_back(row.run);
        continue;
      }
      const base::MutexLock lock(mutex);
      retired.push(block, node.epochs().current());
      free.touch(block.kind, block.size_class);
    }
    co_await give(op, std::move(free_now));
  }
  co_return Status{};
}

// To the shared stacks. What cannot be pushed is this compute node's own from now on.
Task<void> Allocator::State::give(Operation& op, std::vector<FreeRun> runs) {
  if (runs.empty()) co_return;
  const Block of = runs.front().block;
  const std::size_t limit = magazine_limit(of.kind, of.size_class);
  // Single blocks by memory node; then the runs, each with a block of its own to be written into.
  std::ranges::sort(runs, {}, [](const FreeRun& run) {
    return std::pair(run.count > 1, run.block.address.raw());
  });
  for (auto run = runs.begin(); run != runs.end();) {
    std::vector<FreeRun> magazine;
    if (run->count > 1) {
      magazine.assign(2, *run);
      magazine[0].block.address = run->block.address + of.bytes();
      --magazine[0].count;
      magazine[1].count = 1;
      ++run;
    } else {
      const fabric::NodeId on = run->block.address.node();
      while (run != runs.end() && run->count == 1 && run->block.address.node() == on &&
             magazine.size() < limit) {
        magazine.push_back(*run++);
      }
    }
    const Status pushed = co_await push_magazine(op, magazine);
    if (!pushed && pushed.error().code() != ErrorCode::kIndeterminate)
      requeue_written(op, magazine);
  }
}

}  // namespace pando::pool
