// Daemon: a `pando memnode` process, ended with the test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace pando::testing {

class Daemon {
 public:
  // Starts it and waits until it serves; throws where it does not. `words` follow `memnode`; it
  // listens at a port of its own.
  explicit Daemon(std::vector<std::string> words,
                  std::chrono::seconds patience = std::chrono::seconds(30));
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  const std::string& place() const { return place_; }  // "127.0.0.1:1234"
  pid_t process() const { return process_; }
  std::string log() const;
  void signal(int number) const;
  // Waits for its end. Its exit code; 128 + the signal that ended it.
  int wait();
  // The same words at the same place again. REQUIRES: it has ended.
  void start_again();

 private:
  void start(const std::string& listen);

  std::vector<std::string> words_;
  std::chrono::seconds patience_;
  std::string log_path_;
  std::string place_;
  pid_t process_ = -1;
};

}  // namespace pando::testing
