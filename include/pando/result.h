// Result<T>: how every fallible call of Pando answers.
//
// Nothing in Pando throws or aborts because of what a user, a peer or the network did. A call
// that can fail returns Result<T>; the error carries a code to branch on and a sentence that
// names the thing at fault.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace pando {

enum class ErrorCode : std::uint8_t {
  kNotFound,         // no such key, no such index
  kExists,           // insert of a present key, create of a present index
  kInvalidArgument,  // the caller's words are off: the message names the option or argument
  kIncompatible,     // other options or another format than what is stored
  kOutOfMemory,      // no memory node has room; nothing was changed
  kBusy,             // in use by others (dropping an index that someone has open)
  kTimeout,          // the operation's deadline passed; a write may or may not have happened
  kUnavailable,      // a memory node cannot be reached
  kIndeterminate,    // the link broke while an atomic was under way: it may have happened
  kFenced,           // this compute node was taken for dead and shut out; open the pool anew
  kDataLost,         // a memory node came back without its memory
  kCorrupt,          // far memory holds bytes that no correct client writes
  kDenied,           // a memory node does not let this process in: wrong key, wrong cluster
};

constexpr std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kExists:
      return "exists already";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kIncompatible:
      return "incompatible";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kIndeterminate:
      return "indeterminate";
    case ErrorCode::kFenced:
      return "fenced";
    case ErrorCode::kDataLost:
      return "data lost";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kDenied:
      return "denied";
  }
  return "unknown error";
}

class Error {
 public:
  explicit Error(ErrorCode code) : code_(code) {}
  Error(ErrorCode code, std::string detail) : code_(code), detail_(std::move(detail)) {}

  ErrorCode code() const { return code_; }
  // The sentence without the code's name; may be empty (a plain "not found" says enough).
  const std::string& detail() const { return detail_; }
  std::string message() const {
    std::string text(to_string(code_));
    if (!detail_.empty()) text.append(": ").append(detail_);
    return text;
  }

 private:
  ErrorCode code_;
  std::string detail_;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> fail(ErrorCode code) { return std::unexpected<Error>(Error(code)); }
inline std::unexpected<Error> fail(ErrorCode code, std::string detail) {
  return std::unexpected<Error>(Error(code, std::move(detail)));
}
inline std::unexpected<Error> fail(Error error) { return std::unexpected<Error>(std::move(error)); }

}  // namespace pando
