#include "fabric/wire/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>

namespace pando::fabric::wire {
namespace {

// A verb in a Batch. Behind it: a WRITE's bytes; an atomic's words.
struct VerbHead {
  VerbKind kind{};
  std::uint8_t zero[3] = {};
  std::uint32_t length = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(VerbHead) == 16);

constexpr std::size_t round_to_word(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

// A masked one that the fabric emulates travels as the plain one that it is.
constexpr VerbKind sent_as(const Verb& verb) {
  const bool plain = verb.kind == VerbKind::kMaskedCompareSwap && verb.emulated;
  return plain ? VerbKind::kCompareSwap : verb.kind;
}

// The words behind the head, as many as traits_of(sent_as(verb)).operands; a WRITE has bytes
// instead.
using Operands = std::array<std::uint64_t, kMostOperands>;

Operands operands_of(const Verb& verb) {
  switch (sent_as(verb)) {
    case VerbKind::kRead:
    case VerbKind::kWrite:
      break;
    case VerbKind::kCompareSwap:
      if (verb.emulated) return {verb.guess, verb.swapped(verb.guess)};
      return {verb.compare, verb.swap};
    case VerbKind::kMaskedCompareSwap:
      return {verb.compare, verb.swap, verb.compare_mask, verb.swap_mask};
    case VerbKind::kFetchAdd:
      return {verb.swap};
  }
  return {};
}

void set_operands(Verb& verb, const Operands& words) {
  switch (verb.kind) {
    case VerbKind::kRead:
    case VerbKind::kWrite:
      break;
    case VerbKind::kMaskedCompareSwap:
      verb.compare_mask = words[2];
      verb.swap_mask = words[3];
      [[fallthrough]];
    case VerbKind::kCompareSwap:
      verb.compare = words[0];
      verb.swap = words[1];
      break;
    case VerbKind::kFetchAdd:
      verb.swap = words[0];
      break;
  }
}

// Of the bytes behind one another.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t left() const { return bytes_.size(); }
  template <class T>
  bool take(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  // nullptr where there are fewer.
  const std::byte* take_bytes(std::size_t bytes) {
    if (bytes_.size() < bytes) return nullptr;
    const std::byte* const at = bytes_.data();
    bytes_ = bytes_.subspan(bytes);
    return at;
  }

 private:
  std::span<const std::byte> bytes_;
};

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <class T>
  void put(const T& value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void put(const std::byte* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(at_, from, bytes);
    const std::size_t padding = round_to_word(bytes) - bytes;
    std::memset(at_ + bytes, 0, padding);
    at_ += bytes + padding;
  }
  void put_words(std::span<const std::uint64_t> words) {
    std::memcpy(at_, words.data(), words.size_bytes());
    at_ += words.size_bytes();
  }

 private:
  std::byte* at_;
};

template <class... Parts>
base::Digest sign_parts(std::string_view key, std::string_view role, const Parts&... parts) {
  Bytes message;
  const auto add = [&message](const void* data, std::size_t bytes) {
    const auto* const from = static_cast<const std::byte*>(data);
    message.insert(message.end(), from, from + bytes);
  };
  add(role.data(), role.size());
  (add(&parts, sizeof(parts)), ...);
  return base::sign(key, message);
}

std::unexpected<Error> corrupt(std::string what) {
  return fail(ErrorCode::kCorrupt, "wire: " + std::move(what));
}

// The errors that travel; 0 is none.
struct ErrorNumber {
  std::uint8_t number;
  ErrorCode code;
};
constexpr ErrorNumber kErrorNumbers[] = {
    {1, ErrorCode::kNotFound},     {2, ErrorCode::kExists},      {3, ErrorCode::kInvalidArgument},
    {4, ErrorCode::kIncompatible}, {5, ErrorCode::kOutOfMemory}, {6, ErrorCode::kBusy},
    {7, ErrorCode::kTimeout},      {8, ErrorCode::kUnavailable}, {9, ErrorCode::kIndeterminate},
    {10, ErrorCode::kFenced},      {11, ErrorCode::kDataLost},   {12, ErrorCode::kCorrupt},
    {13, ErrorCode::kDenied},
};
constexpr std::uint8_t number_of(ErrorCode code) {
  const auto* const found = std::ranges::find(kErrorNumbers, code, &ErrorNumber::code);
  return found == std::end(kErrorNumbers) ? 0 : found->number;
}
static_assert([] {  // all that have a name have a number
  for (unsigned i = 0; i < 256; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (to_string(code) != "unknown error" && number_of(code) == 0) return false;
  }
  return true;
}());

Error error_of(std::uint8_t number, std::string text) {
  const auto* const found = std::ranges::find(kErrorNumbers, number, &ErrorNumber::number);
  if (found != std::end(kErrorNumbers)) return {found->code, std::move(text)};
  return {ErrorCode::kCorrupt,
          fmt::format("wire: error {}, which this program does not know: {}", number, text)};
}

}  // namespace

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::kHello:
      return "Hello";
    case Kind::kChallenge:
      return "Challenge";
    case Kind::kProof:
      return "Proof";
    case Kind::kWelcome:
      return "Welcome";
    case Kind::kRefusal:
      return "Refusal";
    case Kind::kBatch:
      return "Batch";
    case Kind::kAnswer:
      return "Answer";
    case Kind::kFence:
      return "Fence";
    case Kind::kLeave:
      return "Leave";
    case Kind::kDone:
      return "Done";
    case Kind::kRdmaRequest:
      return "RdmaRequest";
    case Kind::kRdmaOffer:
      return "RdmaOffer";
    case Kind::kStay:
      return "Stay";
  }
  return {};
}

