#include "lab/check/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lab/keys.h"

namespace pando::lab::check {
namespace {

using base::Random;

constexpr std::array<std::string_view, 7> kKindNames = {"get",   "put",       "insert", "update",
                                                        "erase", "multi_get", "scan"};

std::string in_quotes(std::string_view value) {
  constexpr std::size_t kShown = 20;
  return fmt::format("'{}{}'", value.substr(0, kShown), value.size() > kShown ? "…" : "");
}

std::string name_of(const Error& error) { return std::string(to_string(error.code())); }

}  // namespace

std::string describe(const Request& request) {
  std::string text(kKindNames[static_cast<std::size_t>(request.kind)]);
  if (request.kind != RequestKind::kMultiGet) text += ' ' + lab::describe(request.key);
  for (const OwnedKey& key : request.keys) text += ' ' + lab::describe(key);
  if (request.writes_value()) text += ' ' + in_quotes(request.value);
  if (request.kind == RequestKind::kScan) text += fmt::format(" limit {}", request.limit);
  return text;
}

// ---- RequestSource

RequestSource::RequestSource(const CheckPlan& plan, Random& random) : plan_(plan), random_(random) {
  const std::uint64_t stride = random_.below(2) == 0 ? 1 : 0x0123456789abcdU;
  for (std::uint64_t i = 0; i < plan_.keys; ++i) {
    if (plan_.index.key_type == KeyType::kInteger) {
      universe_.emplace_back(i * stride);
    } else {
      universe_.emplace_back(byte_key(i));
    }
  }
  std::ranges::sort(universe_, {}, [](const OwnedKey& key) { return order_bytes(key); });
}

// Some short, some with a long beginning in common, some beginnings of others.
std::string RequestSource::byte_key(std::uint64_t i) const {
  std::string key = i % 3 == 0 ? std::string(20 + plan_.seed % 20, 'k') : std::string();
  for (int shift = 16; shift >= 0; shift -= 8) key.push_back(static_cast<char>(i >> shift & 0xff));
  if (i % 5 == 0) key.append(i % 7, '\0');
  return key;
}

std::string RequestSource::new_value() {
  const std::size_t size = plan_.value_sizes[random_.below(plan_.value_sizes.size())];
  std::string value = fmt::format("{}", ++values_);
  if (size == 0 && values_ % 3 == 0) return {};
  while (value.size() < size) value += fmt::format(".{}", values_ * 31 + value.size());
  value.resize(std::max(size, fmt::formatted_size("{}", values_)));
  return value;
}

// Hot keys, so that clients meet.
const OwnedKey& RequestSource::draw_key(Random& random) const {
  const std::uint64_t first = random.below(universe_.size());
  return universe_[random.below(2) == 0 ? first : first % (1 + universe_.size() / 8)];
}

RequestKind RequestSource::draw_kind(Random& random) const {
  unsigned sum = 0;
  for (const unsigned weight : plan_.weights) sum += weight;
  std::uint64_t draw = random.below(sum);
  std::size_t kind = 0;
  while (draw >= plan_.weights[kind]) draw -= plan_.weights[kind++];
  return static_cast<RequestKind>(kind);
}

// With the waves' part in it.
std::pair<OwnedKey, RequestKind> RequestSource::draw_what(Random& random) {
  if (!plan_.waves || random.below(4) == 0) return {draw_key(random), draw_kind(random)};
  const std::uint64_t number = wave_++;
  const bool fills = number / universe_.size() % 2 == 0;
  const std::size_t place = number % universe_.size();
  const bool descends = plan_.seed % 2 == 0;
  return {universe_[descends ? universe_.size() - 1 - place : place],
          fills ? RequestKind::kPut : RequestKind::kErase};
}

Request RequestSource::draw(Random& random) {
  auto [key, kind] = draw_what(random);
  Request request{.kind = kind, .key = std::move(key)};
  if (request.writes_value()) request.value = new_value();
  if (kind == RequestKind::kMultiGet) {
    for (std::uint64_t i = 1 + random.below(6); i > 0; --i) {
      request.keys.push_back(draw_key(random));
    }
  }
  if (kind == RequestKind::kScan) request.limit = 1 + random.below(40);
  return request;
}

// ---- RequestSpan

RequestSpan::RequestSpan(CheckObserver* observer, fabric::sim::Simulation& simulation,
                         fabric::ClientId compute_node, const RecordedIndex& index,
                         const Request& request)
    : observer_(observer), simulation_(simulation) {
  if (observer == nullptr) return;
  what_ = describe(request);
  operation_ = {.client = index.client(),
                .compute_node = compute_node,
                .account = &index.account(),
                .began = simulation.time()};
}

RequestSpan::~RequestSpan() {
  if (observer_ == nullptr) return;
  operation_.what = what_;
  operation_.answer = answer_;
  observer_->operation(operation_);
}

void RequestSpan::end(const Status& status) {
  if (observer_ != nullptr) end_with(status ? "done" : name_of(status.error()));
}

void RequestSpan::end(const Result<std::string>& found) {
  if (observer_ != nullptr) end_with(found ? in_quotes(*found) : name_of(found.error()));
}

void RequestSpan::end(const Result<std::vector<Entry>>& found) {
  if (observer_ == nullptr) return;
  end_with(found ? fmt::format("{} entries", found->size()) : name_of(found.error()));
}

void RequestSpan::end_with(std::string answer) {
  answer_ = std::move(answer);
  operation_.ended = simulation_.time();
}

}  // namespace pando::lab::check
