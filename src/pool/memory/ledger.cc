#include "pool/memory/ledger.h"

#include <xxhash.h>

#include <algorithm>
#include <cassert>

namespace pando::pool {
namespace {

// Over everything but the content word itself, whose other fields go in as the seed.
std::uint32_t checksum_of(const LedgerPage& page, PageContent content) {
  content.checksum = 0;
  const std::uint64_t seed = content.word() ^ page.edition * 0x9e37'79b9'7f4a'7c15;
  const std::size_t bytes = content.entries * sizeof(LedgerPage::Entry);
  return static_cast<std::uint32_t>(XXH3_64bits_withSeed(page.entries, bytes, seed));
}

}  // namespace

// ---- Bytes ----

std::optional<PageContent> PageContent::from_word(std::uint64_t word) {
  const PageContent content{.checksum = static_cast<std::uint32_t>(word >> 32),
                            .entries = static_cast<std::uint16_t>(word >> 16),
                            .kind = static_cast<BlockKind>(static_cast<std::uint8_t>(word >> 8)),
                            .size_class = static_cast<std::uint8_t>(word)};
  if (content.entries == 0 || content.entries > LedgerPage::kEntries ||
      static_cast<std::size_t>(content.kind) >= kBlockKinds || content.size_class >= kSizeClasses) {
    return std::nullopt;
  }
  return content;
}

std::uint64_t PageContent::word() const {
  return (std::uint64_t{checksum} << 32) | (std::uint64_t{entries} << 16) |
         (static_cast<std::uint64_t>(kind) << 8) | size_class;
}

void encode_page(LedgerPage& page, std::span<const Listed> rows, std::uint64_t edition) {
  assert(!rows.empty() && rows.size() <= LedgerPage::kEntries);
  const Block& first = rows.front().run.block;
  page.edition = edition;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FreeRun& run = rows[i].run;
    assert(run.block.kind == first.kind && run.block.size_class == first.size_class);
    page.entries[i] = {.address = run.block.address.raw(),
                       .incarnation = run.block.incarnation,
                       .count = run.count | (rows[i].retired ? LedgerPage::kRetired : 0)};
  }
  PageContent content{.entries = static_cast<std::uint16_t>(rows.size()),
                      .kind = first.kind,
                      .size_class = first.size_class};
  content.checksum = checksum_of(page, content);
  page.content_word = content.word();
}

std::optional<std::vector<Listed>> decode_page(const LedgerPage& page) {
  const auto content = PageContent::from_word(page.content_word);
  if (!content || content->checksum != checksum_of(page, *content)) return std::nullopt;
  std::vector<Listed> rows;
  rows.reserve(content->entries);
  for (std::size_t i = 0; i < content->entries; ++i) {
    const LedgerPage::Entry& entry = page.entries[i];
    rows.push_back({.run = {.block = {.address = fabric::Address::from_raw(entry.address),
                                      .incarnation = entry.incarnation,
                                      .kind = content->kind,
                                      .size_class = content->size_class},
                            .count = entry.count & ~LedgerPage::kRetired},
                    .retired = (entry.count & LedgerPage::kRetired) != 0});
  }
  return rows;
}

// ---- Ledger ----

void Ledger::add(fabric::Address page, std::uint64_t edition) {
  pages_.push_back({.at = page, .edition = edition});
  edition_ = std::max(edition_, edition);
  budget_.take(BudgetUse::kFreeLists, sizeof(Page));
}

bool Ledger::has(fabric::Address page) const {
  return std::ranges::find(pages_, page, &Page::at) != pages_.end();
}

std::vector<Ledger::Mark> Ledger::marks(BlockKind kind, std::size_t size_class) const {
  std::vector<Mark> found = marks();
  std::erase_if(found, [&](const Mark& mark) {
    const Page& page = pages_[mark.page];
    return page.kind != kind || page.size_class != size_class;
  });
  return found;
}

std::vector<Ledger::Mark> Ledger::marks() const {
  std::vector<Mark> found;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (!pages_[i].listing) continue;
    found.push_back({.page = i,
                     .edition = pages_[i].edition,
                     .at = pages_[i].at + offsetof(LedgerPage, content_word)});
  }
  return found;
}

void Ledger::struck(std::span<const Mark> marks) {
  for (const Mark& mark : marks) {
    Page& page = pages_[mark.page];
    if (page.edition == mark.edition) page.listing = false;
  }
}

std::optional<fabric::Address> Ledger::take(BlockKind kind, std::size_t size_class,
                                            std::uint64_t edition) {
  const auto own = std::ranges::find_if(pages_, [&](const Page& page) {
    return page.listing && page.edition != edition && page.kind == kind &&
           page.size_class == size_class;
  });
  const auto page = own != pages_.end() ? own : std::ranges::find(pages_, false, &Page::listing);
  if (page == pages_.end()) return std::nullopt;
  page->listing = true;
  page->kind = kind;
  page->size_class = static_cast<std::uint8_t>(size_class);
  page->edition = edition;
  return page->at;
}

}  // namespace pando::pool
