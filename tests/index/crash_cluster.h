// Memory nodes with compute nodes that live, and one that dies: for tests of what a crash leaves.
//
// Keys are numbers here; a Keys says what they are called in the index, in the same order.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/state.h"
#include "fabric/embedded/embedded.h"
#include "index/index.h"
#include "index/registry.h"
#include "pool/layout.h"
#include "support/fault_fabric.h"
#include "task/worker.h"

namespace pando::testing {

using namespace std::chrono_literals;

enum class KeyNames { kInteger, kShortBytes, kLongBytes };

inline OwnedKey name_of(KeyNames names, std::uint64_t number) {
  if (names == KeyNames::kInteger) return OwnedKey(number);
  // Long ones differ only beyond what a separator's cell holds, so that every separator has an
  // item.
  std::string bytes = names == KeyNames::kLongBytes ? std::string(30, 'k') : std::string();
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>((number >> shift) & 0xff));
  }
  return OwnedKey(std::move(bytes));
}

struct Step {
  enum Kind { kPut, kInsert, kUpdate, kErase } kind = kPut;
  std::uint64_t key = 0;
  std::string value;
};

// What an index should hold, by number.
using Contents = std::map<std::uint64_t, std::string>;

// What is crashed. Small nodes, so that a tree of few keys is deep.
inline constexpr const char* kSmallSherman = "sherman:leaf_bytes=256,inner_bytes=256";
inline constexpr const char* kSmallChime = "chime:span=16,neighbourhood=4,inner_bytes=256";

// The memory nodes, and which index there will be.
class CrashCluster {
 public:
  struct Options {
    std::string index = kSmallSherman;
    KeyNames names = KeyNames::kInteger;
    bool shared_locks = false;  // all nodes of the index share a handful of lock words
    bool native_masked_cas = true;
  };
  explicit CrashCluster(const Options& options)
      : options_(options),
        memory_(fabric::open_embedded({.bytes = 16 << 20,
                                       .native_masked_cas = options.native_masked_cas,
                                       .onchip_bytes = options.shared_locks ? 64u : 0u,
                                       .huge_pages = false})
                    .value()) {
    set_pool_id();
  }

  KeyNames names() const { return options_.names; }
  std::unique_ptr<fabric::Fabric> attach() const { return memory_->attach().value(); }
  static PoolOptions pool_options(std::chrono::milliseconds deadline) {
    PoolOptions options;
    options.compute_budget = 1 << 20;
    options.deadline = deadline;
    options.lease = 20ms;
    return options;
  }
  IndexOptions index_options() const {
    std::string text = options_.index;
    if (options_.names != KeyNames::kInteger) text += ",keys=bytes";
    if (options_.shared_locks) text += ",onchip_locks=on";
    return IndexOptions::parse(text).value();
  }

 private:
  // As if someone had died while formatting: the next one keeps the pool's id, from which the
  // hashes of byte-string keys follow. So every run is the same.
  void set_pool_id() const {
    pool::Superblock header{};
    header.magic = pool::kPoolMagic;
    header.format = pool::kPoolFormat;
    header.pool_id = 4711;
    task::Worker worker;
    const auto endpoint = memory_->open_endpoint(worker).value();
    const fabric::Buffer buffer = endpoint->buffer(fabric::kLineBytes);
    std::memcpy(buffer.data(), &header, fabric::kLineBytes);
    fabric::Batch batch;
    batch.write(pool::superblock_field(0, 0), buffer.data(), fabric::kLineBytes);
    if (!endpoint->submit(batch).await_ready()) throw std::logic_error("completes inline");
    batch.status().value();
  }

  const Options options_;
  std::unique_ptr<fabric::Fabric> memory_;
};

// A compute node that lives, with its housekeeping. Plain calls from any thread.
class Survivor {
 public:
  static constexpr const char* kIndex = "index";

