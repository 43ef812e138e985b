// Key: a view of an integer or byte-string key. Cheap to copy; owns nothing.
//
// An index holds keys of one type, chosen when it is created. Integers compare as unsigned
// 64-bit numbers, byte strings as unsigned bytes, a prefix before what it is a prefix of.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace pando {

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;

enum class KeyType : std::uint8_t { kInteger, kBytes };

class Key {
 public:
  // A negative integer is no key: operations answer kInvalidArgument.
  template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char>)
  constexpr Key(T integer) : integer_(static_cast<std::uint64_t>(integer)) {  // NOLINT: implicit
    if constexpr (std::is_signed_v<T>) negative_ = integer < 0;
  }
  // The bytes must outlive every use of the key: in the coroutine forms, the operation.
  constexpr Key(std::string_view bytes) : bytes_(bytes), type_(KeyType::kBytes) {}  // NOLINT
  constexpr Key(const char* bytes) : Key(std::string_view(bytes)) {}                // NOLINT
  Key(const std::string& bytes) : Key(std::string_view(bytes)) {}                   // NOLINT

  constexpr KeyType type() const { return type_; }
  constexpr bool negative() const { return negative_; }
  constexpr std::uint64_t integer() const { return integer_; }
  constexpr std::string_view bytes() const { return bytes_; }

 private:
  std::uint64_t integer_ = 0;
  std::string_view bytes_;
  KeyType type_ = KeyType::kInteger;
  bool negative_ = false;
};

}  // namespace pando
