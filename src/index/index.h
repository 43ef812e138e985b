// What an index kind is to the rest of Pando.
//
// A Kind is registered once (registry.h) and makes Tree objects: one compute node's handle of one
// index in far memory. A Tree is shared by all of the compute node's sessions; every method may run
// in many coroutines on many threads at once. Keys have been checked by the caller (type, length),
// values too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pool/catalogue/catalogue.h"
#include "pool/compute_node.h"
#include "pool/operation.h"
#include <pando/options.h>
#include <pando/pando.h>
#include <pando/result.h>
#include <pando/stats.h>
#include <pando/task.h>

namespace pando::index {

using pool::Operation;

enum class PutMode : std::uint8_t { kPut, kInsert, kUpdate };

class Tree {
 public:
  virtual ~Tree() = default;

  virtual Task<Result<std::string>> get(Operation& op, Key key) = 0;
  virtual Task<Status> put(Operation& op, Key key, std::string_view value, PutMode mode) = 0;
  virtual Task<Status> erase(Operation& op, Key key) = 0;
  // Appends up to `limit` entries from the first key >= from.
  virtual Task<Status> scan(Operation& op, Key from, std::size_t limit,
                            std::vector<Entry>& out) = 0;
  // REQUIRES: values.size() == keys.size().
  virtual Task<Status> multi_get(Operation& op, std::span<const Key> keys,
                                 std::span<std::optional<std::string>> values) = 0;

  // Builds the empty index. Called once, before the index is published.
  virtual Task<Status> create(Operation& op) = 0;
  // Retires every block. REQUIRES: nobody uses the index.
  virtual Task<Status> destroy(pool::Session& session) = 0;
  // Index::check().
  virtual Task<Status> check(Operation& op) = 0;
  virtual IndexStats stats() const = 0;
};

// One setting of a kind, for help texts and for checks.
struct Setting {
  std::string name;
  std::string default_value;
  std::string meaning;
  bool format;  // part of the stored format: fixed when the index is created
  // Values that `pando check` draws from, beside on and off of those that are either.
  std::vector<std::string> trials = {};
};

class Kind {
 public:
  virtual ~Kind() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view summary() const = 0;
  virtual std::uint32_t format_version() const = 0;
  virtual std::vector<Setting> settings() const = 0;
  // Blocks that one WRITE of it links or unlinks, at most, in an index of some hundred keys: what a
  // task may lose that is dropped at that moment (pool/memory/allocator.h). `pando check` counts.
  virtual std::size_t blocks_linked_at_once() const = 0;
  // Checks all settings and fills in the defaults. Errors name the setting.
  virtual Result<IndexOptions> normalize(const IndexOptions& options) const = 0;
  // REQUIRES: options came from normalize().
  virtual Result<std::unique_ptr<Tree>> make(pool::ComputeNode& compute_node,
                                             const pool::IndexRecord& record,
                                             const IndexOptions& options) const = 0;
};

}  // namespace pando::index
