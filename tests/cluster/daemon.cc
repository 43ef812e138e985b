#include "cluster/daemon.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace pando::testing {

#ifndef PANDO_BINARY
#define PANDO_BINARY "pando"
#endif

using namespace std::chrono_literals;

Daemon::Daemon(std::vector<std::string> words, std::chrono::seconds patience)
    : words_(std::move(words)), patience_(patience) {
  std::string pattern = std::filesystem::temp_directory_path() / "pando-memnode-XXXXXX";
  const int file = mkstemp(pattern.data());
  if (file < 0) throw std::runtime_error("no temporary file");
  close(file);
  log_path_ = pattern;
  start("127.0.0.1:0");
}

Daemon::~Daemon() {
  if (process_ > 0) {
    signal(SIGKILL);
    signal(SIGCONT);
    wait();
  }
  unlink(log_path_.c_str());
}

void Daemon::start(const std::string& listen) {
  std::filesystem::resize_file(log_path_, 0);
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no test leaves one behind
    const int log = open(log_path_.c_str(), O_WRONLY | O_APPEND);
    dup2(log, STDERR_FILENO);
    dup2(log, STDOUT_FILENO);
    std::vector<std::string> all = {PANDO_BINARY, "memnode", "--listen", listen};
    all.insert(all.end(), words_.begin(), words_.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (std::chrono::steady_clock::now() < until) {
    const std::string text = log();
    // As text or as an object.
    if (const std::size_t at = text.find("serving");
        at != std::string::npos && text.find('\n', at) != std::string::npos) {
      const std::size_t begin = text.find("127.0.0.1", at);
      place_ = text.substr(begin, text.find_first_of(" \"\n", begin) - begin);
      return;
    }
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      throw std::runtime_error("the memory node has ended: " + text);
    }
    std::this_thread::sleep_for(10ms);
  }
  throw std::runtime_error("the memory node does not serve: " + log());
}

void Daemon::start_again() { start(place_); }

std::string Daemon::log() const {
  std::ifstream file(log_path_);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Daemon::signal(int number) const { kill(process_, number); }

int Daemon::wait() {
  int status = 0;
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace pando::testing
