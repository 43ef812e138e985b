#include "pool/catalogue/catalogue.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <optional>

#include "pool/catalogue/catalogue_entry.h"
#include "pool/catalogue/catalogue_lock.h"
#include "pool/compute_node.h"
#include "pool/pause.h"

namespace pando::pool {
namespace {

using fabric::Address;
using fabric::Batch;
using fabric::Buffer;

constexpr std::size_t kEntriesPerRead = 32;

Address maker_address(std::size_t entry) {
  return catalogue_address(entry) + offsetof(CatalogueEntry, maker_word);
}

Address state_address(std::size_t entry) {
  return catalogue_address(entry) + offsetof(CatalogueEntry, state_word);
}

Task<Status> read_entries(Operation& op, const Buffer& buffer, std::size_t first) {
  Batch batch(op.cost());
  batch.read(catalogue_address(first), buffer.data(), buffer.size());
  co_return co_await op.submit(batch);
}

CatalogueEntry entry_at(const Buffer& buffer, std::size_t i) {
  CatalogueEntry entry;
  std::memcpy(&entry, buffer.data() + i * sizeof(entry), sizeof(entry));
  return entry;
}

Error corrupt(std::size_t entry) {
  return Error(ErrorCode::kCorrupt, fmt::format("entry {} of the catalogue of indexes", entry));
}

// The work's own error comes before that of giving the lock back.
template <class T>
Result<T> after(Result<T> done, const Status& released) {
  if (done && !released && released.error().code() == ErrorCode::kFenced) {
    return fail(released.error());
  }
  return done;
}

}  // namespace

// What find() saw.
struct Catalogue::Found {
  struct Unfinished {
    std::size_t place;
    std::uint64_t state_word;
    OwnerId maker;
  };
  std::optional<std::size_t> free;   // an empty entry
  std::optional<std::size_t> place;  // of the name
  CatalogueEntry entry{};            // there
  std::vector<Unfinished> unfinished;
  std::optional<std::size_t> damaged;
};

// REQUIRES: the catalogue lock is held, as for all private methods here.
Task<Result<Catalogue::Found>> Catalogue::find(Operation& op, std::string_view name) {
  Found found;
  Buffer buffer = op.buffer(kEntriesPerRead * sizeof(CatalogueEntry));
  for (std::size_t i = 0; i < kMaxIndexes; ++i) {
    if (i % kEntriesPerRead == 0) {
      if (Status read = co_await read_entries(op, buffer, i); !read) co_return fail(read.error());
    }
    const CatalogueEntry entry = entry_at(buffer, i % kEntriesPerRead);
    const EntryState state = entry_state(entry.state_word);
    if (entry.state_word == 0) {
      // Not one where a late pause of a drop may yet meet this compute node as the maker.
      if (!found.free && !node_.abandoned_locks().pending(maker_address(i))) found.free = i;
    } else if (!intact(entry)) {
      found.damaged = i;
    } else {
      if (state != EntryState::kLive) {
        found.unfinished.push_back({i, entry.state_word, static_cast<OwnerId>(entry.maker_word)});
      }
      if (name_of(entry) == name) {
        found.place = i;
        found.entry = entry;
      }
    }
  }
  // The damaged one may be the one that is asked for.
  if (!found.place && found.damaged) co_return fail(corrupt(*found.damaged));
  co_return found;
}

// Empties entries whose maker died: that of the name, or all where no entry is free. True: some
// were.
Task<Result<bool>> Catalogue::clean_up(Operation& op, const Found& found) {
  bool cleaned = false;
  for (const auto& [place, state_word, maker] : found.unfinished) {
    if (found.free && found.place != place) continue;
    auto gone = co_await node_.membership().gone(op, maker);
    if (!gone) co_return fail(gone.error());
    if (!*gone) continue;
    Batch batch(op.cost());
    batch.compare_swap(state_address(place), state_word, 0);
    if (Status swapped = co_await op.submit(batch); !swapped) co_return fail(swapped.error());
    cleaned = true;
  }
  co_return cleaned;
}

// ---- Create ----

Task<Result<IndexRecord>> Catalogue::begin_create(Session& session, std::string_view name,
                                                  std::uint32_t format_version,
                                                  std::string_view options) {
  if (Status valid = check_index_name(name); !valid) co_return fail(valid.error());
  if (options.size() > kMaxIndexOptions) {
    co_return fail(ErrorCode::kInvalidArgument,
                   fmt::format("an index's options have up to {} bytes as text, not {}",
                               kMaxIndexOptions, options.size()));
  }
  const task::TimePoint deadline = session.worker().now() + node_.options().deadline;
  for (Pause pause(session.worker(), deadline);;) {
    Result<std::optional<IndexRecord>> created;
    {
      Operation op(session, deadline, nullptr);
      created = co_await try_create(op, name, format_version, options);
    }
    if (!created) co_return fail(created.error());
    if (*created) co_return std::move(**created);
    if (Status waited = co_await pause.wait("an index of the same name to be created or dropped");
        !waited) {
      co_return fail(waited.error());
    }
  }
}

// Nothing: try again.
Task<Result<std::optional<IndexRecord>>> Catalogue::try_create(Operation& op, std::string_view name,
                                                               std::uint32_t format_version,
                                                               std::string_view options) {
  CatalogueLock lock(*this);
  if (Status locked = co_await lock.acquire(op); !locked) co_return fail(locked.error());
  Result<std::optional<IndexRecord>> created;
  auto found = co_await find(op, name);
  if (!found) {
    created = fail(found.error());
  } else if (const auto half = co_await half_dropped(op, *found); !half) {
    created = fail(half.error());
  } else if (*half) {
    created = fail(ErrorCode::kBusy, fmt::format("index \"{}\" is half dropped", name));
  } else if (const auto cleaned = co_await clean_up(op, *found); !cleaned) {
    created = fail(cleaned.error());
  } else if (*cleaned) {
    // Look again: the entry is free now.
  } else if (found->place) {
    if (entry_state(found->entry.state_word) == EntryState::kLive) {
      created = fail(ErrorCode::kExists, fmt::format("index \"{}\"", name));
    }
  } else if (!found->free) {
    created = fail(ErrorCode::kOutOfMemory,
                   fmt::format("the catalogue holds {} indexes and has no room for \"{}\"",
                               kMaxIndexes, name));
  } else {
    auto made = co_await create_in(op, *found->free, name, format_version, options);
    if (made) created->emplace(std::move(*made));
    if (!made) created = fail(made.error());
  }
  const Status released = co_await lock.release(op);
  co_return after(std::move(created), released);
}

Task<Result<IndexRecord>> Catalogue::create_in(Operation& op, std::size_t entry,
                                               std::string_view name, std::uint32_t format_version,
                                               std::string_view options) {
  Batch count(op.cost());
  count.fetch_add(tables_field(offsetof(PoolTables, next_index_id_word)), 1);
  if (Status counted = co_await op.submit(count); !counted) co_return fail(counted.error());
  const auto id = static_cast<std::uint32_t>(count[0].previous + 1);
  const std::uint64_t seed = XXH3_64bits_withSeed(&id, sizeof(id), node_.pool_id());

  CatalogueEntry bytes = make_entry(id, format_version, seed, name, options);
  bytes.maker_word = node_.membership().self();
  Buffer buffer = op.buffer(sizeof(bytes));
  std::memcpy(buffer.data(), &bytes, sizeof(bytes));
  constexpr std::size_t kRoot = offsetof(CatalogueEntry, root_word);
  constexpr std::size_t kAfterUsers = offsetof(CatalogueEntry, format_version);
  Batch batch(op.cost());
  batch.write(catalogue_address(entry) + kRoot, buffer.data() + kRoot, sizeof(bytes.root_word));
  // Not the users: newcomers clear their bits at any time, by atomics, which a WRITE must not race
  // (rule 7 of verbs.h). Bits that are set there are of compute nodes that have gone.
  batch.write(catalogue_address(entry) + kAfterUsers, buffer.data() + kAfterUsers,
              sizeof(bytes) - kAfterUsers);
  // After the WRITEs, so an entry with a state has its bytes.
  const std::size_t swap =
      batch.compare_swap(state_address(entry), 0, entry_word(id, EntryState::kCreating));
  if (Status made = co_await op.submit(batch); !made) {
    change_later(entry, entry_word(id, EntryState::kCreating), 0);
    co_return fail(made.error());
  }
  if (!batch[swap].succeeded()) co_return fail(corrupt(entry));
  bytes.state_word = entry_word(id, EntryState::kCreating);
  co_return record_of(bytes, entry);
}

Task<Status> Catalogue::change(Operation& op, const IndexRecord& record, std::uint64_t from,
                               std::uint64_t to) {
  Batch batch(op.cost());
  batch.compare_swap(state_address(record.entry), from, to);
  if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
  if (batch[0].succeeded()) co_return Status{};
  co_return fail(ErrorCode::kNotFound,
                 fmt::format("index \"{}\" is not in the state that this step needs", record.name));
}

Task<Status> Catalogue::publish(Operation& op, const IndexRecord& record) {
  co_return co_await change(op, record, entry_word(record.index_id, EntryState::kCreating),
                            entry_word(record.index_id, EntryState::kLive));
}

Task<Status> Catalogue::abandon(Operation& op, const IndexRecord& record) {
  Status abandoned =
      co_await change(op, record, entry_word(record.index_id, EntryState::kCreating), 0);
  if (!abandoned && abandoned.error().code() != ErrorCode::kNotFound) {
    change_later(record.entry, entry_word(record.index_id, EntryState::kCreating), 0);
  }
  co_return abandoned;
}

Task<Status> Catalogue::withdraw(Operation& op, const IndexRecord& record) {
  dropping_[record.entry].store(record.index_id);
  Status withdrawn = co_await change(op, record, entry_word(record.index_id, EntryState::kCreating),
                                     entry_word(record.index_id, EntryState::kDropping));
  if (!withdrawn && withdrawn.error().code() != ErrorCode::kNotFound) {
    change_later(record.entry, entry_word(record.index_id, EntryState::kCreating), 0);
    give_up_making(record.entry);  // where it is half dropped, others go on
  }
  if (!withdrawn) drops_no_more(record);
  co_return withdrawn;
}

// Only its maker changes an entry from that word, so it is as good as a lock's. REQUIRES: `from` is
// of an index that this compute node creates, or drops and has dropped.
void Catalogue::change_later(std::size_t entry, std::uint64_t from, std::uint64_t to) {
  node_.abandoned_locks().add(state_address(entry), from, ~std::uint64_t{0}, to);
  node_.kick();
}

// The entry is nobody's work as soon as that can be said.
void Catalogue::give_up_making(std::size_t entry) {
  node_.abandoned_locks().add(maker_address(entry), node_.membership().self());
  node_.kick();
}

// By its id: the entry may be another index's by now, which is being dropped as well.
void Catalogue::drops_no_more(const IndexRecord& record) {
  std::uint32_t expected = record.index_id;
  dropping_[record.entry].compare_exchange_strong(expected, 0);
}

// ---- Open and close ----

Task<Result<IndexRecord>> Catalogue::open(Operation& op, std::string_view name) {
  if (Status valid = check_index_name(name); !valid) co_return fail(valid.error());
  CatalogueLock lock(*this);
  if (Status locked = co_await lock.acquire(op); !locked) co_return fail(locked.error());
  auto found = co_await find(op, name);
  Result<IndexRecord> opened = fail(ErrorCode::kNotFound, fmt::format("index \"{}\"", name));
  if (!found) {
    opened = fail(found.error());
  } else if (found->place && entry_state(found->entry.state_word) == EntryState::kLive) {
    opened = record_of(found->entry, *found->place);
    if (Status marked = co_await mark_user(op, *found->place, true); !marked) {
      doubt(*found->place);
      opened = fail(marked.error());
    } else {
      opened_[*found->place].fetch_add(1);
    }
  }
  const Status released = co_await lock.release(op);
  co_return after(std::move(opened), released);
}

Task<Status> Catalogue::close(Operation& op, const IndexRecord& record) {
  std::atomic<std::uint32_t>& opened = opened_[record.entry];
  if (opened.load() == 0 || opened.fetch_sub(1) > 1) co_return Status{};
  doubt(record.entry);
  co_return co_await take_marks_back(op, true);
}

void Catalogue::doubt(std::size_t entry) {
  unsure_[entry].store(true);
  any_unsure_.store(true);
}

Task<Status> Catalogue::take_marks_back(Operation& op, bool patient) {
  if (!any_unsure_.load(std::memory_order_relaxed)) co_return Status{};
  CatalogueLock lock(*this, patient);
  if (Status locked = co_await lock.acquire(op); !locked) co_return fail(locked.error());
  any_unsure_.store(false);
  Status all;
  for (std::size_t entry = 0; entry < kMaxIndexes; ++entry) {
    if (undo_[entry].load() != 0) {
      if (Status undone = co_await undo_drop(op, entry); !undone) {
        any_unsure_.store(true);
        all = undone;
      }
    }
    if (!unsure_[entry].exchange(false) || opened_[entry].load() > 0) continue;
    if (Status cleared = co_await mark_user(op, entry, false); !cleared) {
      doubt(entry);
      all = cleared;
    }
  }
  const Status released = co_await lock.release(op);
  co_return all ? released : all;
}

// An index that this compute node may have begun to drop is live again. Others may be dropping it
// by now, with the same word: the maker tells.
Task<Status> Catalogue::undo_drop(Operation& op, std::size_t entry) {
  const std::uint32_t id = undo_[entry].load();
  const std::uint64_t dropping = entry_word(id, EntryState::kDropping);
  Buffer buffer = op.buffer(16);
  Batch look(op.cost());
  look.read(state_address(entry), buffer.data(), 8);
  look.read(maker_address(entry), buffer.data() + 8, 8);
  if (Status read = co_await op.submit(look); !read) co_return read;
  std::array<std::uint64_t, 2> seen{};
  std::memcpy(seen.data(), buffer.data(), sizeof(seen));
  if (seen[0] == dropping && seen[1] == node_.membership().self()) {
    Batch batch(op.cost());
    batch.compare_swap(state_address(entry), dropping, entry_word(id, EntryState::kLive));
    if (Status undone = co_await op.submit(batch); !undone) co_return undone;
  }
  undo_[entry].store(0);
  co_return Status{};
}

// By compare-and-swap, as newcomers clear their bits without the lock.
Task<Status> Catalogue::mark_user(Operation& op, std::size_t entry, bool uses) {
  const std::size_t slot = owner_slot(node_.membership().self());
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  const Address target =
      catalogue_address(entry) + offsetof(CatalogueEntry, users_words) + slot / 64 * 8;
  for (std::uint64_t guess = 0;;) {
    const std::uint64_t wanted = uses ? guess | bit : guess & ~bit;
    Batch batch(op.cost());
    batch.compare_swap(target, guess, wanted);
    if (Status swapped = co_await op.submit(batch); !swapped) co_return swapped;
    if (batch[0].succeeded()) co_return Status{};
    guess = batch[0].previous;
  }
}

// ---- Drop ----

Task<Result<std::uint32_t>> Catalogue::users(Operation& op, const CatalogueEntry& entry) {
  std::uint32_t count = 0;
  Buffer buffer = op.buffer(sizeof(MemberSlot));
  for (std::size_t slot = 0; slot < kMaxComputeNodes; ++slot) {
    if ((entry.users_words[slot / 64] >> (slot % 64) & 1) == 0) continue;
    Batch batch(op.cost());
    batch.read(member_address(slot), buffer.data(), sizeof(MemberSlot));
    if (Status read = co_await op.submit(batch); !read) co_return fail(read.error());
    MemberSlot seen;
    std::memcpy(&seen, buffer.data(), sizeof(seen));
    const Slot member = Slot::from_word(seen.owner_word);
    auto gone = co_await node_.membership().gone(op, make_owner(slot, member.generation));
    if (!gone) co_return fail(gone.error());
    if (!*gone) ++count;
  }
  co_return count;
}

Task<Result<IndexRecord>> Catalogue::begin_drop(Session& session, std::string_view name) {
  return take_for_drop(session, name, true);
}

Task<Result<IndexRecord>> Catalogue::resume_drop(Session& session, std::string_view name) {
  return take_for_drop(session, name, false);
}

Task<Result<IndexRecord>> Catalogue::take_for_drop(Session& session, std::string_view name,
                                                   bool live_too) {
  if (Status valid = check_index_name(name); !valid) co_return fail(valid.error());
  const task::TimePoint deadline = session.worker().now() + node_.options().deadline;
  for (Pause pause(session.worker(), deadline);;) {
    Result<std::optional<IndexRecord>> taken;
    {
      Operation op(session, deadline, nullptr);
      taken = co_await try_drop(op, name, live_too);
    }
    if (!taken) co_return fail(taken.error());
    if (*taken) co_return std::move(**taken);
    node_.kick();
    if (Status waited = co_await pause.wait("an earlier drop of the index to be undone"); !waited) {
      co_return fail(waited.error());
    }
  }
}

// Nothing: try again.
Task<Result<std::optional<IndexRecord>>> Catalogue::try_drop(Operation& op, std::string_view name,
                                                             bool live_too) {
  CatalogueLock lock(*this);
  if (Status locked = co_await lock.acquire(op); !locked) co_return fail(locked.error());
  Result<std::optional<IndexRecord>> taken;
  const auto found = co_await find(op, name);
  if (!found || !awaits_undo(*found)) {
    auto begun = found ? co_await drop_found(op, *found, name, live_too)
                       : Result<IndexRecord>(fail(found.error()));
    if (begun) taken->emplace(std::move(*begun));
    if (!begun) taken = fail(begun.error());
  }
  const Status released = co_await lock.release(op);
  co_return after(std::move(taken), released);
}

Task<Result<IndexRecord>> Catalogue::drop_found(Operation& op, const Found& found,
                                                std::string_view name, bool live_too) {
  if (found.place && entry_state(found.entry.state_word) == EntryState::kLive && live_too) {
    const auto used = co_await users(op, found.entry);
    if (!used) co_return fail(used.error());
    if (*used == 0) co_return co_await drop_in(op, found);
    co_return fail(ErrorCode::kBusy,
                   fmt::format("index \"{}\" is open on {} compute nodes", name, *used));
  }
  const auto half = co_await half_dropped(op, found);
  if (!half) co_return fail(half.error());
  if (*half) co_return co_await drop_in(op, found);
  if (auto cleaned = co_await clean_up(op, found); !cleaned) co_return fail(cleaned.error());
  co_return fail(ErrorCode::kNotFound, fmt::format("index \"{}\"", name));
}

// What this compute node has yet to take back of the entry would undo what is done to it from now
// on.
bool Catalogue::awaits_undo(const Found& found) const {
  const AbandonedLocks& locks = node_.abandoned_locks();
  return found.place &&
         (locks.pending(state_address(*found.place)) ||
          locks.pending(maker_address(*found.place)) || undo_[*found.place].load() != 0);
}

// Whoever began to drop the index has given up, or can do nothing any more.
Task<Result<bool>> Catalogue::half_dropped(Operation& op, const Found& found) {
  if (!found.place || entry_state(found.entry.state_word) != EntryState::kDropping) {
    co_return false;
  }
  // Whatever the entry says of its maker: who has paused may not have heard of it yet.
  if (dropping_[*found.place].load() == entry_id(found.entry.state_word)) co_return false;
  const auto maker = static_cast<OwnerId>(found.entry.maker_word);
  if (maker == node_.membership().self()) co_return true;
  if (maker == 0) co_return true;
  co_return co_await node_.membership().gone(op, maker);
}

Task<Result<IndexRecord>> Catalogue::drop_in(Operation& op, const Found& found) {
  const IndexRecord record = record_of(found.entry, *found.place);
  const std::uint64_t maker = node_.membership().self();
  const std::uint64_t dropping = entry_word(record.index_id, EntryState::kDropping);
  const bool begins = found.entry.state_word != dropping;
  Batch batch(op.cost());
  batch.write_word(maker_address(record.entry), &maker);
  batch.compare_swap(state_address(record.entry), found.entry.state_word, dropping);
  if (Status marked = co_await op.submit(batch); !marked) {
    // Nothing of it is freed yet: it becomes what it was. Where somebody has begun before, it stays
    // as it is, to be gone on with.
    if (!begins) {
      give_up_making(record.entry);
    } else if (batch[1].outcome != fabric::Outcome::kNotExecuted) {
      undo_[record.entry].store(record.index_id);
      any_unsure_.store(true);
      node_.kick();
    }
    co_return fail(marked.error());
  }
  if (!batch[1].succeeded()) co_return fail(corrupt(record.entry));
  dropping_[record.entry].store(record.index_id);
  co_return record;
}

Task<Status> Catalogue::pause_drop(Operation& op, const IndexRecord& record) {
  const std::uint64_t self = node_.membership().self();
  Batch batch(op.cost());
  batch.compare_swap(maker_address(record.entry), self, 0);
  Status paused = co_await op.submit(batch);
  if (!paused) give_up_making(record.entry);
  drops_no_more(record);  // last: from now on others here may go on
  co_return paused;
}

Task<Status> Catalogue::finish_drop(Operation& op, const IndexRecord& record) {
  Status finished =
      co_await change(op, record, entry_word(record.index_id, EntryState::kDropping), 0);
  if (!finished && finished.error().code() != ErrorCode::kNotFound) {
    change_later(record.entry, entry_word(record.index_id, EntryState::kDropping), 0);
  }
  drops_no_more(record);
  co_return finished;
}

// ---- List ----

Task<Result<std::vector<IndexRecord>>> Catalogue::list(Operation& op) {
  CatalogueLock lock(*this);
  if (Status locked = co_await lock.acquire(op); !locked) co_return fail(locked.error());
  Result<std::vector<IndexRecord>> records;
  Buffer buffer = op.buffer(kEntriesPerRead * sizeof(CatalogueEntry));
  for (std::size_t i = 0; i < kMaxIndexes && records; ++i) {
    if (i % kEntriesPerRead == 0) {
      if (Status read = co_await read_entries(op, buffer, i); !read) {
        records = fail(read.error());
        break;
      }
    }
    const CatalogueEntry entry = entry_at(buffer, i % kEntriesPerRead);
    if (entry.state_word == 0) continue;
    if (!intact(entry)) {
      records = fail(corrupt(i));
    } else if (entry_state(entry.state_word) == EntryState::kLive) {
      records->push_back(record_of(entry, i));
    }
  }
  const Status released = co_await lock.release(op);
  co_return after(std::move(records), released);
}

}  // namespace pando::pool
