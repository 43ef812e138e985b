// The first ten lines of a program that uses Pando.
#include <iostream>

#include <pando/pando.h>

int main() {
  // A pool of two memory nodes inside this process, 64 MiB in all; an index with integer keys.
  auto pool = pando::Pool::open("embedded:64MiB?nodes=2").value();
  auto users = pool.create_index("users").value();

  users.put(42, "Ada").value();
  users.put(7, "Grace").value();

  std::cout << "user 42 is " << users.get(42).value() << "\n";
  for (const auto& [key, value] : users.range(0)) {
    std::cout << key.integer() << " " << value << "\n";
  }

  users.erase(7).value();
  return users.get(42).value() == "Ada" && !users.get(7) ? 0 : 1;
}
