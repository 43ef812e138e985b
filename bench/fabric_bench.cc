// How fast a fabric's verbs are on this machine, on one thread, anywhere in 64 MiB of one node:
//
//   p50, p99   of one verb at a time
//   64 tasks   a second: 64 coroutines with one verb in flight each
//   one batch  a second: batches of 64 verbs
//
//   fabric_bench [--peers] URL...      e.g. tcp:127.0.0.1:7470 mapped:unix:/tmp/0.sock
//   embedded:128MiB
//
// It writes over the first node: give it one that is for nothing else, before or after.
//
// --peers adds other libraries over loopback (peers/peer.h), 64 READs in flight in either column.
//
// The first rows are this machine's memory itself, read and changed in place: the limit. Figures
// are this machine's; compare those of one run.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "fabric/open.h"
#include "fabric/verbs.h"
#include "peers/peer.h"
#include "task/worker.h"

namespace pando {
namespace {

using fabric::Address;
using fabric::Batch;
using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kFirst = 1 << 20;  // what lies before is the pool's, where there is one
constexpr std::uint64_t kBytes = 64 << 20;
constexpr std::size_t kDepth = 64;
constexpr std::size_t kMostBytes = 1024;
constexpr auto kTime = std::chrono::milliseconds(1000);  // for each figure

enum class Kind : std::uint8_t { kRead64, kRead1024, kWrite64, kCompareSwap, kFetchAdd };
constexpr std::array kKinds = {Kind::kRead64, Kind::kRead1024, Kind::kWrite64, Kind::kCompareSwap,
                               Kind::kFetchAdd};

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"READ 64", "READ 1024", "WRITE 64", "CAS",
                                                      "FAA"};
  return kNames[static_cast<std::size_t>(kind)];
}

struct Figures {
  double p50 = 0, p99 = 0;            // microseconds
  double by_tasks = 0, by_batch = 0;  // millions a second
};

void print(std::string_view fabric, Kind kind, const Figures& figures) {
  fmt::print("{:10} {:10} {:9.2f} {:9.2f} {:12.3f} {:12.3f}\n", fabric, name_of(kind), figures.p50,
             figures.p99, figures.by_tasks, figures.by_batch);
}

class Offsets {
 public:
  std::uint64_t next() { return random_.below(kBytes / kMostBytes) * kMostBytes; }

 private:
  base::Random random_{1};
};

// Counts what is done within kTime, asking for the time not too often.
class Meter {
 public:
  bool goes_on(std::uint64_t done = 1) {
    count_ += done;
    if (count_ >= look_at_) {
      now_ = SteadyClock::now();
      look_at_ = count_ + 256;
    }
    return now_ - begin_ < kTime;
  }
  double millions_a_second() const {
    return static_cast<double>(count_) / std::chrono::duration<double>(now_ - begin_).count() / 1e6;
  }

 private:
  SteadyClock::time_point begin_ = SteadyClock::now();
  SteadyClock::time_point now_ = begin_;
  std::uint64_t count_ = 0;
  std::uint64_t look_at_ = 0;
};

template <class One>
void measure_latency(Figures& figures, One&& one) {
  std::vector<double> all;
  const auto begin = SteadyClock::now();
  for (auto last = begin; last - begin < kTime;) {
    one();
    const auto now = SteadyClock::now();
    all.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
  }
  std::ranges::sort(all);
  figures.p50 = all[all.size() / 2];
  figures.p99 = all[all.size() * 99 / 100];
}

// ---- The memory itself ----

void touch(Kind kind, std::byte* memory, std::byte* local) {
  std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(memory));
  std::uint64_t expected = 0;
  switch (kind) {
    case Kind::kRead64:
      std::memcpy(local, memory, 64);
      break;
    case Kind::kRead1024:
      std::memcpy(local, memory, kMostBytes);
      break;
    case Kind::kWrite64:
      std::memcpy(memory, local, 64);
      break;
    case Kind::kCompareSwap:
      word.compare_exchange_strong(expected, 1);
      break;
    case Kind::kFetchAdd:
      word.fetch_add(1);
      break;
  }
  asm volatile("" ::"r"(local) : "memory");
}

