// Keys and values for tests: numbered ones that work for either key type, and hostile ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/check/history.h"
#include <pando/pando.h>

namespace pando::testing {

// The n-th key: ascending in n. Byte-string keys share a prefix and differ in length.
OwnedKey numbered_key(KeyType type, std::uint64_t n);
// The n that numbered_key() was given.
std::uint64_t number_of(const OwnedKey& key);

// For models and histories.
using lab::check::from_order_bytes;
using lab::check::order_bytes;

// The smallest key of the type.
OwnedKey smallest_key(KeyType type);

// Keys that have broken indexes before: ascending, without duplicates.
std::vector<OwnedKey> hostile_keys(KeyType type);

// Sizes about the edges of words, lines, blocks and limits.
const std::vector<std::size_t>& value_sizes();
// `size` bytes that depend on every bit of `seed` and on their place: a value cut short, shifted,
// torn or mixed with another one differs.
std::string patterned_value(std::size_t size, std::uint64_t seed);
// A value that names key number and round: "n.round", padded to at least 8 bytes.
std::string numbered_value(std::uint64_t n, std::uint64_t round = 0);

// Printable and short, for failure messages.
std::string show(const OwnedKey& key);

}  // namespace pando::testing