base::Digest client_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                          const Proof& proof) {
  Proof unsigned_proof = proof;
  unsigned_proof.digest = {};
  return sign_parts(key, "pando client", hello, challenge, unsigned_proof);
}

base::Digest node_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                        const Welcome& welcome) {
  Welcome unsigned_welcome = welcome;
  unsigned_welcome.digest = {};
  return sign_parts(key, "pando node", hello, challenge, unsigned_welcome);
}

base::Digest refusal_proof(std::string_view key, const Hello& hello, const Challenge& challenge,
                           std::span<const std::byte> status) {
  return sign_parts(key, "pando refusal", hello, challenge,
                    base::sign(key, std::span<const std::byte>(status)));
}

// ---- Building ----

void append_empty(Bytes& out, Kind kind, std::uint64_t tag) {
  const Frame frame{.kind = kind, .tag = tag};
  const auto* const head = reinterpret_cast<const std::byte*>(&frame);
  out.insert(out.end(), head, head + sizeof(frame));
}

namespace {

// A code, 0 where all is well, and its text.
Bytes status_bytes(const Status& status) {
  const std::string text = status ? std::string() : status.error().detail();
  Bytes bytes(1, static_cast<std::byte>(status ? 0 : number_of(status.error().code())));
  const auto* const words = reinterpret_cast<const std::byte*>(text.data());
  bytes.insert(bytes.end(), words, words + text.size());
  return bytes;
}

void append_bytes(Bytes& out, Kind kind, std::uint64_t tag, std::span<const std::byte> body) {
  const Frame frame{.bytes = static_cast<std::uint32_t>(body.size()), .kind = kind, .tag = tag};
  const auto* const head = reinterpret_cast<const std::byte*>(&frame);
  out.insert(out.end(), head, head + sizeof(frame));
  out.insert(out.end(), body.begin(), body.end());
}

}  // namespace

void append_done(Bytes& out, const Status& status, std::uint64_t tag) {
  append_bytes(out, Kind::kDone, tag, status_bytes(status));
}

void append_refusal(Bytes& out, std::string_view key, const Hello& hello,
                    const Challenge& challenge, const Error& error) {
  const Bytes status = status_bytes(fail(error));
  const base::Digest digest = refusal_proof(key, hello, challenge, status);
  Bytes body(reinterpret_cast<const std::byte*>(&digest),
             reinterpret_cast<const std::byte*>(&digest) + sizeof(digest));
  body.insert(body.end(), status.begin(), status.end());
  append_bytes(out, Kind::kRefusal, 0, body);
}

std::size_t request_bytes(const Verb& verb) {
  const std::size_t payload = verb.kind == VerbKind::kWrite
                                  ? round_to_word(verb.length)
                                  : sizeof(std::uint64_t) * traits_of(sent_as(verb)).operands;
  return sizeof(VerbHead) + payload;
}

std::size_t result_bytes(const Verb& verb) { return round_to_word(verb.returned_bytes()); }

