// A batch as a memory node reads it: whatever passes lies within the memory and the message, and
// its answer is as long as was said.
#include "fabric/wire/messages.h"
#include "fuzz/input.h"

namespace {

using namespace pando::fabric;
using pando::testing::Input;
using pando::testing::require;

constexpr wire::Request::Bounds kBounds = {.memory_bytes = 1 << 20, .onchip_bytes = 64 << 10};

bool within_bounds(const Verb& verb) {
  const bool onchip = verb.target.offset() >= Address::kOnChip;
  const std::uint64_t start = verb.target.offset() - (onchip ? Address::kOnChip : 0);
  return start + verb.length <= (onchip ? kBounds.onchip_bytes : kBounds.memory_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static wire::Request request;
  const std::span<const std::byte> body(reinterpret_cast<const std::byte*>(data), size);
  const auto region_key = Input(data, size).take<std::uint64_t>();
  if (!request.parse(body, region_key, kBounds)) return 0;
  wire::Bytes out;
  wire::Answer answer(out, 1, request.answer_bytes());
  for (Verb& verb : request.verbs()) {
    require(within_bounds(verb), "a verb lies within the memory");
    require(!is_atomic(verb.kind) || verb.target.offset() % 8 == 0, "an atomic is aligned");
    if (verb.kind == VerbKind::kWrite) {
      require(verb.local >= body.data() && verb.local + verb.length <= body.data() + body.size(),
              "what a WRITE brings lies within the message");
    }
    if (verb.kind == VerbKind::kRead) std::memset(answer.place_of_read(), 1, verb.length);
    answer.add(verb);
  }
  answer.finish();
  require(out.size() == sizeof(wire::Frame) + request.answer_bytes(), "the answer's length");
  return 0;
}
