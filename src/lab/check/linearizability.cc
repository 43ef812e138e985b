#include "lab/check/linearizability.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace pando::lab::check {
namespace {

// The register's state and all values in play, as small numbers. 0 is "absent".
using ValueId = std::uint32_t;
constexpr ValueId kAbsent = 0;
constexpr ValueId kUnreadValue = std::numeric_limits<ValueId>::max();

struct Step {
  OperationKind kind;
  OperationResult result;
  ValueId value;
  std::uint64_t invoked;
  std::uint64_t responded;
  const Operation* source;
};

// What `step` makes of `state`; nullopt where its result contradicts the state.
std::optional<ValueId> apply(const Step& step, ValueId state) {
  const bool present = state != kAbsent;
  switch (step.result) {
    case OperationResult::kNotFound:
      return present ? std::nullopt : std::optional(state);
    case OperationResult::kExists:
      return present ? std::optional(state) : std::nullopt;
    case OperationResult::kDone:
    case OperationResult::kUnknown:
      break;
  }
  switch (step.kind) {
    case OperationKind::kGet:
      return state == step.value ? std::optional(state) : std::nullopt;
    case OperationKind::kPut:
      return step.value;
    case OperationKind::kInsert:
      return present ? std::nullopt : std::optional(step.value);
    case OperationKind::kUpdate:
      return present ? std::optional(step.value) : std::nullopt;
    case OperationKind::kErase:
      return present ? std::optional(kAbsent) : std::nullopt;
  }
  return std::nullopt;
}

// Whether the result alone says that the state was left as it is. Of a Step or an Operation.
bool never_changes_state(const auto& step) {
  return step.kind == OperationKind::kGet || step.result == OperationResult::kNotFound ||
         step.result == OperationResult::kExists;
}

bool writes_value(OperationKind kind) {
  return kind == OperationKind::kPut || kind == OperationKind::kInsert ||
         kind == OperationKind::kUpdate;
}

class Bits {
 public:
  bool test(std::size_t i) const {
    return i / 64 < words_.size() && ((words_[i / 64] >> (i % 64)) & 1) != 0;
  }
  void set(std::size_t i) {
    if (i / 64 >= words_.size()) words_.resize(i / 64 + 1);
    words_[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  // Forgets the first `count` bits; the others move down.
  void drop_front(std::size_t count) {
    const std::size_t whole = std::min(count / 64, words_.size());
    words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(whole));
    const unsigned shift = static_cast<unsigned>(count % 64);
    for (std::size_t w = 0; shift != 0 && w < words_.size(); ++w) {
      words_[w] >>= shift;
      if (w + 1 < words_.size()) words_[w] |= words_[w + 1] << (64 - shift);
    }
    while (!words_.empty() && words_.back() == 0) words_.pop_back();
  }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;  // without trailing zero words, so that equal sets are equal
};

// What has been done and what the register holds after it.
struct Configuration {
  std::size_t first_open = 0;  // definite steps before this one are all done
  Bits done;                   // bit i: definite step first_open + i is done
  Bits unknown_done;           // bit i: unknown step i is done
  std::uint64_t latest =
      0;  // invocation among those done: what ended before it cannot come any more
  ValueId state = kAbsent;

  std::vector<std::uint64_t> identity(ValueId shown_state) const {
    std::vector<std::uint64_t> words{first_open, shown_state, done.words().size()};
    words.insert(words.end(), done.words().begin(), done.words().end());
    words.insert(words.end(), unknown_done.words().begin(), unknown_done.words().end());
    return words;
  }
};

struct IdentityHash {
  std::size_t operator()(const std::vector<std::uint64_t>& words) const {
    std::uint64_t hash = 0x9e3779b97f4a7c15u;
    for (const std::uint64_t word : words) {
      hash ^= word + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
      hash *= 0xff51afd7ed558ccdu;
      hash ^= hash >> 33;
    }
    return hash;
  }
};

class RegisterSearch {
 public:
  RegisterSearch(std::span<const Operation> history, const std::optional<std::string>& initial,
                 const LinearizabilityLimits& limits)
      : limits_(limits) {
    initial_ = initial ? value_id(*initial) : kAbsent;
    for (const Operation& operation : history) add(operation);
    std::ranges::sort(definite_, {}, &Step::invoked);
    std::ranges::sort(unknown_, {}, &Step::invoked);
    note_users();
  }