void append_batch(Bytes& out, std::uint64_t tag, std::uint64_t region_key, const Batch& batch,
                  std::span<const std::uint32_t> verbs) {
  std::size_t bytes = kBatchHead;
  for (const std::uint32_t i : verbs) bytes += request_bytes(batch[i]);
  assert(bytes <= kMaxBytes);
  const std::size_t begin = out.size();
  out.resize(begin + sizeof(Frame) + bytes);
  Writer writer(out.data() + begin);
  writer.put(Frame{.bytes = static_cast<std::uint32_t>(bytes), .kind = Kind::kBatch, .tag = tag});
  writer.put(region_key);
  writer.put(static_cast<std::uint64_t>(verbs.size()));
  for (const std::uint32_t i : verbs) {
    const Verb& verb = batch[i];
    writer.put(
        VerbHead{.kind = sent_as(verb), .length = verb.extent(), .offset = verb.target.offset()});
    if (verb.kind == VerbKind::kWrite) {
      writer.put(verb.local, verb.length);
    } else {
      const Operands words = operands_of(verb);
      writer.put_words(std::span(words).first(traits_of(sent_as(verb)).operands));
    }
  }
}

// ---- Taking apart ----

Result<std::optional<Frame>> parse_frame(std::span<const std::byte> bytes, std::uint32_t limit) {
  const std::optional<Frame> none;
  if (bytes.size() < sizeof(Frame)) return none;
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  if (name_of(frame.kind).empty()) {
    return corrupt(fmt::format("a message of unknown kind {}", static_cast<unsigned>(frame.kind)));
  }
  if (frame.bytes > limit) {
    return corrupt(fmt::format("a message of {} bytes; {} are allowed", frame.bytes, limit));
  }
  if (bytes.size() - sizeof(Frame) < frame.bytes) return none;
  return std::optional(frame);
}

Status parse_status(std::span<const std::byte> body) {
  if (body.empty()) return corrupt("a status of no bytes");
  const auto code = static_cast<std::uint8_t>(body[0]);
  if (code == 0) return {};
  const auto text = body.subspan(1);
  return fail(error_of(code, std::string(reinterpret_cast<const char*>(text.data()), text.size())));
}

Error parse_refusal(std::span<const std::byte> body, std::string_view key, const Hello& hello,
                    const Challenge& challenge) {
  base::Digest digest{};
  const bool complete = body.size() > sizeof(digest);
  const auto words = complete ? body.subspan(sizeof(digest)) : body;
  const Status status = parse_status(words);
  if (status) return Error(ErrorCode::kCorrupt, "wire: a refusal without a reason");
  if (complete) std::memcpy(&digest, body.data(), sizeof(digest));
  if (complete && base::same(digest, refusal_proof(key, hello, challenge, words))) {
    return status.error();
  }
  const ErrorCode code = status.error().code();
  const bool words_only = code == ErrorCode::kDenied || code == ErrorCode::kIncompatible ||
                          code == ErrorCode::kInvalidArgument;
  return Error(words_only ? code : ErrorCode::kUnavailable,
               fmt::format("what answers there does not prove that it knows the cluster's key; it "
                           "says: {}",
                           status.error().message()));
}

Result<RdmaOffer> parse_rdma_offer(const Frame& frame, std::span<const std::byte> body) {
  if (frame.kind == Kind::kDone) {
    const Status status = parse_status(body);
    if (!status) return fail(status.error());
  }
  if (const auto offer = parse<RdmaOffer>(body); offer && frame.kind == Kind::kRdmaOffer) {
    return *offer;
  }
  return corrupt("an answer to something else");
}

Status Request::parse(std::span<const std::byte> body, std::uint64_t region_key,
                      const Bounds& bounds) {
  verbs_.clear();
  answer_bytes_ = kAnswerHead;
  Reader reader(body);
  std::uint64_t key = 0;
  std::uint64_t count = 0;
  if (!reader.take(key) || !reader.take(count)) return corrupt("a batch that is cut short");
  if (key != region_key) return corrupt("a batch with a wrong region key");
  if (count > reader.left() / sizeof(VerbHead))
    return corrupt("a batch of fewer verbs than it says");
  Status placed;
  for (std::uint64_t i = 0; i < count; ++i) {
    VerbHead head;
    if (!reader.take(head)) return corrupt("a batch that ends within a verb");
    if (!is_known(head.kind)) {
      return corrupt(fmt::format("a verb of unknown kind {}", static_cast<unsigned>(head.kind)));
    }
    Verb& verb = verbs_.emplace_back(
        Verb{.kind = head.kind, .length = head.length, .target = Address(0, head.offset)});
    if (head.offset > Address::kOffsetMask) return corrupt("an offset of more than 48 bits");
    if (is_atomic(head.kind) && head.length != 8) return corrupt("an atomic on other than 8 bytes");
    if (head.kind == VerbKind::kWrite) {
      const std::byte* const bytes = reader.take_bytes(round_to_word(head.length));
      if (bytes == nullptr) return corrupt("a WRITE that is cut short");
      verb.local = const_cast<std::byte*>(bytes);  // never written through
    }
    Operands words{};
    for (std::size_t word = 0; word < traits_of(head.kind).operands; ++word) {
      if (!reader.take(words[word])) return corrupt("an atomic that is cut short");
    }
    set_operands(verb, words);
    answer_bytes_ += result_bytes(verb);
    if (answer_bytes_ > kMaxBytes) return corrupt("a batch whose answer would be too long");

    const bool onchip = head.offset >= Address::kOnChip;
    const std::uint64_t size = onchip ? bounds.onchip_bytes : bounds.memory_bytes;
    const std::uint64_t start = onchip ? head.offset - Address::kOnChip : head.offset;
    const bool misplaced = head.length > size || start > size - head.length ||
                           (is_atomic(head.kind) && head.offset % 8 != 0);
    if (misplaced && placed) {
      placed = fail(ErrorCode::kInvalidArgument,
                    fmt::format("verb {} at offset {:#x}, length {}: outside of {} bytes, or not "
                                "aligned",
                                i, head.offset, head.length, size));
    }
  }
  if (reader.left() != 0) return corrupt("a batch with bytes behind its verbs");
  return placed;
}

