// Deterministic randomness for workloads and simulations: the same seed gives the same figures on
// every machine.
//
// mix64 is a bijection of 64-bit words (MurmurHash3's finaliser); Random is xoshiro256**, seeded
// through it; Permutation is a pseudo-random bijection of 0..size-1 without a table.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>

namespace pando::base {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

// Order matters: mix64(a, b) != mix64(b, a).
constexpr std::uint64_t mix64(std::uint64_t a, std::uint64_t b) {
  return mix64(mix64(a + 0x9e3779b97f4a7c15ULL) ^ b);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) {
    for (std::uint64_t i = 0; auto& word : state_) word = mix64(seed, ++i);
  }

  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound). REQUIRES bound > 0. The bias is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) {
    assert(bound > 0);
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

  // Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_[4];
};

// A Feistel network over the smallest even number of bits that holds `size`, walked until the
// image falls below it: less than four steps on average.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed)
      : size_(size), half_bits_((64 - std::countl_zero(size > 1 ? size - 1 : 1) + 1) / 2) {
    for (std::uint64_t i = 0; auto& key : keys_) key = mix64(seed, ++i);
  }

  // REQUIRES x < size.
  std::uint64_t operator()(std::uint64_t x) const {
    assert(x < size_);
    do x = once(x);
    while (x >= size_);
    return x;
  }

 private:
  std::uint64_t once(std::uint64_t x) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_;
    std::uint64_t right = x & mask;
    for (const std::uint64_t key : keys_) {
      const std::uint64_t next = left ^ (mix64(right ^ key) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t size_;
  int half_bits_;
  std::uint64_t keys_[4];
};

}  // namespace pando::base
