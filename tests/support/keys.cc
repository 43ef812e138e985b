#include "support/keys.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

namespace pando::testing {
namespace {

constexpr std::string_view kKeyPrefix = "org.example/user/";
constexpr std::size_t kDigits = 16;

std::string hex(std::uint64_t n) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string text(kDigits, '0');
  for (std::size_t i = kDigits; i-- > 0; n >>= 4) text[i] = kHexDigits[n & 15];
  return text;
}

std::string big_endian(std::uint64_t n) {
  std::string bytes(8, '\0');
  for (std::size_t i = 8; i-- > 0; n >>= 8) bytes[i] = static_cast<char>(n & 0xff);
  return bytes;
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::vector<OwnedKey> hostile_integers() {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint64_t k32 = std::uint64_t{1} << 32;
  constexpr std::uint64_t k63 = std::uint64_t{1} << 63;
  std::vector<OwnedKey> keys;
  for (const std::uint64_t n :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{127},
        std::uint64_t{128}, std::uint64_t{255}, std::uint64_t{256}, std::uint64_t{65535},
        std::uint64_t{65536}, k32 - 1, k32, k32 + 1, std::uint64_t{0x00ff00ff00ff00ff}, k63 - 1,
        k63, k63 + 1, kMax - 2, kMax - 1, kMax}) {
    keys.emplace_back(n);
  }
  return keys;
}

void add_single_bytes(std::vector<std::string>& keys) {
  for (int byte = 0; byte < 256; ++byte) keys.emplace_back(1, static_cast<char>(byte));
}

// Runs of one byte: each is a prefix of the next.
void add_runs(std::vector<std::string>& keys) {
  for (const char byte : {'\0', 'a', '\x7f', '\x80', '\xff'}) {
    for (const std::size_t length :
         {2u, 7u, 8u, 9u, 15u, 16u, 17u, 63u, 64u, 65u, 1024u, 4095u, 4096u}) {
      keys.emplace_back(length, byte);
    }
  }
}

// Differences that only appear late.
void add_long_common_prefixes(std::vector<std::string>& keys) {
  for (const std::size_t shared : {std::size_t{1024}, kMaxKeyBytes - 1}) {
    const std::string prefix = std::string(shared, 'p');
    for (const char next : {'\0', '\x01', 'p', '\x7f', '\x80', '\xfe', '\xff'}) {
      keys.push_back(prefix + next);
      std::string full = prefix + next;
      full.resize(kMaxKeyBytes, 'q');
      keys.push_back(full);
    }
    keys.push_back(prefix);
  }
}

// Zero bytes at the end, in the middle, at the start.
void add_zero_bytes(std::vector<std::string>& keys) {
  using namespace std::string_literals;
  for (const std::string& key :
       {"a\0"s, "a\0\0"s, "a\0b"s, "\0a"s, "\0\xff"s, "\xff\0"s, "abcdefg\0"s, "abcdefgh\0"s,
        "abcdefgh\0\0"s, "abcdefgh"s, "abcdefghi"s, "abcdefg"s, "abcdefgh\0i"s}) {
    keys.push_back(key);
  }
}

// Eight-byte strings that look like integers do inside.
void add_integer_images(std::vector<std::string>& keys) {
  for (const OwnedKey& key : hostile_integers()) keys.push_back(big_endian(key.integer()));
}

std::vector<OwnedKey> hostile_byte_strings() {
  std::vector<std::string> keys{""};
  add_single_bytes(keys);
  add_runs(keys);
  add_long_common_prefixes(keys);
  add_zero_bytes(keys);
  add_integer_images(keys);
  std::ranges::sort(keys);
  const auto repeated = std::ranges::unique(keys);
  keys.erase(repeated.begin(), repeated.end());
  return {keys.begin(), keys.end()};
}

}  // namespace

OwnedKey numbered_key(KeyType type, std::uint64_t n) {
  if (type == KeyType::kInteger) return OwnedKey(n);
  std::string key(kKeyPrefix);
  key += hex(n);
  key.append(n % 11 * 3, '~');
  return OwnedKey(std::move(key));
}

std::uint64_t number_of(const OwnedKey& key) {
  if (key.type() == KeyType::kInteger) return key.integer();
  const std::string& bytes = key.bytes();
  std::uint64_t n = std::numeric_limits<std::uint64_t>::max();  // for what is no such key
  if (bytes.size() < kKeyPrefix.size() + kDigits) return n;
  const char* digits = bytes.data() + kKeyPrefix.size();
  std::from_chars(digits, digits + kDigits, n, 16);
  return n;
}

OwnedKey smallest_key(KeyType type) {
  return type == KeyType::kInteger ? OwnedKey(std::uint64_t{0}) : OwnedKey(std::string());
}

std::vector<OwnedKey> hostile_keys(KeyType type) {
  return type == KeyType::kInteger ? hostile_integers() : hostile_byte_strings();
}

const std::vector<std::size_t>& value_sizes() {
  static const std::vector<std::size_t> kSizes{0,  1,   7,   8,    9,    63,    64,
                                               65, 255, 256, 1000, 4096, 65536, kMaxValueBytes};
  return kSizes;
}

std::string patterned_value(std::size_t size, std::uint64_t seed) {
  std::string value(size, '\0');
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = mix(seed * 0x100000001b3u + at);
    std::memcpy(value.data() + at, &word, std::min<std::size_t>(8, size - at));
  }
  return value;
}

std::string numbered_value(std::uint64_t n, std::uint64_t round) {
  std::string value = std::to_string(n) + "." + std::to_string(round);
  if (value.size() < 8) value.resize(8, ' ');
  return value;
}

std::string show(const OwnedKey& key) {
  if (key.type() == KeyType::kInteger) return std::to_string(key.integer());
  std::string text = "\"";
  for (const char c : key.bytes().substr(0, 24)) {
    char escaped[8];
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(c) & 0xff);
      text += escaped;
    }
  }
  return text + "\" (" + std::to_string(key.bytes().size()) + " bytes)";
}

}  // namespace pando::testing
