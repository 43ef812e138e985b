#include "cluster/client_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>
#include <utility>

namespace pando::testing {

ClientProcess::ClientProcess(const std::function<void()>& work) {
  process_ = fork();
  if (process_ < 0) throw std::runtime_error("no process for a client");
  if (process_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  work();
  _exit(0);
}

ClientProcess::~ClientProcess() { kill(); }

ClientProcess::ClientProcess(ClientProcess&& other) noexcept
    : process_(std::exchange(other.process_, -1)) {}

ClientProcess& ClientProcess::operator=(ClientProcess&& other) noexcept {
  std::swap(process_, other.process_);
  return *this;
}

void ClientProcess::signal(int number) const { ::kill(process_, number); }

std::optional<int> ClientProcess::wait(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  for (;;) {
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      return status;
    }
    if (std::chrono::steady_clock::now() > until) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ClientProcess::kill() {
  if (process_ < 0) return;
  signal(SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

}  // namespace pando::testing
