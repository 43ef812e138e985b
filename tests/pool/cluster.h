// Compute nodes on embedded memory nodes, for tests of the pool.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/embedded/embedded.h"
#include "pool/compute_node.h"
#include "pool/layout.h"

namespace pando::pool {

inline constexpr std::uint64_t kMiB = 1 << 20;

// One compute node with a worker for the test's own thread.
class Member {
 public:
  Member(std::unique_ptr<fabric::Fabric> fabric, const PoolOptions& options,
         task::Clock& clock = task::Clock::system())
      : node(std::make_unique<ComputeNode>(std::move(fabric), options)),
        worker(std::make_unique<task::Worker>(clock)),
        session(node->make_session(*worker).value()) {}
  Member(Member&&) = default;
  ~Member() { crash(); }

  template <class T>
  T run(Task<T> task) {
    return worker->run(std::move(task));
  }
  Status open() { return run(node->open(*session)); }
  Status close() {
    stop_housekeeping();
    return run(node->close(*session));
  }
  // Gone without a word, as far as others can tell.
  void crash() {
    stop_housekeeping();
    session.reset();
    node.reset();
  }
  Status beat() {
    Operation op(*session);
    return run(node->membership().beat_and_look_after(op));
  }
  Status collect() {
    Operation op(*session);
    return run(node->allocator().collect(op));
  }
  // Beats of this node alone move the epoch where nobody else is a member.
  void move_epochs(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) ASSERT_TRUE(beat());
  }
  Result<Block> allocate(BlockKind kind, std::size_t bytes) {
    Operation op(*session);
    return run(node->allocator().allocate(op, kind, bytes));
  }
  PoolStats stats() {
    Operation op(*session);
    return run(node->stats(op)).value();
  }

  void start_housekeeping() {
    housekeeper_ = std::make_unique<std::thread>([this] {
      task::Worker own;
      auto upkeep = node->make_session(own).value();
      own.run(node->housekeeping(*upkeep));
    });
  }
  void stop_housekeeping() {
    if (housekeeper_ == nullptr) return;
    node->stop();
    housekeeper_->join();
    housekeeper_.reset();
  }

  std::unique_ptr<ComputeNode> node;
  std::unique_ptr<task::Worker> worker;
  std::unique_ptr<Session> session;

 private:
  std::unique_ptr<std::thread> housekeeper_;
};

// As a user of the block does before anything leads to it, in a copy of its first bytes.
inline void set_incarnation(const Member& member, const Block& block, std::byte* bytes) {
  const BlockDescription& described = description(block.kind);
  const std::uint64_t word = described.births ? birth(block, member.node->epochs().current())
                                              : std::uint64_t{block.incarnation};
  std::memcpy(bytes + described.incarnation_at, &word, described.births ? 5 : 4);
}

// Memory nodes, and the means to join and to look at them.
class Cluster {
 public:
  explicit Cluster(std::uint64_t bytes, std::uint32_t nodes = 1, bool native_masked_cas = true)
      : fabric_(fabric::open_embedded({.bytes = bytes,
                                       .nodes = nodes,
                                       .native_masked_cas = native_masked_cas,
                                       .huge_pages = false})
                    .value()) {}

  std::unique_ptr<fabric::Fabric> attach() { return fabric_->attach().value(); }
  Member unopened(const PoolOptions& options = {}, task::Clock& clock = task::Clock::system()) {
    return Member(attach(), options, clock);
  }
  Member join(const PoolOptions& options = {}, task::Clock& clock = task::Clock::system()) {
    Member member = unopened(options, clock);
    const Status opened = member.open();
    EXPECT_TRUE(opened) << opened.error().message();
    return member;
  }

 private:
  std::unique_ptr<fabric::Fabric> fabric_;
};

// A clock that tests move by hand.
class ManualClock : public task::Clock {
 public:
  task::TimePoint now() const override { return task::TimePoint(nanoseconds_.load()); }
  void advance(task::Duration by) { nanoseconds_.fetch_add(by); }

 private:
  struct Atomic {
    task::Duration load() const { return task::Duration(value.load()); }
    void fetch_add(task::Duration by) { value.fetch_add(by.count()); }
    std::atomic<std::int64_t> value{1'000'000'000};
  } nanoseconds_;
};

inline std::vector<std::byte> read_bytes(Member& member, fabric::Address from, std::size_t length) {
  Operation op(*member.session);
  fabric::Buffer buffer = op.buffer(length);
  fabric::Batch batch;
  batch.read(from, buffer.data(), length);
  const auto submit = [](Operation& on, fabric::Batch& what) -> Task<Status> {
    co_return co_await on.submit(what);
  };
  EXPECT_TRUE(member.run(submit(op, batch)));
  return {buffer.data(), buffer.data() + length};
}

inline std::uint64_t read_word(Member& member, fabric::Address from) {
  const std::vector<std::byte> bytes = read_bytes(member, from, 8);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof(word));
  return word;
}

inline void write_bytes(Member& member, fabric::Address to, const void* from, std::size_t length) {
  Operation op(*member.session);
  fabric::Buffer buffer = op.buffer(length);
  std::memcpy(buffer.data(), from, length);
  fabric::Batch batch;
  batch.write(to, buffer.data(), length);
  const auto submit = [](Operation& on, fabric::Batch& what) -> Task<Status> {
    co_return co_await on.submit(what);
  };
  EXPECT_TRUE(member.run(submit(op, batch)));
}

}  // namespace pando::pool
