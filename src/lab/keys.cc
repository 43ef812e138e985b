#include "lab/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <string_view>

#include "base/random.h"

namespace pando::lab {

namespace {

using namespace std::string_view_literals;

constexpr std::array kHosts = {
    "at.gmx"sv,       "ch.bluewin"sv, "com.aol"sv,     "com.gmail"sv,        "com.googlemail"sv,
    "com.hotmail"sv,  "com.icloud"sv, "com.mail"sv,    "com.outlook"sv,      "com.yahoo"sv,
    "com.ymail"sv,    "de.freenet"sv, "de.gmx"sv,      "de.t-online"sv,      "de.web"sv,
    "edu.berkeley"sv, "edu.mit"sv,    "fr.free"sv,     "fr.orange"sv,        "it.libero"sv,
    "net.comcast"sv,  "net.gmx"sv,    "org.example"sv, "uk.co.btinternet"sv,
};
constexpr std::size_t kDigits = 13;  // 36^13 > 2^64
constexpr auto kDigitCharacters = "0123456789abcdefghijklmnopqrstuvwxyz"sv;

std::size_t append(KeySpace::Buffer& buffer, std::size_t at, std::string_view text) {
  std::memcpy(buffer.data() + at, text.data(), text.size());
  return at + text.size();
}

void spell_last_digits(KeySpace::Buffer& buffer, std::uint64_t number) {
  for (std::size_t i = 0; i < kDigits; ++i) {
    buffer[buffer.size() - 1 - i] = kDigitCharacters[number % 36];
    number /= 36;
  }
}

// Syllables, so that names share prefixes as people's names do.
void spell_name(KeySpace::Buffer& buffer, std::size_t begin, std::size_t end, std::uint64_t seed) {
  for (std::size_t at = begin; at < end; ++at) {
    const auto letters = (at - begin) % 2 == 0 ? "bdfgjklmnprstvwz"sv : "aeiouaeo"sv;
    buffer[at] = letters[seed % letters.size()];
    seed /= letters.size();
  }
}

void spell_random(KeySpace::Buffer& buffer, std::uint64_t item) {
  const std::uint64_t hash = base::mix64(item, 1);
  std::size_t at = append(buffer, 0, kHosts[hash % kHosts.size()]);
  at = append(buffer, at, "@");
  spell_name(buffer, at, buffer.size() - kDigits, base::mix64(hash));
  spell_last_digits(buffer, base::mix64(item));
}

void spell_sequential(KeySpace::Buffer& buffer, std::uint64_t item) {
  const std::size_t at = append(buffer, 0, "org.example@reader");
  std::fill(buffer.begin() + static_cast<std::ptrdiff_t>(at), buffer.end(), '0');
  spell_last_digits(buffer, item);
}

}  // namespace

Key KeySpace::key(std::uint64_t item, Buffer& buffer) const {
  if (type_ == KeyType::kInteger) {
    if (order_ == Order::kSequential) return Key(item);
    if (!dense_) return Key(base::mix64(item));
    const std::uint64_t within = item % dense_->count;
    return Key(item - within + dense_->place(within));
  }
  if (order_ == Order::kRandom) {
    spell_random(buffer, item);
  } else {
    spell_sequential(buffer, item);
  }
  return {std::string_view(buffer.data(), buffer.size())};
}

bool key_less(const Key& a, const Key& b) {
  assert(a.type() == b.type());
  return a.type() == KeyType::kInteger ? a.integer() < b.integer() : a.bytes() < b.bytes();
}

bool key_equal(const Key& a, const Key& b) {
  assert(a.type() == b.type());
  return a.type() == KeyType::kInteger ? a.integer() == b.integer() : a.bytes() == b.bytes();
}

std::string describe(const Key& key) {
  if (key.type() == KeyType::kInteger) return fmt::format("{:#018x}", key.integer());
  std::string text = "\"";
  for (const char c : key.bytes()) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      text += c;
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text += '"';
}

BigEndian big_endian(std::uint64_t integer) {
  static_assert(std::endian::native == std::endian::little);
  return std::bit_cast<BigEndian>(__builtin_bswap64(integer));
}

std::uint64_t from_big_endian(std::string_view bytes) {
  std::uint64_t word;
  assert(bytes.size() == sizeof word);
  std::memcpy(&word, bytes.data(), sizeof word);
  return __builtin_bswap64(word);
}

}  // namespace pando::lab