  Verdict run() {
    Configuration start;
    start.state = initial_;
    if (enter(std::move(start))) return {};
    while (!path_.empty()) {
      if (visited_.size() > limits_.configurations) return undecided();
      std::optional<Configuration> next = take_branch(path_.back());
      if (!next) {
        path_.pop_back();
      } else if (enter(*std::move(next))) {
        return {};
      }
    }
    return refuted();
  }

 private:
  // One configuration on the way, with the steps that may come next and are not tried yet.
  struct Node {
    Configuration configuration;
    std::vector<std::size_t> definite_choices;  // tried from the back
    std::vector<std::size_t> unknown_choices;
  };

  ValueId value_id(const std::string& value) {
    return ids_.try_emplace(value, static_cast<ValueId>(ids_.size() + 1)).first->second;
  }

  void add(const Operation& operation) {
    const bool unknown = operation.result == OperationResult::kUnknown;
    // A get without an answer says nothing.
    if (unknown && operation.kind == OperationKind::kGet) return;
    const Step step{operation.kind,    operation.result,    value_id(operation.value),
                    operation.invoked, operation.responded, &operation};
    (unknown ? unknown_ : definite_).push_back(step);
  }

  // Who reads and who writes a value.
  struct Users {
    std::vector<std::size_t> gets;            // definite steps, ascending
    std::vector<std::size_t> writes;          // definite steps, ascending
    std::vector<std::size_t> unknown_writes;  // unknown steps
  };

  void note_users() {
    users_.resize(ids_.size() + 1);
    for (std::size_t i = 0; i < definite_.size(); ++i) {
      if (definite_[i].result != OperationResult::kDone) continue;
      Users& users = users_[definite_[i].value];
      if (definite_[i].kind == OperationKind::kGet) users.gets.push_back(i);
      if (writes_value(definite_[i].kind)) users.writes.push_back(i);
    }
    for (std::size_t i = 0; i < unknown_.size(); ++i) {
      if (writes_value(unknown_[i].kind)) users_[unknown_[i].value].unknown_writes.push_back(i);
      if (unknown_[i].responded != Operation::kNever) ending_.push_back(i);
    }
  }

  static bool any_left(const Configuration& at, const std::vector<std::size_t>& steps) {
    for (std::size_t k = steps.size(); k > 0 && steps[k - 1] >= at.first_open; --k) {
      if (!at.done.test(steps[k - 1] - at.first_open)) return true;
    }
    return false;
  }

  bool read_later(const Configuration& at, ValueId value) const {
    return value != kAbsent && any_left(at, users_[value].gets);
  }

  // Some get still has to find `value`, and nobody will write it again.
  bool needed_for_ever(const Configuration& at, ValueId value) const {
    if (!read_later(at, value)) return false;
    const Users& users = users_[value];
    return !any_left(at, users.writes) &&
           std::ranges::none_of(users.unknown_writes,
                                [&](std::size_t i) { return may_happen(at, i); });
  }

  // Whether that unknown step may come next or later.
  bool may_happen(const Configuration& at, std::size_t i) const {
    return !at.unknown_done.test(i) && unknown_[i].responded >= at.latest;
  }

  // When the first of the unknown steps ends that may still happen.
  std::uint64_t first_end(const Configuration& at) const {
    std::uint64_t first = Operation::kNever;
    for (const std::size_t i : ending_) {
      if (may_happen(at, i)) first = std::min(first, unknown_[i].responded);
    }
    return first;
  }

  // Everything invoked before this moment may come next; nothing else may, because some step
  // that is not done yet ended before it began.
  std::uint64_t horizon(const Configuration& at) const {
    std::uint64_t first_response = Operation::kNever;
    for (std::size_t i = at.first_open; i < definite_.size(); ++i) {
      if (definite_[i].invoked > first_response) break;
      if (!at.done.test(i - at.first_open)) {
        first_response = std::min(first_response, definite_[i].responded);
      }
    }
    return first_response;
  }

  void mark_done(Configuration& at, std::size_t i) const {
    at.latest = std::max(at.latest, definite_[i].invoked);
    at.done.set(i - at.first_open);
    std::size_t passed = 0;
    while (at.done.test(passed)) ++passed;
    at.first_open += passed;
    at.done.drop_front(passed);
  }

