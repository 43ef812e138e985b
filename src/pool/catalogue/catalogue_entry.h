// The bytes of a catalogue entry: states, checksum, names. See layout.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "pool/catalogue/catalogue.h"
#include "pool/layout.h"
#include <pando/result.h>

namespace pando::pool {

enum class EntryState : std::uint8_t { kEmpty = 0, kCreating = 1, kLive = 2, kDropping = 3 };

// state_word: {index id:32, 0:24, state:8}. An empty entry's is 0.
constexpr std::uint64_t entry_word(std::uint32_t index_id, EntryState state) {
  return (std::uint64_t{index_id} << 32) | static_cast<std::uint64_t>(state);
}
constexpr std::uint32_t entry_id(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}
constexpr EntryState entry_state(std::uint64_t word) {
  return static_cast<EntryState>(word & 0xff);
}

// kInvalidArgument, saying what is wrong with the name.
Status check_index_name(std::string_view name);

// Fills everything but the words, which are zeroed.
CatalogueEntry make_entry(std::uint32_t index_id, std::uint32_t format_version, std::uint64_t seed,
                          std::string_view name, std::string_view options);
// The entry's bytes belong together and to the index that its state names.
bool intact(const CatalogueEntry& entry);
// REQUIRES: intact(entry).
std::string_view name_of(const CatalogueEntry& entry);
IndexRecord record_of(const CatalogueEntry& entry, std::size_t place);

}  // namespace pando::pool