  explicit Survivor(const CrashCluster& cluster, std::chrono::milliseconds deadline = 3s)
      : names_(cluster.names()),
        pool_(
            api::PoolState::open(cluster.attach(), CrashCluster::pool_options(deadline)).value()) {}
  Survivor& create(const CrashCluster& cluster) {
    index_ = pool_->create_index(kIndex, cluster.index_options()).value();
    return *this;
  }
  Survivor& open(const CrashCluster& cluster) {
    const IndexOptions options = cluster.index_options();
    index_ = pool_->open_index(kIndex, &options).value();
    return *this;
  }
  // With one setting as given.
  Survivor& open(const CrashCluster& cluster, const std::string& setting,
                 const std::string& value) {
    IndexOptions options = cluster.index_options();
    options.settings[setting] = value;
    index_ = pool_->open_index(kIndex, &options).value();
    return *this;
  }
  const api::IndexState& index() const { return *index_; }

  Result<std::string> get(std::uint64_t key) const {
    const OwnedKey name = name_of(names_, key);
    return pool_->run([&](pool::Operation& op) { return index_->tree->get(op, Key(name)); });
  }
  Status apply(const Step& step) const {
    const OwnedKey name = name_of(names_, step.key);
    return pool_->run([&](pool::Operation& op) { return start(*index_->tree, op, name, step); });
  }
  Result<std::vector<Entry>> scan(std::uint64_t from, std::size_t limit) const {
    std::vector<Entry> entries;
    const OwnedKey name = name_of(names_, from);
    Status done = pool_->run(
        [&](pool::Operation& op) { return index_->tree->scan(op, Key(name), limit, entries); });
    if (!done) return fail(done.error());
    return entries;
  }
  Status check() const {
    return pool_->run([&](pool::Operation& op) { return index_->tree->check(op); });
  }
  std::uint64_t count(std::string_view what) const { return count_of(*index_->tree, what); }

  static std::uint64_t count_of(const index::Tree& tree, std::string_view what) {
    for (const auto& [name, value] : tree.stats().counts) {
      if (name == what) return value;
    }
    return 0;
  }

  static Task<Status> start(index::Tree& tree, pool::Operation& op, const OwnedKey& name,
                            const Step& step) {
    switch (step.kind) {
      case Step::kPut:
        return tree.put(op, Key(name), step.value, index::PutMode::kPut);
      case Step::kInsert:
        return tree.put(op, Key(name), step.value, index::PutMode::kInsert);
      case Step::kUpdate:
        return tree.put(op, Key(name), step.value, index::PutMode::kUpdate);
      case Step::kErase:
        break;
    }
    return tree.erase(op, Key(name));
  }

 private:
  const KeyNames names_;
  std::shared_ptr<api::PoolState> pool_;
  std::shared_ptr<api::IndexState> index_;
};

// A compute node that can be stopped at any verb. No housekeeping, so that its verbs are its
// operations' alone. One thread uses it.
class Victim {
 public:
  Victim(const CrashCluster& cluster, const api::IndexState& index)
      : names_(cluster.names()),
        faults(std::make_shared<Faults>()),
        node_(std::make_unique<pool::ComputeNode>(with_faults(cluster.attach(), faults),
                                                  CrashCluster::pool_options(10s))),
        session_(node_->make_session(worker_).value()) {
    worker_.run(node_->open(*session_)).value();
    const index::Kind* kind = index::find_kind(index.settings.kind).value();
    tree_ = kind->make(*node_, index.record, index.settings).value();
  }
  ~Victim() { crash(); }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  Status apply(const Step& step) {
    const OwnedKey name = name_of(names_, step.key);
    pool::Operation op(*session_);
    return worker_.run(Survivor::start(*tree_, op, name, step));
  }
  Result<std::string> get(std::uint64_t key) {
    const OwnedKey name = name_of(names_, key);
    pool::Operation op(*session_);
    return worker_.run(tree_->get(op, Key(name)));
  }
  std::uint64_t count(std::string_view what) const { return Survivor::count_of(*tree_, what); }
  // Gone without a word; the fabric knows it as dead from here on.
  void crash() {
    tree_.reset();
    session_.reset();
    node_.reset();
  }

 private:
  const KeyNames names_;

 public:
  const std::shared_ptr<Faults> faults;

 private:
  task::Worker worker_;
  std::unique_ptr<pool::ComputeNode> node_;
  std::unique_ptr<pool::Session> session_;
  std::unique_ptr<index::Tree> tree_;
};

}  // namespace pando::testing
