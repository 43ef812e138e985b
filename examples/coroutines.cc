// Many operations in flight on one thread: each account transfer is a coroutine, and while one
// waits for its round trips the others go on.
#include <cstdint>
#include <iostream>
#include <string>

#include <pando/pando.h>

namespace {

constexpr std::uint64_t kAccounts = 1'000;
constexpr std::uint64_t kTasks = 100;

// Doubles the balance of every account of its share. Each co_await may let other tasks run. A task
// has no caller to return an error to, so it counts what went wrong.
pando::Task<void> double_balances(pando::Worker& worker, pando::Index accounts, std::uint64_t first,
                                  int& errors) {
  for (std::uint64_t id = first; id < kAccounts; id += kTasks) {
    const auto balance = co_await accounts.get(worker, id);
    if (!balance) {
      ++errors;
      continue;
    }
    // Keys and values must live until the awaited operation has ended: a local variable does.
    const std::string doubled = std::to_string(2 * std::stoull(*balance));
    const auto status = co_await accounts.update(worker, id, doubled);
    if (!status) ++errors;
  }
}

}  // namespace

int main() {
  auto pool = pando::Pool::open("embedded:64MiB?nodes=2").value();
  auto accounts = pool.create_index("accounts").value();
  for (std::uint64_t id = 0; id < kAccounts; ++id) accounts.insert(id, std::to_string(id)).value();

  // A worker is one thread's place to run coroutines.
  pando::Worker worker = pool.make_worker().value();
  int errors = 0;
  for (std::uint64_t task = 0; task < kTasks; ++task) {
    worker.spawn(double_balances(worker, accounts, task, errors));
  }
  worker.run();
  std::cout << kTasks << " tasks made " << worker.counters().round_trips << " round trips\n";

  for (std::uint64_t id = 0; id < kAccounts; ++id) {
    if (accounts.get(id).value() != std::to_string(2 * id)) ++errors;
  }
  return errors == 0 ? 0 : 1;
}