Answer::Answer(Bytes& out, std::uint64_t tag, std::size_t bytes)
    : out_(out), tag_(tag), begin_(out.size()) {
  out_.resize(begin_ + sizeof(Frame) + bytes);
  at_ = out_.data() + begin_ + sizeof(Frame) + kAnswerHead;
}

void Answer::add(const Verb& verb) {
  ++executed_;
  if (verb.kind == VerbKind::kRead) {
    const std::size_t padding = round_to_word(verb.length) - verb.length;
    std::memset(at_ + verb.length, 0, padding);
    at_ += verb.length + padding;
  } else if (is_atomic(verb.kind)) {
    std::memcpy(at_, &verb.previous, sizeof(verb.previous));
    at_ += sizeof(verb.previous);
  }
}

void Answer::finish() { end(nullptr); }
void Answer::give_up(const Error& error) { end(&error); }

void Answer::end(const Error* error) {
  out_.resize(static_cast<std::size_t>(at_ - out_.data()));
  AnswerHead head{.executed = executed_};
  if (error != nullptr) {
    const std::string& text = error->detail();
    head.error = number_of(error->code());
    head.text_bytes = text.size();
    const auto* const words = reinterpret_cast<const std::byte*>(text.data());
    out_.insert(out_.end(), words, words + text.size());
  }
  const std::size_t body = out_.size() - begin_ - sizeof(Frame);
  Writer writer(out_.data() + begin_);
  writer.put(Frame{.bytes = static_cast<std::uint32_t>(body), .kind = Kind::kAnswer, .tag = tag_});
  writer.put(head);
}

void append_answer_error(Bytes& out, std::uint64_t tag, const Error& error) {
  Answer(out, tag, kAnswerHead).give_up(error);
}

Status read_answer(std::span<const std::byte> body, Batch& batch,
                   std::span<const std::uint32_t> verbs) {
  Reader reader(body);
  AnswerHead head;
  if (!reader.take(head)) return corrupt("an answer that is cut short");
  if (head.executed > verbs.size()) return corrupt("an answer to more verbs than were asked");
  if (head.error == 0 && head.executed != verbs.size()) return corrupt("an answer to fewer verbs");
  std::size_t expected = head.text_bytes;
  for (std::size_t i = 0; i < head.executed; ++i) expected += result_bytes(batch[verbs[i]]);
  if (head.text_bytes > body.size() || expected != reader.left()) {
    return corrupt("an answer of another length than its verbs have");
  }
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    Verb& verb = batch[verbs[i]];
    if (i < head.executed) {
      verb.outcome = Outcome::kExecuted;
      const std::byte* const result = reader.take_bytes(result_bytes(verb));
      if (verb.kind == VerbKind::kRead && verb.length > 0) {
        std::memcpy(verb.local, result, verb.length);
      } else if (is_atomic(verb.kind)) {
        std::memcpy(&verb.previous, result, sizeof(verb.previous));
      }
    } else {
      verb.outcome = i == head.executed ? outcome_given_up(verb.kind) : Outcome::kNotExecuted;
    }
  }
  if (head.error == 0) return {};
  const std::byte* const text = reader.take_bytes(head.text_bytes);
  return fail(
      error_of(head.error, std::string(reinterpret_cast<const char*>(text), head.text_bytes)));
}

}  // namespace pando::fabric::wire