void bench_memory() {
  auto* const memory = static_cast<std::byte*>(mmap(
      nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  if (memory == MAP_FAILED) return;
  alignas(64) static std::array<std::array<std::byte, kMostBytes>, kDepth> local;
  for (const Kind kind : kKinds) {
    Figures figures;
    Offsets offsets;
    measure_latency(figures, [&] { touch(kind, memory + offsets.next(), local[0].data()); });
    Meter meter;
    std::size_t next = 0;
    do {
      touch(kind, memory + offsets.next(), local[next++ % kDepth].data());
    } while (meter.goes_on());
    figures.by_tasks = figures.by_batch = meter.millions_a_second();
    print("memory", kind, figures);
  }
  munmap(memory, kBytes);
}

// ---- Other libraries ----

void bench_peers() {
  for (const auto& [name, make] : bench::peer_kinds()) {
    const std::unique_ptr<bench::Peer> peer = make(kDepth);
    Figures figures;
    Offsets offsets;
    std::vector<std::size_t> ended;
    const auto post = [&](std::size_t slot) {
      while (!peer->post(slot, offsets.next())) peer->poll(ended);
    };
    measure_latency(figures, [&] {
      post(0);
      for (ended.clear(); ended.empty();) peer->poll(ended);
    });
    std::vector<std::size_t> idle(kDepth);
    std::iota(idle.begin(), idle.end(), 0);
    Meter meter;
    ended.clear();
    do {
      for (const std::size_t slot : idle) post(slot);
      peer->poll(ended);
      idle.swap(ended);
      ended.clear();
    } while (meter.goes_on(idle.size()));
    figures.by_tasks = figures.by_batch = meter.millions_a_second();
    print(name, Kind::kRead64, figures);
  }
}

// ---- A fabric ----

void add(Kind kind, Batch& batch, std::uint64_t offset, std::byte* local) {
  const Address target(0, kFirst + offset);
  switch (kind) {
    case Kind::kRead64:
      batch.read(target, local, 64);
      break;
    case Kind::kRead1024:
      batch.read(target, local, kMostBytes);
      break;
    case Kind::kWrite64:
      batch.write(target, local, 64);
      break;
    case Kind::kCompareSwap:
      batch.compare_swap(target, 0, 1);
      break;
    case Kind::kFetchAdd:
      batch.fetch_add(target, 1);
      break;
  }
}

class FabricBench {
 public:
  explicit FabricBench(fabric::Fabric& fabric)
      : worker_(fabric.clock()),
        endpoint_(fabric.open_endpoint(worker_).value()),
        buffer_(endpoint_->buffer(kDepth * kMostBytes)) {}
  ~FabricBench() { worker_.drop_tasks(); }

  // Memory that was never written is one page of zeros, always in the cache, or not there yet.
  Status write_everywhere() {
    for (std::uint64_t at = 0; status_ && at < kBytes; at += kDepth * kMostBytes) {
      worker_.run(write(at));
    }
    return status_;
  }

  Status measure(Kind kind, Figures& figures) {
    measure_latency(figures, [&] { worker_.run(submit(kind, 1)); });
    Meter by_tasks;
    for (std::size_t i = 0; i < kDepth; ++i) worker_.spawn(go_on(kind, i, by_tasks));
    worker_.run();
    figures.by_tasks = by_tasks.millions_a_second();
    Meter by_batch;
    do {
      worker_.run(submit(kind, kDepth));
    } while (status_ && by_batch.goes_on(kDepth));
    figures.by_batch = by_batch.millions_a_second();
    return status_;
  }

 private:
  Task<void> write(std::uint64_t at) {
    Batch batch;
    batch.write({0, kFirst + at}, buffer_.data(), kDepth * kMostBytes);
    keep(co_await endpoint_->submit(batch));
  }
  Task<void> submit(Kind kind, std::size_t verbs) {
    Batch& batch = batch_;
    batch.clear();
    for (std::size_t i = 0; i < verbs; ++i) {
      add(kind, batch, offsets_.next(), buffer_.data() + i * kMostBytes);
    }
    keep(co_await endpoint_->submit(batch));
  }
  Task<void> go_on(Kind kind, std::size_t place, Meter& meter) {
    do {
      Batch batch;
      add(kind, batch, offsets_.next(), buffer_.data() + place * kMostBytes);
      keep(co_await endpoint_->submit(batch));
    } while (status_ && meter.goes_on());
  }
  void keep(const Status& status) {
    if (!status) status_ = status;
  }

  task::Worker worker_;
  std::unique_ptr<fabric::Endpoint> endpoint_;
  fabric::Buffer buffer_;
  Batch batch_;  // used again and again, as one who cares would
  Offsets offsets_;
  Status status_;
};

int bench_fabric(const std::string& url) {
  auto fabric = fabric::open_fabric(url);
  if (!fabric) {
    fmt::print(stderr, "fabric_bench: {}: {}\n", url, fabric.error().message());
    return 1;
  }
  if ((*fabric)->memory_node_size(0) < kFirst + kBytes) {
    fmt::print(stderr, "fabric_bench: {}: the first node needs {} bytes\n", url, kFirst + kBytes);
    return 1;
  }
  FabricBench bench(**fabric);
  if (Status written = bench.write_everywhere(); !written) {
    fmt::print(stderr, "fabric_bench: {}: {}\n", url, written.error().message());
    return 1;
  }
  for (const Kind kind : kKinds) {
    Figures figures;
    if (Status measured = bench.measure(kind, figures); !measured) {
      fmt::print(stderr, "fabric_bench: {}: {}\n", url, measured.error().message());
      return 1;
    }
    print(url.substr(0, url.find(':')) + (url.contains("tls=on") ? "+tls" : ""), kind, figures);
  }
  return 0;
}

}  // namespace
}  // namespace pando

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  fmt::print("{:10} {:10} {:>9} {:>9} {:>12} {:>12}\n", "fabric", "verb", "p50 us", "p99 us",
             "64 tasks M/s", "one batch M/s");
  pando::bench_memory();
  int code = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--peers") {
      pando::bench_peers();
    } else {
      code |= pando::bench_fabric(argv[i]);
    }
  }
  return code;
}
