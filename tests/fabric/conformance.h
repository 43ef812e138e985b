// The fabric conformance test: what verbs.h promises, asked of every fabric. To add one:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, FabricConformance, testing::Values(FabricUnderTest{
//       "tcp", [] { return open_fabric("tcp:..."); }}), name_of_fabric);
//
// The fabric needs one memory node of 1 MiB or more; with several nodes more is tested. What its
// memory holds at first does not matter.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/verbs.h"
#include "task/worker.h"

namespace pando::fabric {

struct FabricUnderTest {
  std::string name;
  std::function<Result<std::unique_ptr<Fabric>>()> open;
  // How often threads do what may go wrong. At least as long as a time slice is what finds races:
  // the faster the fabric, the more. Less than 65536.
  std::uint64_t rounds = 2000;
  bool threaded = true;  // may be used by several threads at once; simulations may not
};

inline std::string name_of_fabric(const ::testing::TestParamInfo<FabricUnderTest>& info) {
  return info.param.name;
}
inline void PrintTo(const FabricUnderTest& fabric, std::ostream* out) { *out << fabric.name; }

// A client with one worker and one endpoint.
class Client {
 public:
  explicit Client(std::unique_ptr<Fabric> fabric)
      : fabric_(std::move(fabric)),
        worker_(fabric_->clock()),
        endpoint_(fabric_->open_endpoint(worker_).value()) {}

  Fabric& fabric() { return *fabric_; }
  Endpoint& endpoint() { return *endpoint_; }
  task::Worker& worker() { return worker_; }

  Status submit(Batch& batch) { return worker_.run(submit_task(batch)); }
  Task<Status> submit_task(Batch& batch) { co_return co_await endpoint_->submit(batch); }
  Status fence(ClientId client) { return worker_.run(endpoint_->fence(client)); }

  // One verb each, for the tests' set-up and checks.
  void write_word(Address to, std::uint64_t word) {
    Batch batch;
    batch.write_word(to, &word);
    ASSERT_TRUE(submit(batch));
  }
  std::uint64_t read_word(Address from) {
    const Buffer buffer = endpoint_->buffer(8);
    Batch batch;
    batch.read(from, buffer.data(), 8);
    EXPECT_TRUE(submit(batch));
    return *reinterpret_cast<const std::uint64_t*>(buffer.data());
  }

 private:
  std::unique_ptr<Fabric> fabric_;
  task::Worker worker_;
  std::unique_ptr<Endpoint> endpoint_;
};

class FabricConformance : public ::testing::TestWithParam<FabricUnderTest> {
 protected:
  void SetUp() override {
    auto fabric = GetParam().open();
    ASSERT_TRUE(fabric) << fabric.error().message();
    client_ = std::make_unique<Client>(std::move(*fabric));
  }

  Client& client() { return *client_; }
  Endpoint& endpoint() { return client_->endpoint(); }
  std::unique_ptr<Client> another_client() {
    return std::make_unique<Client>(client_->fabric().attach().value());
  }
  std::uint64_t rounds() const { return GetParam().rounds; }
  NodeId last_node() { return static_cast<NodeId>(client_->fabric().memory_node_count() - 1); }

  // Runs work(client, number) on `count` threads, each with a client of its own.
  void on_threads(std::size_t count, const std::function<void(Client&, std::size_t)>& work) {
    std::vector<std::thread> threads;
    threads.reserve(count);
    std::latch all_there(static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        const auto own = another_client();
        all_there.arrive_and_wait();
        work(*own, i);
      });
    }
    for (auto& thread : threads) thread.join();
  }

 private:
  std::unique_ptr<Client> client_;
};

}  // namespace pando::fabric
