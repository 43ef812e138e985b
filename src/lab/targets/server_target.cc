// Redis and memcached: a server process of our own on loopback, and clients that keep as many
// requests in flight as Pando's do, sent together.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <deque>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/wire/socket.h"
#include "lab/client_loop.h"
#include "lab/free_port.h"
#include "lab/targets/peer_files.h"
#include "lab/targets/peers.h"
#include "lab/targets/server_protocol.h"
#include "lab/threaded_target.h"

namespace pando::lab {
namespace {

using fabric::wire::Place;
using fabric::wire::Socket;
using SteadyClock = std::chrono::steady_clock;

// As Pando's clients do: look for answers for a while before sleeping.
constexpr std::chrono::microseconds kSpin{60};
constexpr std::chrono::seconds kServerTimeout{10};

bool wait_for(const Socket& socket, short events) {
  return fabric::wire::wait_for(socket.get(), events, SteadyClock::now() + kServerTimeout);
}

// One connection, whose requests are answered in their order.
class Pipeline {
 public:
  Pipeline(Socket socket, const ServerProtocol& protocol)
      : socket_(std::move(socket)), protocol_(protocol) {}

  // Suspends until the answer is there.
  struct Answer {
    Pipeline& pipeline;
    ServerReply kind = ServerReply::kError;
    std::string text = "the connection is at its end";
    std::coroutine_handle<> waiter = nullptr;

    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) {
      waiter = handle;
      pipeline.waiting_.push_back(this);
    }
  };

  const ServerProtocol& protocol() const { return protocol_; }
  std::string& out() { return out_; }

  // Until nobody waits any more.
  void run() {
    while (!waiting_.empty()) {
      const bool alive = send() && receive();
      take_answers();
      if (!alive) end_all();
      for (const std::coroutine_handle<> each : std::exchange(ready_, {})) each.resume();
    }
  }

 private:
  bool send() {
    auto unsent = std::as_bytes(std::span(out_));
    while (!unsent.empty()) {
      const auto sent = socket_.send(unsent);
      if (!sent) return false;
      unsent = unsent.subspan(*sent);
      if (*sent == 0 && !wait_for(socket_, POLLOUT)) return false;
    }
    out_.clear();
    return true;
  }
  bool receive() {
    const auto asked = SteadyClock::now();
    for (;;) {
      const auto count = socket_.receive(buffer_);
      if (!count) return false;
      in_.append(reinterpret_cast<const char*>(buffer_.data()), *count);
      if (*count > 0) return true;
      if (SteadyClock::now() - asked < kSpin) continue;
      if (!wait_for(socket_, POLLIN)) return false;
    }
  }
  void take_answers() {
    std::size_t used = 0;
    while (!waiting_.empty()) {
      const auto reply = protocol_.parse(std::string_view(in_).substr(used));
      if (!reply) break;
      Answer& answer = *waiting_.front();
      waiting_.pop_front();
      answer.kind = reply->kind;
      answer.text = reply->text;
      ready_.push_back(answer.waiter);
      used += reply->bytes;
    }
    in_.erase(0, used);
  }
  void end_all() {
    for (Answer* each : std::exchange(waiting_, {})) ready_.push_back(each->waiter);
  }

  Socket socket_;
  const ServerProtocol& protocol_;
  std::string out_;
  std::string in_;
  std::array<std::byte, 64 << 10> buffer_;
  std::deque<Answer*> waiting_;
  std::vector<std::coroutine_handle<>> ready_;
};

class ServerClient {
 public:
  explicit ServerClient(Pipeline& pipeline) : pipeline_(pipeline) {}

  struct Get : Pipeline::Answer {
    Result<std::string> await_resume() {
      if (kind == ServerReply::kValue) return std::move(text);
      if (kind == ServerReply::kAbsent) return fail(ErrorCode::kNotFound);
      return fail(ErrorCode::kUnavailable, text);
    }
  };
  struct Put : Pipeline::Answer {
    Status await_resume() const {
      if (kind == ServerReply::kDone) return {};
      const bool present = kind == ServerReply::kRefused || kind == ServerReply::kAbsent;
      return present ? fail(ErrorCode::kExists) : fail(ErrorCode::kUnavailable, text);
    }
  };

  Get get(Key key, Counters*) {
    pipeline_.protocol().get(pipeline_.out(), OrderedBytes(key).view());
    return {{.pipeline = pipeline_}};
  }
  Put insert(Key key, std::string_view value, Counters*) {
    pipeline_.protocol().insert(pipeline_.out(), OrderedBytes(key).view(), value);
    return {{.pipeline = pipeline_}};
  }
  Put update(Key key, std::string_view value, Counters*) {
    pipeline_.protocol().update(pipeline_.out(), OrderedBytes(key).view(), value);
    return {{.pipeline = pipeline_}};
  }
  Ready<Result<std::vector<Entry>>> scan(Key, std::size_t, Counters*) {
    return {fail(ErrorCode::kInvalidArgument, "this server has no order to scan: leave out E")};
  }

