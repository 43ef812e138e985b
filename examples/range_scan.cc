// Ordered access: byte-string keys, ranges and scans.
#include <iostream>
#include <string>
#include <vector>

#include <pando/pando.h>

int main() {
  auto pool = pando::Pool::open("embedded:64MiB").value();
  // The text form of options is the same as on the command line.
  const auto options = pando::IndexOptions::parse("sherman:keys=bytes").value();
  auto log = pool.create_index("log", options).value();

  // With the date first, the keys of one day lie together.
  log.put("2024-05-01/alice", "logged in").value();
  log.put("2024-05-01/bob", "logged in").value();
  log.put("2024-05-02/alice", "logged out").value();
  log.put("2024-05-03/carol", "logged in").value();

  // All of the first of May: from the first key with that date to before the first of the next.
  // A range fetches page by page; an error ends the loop, so look at status() after it.
  std::vector<std::string> first_of_may;
  auto day = log.range("2024-05-01/", "2024-05-02/");
  for (const auto& [key, value] : day) {
    std::cout << key.bytes() << ": " << value << "\n";
    first_of_may.push_back(key.bytes());
  }
  if (!day.status()) return 1;

  // A scan returns at most so many entries at once, from the first key that is not smaller. The
  // start need not be a key of the index.
  const auto next = log.scan("2024-05-01/zoe", 2).value();
  for (const auto& [key, value] : next) std::cout << "then " << key.bytes() << "\n";

  const bool right =
      first_of_may == std::vector<std::string>{"2024-05-01/alice", "2024-05-01/bob"} &&
      next.size() == 2 && next[0].key.bytes() == "2024-05-02/alice";
  return right ? 0 : 1;
}
