#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/table.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "lab/client_loop.h"
#include "lab/targets/peer_files.h"
#include "lab/targets/peers.h"
#include "lab/threaded_target.h"

namespace pando::lab {

namespace {

std::unexpected<Error> rocksdb_error(const rocksdb::Status& status) {
  if (status.IsNotFound()) return fail(ErrorCode::kNotFound);
  return fail(ErrorCode::kUnavailable, status.ToString());
}

rocksdb::Slice to_slice(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
std::string_view from_slice(const rocksdb::Slice& bytes) { return {bytes.data(), bytes.size()}; }

class RocksdbSession {
 public:
  RocksdbSession(rocksdb::DB& database, KeyType type) : database_(database), type_(type) {
    writing_.disableWAL = true;
  }

  Result<std::string> get(const Key& key) {
    const OrderedBytes bytes(key);
    std::string value;
    const auto status = database_.Get(reading_, to_slice(bytes.view()), &value);
    if (!status.ok()) return rocksdb_error(status);
    return value;
  }

  Status insert(const Key& key, std::string_view value) { return update(key, value); }
  Status update(const Key& key, std::string_view value) {
    const OrderedBytes bytes(key);
    const auto status = database_.Put(writing_, to_slice(bytes.view()), to_slice(value));
    if (!status.ok()) return rocksdb_error(status);
    return {};
  }

  Result<std::vector<Entry>> scan(const Key& from, std::size_t limit) {
    const OrderedBytes bytes(from);
    const std::unique_ptr<rocksdb::Iterator> at(database_.NewIterator(reading_));
    std::vector<Entry> entries;
    entries.reserve(limit);
    for (at->Seek(to_slice(bytes.view())); at->Valid() && entries.size() < limit; at->Next()) {
      entries.push_back({owned_key(type_, from_slice(at->key())), at->value().ToString()});
    }
    if (!at->status().ok()) return rocksdb_error(at->status());
    return entries;
  }

 private:
  rocksdb::DB& database_;
  KeyType type_;
  rocksdb::ReadOptions reading_;
  rocksdb::WriteOptions writing_;
};

class RocksdbTarget final : public ThreadedTarget {
 public:
  RocksdbTarget(ScratchFolder folder, KeyType type) : folder_(std::move(folder)), type_(type) {}
  ~RocksdbTarget() override {
    if (database_ != nullptr) static_cast<void>(database_->Close());
  }

  Status open() {
    constexpr std::size_t kBlockCacheBytes = std::size_t{2} << 30;
    cache_ = rocksdb::NewLRUCache(kBlockCacheBytes);
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = cache_;
    rocksdb::Options options;
    options.create_if_missing = true;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* database = nullptr;
    const auto status = rocksdb::DB::Open(options, folder_.path(), &database);
    if (!status.ok()) return rocksdb_error(status);
    database_.reset(database);
    return {};
  }

  std::string name() const override { return "rocksdb"; }
  std::string fabric() const override { return "local"; }
  bool is_peer() const override { return true; }

  void run_client(unsigned, ClientWork& work) override {
    RocksdbSession session(*database_, type_);
    run_blocking(session, work);
  }

  // Compactions that LOAD left behind would slow the next phase down, of this target and others.
  void wait_until_idle() override {
    constexpr std::chrono::milliseconds kBetweenLooks{20};
    constexpr std::chrono::seconds kLongest{120};
    const auto end = std::chrono::steady_clock::now() + kLongest;
    while (busy() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

  Result<TargetMemory> memory() override {
    return TargetMemory{.compute_bytes = property(rocksdb::DB::Properties::kTotalSstFilesSize) +
                                         property(rocksdb::DB::Properties::kCurSizeAllMemTables) +
                                         cache_->GetUsage()};
  }

 private:
  std::uint64_t property(const std::string& name) const {
    std::uint64_t value = 0;
    database_->GetIntProperty(name, &value);
    return value;
  }

  bool busy() const {
    using Properties = rocksdb::DB::Properties;
    return property(Properties::kNumRunningCompactions) > 0 ||
           property(Properties::kNumRunningFlushes) > 0 ||
           property(Properties::kCompactionPending) > 0 ||
           property(Properties::kMemTableFlushPending) > 0;
  }

  ScratchFolder folder_;  // goes last
  KeyType type_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::unique_ptr<rocksdb::DB> database_;
};

}  // namespace

Result<std::unique_ptr<Target>> open_rocksdb(const PeerOptions& options) {
  auto folder = ScratchFolder::make("rocksdb");
  if (!folder) return fail(folder.error());
  auto target = std::make_unique<RocksdbTarget>(std::move(*folder), options.key_type);
  if (const Status opened = target->open(); !opened) return fail(opened.error());
  return target;
}

}  // namespace pando::lab