 private:
  Pipeline& pipeline_;
};

// A child process, ended with this.
class ServerProcess {
 public:
  static Result<ServerProcess> start(std::vector<std::string> words, const std::string& folder) {
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) return fail(ErrorCode::kUnavailable, "the system starts no process");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || chdir(folder.c_str()) != 0) _exit(127);
      const int nowhere = open("/dev/null", O_RDWR);
      for (const int each : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, each);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    return ServerProcess(child, words.front());
  }
  ServerProcess(ServerProcess&& other) noexcept
      : process_(std::exchange(other.process_, -1)), name_(std::move(other.name_)) {}
  ServerProcess& operator=(ServerProcess&&) = delete;
  ~ServerProcess() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  // Waits until it listens there.
  Status await(const Place& place) {
    const auto until = SteadyClock::now() + kServerTimeout;
    while (SteadyClock::now() < until) {
      if (connect(place)) return {};
      int status = 0;
      if (waitpid(process_, &status, WNOHANG) == process_) {
        process_ = -1;
        return fail(ErrorCode::kUnavailable,
                    WIFEXITED(status) && WEXITSTATUS(status) == 127
                        ? fmt::format("'{}' is not on this machine: install it", name_)
                        : fmt::format("'{}' ended as soon as it was started", name_));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return fail(ErrorCode::kUnavailable, fmt::format("'{}' does not listen", name_));
  }

  static Result<Socket> connect(const Place& place) {
    auto socket = fabric::wire::begin_connect(place);
    if (!socket) return fail(socket.error());
    if (!wait_for(*socket, POLLOUT)) return fail(ErrorCode::kUnavailable, "no answer");
    if (Status made = fabric::wire::connected(*socket, place); !made) return fail(made.error());
    return std::move(*socket);
  }

  std::uint64_t memory() const {
    std::ifstream file(fmt::format("/proc/{}/statm", process_));
    std::uint64_t all = 0;
    std::uint64_t resident = 0;
    file >> all >> resident;
    return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  }

 private:
  ServerProcess(pid_t process, std::string name) : process_(process), name_(std::move(name)) {}
  pid_t process_;
  std::string name_;
};

class ServerTarget final : public ThreadedTarget {
 public:
  ServerTarget(std::string name, ScratchFolder folder, ServerProcess process, Place place,
               std::unique_ptr<ServerProtocol> protocol)
      : name_(std::move(name)),
        folder_(std::move(folder)),
        process_(std::move(process)),
        place_(std::move(place)),
        protocol_(std::move(protocol)) {}

  std::string name() const override { return name_; }
  std::string fabric() const override { return "tcp"; }
  bool is_peer() const override { return true; }

  void run_client(unsigned, ClientWork& work) override {
    auto socket = ServerProcess::connect(place_);
    if (!socket) return work.failures().add("connecting: " + socket.error().message());
    Pipeline pipeline(std::move(*socket), *protocol_);
    ServerClient client(pipeline);
    work.ready();
    std::vector<Task<void>> loops;
    loops.reserve(work.tasks());
    for (unsigned i = 0; i < work.tasks(); ++i) loops.push_back(client_loop(client, work));
    for (const Task<void>& loop : loops) loop.handle().resume();
    pipeline.run();
  }

  Result<TargetMemory> memory() override {
    return TargetMemory{.compute_bytes = process_.memory()};
  }

 private:
  std::string name_;
  ScratchFolder folder_;
  ServerProcess process_;
  Place place_;
  std::unique_ptr<ServerProtocol> protocol_;
};

using WordsFor = std::vector<std::string> (*)(const std::string& port, std::uint64_t data_bytes);

Result<std::unique_ptr<Target>> open_server(const char* name, const PeerOptions& options,
                                            WordsFor words,
                                            std::unique_ptr<ServerProtocol> protocol) {
  auto folder = ScratchFolder::make(name);
  if (!folder) return fail(folder.error());
  auto port = free_port();
  if (!port) return fail(port.error());
  auto process = ServerProcess::start(words(*port, options.data_bytes), folder->path());
  if (!process) return fail(process.error());
  Place place{.host = "127.0.0.1", .port = *port, .path = ""};
  if (Status listens = process->await(place); !listens) return fail(listens.error());
  return std::make_unique<ServerTarget>(name, std::move(*folder), std::move(*process),
                                        std::move(place), std::move(protocol));
}

}  // namespace

Result<std::unique_ptr<Target>> open_redis(const PeerOptions& options) {
  const WordsFor words = [](const std::string& port, std::uint64_t) {
    return std::vector<std::string>{"redis-server", "--port",      port, "--bind",
                                    "127.0.0.1",    "--save",      "",   "--appendonly",
                                    "no",           "--daemonize", "no"};
  };
  return open_server("redis", options, words, std::make_unique<RedisProtocol>());
}

Result<std::unique_ptr<Target>> open_memcached(const PeerOptions& options) {
  // Far more than it needs: it must not evict.
  const WordsFor words = [](const std::string& port, std::uint64_t data_bytes) {
    const std::uint64_t mebibytes = 1024 + (16 * data_bytes >> 20);
    return std::vector<std::string>{
        "memcached", "-l",  "127.0.0.1", "-p", port, "-t", "1", "-m", std::to_string(mebibytes),
        "-u",        "root"};
  };
  return open_server("memcached", options, words, std::make_unique<MemcachedProtocol>());
}

}  // namespace pando::lab