  // Does all steps that may come next, fit, change nothing, and cut nothing off. True where any was
  // done.
  bool do_harmless(Configuration& at) const {
    const std::uint64_t until = std::min(horizon(at), first_end(at));
    bool any = false;
    for (std::size_t i = at.first_open; i < definite_.size() && definite_[i].invoked <= until;
         ++i) {
      if (i < at.first_open || at.done.test(i - at.first_open)) continue;
      if (!never_changes_state(definite_[i]) || !apply(definite_[i], at.state)) continue;
      mark_done(at, i);
      any = true;
    }
    return any;
  }

  // Goes to a configuration unless it was refuted before. True where everything is done.
  bool enter(Configuration at) {
    while (do_harmless(at)) {
    }
    if (at.first_open == definite_.size()) return true;
    // Present values that no get will ask for are all the same.
    const ValueId shown = at.state == kAbsent || read_later(at, at.state) ? at.state : kUnreadValue;
    if (!visited_.insert(at.identity(shown)).second) return false;
    note_progress(at);
    path_.push_back(with_choices(std::move(at)));
    return false;
  }

  Node with_choices(Configuration at) const {
    Node node;
    node.configuration = std::move(at);
    add_choices(node);
    return node;
  }

  void add_choices(Node& node) const {
    const Configuration& at = node.configuration;
    // A get that may not come yet wants this very value, which no write brings back.
    const bool keep = needed_for_ever(at, at.state);
    const std::uint64_t until = horizon(at);
    // Those that fit and change nothing have been done, but for those that cut something off.
    for (std::size_t i = at.first_open; i < definite_.size() && definite_[i].invoked <= until;
         ++i) {
      if (at.done.test(i - at.first_open)) continue;
      if (keep && !never_changes_state(definite_[i])) continue;
      if (apply(definite_[i], at.state)) node.definite_choices.push_back(i);
    }
    // What ended first most likely came first.
    std::ranges::sort(node.definite_choices, std::greater{},
                      [this](std::size_t i) { return definite_[i].responded; });
    for (std::size_t i = 0; !keep && i < unknown_.size() && unknown_[i].invoked <= until; ++i) {
      if (!may_happen(at, i)) continue;
      const std::optional<ValueId> after = apply(unknown_[i], at.state);
      if (after && *after != at.state) node.unknown_choices.push_back(i);
    }
  }

  std::optional<Configuration> take_branch(Node& node) const {
    if (!node.definite_choices.empty()) {
      const std::size_t i = node.definite_choices.back();
      node.definite_choices.pop_back();
      Configuration next = node.configuration;
      next.state = *apply(definite_[i], next.state);
      mark_done(next, i);
      return next;
    }
    if (!node.unknown_choices.empty()) {
      const std::size_t i = node.unknown_choices.back();
      node.unknown_choices.pop_back();
      Configuration next = node.configuration;
      next.state = *apply(unknown_[i], next.state);
      next.unknown_done.set(i);
      next.latest = std::max(next.latest, unknown_[i].invoked);
      return next;
    }
    return std::nullopt;
  }

  void note_progress(const Configuration& at) {
    if (furthest_ && at.first_open < furthest_->first_open) return;
    furthest_ = at;
  }

  Verdict undecided() const {
    return {Verdict::Kind::kUndecided,
            "gave up after " + std::to_string(visited_.size()) + " configurations"};
  }

  Verdict refuted() const {
    std::string text = "no legal order; the longest one has " +
                       std::to_string(furthest_->first_open) + " of " +
                       std::to_string(definite_.size()) + " operations and leaves the key " +
                       describe(furthest_->state) + "; then none of these fits:\n";
    const std::uint64_t until = horizon(*furthest_);
    for (std::size_t i = furthest_->first_open;
         i < definite_.size() && definite_[i].invoked <= until; ++i) {
      if (furthest_->done.test(i - furthest_->first_open)) continue;
      text += "  " + to_string(*definite_[i].source) + "\n";
    }
    text += "just before:\n";
    const std::size_t first =
        furthest_->first_open - std::min<std::size_t>(furthest_->first_open, 8);
    for (std::size_t i = first; i < furthest_->first_open; ++i) {
      text += "  " + to_string(*definite_[i].source) + "\n";
    }
    return {Verdict::Kind::kNotLinearizable, std::move(text)};
  }

