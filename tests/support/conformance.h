// The fixture of the conformance suite: a pool and an index of the case at hand, and a structure
// check of every index after every test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lab/check/history.h"
#include "support/cases.h"
#include "support/keys.h"
#include "support/model.h"
#include "support/outcome.h"
#include "support/scale.h"
#include <pando/pando.h>

namespace pando::testing {

using lab::check::HistoryRecorder;
using lab::check::RecordedIndex;

// For tests that are not about deadlines: a busy machine may hold a thread up for seconds, and the
// others that wait for what it has locked.
inline const PoolOptions kPatient{.deadline = std::chrono::seconds(60)};

class ConformanceTest : public ::testing::TestWithParam<IndexCase> {
 protected:
  // Checks each index that create_index() made and the test still has.
  void SetUp() override;
  void TearDown() override;

  Pool open_pool(std::string_view size = "256MiB", const PoolOptions& options = kPatient) const;
  // An index of the case, checked at the end of the test.
  Index create_index(Pool& pool, std::string_view name = "index");
  // Gives up the handle for the check: the test goes on to drop the index.
  void forget_indexes() { indexes_.clear(); }

  KeyType key_type() const { return GetParam().key_type; }
  OwnedKey key(std::uint64_t n) const { return numbered_key(key_type(), n); }
  OwnedKey smallest() const { return smallest_key(key_type()); }

  // put(key(n), numbered_value(n, round)) for begin <= n < end.
  void fill(const Index& index, std::uint64_t begin, std::uint64_t end,
            std::uint64_t round = 0) const;
  void erase_all(const Index& index, std::uint64_t begin, std::uint64_t end) const;
  // Exactly the keys begin … end - 1 of that round, and no other.
  ::testing::AssertionResult holds_numbers(const Index& index, std::uint64_t begin,
                                           std::uint64_t end, std::uint64_t round = 0) const;

 private:
  std::vector<Index> indexes_;
};

// Every history of the recorder is linearizable.
::testing::AssertionResult linearizable(const HistoryRecorder& recorder);

// body(0) … body(count - 1), each on its own thread, all released at once.
void run_threads(std::size_t count, const std::function<void(std::size_t)>& body);

// First in a test that uses several: a simulation may be used by one alone, and `pando check` has
// its clients meet there.
#define PANDO_NEEDS_THREADS() \
  if (GetParam().simulated()) GTEST_SKIP() << "a simulation is for one thread"

// Lets other threads run now and then. Threads of short tests on few cores otherwise run one after
// the other, each within its time slice, and nothing meets.
void take_turns(std::uint64_t step);

// The index through `count` further compute nodes, each with caches of its own.
std::vector<Index> open_on_nodes(const Pool& pool, std::size_t count,
                                 std::string_view name = "index",
                                 const PoolOptions& options = kPatient);

// Waits for what happens in the background (epochs, reclamation).
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(20));

std::uint64_t remote_bytes(const Pool& pool);

}  // namespace pando::testing
