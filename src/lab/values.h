// Values that prove themselves: whether bytes are an intact value of a key can be told from the
// key and the bytes alone, without a table of what was written.
//
// A value of 8 bytes or more opens with its version (2 bytes) and a 6-byte tag, a hash of key,
// version and length; the rest is a stream that follows from the same hash. From 2 bytes on there
// is 1 byte of version and as much tag as fits; a value of 1 byte is tag alone, one of 0 bytes
// proves nothing but its length.
//
// Found: another key's value, a torn or truncated one, a flipped bit (chance of a miss: 2^-48 at
// 8 bytes and above, 2^-8 to 2^-40 below). Not found: an older value of the same key. That is for
// the linearizability checks, not for a benchmark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <pando/key.h>

namespace pando::lab {

// Writes the value of `size` bytes; of `version`, the bits that fit count.
void make_value(const Key& key, std::uint64_t version, std::size_t size, std::string& out);

// True where `value` is one that make_value gives for `key` and `size`, whatever the version.
bool value_is_sound(const Key& key, std::string_view value, std::size_t size);

// REQUIRES a sound value.
std::uint64_t version_of(std::string_view value);

// For messages: length and first bytes, in hexadecimal.
std::string describe_value(std::string_view value);

}  // namespace pando::lab
