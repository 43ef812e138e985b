// Model: what an index should hold, as a std::map; and the comparison of both.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <pando/pando.h>

namespace pando::testing {

class Model {
 public:
  explicit Model(KeyType key_type) : key_type_(key_type) {}

  // Same answers as Index.
  Result<std::string> get(Key key) const;
  Status put(Key key, std::string_view value);
  Status insert(Key key, std::string_view value);
  Status update(Key key, std::string_view value);
  Status erase(Key key);
  std::vector<Entry> scan(Key from, std::size_t limit) const;

  std::size_t size() const { return entries_.size(); }
  KeyType key_type() const { return key_type_; }
  std::vector<OwnedKey> keys() const;

 private:
  KeyType key_type_;
  std::map<std::string, std::string> entries_;  // by order_bytes(key)
};

// Both failed with the same code, or both succeeded.
::testing::AssertionResult same_outcome(const Status& actual, const Status& expected);
::testing::AssertionResult same_outcome(const Result<std::string>& actual,
                                        const Result<std::string>& expected);
::testing::AssertionResult same_entries(const std::vector<Entry>& actual,
                                        const std::vector<Entry>& expected);

// The index holds exactly the model's entries: by scan, by range and by get of each key.
::testing::AssertionResult holds_exactly(const Index& index, const Model& model);

}  // namespace pando::testing
