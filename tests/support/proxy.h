// Proxy: the network between clients and one memory node, which does what a test says.
//
// Clients connect to place(), the proxy connects to the memory node, and bytes go both ways until
// the test has something against it. Of each connection, each way by itself can be held back and
// released, delayed, and ended (half closed); either side or both can be cut off by a reset; and
// those who come can be refused, or left waiting. Connections are numbered from 0 as they come.
//
//  1. What a call forbids does not happen once it has returned: every call takes effect between two
//     steps of the proxy's thread.
//  2. Nothing is lost but by a cut: what is held back when its sender goes away is delivered when
//  it
//     is released, and then the end of the connection. So does a network that has the segments
//     still on their way.
//  3. It knows where messages end (wire/messages.h), and counts and holds back whole ones. Without
//     TLS, then: what goes by TLS has no messages, and is held back at once or not at all.
//  4. Trouble is drawn from a seed: the same seed draws the same troubles, though what they hit
//     depends on time.
//
// One thread, which sleeps while nothing happens. All calls are thread-safe. Its descriptors must
// not live on in a child process: a reset is sent with the last one (client_process.h closes them).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace pando::testing {

class Proxy {
 public:
  enum class Way : std::uint8_t { kUp, kDown };  // to the memory node; to the client
  enum class Side : std::uint8_t { kClient, kNode, kBoth };
  enum class Entrance : std::uint8_t { kOpen, kHangs, kRefuses };

  struct Counts {
    std::uint64_t connections = 0;
    std::uint64_t refused = 0;  // how often the entrance was made to refuse
    std::uint64_t hung = 0;     // how often it was made to hang
    std::uint64_t held = 0;     // how often a way was held back
    std::uint64_t released = 0;
    std::uint64_t delayed = 0;  // how often a way was slowed down
    std::uint64_t ended = 0;    // half closed
    std::uint64_t cut = 0;
    std::uint64_t bytes_up = 0, bytes_down = 0;  // delivered

    Counts& operator+=(const Counts& other);
  };

  // What trouble() does, at random: cuts, half closes, holds, delays, and an entrance that hangs or
  // refuses. What it holds up it lets go in time.
  struct Trouble {
    std::uint64_t seed = 1;
    std::chrono::milliseconds every{100};  // on average
    // That anything is held up; the entrance, which is everyone's, is so for a tenth of it.
    std::chrono::milliseconds longest{50};
  };

  // `target`: "127.0.0.1:1234". Throws where the machine has no socket for it.
  explicit Proxy(std::string_view target);
  ~Proxy();  // cuts all
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  std::string place() const;  // "127.0.0.1:1235"
  Counts counts() const;

  // ---- What goes by

  std::size_t connections() const;  // ever
  // Neither side has ended it, nor the proxy.
  bool is_open(std::size_t connection) const;
  // Whole messages that have come to the proxy by this way.
  std::uint64_t messages(std::size_t connection, Way way) const;
  // The open connection with the most messages to the memory node; connections() where none is
  // open.
  std::size_t busiest() const;
  // Bytes that have come and are not delivered.
  std::size_t waiting(std::size_t connection, Way way) const;

  // ---- One connection

  // From now on, after so many more messages have been delivered.
  void hold(std::size_t connection, Way way, std::uint64_t after = 0);
  void release(std::size_t connection, Way way);
  // What comes from now on; 0: no longer.
  void delay(std::size_t connection, Way way, std::chrono::milliseconds time);
  // The receiver sees the end of the connection once it has got what was sent before; what the
  // sender sends from now on is lost.
  void end(std::size_t connection, Way way);
  // A reset. Of one side: what it had sent is still delivered to the other, then the end.
  void cut(std::size_t connection, Side side);

  // ---- All of them, and those who come

  void cut_all();
  // Of those who come from now on, as by hold().
  void hold_newcomers(Way way, std::uint64_t after = 0);
  void let_newcomers_pass();
  // While it hangs, connections are made but lead nowhere; they go on once it is open.
  void set_entrance(Entrance entrance);

  // ---- Trouble

  void begin_trouble(const Trouble& trouble);
  void end_trouble();  // lets go of all that trouble held up

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace pando::testing
