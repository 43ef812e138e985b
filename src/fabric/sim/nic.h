// What network cards cost: the constants of the model, and the queues that form at a card.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "fabric/sim/event_queue.h"
#include "fabric/verbs.h"
#include <pando/result.h>

namespace pando::fabric::sim {

// A kind of card and link, the same on every machine. docs/simulation.md has the source of each
// number; nothing here was fitted to a result.
struct Preset {
  std::string_view name;
  std::string_view summary;

  std::uint64_t verbs_per_second;       // small verbs that one card can start or serve
  std::uint64_t link_bytes_per_second;  // in each direction
  std::uint64_t dma_bytes_per_second;   // between card and memory, in each direction
  Time round_trip;                      // of a lone READ of 8 bytes, from post to completion
  Time dma_latency;                     // to fetch a line from host memory
  std::uint64_t dma_least;              // bytes that a smaller access is charged as
  Time host_atomic;                     // an atomic holds its word in host memory this long
  Time onchip_atomic;                   // and in the card's own memory
  std::uint32_t onchip_bytes;
  std::uint32_t work_request;     // bytes that a card fetches from its host for each verb it starts
  std::uint32_t inline_limit;     // WRITEs up to here travel within the request
  std::uint32_t packet_payload;   // bytes of data in one packet at most
  std::uint32_t packet_overhead;  // bytes on the wire of a packet without its data
  std::uint32_t request_header;   // and what a READ or WRITE request adds
  std::uint32_t atomic_header;    // an atomic request
  std::uint32_t response_header;  // a response

  Time verb_slot() const { return kSecond / verbs_per_second; }
  Time on_wire(std::uint64_t bytes) const { return time_for(bytes, link_bytes_per_second); }
  Time on_bus(std::uint64_t bytes) const {
    return time_for(bytes < dma_least ? dma_least : bytes, dma_bytes_per_second);
  }
  // Bytes on the wire of a verb's request and of its answer.
  std::uint64_t request_bytes(const Verb& verb) const;
  std::uint64_t response_bytes(const Verb& verb) const;
  // What starting a verb takes of the client's bus: its work request, and data that is not in it.
  Time to_start(const Verb& verb) const;
  // Whether a WRITE's data must be fetched from the client's memory.
  bool fetches_data(const Verb& verb) const {
    return verb.kind == VerbKind::kWrite && verb.length > inline_limit;
  }
  // What remains of the round trip once all that is modelled is taken off: cables, switch, and the
  // cards' own pipelines. One way.
  Time propagation() const;

 private:
  static constexpr Time time_for(std::uint64_t bytes, std::uint64_t bytes_per_second) {
    return bytes * 1'000'000 / (bytes_per_second / 1'000'000);
  }
  std::uint64_t packets(std::uint64_t bytes) const;
};

std::span<const Preset> presets();
// kInvalidArgument names the known ones.
Result<const Preset*> find_preset(std::string_view name);

// A server that takes one piece of work after the other.
class Queue {
 public:
  // When a piece that comes at `at` and takes `duration` is done.
  Time take(Time at, Time duration) {
    const Time begin = at > free_at_ ? at : free_at_;
    free_at_ = begin + duration;
    busy_ += duration;
    return free_at_;
  }
  Time busy() const { return busy_; }
  void forget() { busy_ = 0; }

 private:
  Time free_at_ = 0;
  Time busy_ = 0;
};

// One card: where work queues up.
struct Nic {
  Queue verbs;
  Queue out;
  Queue in;
  Queue fetch;               // from memory to the card
  Queue store;               // and back
  std::uint64_t served = 0;  // verbs

  void forget() {
    verbs.forget();
    out.forget();
    in.forget();
    fetch.forget();
    store.forget();
    served = 0;
  }
};

// How busy a card was, each as a part of the time looked at.
struct NicUse {
  double verbs = 0;
  double out = 0;
  double in = 0;
  double dma = 0;  // of the busier direction
  std::uint64_t served = 0;
};

}  // namespace pando::fabric::sim
