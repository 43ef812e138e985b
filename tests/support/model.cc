#include "support/model.h"

#include <algorithm>

#include "support/keys.h"
#include "support/outcome.h"

namespace pando::testing {

Result<std::string> Model::get(Key key) const {
  const auto found = entries_.find(order_bytes(key));
  if (found == entries_.end()) return fail(ErrorCode::kNotFound);
  return found->second;
}

Status Model::put(Key key, std::string_view value) {
  entries_.insert_or_assign(order_bytes(key), std::string(value));
  return {};
}

Status Model::insert(Key key, std::string_view value) {
  if (!entries_.try_emplace(order_bytes(key), value).second) return fail(ErrorCode::kExists);
  return {};
}

Status Model::update(Key key, std::string_view value) {
  const auto found = entries_.find(order_bytes(key));
  if (found == entries_.end()) return fail(ErrorCode::kNotFound);
  found->second = value;
  return {};
}

Status Model::erase(Key key) {
  if (entries_.erase(order_bytes(key)) == 0) return fail(ErrorCode::kNotFound);
  return {};
}

std::vector<Entry> Model::scan(Key from, std::size_t limit) const {
  std::vector<Entry> found;
  auto at = entries_.lower_bound(order_bytes(from));
  for (; at != entries_.end() && found.size() < limit; ++at) {
    found.push_back({from_order_bytes(key_type_, at->first), at->second});
  }
  return found;
}

std::vector<OwnedKey> Model::keys() const {
  std::vector<OwnedKey> keys;
  for (const auto& [bytes, value] : entries_) keys.push_back(from_order_bytes(key_type_, bytes));
  return keys;
}

::testing::AssertionResult same_outcome(const Status& actual, const Status& expected) {
  if (expected) return succeeded(actual);
  return failed_with(actual, expected.error().code());
}

::testing::AssertionResult same_outcome(const Result<std::string>& actual,
                                        const Result<std::string>& expected) {
  if (expected) return holds(actual, *expected);
  return failed_with(actual, expected.error().code());
}

::testing::AssertionResult same_entries(const std::vector<Entry>& actual,
                                        const std::vector<Entry>& expected) {
  const std::size_t common = std::min(actual.size(), expected.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (actual[i].key != expected[i].key) {
      return ::testing::AssertionFailure()
             << "entry " << i << " is " << show(actual[i].key) << ", not " << show(expected[i].key);
    }
    if (actual[i].value != expected[i].value) {
      return ::testing::AssertionFailure()
             << "the value of " << show(actual[i].key) << " is '" << shorten(actual[i].value)
             << "', not '" << shorten(expected[i].value) << "'";
    }
  }
  if (actual.size() == expected.size()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << actual.size() << " entries, not " << expected.size() << "; the first "
         << (actual.size() > expected.size() ? "too many is " + show(actual[common].key)
                                             : "missing is " + show(expected[common].key));
}

namespace {

std::vector<Entry> all_by_range(const Index& index, KeyType type, Status& status) {
  std::vector<Entry> entries;
  const OwnedKey first = smallest_key(type);
  Range range = index.range(first);
  for (const Entry& entry : range) entries.push_back(entry);
  status = range.status();
  return entries;
}

}  // namespace

::testing::AssertionResult holds_exactly(const Index& index, const Model& model) {
  const OwnedKey first = smallest_key(model.key_type());
  const std::vector<Entry> expected = model.scan(first, model.size());

  // One more than there should be, so that extra keys show.
  const auto scanned = index.scan(first, model.size() + 1);
  if (!scanned) return succeeded(scanned);
  if (auto same = same_entries(*scanned, expected); !same) return same << " (by scan)";

  Status status;
  const std::vector<Entry> ranged = all_by_range(index, model.key_type(), status);
  if (!status) return succeeded(status);
  if (auto same = same_entries(ranged, expected); !same) return same << " (by range)";

  for (const Entry& entry : expected) {
    if (auto same = holds(index.get(entry.key), entry.value); !same) {
      return same << " (get of " << show(entry.key) << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace pando::testing
