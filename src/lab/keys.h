// KeySpace: the key of item i, for i = 0, 1, 2 … in the order of insertion.
//
// Integer keys, random order: a bijective scramble of i over all 64-bit integers (scattered); or of
// the first n items over 0 … n - 1, of the next n over n … 2n - 1, and so on (dense: once n items
// are there, their keys are consecutive). String keys: mail addresses with the host first, 32 bytes
// ("com.gmail@barido07k2m4c9z1xq3v8w"), so that keys share long prefixes; distinct because their
// last 13 characters spell the scrambled i. Sequential order: keys ascend with i.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/random.h"
#include <pando/key.h>

namespace pando::lab {

enum class Order : std::uint8_t { kRandom, kSequential };

inline constexpr std::size_t kStringKeyBytes = 32;

class KeySpace {
 public:
  // Where the bytes of a string key live; the key is valid as long as it.
  using Buffer = std::array<char, kStringKeyBytes>;

  KeySpace(KeyType type, Order order) : type_(type), order_(order) {}
  // Dense integer keys, `count` at a time. REQUIRES: count > 0.
  static KeySpace dense(Order order, std::uint64_t count) {
    assert(count > 0);
    KeySpace keys(KeyType::kInteger, order);
    keys.dense_ = Dense{count, base::Permutation(count, 0)};
    return keys;
  }

  KeyType type() const { return type_; }
  bool is_dense() const { return dense_.has_value(); }
  std::size_t key_bytes() const {
    return type_ == KeyType::kInteger ? sizeof(std::uint64_t) : kStringKeyBytes;
  }
  Key key(std::uint64_t item, Buffer& buffer) const;

 private:
  struct Dense {
    std::uint64_t count;
    base::Permutation place;
  };

  KeyType type_;
  Order order_;
  std::optional<Dense> dense_;
};

// As the indexes compare. REQUIRES both of one type.
bool key_less(const Key& a, const Key& b);
bool key_equal(const Key& a, const Key& b);

// For messages: 0x… for integers, quoted with escapes for strings.
std::string describe(const Key& key);

// Integer keys as bytes whose order is the keys' order, for stores that know bytes only.
using BigEndian = std::array<char, sizeof(std::uint64_t)>;
BigEndian big_endian(std::uint64_t integer);
// REQUIRES: bytes has 8 of them.
std::uint64_t from_big_endian(std::string_view bytes);

}  // namespace pando::lab
