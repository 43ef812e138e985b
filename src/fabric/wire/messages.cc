#include "fabric/wire/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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

// Words behind the head; a WRITE has bytes instead.
constexpr std::size_t words_of(VerbKind kind) {
  switch (kind) {
    case VerbKind::kCompareSwap:
      return 2;
    case VerbKind::kMaskedCompareSwap:
      return 4;
    case VerbKind::kFetchAdd:
      return 1;
    case VerbKind::kRead:
    case VerbKind::kWrite:
      break;
  }
  return 0;
}

// A masked one that the fabric emulates travels as the plain one that it is.
constexpr VerbKind sent_as(const Verb& verb) {
  const bool plain = verb.kind == VerbKind::kMaskedCompareSwap && verb.emulated;
  return plain ? VerbKind::kCompareSwap : verb.kind;
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

// An error came as a byte: one that this program knows.
Error error_of(std::uint8_t code, std::string text) {
  constexpr auto kLast = static_cast<std::uint8_t>(ErrorCode::kDenied);
  const bool known = code > 0 && code - 1 <= kLast;
  return {known ? static_cast<ErrorCode>(code - 1) : ErrorCode::kCorrupt, std::move(text)};
}

}  // namespace

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
  const auto code =
      static_cast<std::byte>(status ? 0 : static_cast<std::uint8_t>(status.error().code()) + 1);
  Bytes bytes(1, code);
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
  const std::size_t payload =
      verb.kind == VerbKind::kWrite ? round_to_word(verb.length) : 8 * words_of(sent_as(verb));
  return sizeof(VerbHead) + payload;
}

std::size_t result_bytes(const Verb& verb) {
  if (verb.kind == VerbKind::kRead) return round_to_word(verb.length);
  return is_atomic(verb.kind) ? 8 : 0;
}

void append_batch(Bytes& out, std::uint64_t tag, std::uint64_t region_key, const Batch& batch,
                  std::span<const std::uint32_t> verbs) {
  std::size_t bytes = kBatchHead;
  for (const std::uint32_t i : verbs) bytes += request_bytes(batch[i]);
  const std::size_t begin = out.size();
  out.resize(begin + sizeof(Frame) + bytes);
  Writer writer(out.data() + begin);
  writer.put(Frame{.bytes = static_cast<std::uint32_t>(bytes), .kind = Kind::kBatch, .tag = tag});
  writer.put(region_key);
  writer.put(static_cast<std::uint64_t>(verbs.size()));
  for (const std::uint32_t i : verbs) {
    const Verb& verb = batch[i];
    const bool plain = sent_as(verb) != verb.kind;
    writer.put(VerbHead{.kind = sent_as(verb),
                        .length = is_atomic(verb.kind) ? 8 : verb.length,
                        .offset = verb.target.offset()});
    switch (verb.kind) {
      case VerbKind::kRead:
        break;
      case VerbKind::kWrite:
        writer.put(verb.local, verb.length);
        break;
      case VerbKind::kCompareSwap:
        writer.put(verb.compare);
        writer.put(verb.swap);
        break;
      case VerbKind::kMaskedCompareSwap:
        writer.put(plain ? verb.guess : verb.compare);
        writer.put(plain ? verb.swapped(verb.guess) : verb.swap);
        if (plain) break;
        writer.put(verb.compare_mask);
        writer.put(verb.swap_mask);
        break;
      case VerbKind::kFetchAdd:
        writer.put(verb.swap);
        break;
    }
  }
}

// ---- Taking apart ----

Result<std::optional<Frame>> parse_frame(std::span<const std::byte> bytes, std::uint32_t limit) {
  const std::optional<Frame> none;
  if (bytes.size() < sizeof(Frame)) return none;
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  if (frame.kind < Kind::kHello || frame.kind > Kind::kStay) {
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
    if (head.kind > VerbKind::kFetchAdd) return corrupt("a verb of unknown kind");
    Verb& verb = verbs_.emplace_back(
        Verb{.kind = head.kind, .length = head.length, .target = Address(0, head.offset)});
    if (head.offset > Address::kOffsetMask) return corrupt("an offset of more than 48 bits");
    if (is_atomic(head.kind) && head.length != 8) return corrupt("an atomic on other than 8 bytes");
    if (head.kind == VerbKind::kWrite) {
      const std::byte* const bytes = reader.take_bytes(round_to_word(head.length));
      if (bytes == nullptr) return corrupt("a WRITE that is cut short");
      verb.local = const_cast<std::byte*>(bytes);  // never written through
    }
    std::array<std::uint64_t, 4> words{};
    for (std::size_t word = 0; word < words_of(head.kind); ++word) {
      if (!reader.take(words[word])) return corrupt("an atomic that is cut short");
    }
    if (head.kind == VerbKind::kFetchAdd) {
      verb.swap = words[0];
    } else if (is_atomic(head.kind)) {
      verb.compare = words[0];
      verb.swap = words[1];
    }
    if (head.kind == VerbKind::kMaskedCompareSwap) {
      verb.compare_mask = words[2];
      verb.swap_mask = words[3];
    }
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
    head.error = static_cast<std::uint8_t>(static_cast<std::uint8_t>(error->code()) + 1);
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
      verb.outcome = i == head.executed && verb.kind == VerbKind::kWrite ? Outcome::kIndeterminate
                                                                         : Outcome::kNotExecuted;
    }
  }
  if (head.error == 0) return {};
  const std::byte* const text = reader.take_bytes(head.text_bytes);
  return fail(
      error_of(head.error, std::string(reinterpret_cast<const char*>(text), head.text_bytes)));
}

}  // namespace pando::fabric::wire
