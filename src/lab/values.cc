#include "lab/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/random.h"

namespace pando::lab {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

constexpr unsigned version_bits(std::size_t size) { return size >= kWord ? 16 : size >= 2 ? 8 : 0; }

constexpr std::uint64_t version_mask(std::size_t size) {
  return (std::uint64_t{1} << version_bits(size)) - 1;
}

std::uint64_t hash_key(const Key& key) {
  if (key.type() == KeyType::kInteger) return base::mix64(key.integer() ^ 0x5bd1e995u);
  return XXH3_64bits(key.bytes().data(), key.bytes().size());
}

std::uint64_t seal_of(const Key& key, std::uint64_t version, std::size_t size) {
  return base::mix64(hash_key(key), base::mix64(version, size));
}

// The opening word: version in the low bits, above it the tag.
std::uint64_t opening(std::uint64_t seal, std::uint64_t version, std::size_t size) {
  return (seal << version_bits(size)) | version;
}

std::uint64_t stream_word(std::uint64_t seal, std::size_t at) { return base::mix64(seal + at); }

std::uint64_t first_word(std::string_view value) {
  std::uint64_t word = 0;
  std::memcpy(&word, value.data(), std::min(value.size(), kWord));
  return word;
}

}  // namespace

void make_value(const Key& key, std::uint64_t version, std::size_t size, std::string& out) {
  version &= version_mask(size);
  const std::uint64_t seal = seal_of(key, version, size);
  out.resize(size);
  std::uint64_t word = opening(seal, version, size);
  for (std::size_t at = 0; at < size; at += kWord) {
    if (at > 0) word = stream_word(seal, at);
    std::memcpy(out.data() + at, &word, std::min(kWord, size - at));
  }
}

bool value_is_sound(const Key& key, std::string_view value, std::size_t size) {
  if (value.size() != size) return false;
  const std::uint64_t version = version_of(value);
  const std::uint64_t seal = seal_of(key, version, size);
  std::uint64_t word = opening(seal, version, size);
  for (std::size_t at = 0; at < size; at += kWord) {
    if (at > 0) word = stream_word(seal, at);
    if (std::memcmp(value.data() + at, &word, std::min(kWord, size - at)) != 0) return false;
  }
  return true;
}

std::uint64_t version_of(std::string_view value) {
  return first_word(value) & version_mask(value.size());
}

std::string describe_value(std::string_view value) {
  constexpr std::size_t kShown = 16;
  std::string text = fmt::format("{} bytes", value.size());
  for (std::size_t i = 0; i < std::min(kShown, value.size()); ++i) {
    text += fmt::format("{}{:02x}", i == 0 ? ": " : " ", static_cast<unsigned char>(value[i]));
  }
  if (value.size() > kShown) text += " …";
  return text;
}

}  // namespace pando::lab
