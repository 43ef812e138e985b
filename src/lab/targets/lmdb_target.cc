#include <lmdb.h>

#include <mutex>
#include <utility>
#include <vector>

#include "lab/client_loop.h"
#include "lab/targets/peer_files.h"
#include "lab/targets/peers.h"
#include "lab/threaded_target.h"

namespace pando::lab {

namespace {

std::unexpected<Error> lmdb_error(int code) {
  if (code == MDB_NOTFOUND) return fail(ErrorCode::kNotFound);
  if (code == MDB_KEYEXIST) return fail(ErrorCode::kExists);
  const bool full = code == MDB_MAP_FULL;
  return fail(full ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, mdb_strerror(code));
}

MDB_val to_lmdb(std::string_view bytes) {
  // LMDB takes what it only reads by a pointer to non-const.
  return {bytes.size(), const_cast<char*>(bytes.data())};
}

std::string_view from_lmdb(const MDB_val& bytes) {
  return {static_cast<const char*>(bytes.mv_data), bytes.mv_size};
}

// One thread's use of the environment: a read transaction and a cursor that are kept.
class LmdbSession {
 public:
  LmdbSession(MDB_env* environment, MDB_dbi database, KeyType type)
      : environment_(environment), database_(database), type_(type) {}
  LmdbSession(const LmdbSession&) = delete;
  LmdbSession& operator=(const LmdbSession&) = delete;
  ~LmdbSession() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
    if (reader_ != nullptr) mdb_txn_abort(reader_);
  }

  Status open() {
    int code = mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reader_);
    if (code == 0) code = mdb_cursor_open(reader_, database_, &cursor_);
    if (code != 0) return lmdb_error(code);
    mdb_txn_reset(reader_);
    return {};
  }

  Result<std::string> get(const Key& key) {
    const OrderedBytes bytes(key);
    MDB_val name = to_lmdb(bytes.view());
    MDB_val value;
    int code = mdb_txn_renew(reader_);
    if (code != 0) return lmdb_error(code);
    code = mdb_get(reader_, database_, &name, &value);
    // The value must be copied before the reset: its page may be written over afterwards.
    Result<std::string> answer =
        code == 0 ? Result<std::string>(from_lmdb(value)) : lmdb_error(code);
    mdb_txn_reset(reader_);
    return answer;
  }

  Status insert(const Key& key, std::string_view value) { return put(key, value, MDB_NOOVERWRITE); }
  Status update(const Key& key, std::string_view value) { return put(key, value, 0); }

  Result<std::vector<Entry>> scan(const Key& from, std::size_t limit) {
    const OrderedBytes bytes(from);
    MDB_val name = to_lmdb(bytes.view());
    MDB_val value;
    int code = mdb_txn_renew(reader_);
    if (code == 0) code = mdb_cursor_renew(reader_, cursor_);
    if (code != 0) return lmdb_error(code);
    std::vector<Entry> entries;
    entries.reserve(limit);
    code = mdb_cursor_get(cursor_, &name, &value, MDB_SET_RANGE);
    while (code == 0 && entries.size() < limit) {
      entries.push_back({owned_key(type_, from_lmdb(name)), std::string(from_lmdb(value))});
      code = mdb_cursor_get(cursor_, &name, &value, MDB_NEXT);
    }
    mdb_txn_reset(reader_);
    if (code != 0 && code != MDB_NOTFOUND) return lmdb_error(code);
    return entries;
  }

 private:
  Status put(const Key& key, std::string_view value, unsigned flags) {
    const OrderedBytes bytes(key);
    MDB_val name = to_lmdb(bytes.view());
    MDB_val content = to_lmdb(value);
    MDB_txn* writer = nullptr;
    int code = mdb_txn_begin(environment_, nullptr, 0, &writer);
    if (code != 0) return lmdb_error(code);
    code = mdb_put(writer, database_, &name, &content, flags);
    if (code != 0) {
      mdb_txn_abort(writer);
      return lmdb_error(code);
    }
    code = mdb_txn_commit(writer);
    if (code != 0) return lmdb_error(code);
    return {};
  }

  MDB_env* environment_;
  MDB_dbi database_;
  KeyType type_;
  MDB_txn* reader_ = nullptr;
  MDB_cursor* cursor_ = nullptr;
};

class LmdbTarget final : public ThreadedTarget {
 public:
  LmdbTarget(ScratchFolder folder, KeyType type) : folder_(std::move(folder)), type_(type) {}
  ~LmdbTarget() override {
    if (environment_ != nullptr) mdb_env_close(environment_);
  }

  Status open(std::uint64_t map_bytes) {
    // NOTLS: sessions follow clients, not threads.
    constexpr unsigned kFlags = MDB_NOSYNC | MDB_NOMETASYNC | MDB_WRITEMAP | MDB_NOTLS;
    constexpr unsigned kMaxSessions = 4096;
    int code = mdb_env_create(&environment_);
    if (code == 0) code = mdb_env_set_mapsize(environment_, map_bytes);
    if (code == 0) code = mdb_env_set_maxreaders(environment_, kMaxSessions);
    if (code == 0) code = mdb_env_open(environment_, folder_.path().c_str(), kFlags, 0600);
    MDB_txn* first = nullptr;
    if (code == 0) code = mdb_txn_begin(environment_, nullptr, 0, &first);
    if (code != 0) return lmdb_error(code);
    code = mdb_dbi_open(first, nullptr, 0, &database_);
    if (code == 0) code = mdb_txn_commit(first);
    if (code != 0) return lmdb_error(code);
    return {};
  }

  std::string name() const override { return "lmdb"; }
  std::string fabric() const override { return "local"; }
  bool is_peer() const override { return true; }

  void run_client(unsigned, ClientWork& work) override {
    LmdbSession session(environment_, database_, type_);
    if (const Status opened = session.open(); !opened) {
      return work.failures().add("opening a session: " + opened.error().message());
    }
    run_blocking(session, work);
  }

  Result<TargetMemory> memory() override {
    MDB_envinfo info;
    MDB_stat stat;
    int code = mdb_env_info(environment_, &info);
    if (code == 0) code = mdb_env_stat(environment_, &stat);
    if (code != 0) return lmdb_error(code);
    return TargetMemory{.compute_bytes = (info.me_last_pgno + 1) * std::uint64_t{stat.ms_psize}};
  }

 private:
  ScratchFolder folder_;
  KeyType type_;
  MDB_env* environment_ = nullptr;
  MDB_dbi database_ = 0;
};

}  // namespace

Result<std::unique_ptr<Target>> open_lmdb(const PeerOptions& options) {
  auto folder = ScratchFolder::make("lmdb");
  if (!folder) return fail(folder.error());
  // Pages are half full at worst, and copies of pages wait for readers; the file is sparse.
  const std::uint64_t map_bytes = (std::uint64_t{1} << 30) + 8 * options.data_bytes;
  auto target = std::make_unique<LmdbTarget>(std::move(*folder), options.key_type);
  if (const Status opened = target->open(map_bytes); !opened) return fail(opened.error());
  return target;
}

}  // namespace pando::lab