  std::string describe(ValueId state) const {
    if (state == kAbsent) return "absent";
    for (const auto& [value, id] : ids_) {
      if (id == state) return "'" + value.substr(0, 40) + "'";
    }
    return "unknown";
  }

  const LinearizabilityLimits limits_;
  std::unordered_map<std::string, ValueId> ids_;
  ValueId initial_ = kAbsent;
  std::vector<Step> definite_;       // by invocation
  std::vector<Step> unknown_;        // by invocation; each may be done once, or never
  std::vector<std::size_t> ending_;  // those of them that have an end
  std::vector<Users> users_;         // by value
  std::vector<Node> path_;
  std::unordered_set<std::vector<std::uint64_t>, IdentityHash> visited_;
  std::optional<Configuration> furthest_;
};

std::string_view name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kGet:
      return "get";
    case OperationKind::kPut:
      return "put";
    case OperationKind::kInsert:
      return "insert";
    case OperationKind::kUpdate:
      return "update";
    case OperationKind::kErase:
      return "erase";
  }
  return "?";
}

std::string_view name_of(OperationResult result) {
  switch (result) {
    case OperationResult::kDone:
      return "done";
    case OperationResult::kNotFound:
      return "not found";
    case OperationResult::kExists:
      return "exists";
    case OperationResult::kUnknown:
      return "unknown";
  }
  return "?";
}

std::string printable(std::string_view bytes) {
  constexpr std::size_t kShown = 40;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
    }
  }
  if (bytes.size() > kShown) text += "… (" + std::to_string(bytes.size()) + " bytes)";
  return text;
}

bool is_definite(const Operation& operation) {
  return operation.result != OperationResult::kUnknown;
}

// For one who does not wait for its answer: it may or may not have happened.
Operation without_answer(Operation operation) {
  operation.result = OperationResult::kUnknown;
  operation.responded = Operation::kNever;
  return operation;
}

// shortest_contradiction(): a history, and the steps that make it smaller while it stays refuted.
class Contradiction {
 public:
  Contradiction(KeyHistory history, const LinearizabilityLimits& limits)
      : limits_(limits), starts_{history.initial}, operations_(std::move(history.operations)) {
    std::ranges::sort(operations_, {}, &Operation::invoked);
  }

  // Every beginning of a linearizable history is linearizable; so there is a first answer that
  // makes it wrong.
  void drop_future() {
    const std::vector<std::uint64_t> moments = moments_of(&Operation::responded);
    const auto first = std::ranges::partition_point(
        moments, [this](std::uint64_t moment) { return !refuted(until(moment), starts_); });
    if (first != moments.end()) operations_ = until(*first);
  }

  // And there is a last moment from which on it is wrong, whatever the key held of what had been
  // written by then.
  void drop_past() {
    const std::vector<std::uint64_t> moments = moments_of(&Operation::invoked);
    const auto later = std::ranges::partition_point(moments, [this](std::uint64_t moment) {
      const std::vector<Operation> rest = since(moment);
      return refuted(rest, starts_at(moment, rest));
    });
    if (later == moments.begin()) return;
    std::vector<Operation> rest = since(*std::prev(later));
    starts_ = starts_at(*std::prev(later), rest);
    operations_ = std::move(rest);
  }

  // An order stays legal without an operation that changes nothing.
  void drop_reads() {
    for (std::size_t i = operations_.size(); i-- > 0;) {
      if (!never_changes_state(operations_[i])) continue;
      std::vector<Operation> rest = operations_;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      if (refuted(rest, starts_)) operations_ = std::move(rest);
    }
  }

  KeyHistory take() && {
    const bool known = starts_.size() == 1;
    return {.initial = known ? starts_.front() : std::nullopt,
            .any_initial = !known,
            .operations = std::move(operations_)};
  }

 private:
  using States = std::vector<std::optional<std::string>>;

  bool refuted(const std::vector<Operation>& operations, const States& starts) const {
    return std::ranges::all_of(starts, [&](const auto& start) {
      return check_register(operations, start, limits_).kind == Verdict::Kind::kNotLinearizable;
    });
  }

  std::vector<std::uint64_t> moments_of(std::uint64_t Operation::* moment) const {
    std::vector<std::uint64_t> moments;
    for (const Operation& operation : operations_) {
      if (is_definite(operation)) moments.push_back(operation.*moment);
    }
    std::ranges::sort(moments);
    return moments;
  }

