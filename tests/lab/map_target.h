// A target over std::map, right or wrong on purpose: what the runner's checks are tested with.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/client_loop.h"
#include "lab/targets/peer_files.h"
#include "lab/threaded_target.h"
#include <pando/pando.h>

namespace pando::lab {

// Ways to be wrong, each on the hundredth call.
enum class Fault {
  kNone,
  kLosesKey,
  kOtherKeysValue,
  kTruncatedValue,
  kUnorderedScan,
  kDuplicateInScan,
  kScanBelowFrom,
  kShortScan,
  kInsertFails,
  kUpdateFails,
};

struct MapStore {
  std::mutex mutex;
  std::map<std::string, std::string> data;
  KeyType key_type = KeyType::kInteger;
  Fault fault = Fault::kNone;
  unsigned calls = 0;

  bool goes_wrong(Fault what) { return fault == what && ++calls % 100 == 0; }
};

class MapSession {
 public:
  explicit MapSession(MapStore& store) : store_(store) {}

  Result<std::string> get(const Key& key) {
    const std::scoped_lock lock(store_.mutex);
    const auto found = store_.data.find(bytes_of(key));
    if (found == store_.data.end() || store_.goes_wrong(Fault::kLosesKey)) {
      return fail(ErrorCode::kNotFound);
    }
    if (store_.goes_wrong(Fault::kOtherKeysValue)) {
      const auto next = std::next(found);
      return next == store_.data.end() ? store_.data.begin()->second : next->second;
    }
    if (store_.goes_wrong(Fault::kTruncatedValue)) {
      return found->second.substr(0, found->second.size() - 1);
    }
    return found->second;
  }

  Status insert(const Key& key, std::string_view value) {
    const std::scoped_lock lock(store_.mutex);
    if (store_.goes_wrong(Fault::kInsertFails)) return fail(ErrorCode::kOutOfMemory, "no room");
    if (!store_.data.try_emplace(bytes_of(key), value).second) return fail(ErrorCode::kExists);
    return {};
  }

  Status update(const Key& key, std::string_view value) {
    const std::scoped_lock lock(store_.mutex);
    const auto found = store_.data.find(bytes_of(key));
    if (found == store_.data.end() || store_.goes_wrong(Fault::kUpdateFails)) {
      return fail(ErrorCode::kNotFound);
    }
    found->second = value;
    return {};
  }

  Result<std::vector<Entry>> scan(const Key& from, std::size_t limit) {
    const std::scoped_lock lock(store_.mutex);
    auto at = store_.data.lower_bound(bytes_of(from));
    if (at != store_.data.begin() && store_.goes_wrong(Fault::kScanBelowFrom)) --at;
    std::vector<Entry> entries;
    for (; at != store_.data.end() && entries.size() < limit; ++at) {
      entries.push_back({owned_key(store_.key_type, at->first), at->second});
    }
    if (entries.size() > 2) spoil(entries);
    return entries;
  }

 private:
  static std::string bytes_of(const Key& key) { return std::string(OrderedBytes(key).view()); }

  void spoil(std::vector<Entry>& entries) {
    if (store_.goes_wrong(Fault::kUnorderedScan)) std::swap(entries[1], entries[2]);
    if (store_.goes_wrong(Fault::kDuplicateInScan)) entries[2] = entries[1];
    if (store_.goes_wrong(Fault::kShortScan)) entries.pop_back();
  }

  MapStore& store_;
};

class MapTarget final : public ThreadedTarget {
 public:
  explicit MapTarget(Fault fault = Fault::kNone, KeyType key_type = KeyType::kInteger) {
    store_.fault = fault;
    store_.key_type = key_type;
  }

  std::string name() const override { return "map"; }
  std::string fabric() const override { return "local"; }
  bool is_peer() const override { return true; }
  Now clock() const override { return clock_; }
  void set_clock(Now clock) { clock_ = std::move(clock); }
  void run_client(unsigned, ClientWork& work) override {
    MapSession session(store_);
    run_blocking(session, work);
  }
  Result<TargetMemory> memory() override { return TargetMemory{}; }

  std::size_t size() const { return store_.data.size(); }

 private:
  MapStore store_;
  Now clock_ = steady_now();
};

}  // namespace pando::lab
