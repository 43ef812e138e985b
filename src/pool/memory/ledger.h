// Ledger: what a compute node holds free, listed in far memory, so that it is not lost with it.
//
// A ledger is a chain of pages, which the compute node's slot leads to (layout.h, ledger_word).
// Pages stay with their slot for good; the next compute node there uses them again. A page lists
// blocks of one kind and class: runs of memory never used, free blocks, retired ones. The
// housekeeper writes it after the fact: nothing that an operation does costs a round trip for it.
//
// What a page says is old when it is read. These make it enough:
//  1. A block is listed by who holds it alone, and while it does. Before a block goes to a shared
//     stack, no page lists its class any more: a WRITE that goes with push_magazine()'s first look.
//  2. Who uses a block writes its incarnation into its first line before anything leads to it
//     (block.h, invariant 6). So of a listed block whose first line has no later incarnation than
//     the page says, nobody but its holder knows; and one that was never used is zero throughout.
//  3. Nobody goes by a ledger but who has its slot: its compute node, or, when that one has been
//     shut out for good and is declared dead, the one who then takes the slot
//     (SlotState::kRecovering) or joins there. See recovery.cc.
// Hence what a dead compute node's pages list, and what by 2 has not been begun, is free, and
// belongs to who has the slot. Where a page is half written, its checksum is wrong: it lists
// nothing.
//
// Pages of one class are written together, with a number, their edition, that grows. Where only
// some of them were, those of the newest edition count: so a block is never listed twice.
//
// docs/formats/pool.md draws the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fabric/verbs.h"
#include "pool/memory/budget.h"
#include "pool/memory/free_blocks.h"

namespace pando::pool {

struct LedgerPage {
  struct Entry {
    std::uint64_t address;
    std::uint32_t incarnation;  // 0: never used, and zero
    std::uint32_t count;        // of blocks side by side; with kRetired: 1
  };
  static constexpr std::size_t kEntries = 126;
  static constexpr std::uint32_t kMagic = 0x4744'454c;  // "LEDG"
  static constexpr std::uint32_t kRetired = std::uint32_t{1} << 31;

  std::uint64_t next;         // address of the next page; 0 is none
  std::uint32_t incarnation;  // of the page's own block, where an item has it
  std::uint32_t magic;
  std::uint64_t content_word;  // {checksum:32, entries:16, kind:8, class:8}; 0: lists nothing
  std::uint64_t edition;
  Entry entries[kEntries];
};
static_assert(sizeof(LedgerPage) == 2048);
static_assert(offsetof(LedgerPage, incarnation) == 8);  // as invariant 6 of block.h asks

// A row of a page: blocks that are free, or one that is retired and may still be read by others.
struct Listed {
  FreeRun run;
  bool retired = false;
};

// What content_word tells.
struct PageContent {
  std::uint32_t checksum = 0;
  std::uint16_t entries = 0;
  BlockKind kind{};
  std::uint8_t size_class = 0;

  // Nothing: it lists nothing, or is no content word.
  static std::optional<PageContent> from_word(std::uint64_t word);
  std::uint64_t word() const;
};

// Fills in all but `next`, `incarnation` and `magic`. REQUIRES: 1 to kEntries rows, of one kind and
// class.
void encode_page(LedgerPage& page, std::span<const Listed> rows, std::uint64_t edition);
// Nothing: the page was not written to its end.
std::optional<std::vector<Listed>> decode_page(const LedgerPage& page);
// A page of somebody's ledger, as far as its first line tells.
struct FoundPage {
  fabric::Address at;
  std::uint64_t edition = 0;
  std::size_t listed = 0;  // class_index(); kClasses: it lists nothing
};
// How much of a page is written for so many rows, from content_word on.
constexpr std::size_t page_bytes(std::size_t rows) {
  return offsetof(LedgerPage, entries) - offsetof(LedgerPage, content_word) +
         rows * sizeof(LedgerPage::Entry);
}

// Which pages this compute node has, and what they list by now or may. Bookkeeping only. Not
// thread-safe: the Allocator's mutex guards it.
class Ledger {
 public:
  // From the start, so that where the pool is full by then there are some: enough to list, when it
  // leaves, what it has retired lately of so many classes.
  static constexpr std::size_t kFirstPages = 8;
  // While the compute node works, so that writing them takes little: 64 KiB, for some 4000 blocks.
  static constexpr std::size_t kUsualPages = 32;
  // When it leaves with blocks retired: some 129,000.
  static constexpr std::size_t kMaxPages = 1024;

  struct Page {
    fabric::Address at;
    bool listing = false;  // it lists blocks of the class below, or may
    BlockKind kind{};
    std::uint8_t size_class = 0;
    std::uint64_t edition = 0;  // as written last
  };
  // A page that lists a class, to be struck before its blocks are given to others.
  struct Mark {
    std::size_t page;
    std::uint64_t edition;
    fabric::Address at;  // of the content word
  };

  explicit Ledger(Budget& budget) : budget_(budget) {}
  ~Ledger() { budget_.give_back(BudgetUse::kFreeLists, pages_.size() * sizeof(Page)); }
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // A page that lists nothing, and was last written with this edition; later ones are newer.
  void add(fabric::Address page, std::uint64_t edition);
  bool has(fabric::Address page) const;
  std::size_t size() const { return pages_.size(); }

  // Pages are being written: no block may be given away until that has ended.
  bool writing() const { return writing_; }
  void set_writing(bool writing) { writing_ = writing; }
  std::uint64_t next_edition() { return ++edition_; }

  std::vector<Mark> marks(BlockKind kind, std::size_t size_class) const;
  std::vector<Mark> marks() const;  // of all that list anything
  // These were struck. Those that have been written again since are left as they are.
  void struck(std::span<const Mark> marks);
  // Takes a page for rows of the class, its own before one that lists nothing. Nothing: there is
  // none. One that has this edition already is not taken.
  std::optional<fabric::Address> take(BlockKind kind, std::size_t size_class,
                                      std::uint64_t edition);

 private:
  Budget& budget_;
  std::vector<Page> pages_;
  std::uint64_t edition_ = 0;
  bool writing_ = false;
};

}  // namespace pando::pool