  // What is known at `moment`.
  std::vector<Operation> until(std::uint64_t moment) const {
    std::vector<Operation> known;
    for (const Operation& operation : operations_) {
      if (operation.invoked > moment) continue;
      if (is_definite(operation) && operation.responded <= moment) {
        known.push_back(operation);
      } else if (!never_changes_state(operation)) {
        known.push_back(operation.responded <= moment ? operation : without_answer(operation));
      }
    }
    return known;
  }

  // Those that begin at `moment` or later, and those that may happen later though they began
  // before.
  std::vector<Operation> since(std::uint64_t moment) const {
    std::vector<Operation> rest;
    for (const Operation& operation : operations_) {
      if (operation.invoked >= moment) {
        rest.push_back(operation);
      } else if (!ends_before(operation, moment) && !never_changes_state(operation)) {
        rest.push_back(is_definite(operation) ? without_answer(operation) : operation);
      }
    }
    return rest;
  }

  static bool ends_before(const Operation& operation, std::uint64_t moment) {
    return operation.responded < moment;
  }

  // What the key may hold at `moment`, as far as `rest` can tell one from another: nothing, a value
  // that is read later, or another one.
  States starts_at(std::uint64_t moment, const std::vector<Operation>& rest) const {
    constexpr std::string_view kAnother = "a value that nobody reads";
    States starts = {std::nullopt, std::string(kAnother)};
    const auto add = [&](const std::string& value) {
      const bool read = std::ranges::any_of(rest, [&](const Operation& operation) {
        return operation.kind == OperationKind::kGet && is_definite(operation) &&
               operation.value == value;
      });
      if (read && std::ranges::find(starts, value) == starts.end()) starts.emplace_back(value);
    };
    for (const auto& start : starts_) {
      if (start) add(*start);
    }
    for (const Operation& operation : operations_) {
      if (operation.invoked < moment && writes_value(operation.kind)) add(operation.value);
    }
    return starts;
  }

  const LinearizabilityLimits limits_;
  States starts_;  // what the key may hold at first
  std::vector<Operation> operations_;
};

}  // namespace

KeyHistory shortest_contradiction(KeyHistory history, const LinearizabilityLimits& limits) {
  Contradiction contradiction(std::move(history), limits);
  contradiction.drop_future();
  contradiction.drop_past();
  contradiction.drop_reads();
  return std::move(contradiction).take();
}

std::string to_string(const Operation& operation) {
  std::string text = "[" + std::to_string(operation.invoked) + ", ";
  const bool ended = operation.responded != Operation::kNever;
  text += ended ? std::to_string(operation.responded) : "never";
  text += "] client " + std::to_string(operation.client) + ": ";
  text += name_of(operation.kind);
  if (!operation.value.empty()) text += " '" + printable(operation.value) + "'";
  text.append(" -> ").append(name_of(operation.result));
  return text;
}

Verdict check_register(std::span<const Operation> history,
                       const std::optional<std::string>& initial,
                       const LinearizabilityLimits& limits) {
  return RegisterSearch(history, initial, limits).run();
}

KeyHistory& KeyedHistory::entry(std::string_view key) {
  const auto found = keys_.find(key);
  return found != keys_.end() ? found->second : keys_[std::string(key)];
}

void KeyedHistory::set_initial(std::string_view key, std::string_view value) {
  entry(key).initial = std::string(value);
}

void KeyedHistory::add(std::string_view key, Operation operation) {
  entry(key).operations.push_back(std::move(operation));
  ++operations_;
}

const KeyHistory& KeyedHistory::of_key(std::string_view key) const {
  static const KeyHistory kNone;
  const auto found = keys_.find(key);
  return found != keys_.end() ? found->second : kNone;
}

Verdict KeyedHistory::check(const LinearizabilityLimits& limits) const {
  Verdict undecided;
  for (const auto& [key, history] : keys_) {
    Verdict verdict = check_register(history.operations, history.initial, limits);
    if (verdict.linearizable()) continue;
    verdict.key = key;
    verdict.explanation = "key '" + printable(key) + "': " + verdict.explanation;
    if (verdict.kind == Verdict::Kind::kNotLinearizable) return verdict;
    if (undecided.linearizable()) undecided = std::move(verdict);
  }
  return undecided;
}

}  // namespace pando::lab::check
