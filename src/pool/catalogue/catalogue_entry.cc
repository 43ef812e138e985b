#include "pool/catalogue/catalogue_entry.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cassert>
#include <cstring>

namespace pando::pool {
namespace {

std::uint32_t checksum_of(const CatalogueEntry& entry, std::uint32_t index_id) {
  const std::uint64_t lengths[] = {entry.format_version, entry.name_length, entry.options_length,
                                   entry.seed};
  std::uint64_t hash = XXH3_64bits_withSeed(lengths, sizeof(lengths), index_id);
  hash = XXH3_64bits_withSeed(entry.name, sizeof(entry.name), hash);
  hash = XXH3_64bits_withSeed(entry.options, sizeof(entry.options), hash);
  return static_cast<std::uint32_t>(hash);
}

// How many bytes the UTF-8 character at the start of `text` has; 0 where it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what is beyond U+10FFFF.
  const unsigned char second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

}  // namespace

Status check_index_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxIndexName) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("an index's name has 1 to {} bytes, not {}", kMaxIndexName, name.size()));
  }
  for (std::size_t i = 0; i < name.size();) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const std::size_t length = utf8_length(name.substr(i));
    if (byte < 0x20 || byte == 0x7f || length == 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("an index's name is printable UTF-8: byte {:#04x} at {} is not", byte, i));
    }
    i += length;
  }
  return {};
}

CatalogueEntry make_entry(std::uint32_t index_id, std::uint32_t format_version, std::uint64_t seed,
                          std::string_view name, std::string_view options) {
  CatalogueEntry entry{};
  entry.format_version = format_version;
  entry.name_length = static_cast<std::uint32_t>(name.size());
  entry.options_length = static_cast<std::uint32_t>(options.size());
  entry.seed = seed;
  std::memcpy(entry.name, name.data(), name.size());
  if (!options.empty()) std::memcpy(entry.options, options.data(), options.size());
  entry.checksum = checksum_of(entry, index_id);
  return entry;
}

bool intact(const CatalogueEntry& entry) {
  return entry.name_length <= kMaxIndexName && entry.options_length <= kMaxIndexOptions &&
         entry_state(entry.state_word) <= EntryState::kDropping &&
         entry.checksum == checksum_of(entry, entry_id(entry.state_word));
}

std::string_view name_of(const CatalogueEntry& entry) { return {entry.name, entry.name_length}; }

IndexRecord record_of(const CatalogueEntry& entry, std::size_t place) {
  assert(intact(entry));
  return {.entry = place,
          .index_id = entry_id(entry.state_word),
          .format_version = entry.format_version,
          .seed = entry.seed,
          .name = std::string(name_of(entry)),
          .options = std::string(entry.options, entry.options_length)};
}

fabric::Address IndexRecord::root_word() const {
  return catalogue_address(entry) + offsetof(CatalogueEntry, root_word);
}

fabric::Address IndexRecord::index_word(std::size_t i) const {
  return catalogue_address(entry) + offsetof(CatalogueEntry, index_words) + i * 8;
}

}  // namespace pando::pool
