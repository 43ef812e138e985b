// Errors are values: nothing throws, nothing aborts. A code to branch on, a sentence to show.
#include <iostream>
#include <string>

#include <pando/pando.h>

namespace {

int mistakes = 0;

// Prints the error, and counts where it is not the one expected.
template <class T>
void expect(const pando::Result<T>& result, pando::ErrorCode expected) {
  if (!result && result.error().code() == expected) {
    std::cout << "as expected: " << result.error().message() << "\n";
  } else {
    std::cout << "unexpected: " << (result ? "success" : result.error().message()) << "\n";
    ++mistakes;
  }
}

}  // namespace

int main() {
  using enum pando::ErrorCode;
  expect(pando::Pool::open("embedded:plenty"), kInvalidArgument);

  auto pool = pando::Pool::open("embedded:16MiB").value();
  auto users = pool.create_index("users").value();
  expect(pool.create_index("users"), kExists);
  expect(pool.open_index("useers"), kNotFound);
  expect(pool.drop_index("users"), kBusy);  // we have it open

  users.insert(1, "Ada").value();
  expect(users.insert(1, "Eve"), kExists);
  expect(users.get(2), kNotFound);
  expect(users.put("name", "Ada"), kInvalidArgument);  // this index has integer keys
  expect(users.put(-1, "Ada"), kInvalidArgument);
  expect(users.put(1, std::string(pando::kMaxValueBytes + 1, 'x')), kInvalidArgument);

  // A full pool refuses, and goes on serving.
  const std::string big(500'000, 'x');
  int stored = 0;
  while (users.put(100 + stored, big)) ++stored;
  expect(users.put(100 + stored, big), kOutOfMemory);
  std::cout << stored << " big values fit\n";
  if (users.get(1).value() != "Ada" || users.get(100).value() != big) ++mistakes;
  return mistakes == 0 ? 0 : 1;
}
