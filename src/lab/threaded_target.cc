#include "lab/threaded_target.h"

#include <algorithm>
#include <thread>

namespace pando::lab {

PhaseResult ThreadedTarget::run(const Works& works) {
  using std::chrono::nanoseconds;
  const Now now = clock();
  nanoseconds begin{};
  std::vector<nanoseconds> ends(works.size());
  ClientWork::StartLine start(static_cast<std::ptrdiff_t>(works.size()), [&] { begin = now(); });
  std::vector<std::jthread> threads;
  for (unsigned client = 0; client < works.size(); ++client) {
    ClientWork& work = *works[client];
    work.set_start(&start);
    threads.emplace_back([&, client] {
      run_client(client, work);
      if (!work.started()) work.ready();  // failed early: nobody waits for it
      ends[client] = now();
    });
  }
  threads.clear();
  return {.time = *std::ranges::max_element(ends) - begin};
}

}  // namespace pando::lab
