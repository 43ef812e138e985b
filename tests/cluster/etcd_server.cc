#include "cluster/etcd_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fabric/etcd/client.h"
#include "lab/free_port.h"

namespace pando::testing {
namespace {

using namespace std::chrono_literals;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

bool EtcdServer::installed() {
  const char* const path = std::getenv("PATH");
  for (std::string rest = path != nullptr ? path : ""; !rest.empty();) {
    const std::size_t colon = rest.find(':');
    if (access((rest.substr(0, colon) + "/etcd").c_str(), X_OK) == 0) return true;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return false;
}

EtcdServer::EtcdServer() {
  std::string pattern = std::filesystem::temp_directory_path() / "pando-etcd-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = pattern;
  url_ = "http://127.0.0.1:" + lab::free_port().value();
  peer_url_ = "http://127.0.0.1:" + lab::free_port().value();
  start();
}

EtcdServer::~EtcdServer() {
  if (process_ > 0) kill();
  std::filesystem::remove_all(folder_);
}

void EtcdServer::start() {
  const std::string log_path = folder_ + "/log";
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no test leaves one behind
    const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, STDERR_FILENO);
    dup2(log, STDOUT_FILENO);
    std::vector<std::string> words = {"etcd",
                                      "--data-dir",
                                      folder_ + "/data",
                                      "--unsafe-no-fsync",
                                      "--listen-client-urls",
                                      url_,
                                      "--advertise-client-urls",
                                      url_,
                                      "--listen-peer-urls",
                                      peer_url_,
                                      "--initial-advertise-peer-urls",
                                      peer_url_,
                                      "--initial-cluster",
                                      "default=" + peer_url_};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const auto until = std::chrono::steady_clock::now() + 30s;
  fabric::etcd::Client client({url_});
  while (std::chrono::steady_clock::now() < until) {
    if (client.range("/")) return;
    if (waitpid(process_, nullptr, WNOHANG) == process_) {
      process_ = -1;
      break;
    }
    std::this_thread::sleep_for(20ms);
  }
  throw std::runtime_error("etcd does not serve: " + text_of(log_path));
}

void EtcdServer::kill() {
  ::kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

void EtcdServer::lose_data() { std::filesystem::remove_all(folder_ + "/data"); }

}  // namespace pando::testing
