// Linearizability of single-key histories.
//
// Linearizability is local: a history is linearizable exactly if the history of each key is. So
// each key is checked alone, as a register that is absent or holds a value, with get, put,
// insert, update and erase.
//
// The search is Wing and Gong's with Lowe's memory of configurations (operations done so far,
// state) already refuted. It is sound and complete: it says "not linearizable" only of histories
// that have no legal order, and "linearizable" only of those that have one. Three things keep it
// quick:
//  1. An operation that leaves the state as it is and fits it (a get, a refused insert) is done as
//     soon as it may be. Doing it later can never be better, so the search branches on writes only.
//  2. Operations that ended long ago cost nothing: a configuration is where what has been
//     decided ends, plus a few bits for the operations that overlap there.
//  3. A value that some get still has to find, and that nobody writes again, is not overwritten.
//     Values that no get asks for any more count as one. So give every write its own value: it
//     makes the check strict and quick at once.
//
// An operation of unknown outcome may take effect at any time from its invocation on, or never. It
// may have an end: a moment from which on it cannot happen any more, because whoever issued it has
// been shut out, has left, or has nothing under way. Then it comes before every operation that was
// invoked later than that, if at all. The first of the three savings above is not made where it
// would cut such an operation off.
//
// The worst case is exponential in the number of *overlapping writes of one key*; a limit turns it
// into the verdict kUndecided instead of a hang.
//
// Timestamps are any numbers that grow: of two operations, the first came before the second if
// first.responded < second.invoked. Thread safety: none needed, all functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pando::lab::check {

enum class OperationKind : std::uint8_t { kGet, kPut, kInsert, kUpdate, kErase };

enum class OperationResult : std::uint8_t {
  kDone,      // get: found `value`; the others: took effect
  kNotFound,  // get, update, erase
  kExists,    // insert
  kUnknown,   // no answer, or one that leaves open whether it happened, or will until its end
};

struct Operation {
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  OperationKind kind = OperationKind::kGet;
  OperationResult result = OperationResult::kUnknown;
  std::string value;  // what a get found, what a write wrote
  std::uint64_t invoked = 0;
  std::uint64_t responded = kNever;  // where the result is kUnknown, its end
  std::uint32_t client = 0;          // for the explanation only
};

std::string to_string(const Operation& operation);

struct LinearizabilityLimits {
  // Configurations looked at before the search gives up.
  std::size_t configurations = 20'000'000;
};

struct Verdict {
  enum class Kind : std::uint8_t { kLinearizable, kNotLinearizable, kUndecided };
  Kind kind = Kind::kLinearizable;
  // Where not linearizable: how far a legal order gets, and what cannot come next.
  std::string explanation;
  std::string key = {};  // of KeyedHistory::check(): whose history it is about

  bool linearizable() const { return kind == Kind::kLinearizable; }
};

// Checks the history of one key. `initial` is its value before the history, nullopt for absent.
Verdict check_register(std::span<const Operation> history,
                       const std::optional<std::string>& initial = std::nullopt,
                       const LinearizabilityLimits& limits = {});

struct KeyHistory {
  std::optional<std::string> initial;  // absent: nullopt
  bool any_initial = false;            // instead: absent, or any value that was written before
  std::vector<Operation> operations;
};

// Of a history that has no legal order, a small part that has none either: what comes after the
// contradiction is left out, what came so long before that it cannot matter, and reads that
// contradict nothing. Each of these steps keeps legal orders legal, so the part proves as much as
// the whole. By invocation. The limits are for each of many searches; a part that is too hard for
// them is not tried, and a history that is too hard stays whole.
KeyHistory shortest_contradiction(KeyHistory history, const LinearizabilityLimits& limits = {
                                                          .configurations = 300'000});

// The histories of many keys. Keys are byte strings; callers with other keys encode them.
class KeyedHistory {
 public:
  void set_initial(std::string_view key, std::string_view value);
  void add(std::string_view key, Operation operation);

  std::size_t operations() const { return operations_; }
  const KeyHistory& of_key(std::string_view key) const;

  // The first key in key order that is not linearizable gives the verdict, or else the first that
  // could not be decided.
  Verdict check(const LinearizabilityLimits& limits = {}) const;

 private:
  KeyHistory& entry(std::string_view key);

  std::map<std::string, KeyHistory, std::less<>> keys_;
  std::size_t operations_ = 0;
};

}  // namespace pando::lab::check
