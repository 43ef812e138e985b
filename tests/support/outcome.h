// Assertions on Result<T> that print the error.
//
//   EXPECT_TRUE(succeeded(index.put(1, "one")));
//   EXPECT_TRUE(holds(index.get(1), "one"));
//   EXPECT_TRUE(failed_with(index.get(2), ErrorCode::kNotFound));
//   Pool pool = must(Pool::open(url));   // ends the test where it fails
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <pando/result.h>

namespace pando::testing {

template <class T>
::testing::AssertionResult succeeded(const Result<T>& result) {
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "failed: " << result.error().message();
}

// `word` is something that the message must name.
template <class T>
::testing::AssertionResult failed_with(const Result<T>& result, ErrorCode code,
                                       std::string_view word = {}) {
  if (result) return ::testing::AssertionFailure() << "succeeded, not " << to_string(code);
  const std::string message = result.error().message();
  if (result.error().code() != code) {
    return ::testing::AssertionFailure() << "not '" << to_string(code) << "' but: " << message;
  }
  if (!message.contains(word)) {
    return ::testing::AssertionFailure() << "does not name '" << word << "': " << message;
  }
  return ::testing::AssertionSuccess();
}

inline std::string shorten(std::string_view text) {
  if (text.size() <= 64) return std::string(text);
  return std::string(text.substr(0, 64)) + "… (" + std::to_string(text.size()) + " bytes)";
}

inline ::testing::AssertionResult holds(const Result<std::string>& result,
                                        std::string_view expected) {
  if (!result) return ::testing::AssertionFailure() << "failed: " << result.error().message();
  if (*result == expected) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "holds '" << shorten(*result) << "', not '" << shorten(expected) << "'";
}

// The value, or an exception that GoogleTest reports. For the main thread of a test only.
template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace pando::testing
