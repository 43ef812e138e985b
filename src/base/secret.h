// Randomness that nobody can guess, and proofs of knowing a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <pando/result.h>

namespace pando::base {

// From the system's generator.
void fill_random(std::span<std::byte> bytes);
std::uint64_t random_word();

using Digest = std::array<std::byte, 32>;

// HMAC-SHA-256. The key may be empty, and then proves nothing.
Digest sign(std::string_view key, std::span<const std::byte> message);
// Takes the same time wherever they differ.
bool same(const Digest& a, const Digest& b);

// A key from a file: its text without white space at the ends. An error where the file cannot be
// read, is empty, or may be read by others than its owner and group.
Result<std::string> read_key(const std::string& path);

}  // namespace pando::base
