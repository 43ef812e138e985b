// Copies between private memory and memory that other threads change at the same time.
//
// Contract
//  1. Every access to the shared side is one instruction on an aligned word of 8 or 16 bytes, so
//     no aligned 8-byte word is ever torn. Lines are not atomic here: line_memory.h sees to that.
//  2. Shared addresses and lengths may be odd. The words that the ends lie in are accessed whole:
//     they must be mapped, so shared memory begins and ends at multiples of 8.
//  3. copy_to_shared() rewrites the rest of a word that it changes in part. REQUIRES: nobody else
//     writes these words meanwhile (readers may read).
//  4. Neither orders anything: that is for the caller's fences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/sanitizers.h"

// The thread sanitizer understands atomic words; vector copies it would take for data races.
#if defined(__SSE2__) && !PANDO_THREAD_SANITIZER
#define PANDO_VECTOR_COPIES 1
#include <emmintrin.h>
#else
#define PANDO_VECTOR_COPIES 0
#endif

namespace pando::fabric {

namespace detail {

inline constexpr std::size_t kWord = 8;

inline std::size_t place_in_word(const std::byte* shared) {
  return reinterpret_cast<std::uintptr_t>(shared) % kWord;
}

inline bool is_vector(const std::byte* shared) {
  return reinterpret_cast<std::uintptr_t>(shared) % 16 == 0;
}

inline std::uint64_t load_word(const std::byte* shared) {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(shared), __ATOMIC_RELAXED);
}

inline void store_word(std::byte* shared, std::uint64_t word) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(shared), word, __ATOMIC_RELAXED);
}

// Bytes [place, place + length) of the aligned word at `word`.
inline void load_part(std::byte* into, const std::byte* word, std::size_t place,
                      std::size_t length) {
  const std::uint64_t value = load_word(word);
  std::memcpy(into, reinterpret_cast<const std::byte*>(&value) + place, length);
}

inline void store_part(std::byte* word, const std::byte* from, std::size_t place,
                       std::size_t length) {
  std::uint64_t value = load_word(word);
  std::memcpy(reinterpret_cast<std::byte*>(&value) + place, from, length);
  store_word(word, value);
}

#if PANDO_VECTOR_COPIES
// Volatile on the shared side: the compiler must neither split these nor make a memcpy of a loop.
inline void load_vector(std::byte* into, const std::byte* shared) {
  const __m128i value = *reinterpret_cast<const volatile __m128i*>(shared);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(into), value);
}

inline void store_vector(std::byte* shared, const std::byte* from) {
  *reinterpret_cast<volatile __m128i*>(shared) =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
#else
inline void load_vector(std::byte* into, const std::byte* shared) {
  load_part(into, shared, 0, kWord);
  load_part(into + kWord, shared + kWord, 0, kWord);
}

inline void store_vector(std::byte* shared, const std::byte* from) {
  store_part(shared, from, 0, kWord);
  store_part(shared + kWord, from + kWord, 0, kWord);
}
#endif

// Cuts [shared, shared + length) into pieces that one instruction each can access: calls
// part(shared, done, place, bytes) for words touched in part or alone, vector(shared, done) for 16
// aligned bytes; `done` is how far the private side has come.
template <class Byte, class Part, class Vector>
[[gnu::always_inline]] inline void for_each_piece(Byte* shared, std::size_t length, Part part,
                                                  Vector vector) {
  std::size_t done = 0;
  if (const std::size_t place = place_in_word(shared); place != 0) {
    const std::size_t bytes = length < kWord - place ? length : kWord - place;
    part(shared - place, done, place, bytes);
    done += bytes;
  }
  if (length - done >= kWord && !is_vector(shared + done)) {
    part(shared + done, done, 0, kWord);
    done += kWord;
  }
  for (; length - done >= 64; done += 64) {
    for (std::size_t at = done; at < done + 64; at += 16) vector(shared + at, at);
  }
  for (; length - done >= 16; done += 16) vector(shared + done, done);
  if (length - done >= kWord) {
    part(shared + done, done, 0, kWord);
    done += kWord;
  }
  if (length != done) part(shared + done, done, 0, length - done);
}

// Apart from whole lines, which need none of this and are what most copies are of.
[[gnu::noinline]] inline void copy_pieces_from(std::byte* into, const std::byte* shared,
                                               std::size_t length) {
  for_each_piece(
      shared, length,
      [into](const std::byte* word, std::size_t done, std::size_t place, std::size_t bytes) {
        load_part(into + done, word, place, bytes);
      },
      [into](const std::byte* piece, std::size_t done) { load_vector(into + done, piece); });
}

[[gnu::noinline]] inline void copy_pieces_to(std::byte* shared, const std::byte* from,
                                             std::size_t length) {
  for_each_piece(
      shared, length,
      [from](std::byte* word, std::size_t done, std::size_t place, std::size_t bytes) {
        store_part(word, from + done, place, bytes);
      },
      [from](std::byte* piece, std::size_t done) { store_vector(piece, from + done); });
}

}  // namespace detail

inline void copy_from_shared(std::byte* into, const std::byte* shared, std::size_t length) {
  for (; length >= 64 && detail::is_vector(shared); into += 64, shared += 64, length -= 64) {
    for (std::size_t at = 0; at < 64; at += 16) detail::load_vector(into + at, shared + at);
  }
  if (length > 0) detail::copy_pieces_from(into, shared, length);
}

inline void copy_to_shared(std::byte* shared, const std::byte* from, std::size_t length) {
  for (; length >= 64 && detail::is_vector(shared); from += 64, shared += 64, length -= 64) {
    for (std::size_t at = 0; at < 64; at += 16) detail::store_vector(shared + at, from + at);
  }
  if (length > 0) detail::copy_pieces_to(shared, from, length);
}

}  // namespace pando::fabric
