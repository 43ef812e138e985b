// What the conformance suite runs over: index kinds × key types × fabrics, of which docs/testing.md
// says which are paired. `./pando test --all` (PANDO_TEST_ALL in the environment) has more of them.
//
// A new index or fabric is one added line in cases.cc; the whole suite then runs over it.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <pando/pando.h>

namespace pando::testing {

struct IndexCase {
  std::string name;   // letters, digits and underscores: "sherman_bytes_embedded2nodes"
  std::string index;  // text form of the index options
  std::string pool;   // url of the pool; SIZE stands for its size
  KeyType key_type;
  bool variant = false;  // other settings than the default: costs are not asserted
  double slowdown = 1;   // what a step costs beside one of others: tests do less

  bool remote() const {
    return pool.starts_with("tcp:") || pool.starts_with("mapped:") || pool.starts_with("rdma:");
  }
  bool simulated() const { return pool.starts_with("sim:"); }
  std::string pool_url(std::string_view size) const;
  IndexOptions options() const;
};

// Ends those that pool_url() has started. REQUIRES: no pool is open.
void stop_memory_nodes();

std::ostream& operator<<(std::ostream& out, const IndexCase& index_case);

// PANDO_TEST_CASES in the environment, a word such as "bytes" or several as in "chime+bytes", keeps
// the cases whose name has them.
std::vector<IndexCase> all_cases();
// The same but under ThreadSanitizer, which has little to see where a test has no threads of its
// own: one case an index.
std::vector<IndexCase> cases_of_one_thread();
std::string case_name(const ::testing::TestParamInfo<IndexCase>& info);

}  // namespace pando::testing

// Runs all tests of a fixture over all cases.
#define PANDO_FOR_ALL_CASES(Fixture)                                                         \
  INSTANTIATE_TEST_SUITE_P(All, Fixture, ::testing::ValuesIn(::pando::testing::all_cases()), \
                           ::pando::testing::case_name)

// The same for a fixture whose tests have one thread.
#define PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Fixture)                                       \
  INSTANTIATE_TEST_SUITE_P(All, Fixture,                                                 \
                           ::testing::ValuesIn(::pando::testing::cases_of_one_thread()), \
                           ::pando::testing::case_name)
