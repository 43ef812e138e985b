#include "lab/client_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/values.h"

namespace pando::lab {

bool OperationRun::begin() {
  const auto position = work_.next();
  if (!position) return false;
  failed_ = false;
  if (work_.is_load()) {
    kind_ = OperationKind::kInsert;
    item_ = work_.load_item(*position);
  } else {
    draw_planned(*position);
  }
  key_ = work_.phase().keys.key(item_, key_bytes_);
  if (inserts()) make_value(0);
  if (kind_ == OperationKind::kUpdate) make_value(work_.version(*position));
  begin_ = call_begin_ = work_.phase().now();
  return true;
}

void OperationRun::draw_planned(std::uint64_t position) {
  const Operation operation = work_.planned(position);
  kind_ = operation.kind();
  scan_length_ = operation.scan_length();
  item_ = operation.item();
  if (inserts()) {
    if (const auto next = work_.phase().inserts->try_next()) {
      item_ = *next;
      return;
    }
    kind_ = OperationKind::kSearch;  // an insert hangs, far behind: see InsertCounter
  }
  if (work_.phase().latest) {
    const std::uint64_t newest = work_.phase().inserts->acknowledged() - 1;
    item_ = newest - std::min(item_, newest);
  }
}

void OperationRun::make_value(std::uint64_t version) {
  lab::make_value(key_, version, work_.phase().value_size, value_);
}

void OperationRun::end_call(CallKind kind) {
  const auto now = work_.phase().now();
  CallResult& result = work_.result().calls_of(kind);
  ++result.count;
  result.latency.record(static_cast<std::uint64_t>((now - call_begin_).count()));
  call_begin_ = now;
}

void OperationRun::end() {
  ++work_.result().operations;
  work_.result().latency.record(static_cast<std::uint64_t>((call_begin_ - begin_).count()));
  work_.count_done();
}

void OperationRun::fail(std::string_view what, std::string_view why) {
  failed_ = true;
  work_.failures().add(fmt::format("{} of key {} (item {}): {}", what, describe(key_), item_, why));
}

void OperationRun::found(const Result<std::string>& answer) {
  end_call(CallKind::kSearch);
  if (!answer && answer.error().code() == ErrorCode::kNotFound) {
    fail("search", "not found, though it was inserted");
  } else if (!answer) {
    fail("search", answer.error().message());
  } else if (!value_is_sound(key_, *answer, work_.phase().value_size)) {
    fail("search", "wrong value, " + describe_value(*answer));
  } else if (kind_ == OperationKind::kReadModifyWrite) {
    make_value(version_of(*answer) + 1);
  }
}

void OperationRun::inserted(const Status& answer) {
  end_call(CallKind::kInsert);
  if (!answer) return fail("insert", answer.error().message());
  if (!work_.is_load()) work_.phase().inserts->acknowledge(item_);
}

void OperationRun::updated(const Status& answer) {
  end_call(CallKind::kUpdate);
  if (!answer) fail("update", answer.error().message());
}

void OperationRun::scanned(const Result<std::vector<Entry>>& answer) {
  end_call(CallKind::kScan);
  if (!answer) return fail("scan", answer.error().message());
  check_scan(*answer);
}

void OperationRun::check_scan(const std::vector<Entry>& entries) {
  if (entries.empty()) return fail("scan", "no entry, though the key itself was inserted");
  if (entries.size() > scan_length_) {
    return fail("scan", fmt::format("{} entries, asked for {}", entries.size(), scan_length_));
  }
  const Key first = entries.front().key;
  if (!key_equal(first, key_)) {
    return fail("scan", fmt::format("begins with key {} instead", describe(first)));
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Key here = entries[i].key;
    if (i > 0 && !key_less(entries[i - 1].key, here)) {
      return fail("scan", fmt::format("out of order: key {} after {}", describe(here),
                                      describe(entries[i - 1].key)));
    }
    if (!value_is_sound(here, entries[i].value, work_.phase().value_size)) {
      return fail("scan", fmt::format("wrong value at key {}, {}", describe(here),
                                      describe_value(entries[i].value)));
    }
  }
  check_short_scan(entries);
}

void OperationRun::check_short_scan(const std::vector<Entry>& entries) {
  if (entries.size() == scan_length_ || !work_.phase().greatest_item) return;
  KeySpace::Buffer buffer;
  const Key greatest = work_.phase().keys.key(*work_.phase().greatest_item, buffer);
  const Key last = entries.back().key;
  if (key_less(last, greatest)) {
    fail("scan", fmt::format("{} of {} entries, ends with key {} though key {} follows",
                             entries.size(), scan_length_, describe(last), describe(greatest)));
  }
}

}  // namespace pando::lab
