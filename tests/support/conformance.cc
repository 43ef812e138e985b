#include "support/conformance.h"

#include <exception>
#include <latch>

#include "support/scale.h"

namespace pando::testing {

void ConformanceTest::SetUp() {
  stop_memory_nodes();  // of the test before: with RDMA their memory is locked
  // A round trip by a socket takes some 10 µs instead of some 0.5; one by Soft-RoCE in a guest,
  // 100.
  const std::string& pool = GetParam().pool;
  fabric_slowdown = pool.starts_with("rdma:") ? 200.0 : pool.starts_with("tcp:") ? 20.0 : 1.0;
  fabric_slowdown *= GetParam().slowdown;
}

void ConformanceTest::TearDown() {
  for (const Index& index : indexes_) {
    EXPECT_TRUE(succeeded(index.check())) << "structure check of " << index.info().name;
  }
  indexes_.clear();
}

Pool ConformanceTest::open_pool(std::string_view size, const PoolOptions& options) const {
  return must(Pool::open(GetParam().pool_url(size), options));
}

Index ConformanceTest::create_index(Pool& pool, std::string_view name) {
  return indexes_.emplace_back(must(pool.create_index(name, GetParam().options())));
}

void ConformanceTest::fill(const Index& index, std::uint64_t begin, std::uint64_t end,
                           std::uint64_t round) const {
  for (std::uint64_t n = begin; n < end; ++n) {
    ASSERT_TRUE(succeeded(index.put(key(n), numbered_value(n, round)))) << n;
  }
}

void ConformanceTest::erase_all(const Index& index, std::uint64_t begin, std::uint64_t end) const {
  for (std::uint64_t n = begin; n < end; ++n) ASSERT_TRUE(succeeded(index.erase(key(n)))) << n;
}

::testing::AssertionResult ConformanceTest::holds_numbers(const Index& index, std::uint64_t begin,
                                                          std::uint64_t end,
                                                          std::uint64_t round) const {
  Model model(key_type());
  for (std::uint64_t n = begin; n < end; ++n) must(model.put(key(n), numbered_value(n, round)));
  return holds_exactly(index, model);
}

::testing::AssertionResult linearizable(const HistoryRecorder& recorder) {
  if (const auto problems = recorder.problems(); !problems.empty()) {
    return ::testing::AssertionFailure() << problems.size() << " problems: " << problems.front();
  }
  const lab::check::Verdict verdict = recorder.history().check();
  if (verdict.linearizable()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << verdict.explanation;
}

void run_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::latch start(static_cast<std::ptrdiff_t>(count));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      // must() throws; out of a thread that would end the process instead of the test.
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  }
}

void take_turns(std::uint64_t step) {
  if (step % 8 == 7) std::this_thread::yield();
}

std::vector<Index> open_on_nodes(const Pool& pool, std::size_t count, std::string_view name,
                                 const PoolOptions& options) {
  std::vector<Index> views;
  for (std::size_t i = 0; i < count; ++i) {
    Pool node = must(pool.attach(options));
    views.push_back(must(node.open_index(name)));
  }
  return views;
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::uint64_t remote_bytes(const Pool& pool) { return must(pool.stats()).remote_bytes(); }

}  // namespace pando::testing
