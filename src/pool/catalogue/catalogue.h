// Catalogue: the pool's indexes by name, in far memory.
//
// States of an entry: empty → creating → live → dropping → empty. An entry that is being created or
// dropped names who does it. If that compute node dies or gives up, the next drop or create of the
// name goes on with a drop, and empties an entry that was being created. Creates of other names
// empty either when the catalogue is full. The blocks of what is emptied are lost to the pool.
//
// Every method looks at and changes entries under the catalogue lock, a remote lock with an owner,
// taken over when the owner is gone. It is not held between the two steps of create() and drop().
//
// create() is in two steps so that an index can build its first nodes between them.
//
// What ends with an unknown outcome does not block a name for as long as this compute node lives:
// an entry that it may have begun to create is emptied by its housekeeper (abandoned_locks.h), and
// so is its mark as a user of an index that it does not use; one that it may have begun to drop is
// live again (tidy()).
//
// Names are 1 to kMaxIndexName bytes of UTF-8 without control characters (U+0000 to U+001F,
// U+007F). Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pool/layout.h"
#include "pool/membership/membership.h"
#include "pool/operation.h"
#include <pando/options.h>
#include <pando/result.h>
#include <pando/task.h>

namespace pando::pool {

// An index as the catalogue knows it.
struct IndexRecord {
  std::size_t entry = 0;       // which CatalogueEntry
  std::uint32_t index_id = 0;  // unique in the pool for ever; not 0
  std::uint32_t format_version = 0;
  std::uint64_t seed = 0;
  std::string name;
  std::string options;  // text of the format options

  fabric::Address root_word() const;                // the index's root word
  fabric::Address index_word(std::size_t i) const;  // one of its 16 further words
};

class Catalogue {
 public:
  explicit Catalogue(ComputeNode& node) : node_(node) {}

  // kExists, kInvalidArgument (name), kOutOfMemory (catalogue full), kBusy where an index of this
  // name has been dropped by half: see resume_drop. The entry is invisible to
  // open() until publish(); its root word and index words are zero. Waits while somebody else is
  // creating or dropping an index of this name.
  Task<Result<IndexRecord>> begin_create(Session& session, std::string_view name,
                                         std::uint32_t format_version, std::string_view options);
  Task<Status> publish(Operation& op, const IndexRecord& record);
  // Gives up, before the index has any blocks.
  Task<Status> abandon(Operation& op, const IndexRecord& record);
  // The same where it has some: free them, then finish_drop(). kNotFound: it was published.
  Task<Status> withdraw(Operation& op, const IndexRecord& record);

  // kNotFound. Marks this compute node as a user until close() has been called as often: an error
  // of that means that the mark is taken back later, by the housekeeper.
  Task<Result<IndexRecord>> open(Operation& op, std::string_view name);
  Task<Status> close(Operation& op, const IndexRecord& record);

  // kNotFound; kBusy naming how many compute nodes use it (dead ones do not count). After
  // begin_drop nobody can open it; free its blocks, then finish_drop. Where they cannot be freed
  // now, pause_drop: the next begin_drop, of whatever compute node, goes on.
  Task<Result<IndexRecord>> begin_drop(Session& session, std::string_view name);
  // The same for one that was begun and that nobody goes on with, alone: else kNotFound.
  Task<Result<IndexRecord>> resume_drop(Session& session, std::string_view name);
  Task<Status> finish_drop(Operation& op, const IndexRecord& record);
  Task<Status> pause_drop(Operation& op, const IndexRecord& record);

  // Those that are live.
  Task<Result<std::vector<IndexRecord>>> list(Operation& op);

  // The housekeeper's: takes marks back that an open or close may have left, unless the catalogue
  // is locked now. Costs nothing where none has.
  Task<Status> tidy(Operation& op) { return take_marks_back(op, false); }

 private:
  friend class CatalogueLock;
  struct Found;
  Task<Result<Found>> find(Operation& op, std::string_view name);
  Task<Result<bool>> clean_up(Operation& op, const Found& found);
  Task<Result<IndexRecord>> create_in(Operation& op, std::size_t entry, std::string_view name,
                                      std::uint32_t format_version, std::string_view options);
  bool awaits_undo(const Found& found) const;
  Task<Result<bool>> half_dropped(Operation& op, const Found& found);
  Task<Result<std::optional<IndexRecord>>> try_create(Operation& op, std::string_view name,
                                                      std::uint32_t format_version,
                                                      std::string_view options);
  Task<Result<IndexRecord>> take_for_drop(Session& session, std::string_view name, bool live_too);
  Task<Result<std::optional<IndexRecord>>> try_drop(Operation& op, std::string_view name,
                                                    bool live_too);
  Task<Result<IndexRecord>> drop_found(Operation& op, const Found& found, std::string_view name,
                                       bool live_too);
  Task<Status> undo_drop(Operation& op, std::size_t entry);
  void give_up_making(std::size_t entry);
  void drops_no_more(const IndexRecord& record);
  Task<Result<IndexRecord>> drop_in(Operation& op, const Found& found);
  Task<Result<std::uint32_t>> users(Operation& op, const CatalogueEntry& entry);
  Task<Status> mark_user(Operation& op, std::size_t entry, bool uses);
  Task<Status> take_marks_back(Operation& op, bool patient);
  void doubt(std::size_t entry);
  void change_later(std::size_t entry, std::uint64_t from, std::uint64_t to);
  Task<Status> change(Operation& op, const IndexRecord& record, std::uint64_t from,
                      std::uint64_t to);

  ComputeNode& node_;
  std::atomic<bool> locked_{false};  // by a coroutine of this compute node
  // Grows under the lock, so that who finds 0 there with the lock held may take the mark back.
  std::array<std::atomic<std::uint32_t>, kMaxIndexes> opened_{};
  // This compute node may be marked as a user, though opened_ is 0.
  std::array<std::atomic<bool>, kMaxIndexes> unsure_{};
  std::atomic<bool> any_unsure_{false};  // of these, or of undo_
  // Ids of those that this compute node may have begun to drop, and is not dropping; 0: none.
  std::array<std::atomic<std::uint32_t>, kMaxIndexes> undo_{};
  // Ids of those that a coroutine of this compute node is dropping; 0: none.
  std::array<std::atomic<std::uint32_t>, kMaxIndexes> dropping_{};
};

}  // namespace pando::pool
