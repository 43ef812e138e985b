// The checker itself: histories that have a legal order and histories that have none, among them
// each kind of defect that the index tests look for; and the search against a brute-force one.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lab/check/linearizability.h"

namespace pando::lab::check {
namespace {

using enum OperationKind;
using enum OperationResult;

// `from` to `to` on the time axis, as drawn in the comments of the tests.
Operation op(std::uint64_t from, std::uint64_t to, OperationKind kind, OperationResult result,
             std::string value = {}) {
  return {
      .kind = kind, .result = result, .value = std::move(value), .invoked = from, .responded = to};
}
Operation get(std::uint64_t from, std::uint64_t to, std::string value) {
  return op(from, to, kGet, kDone, std::move(value));
}
Operation get_nothing(std::uint64_t from, std::uint64_t to) {
  return op(from, to, kGet, kNotFound);
}
Operation put(std::uint64_t from, std::uint64_t to, std::string value) {
  return op(from, to, kPut, kDone, std::move(value));
}
Operation insert(std::uint64_t from, std::uint64_t to, std::string value) {
  return op(from, to, kInsert, kDone, std::move(value));
}
Operation insert_refused(std::uint64_t from, std::uint64_t to) {
  return op(from, to, kInsert, kExists, "refused");
}
Operation update(std::uint64_t from, std::uint64_t to, std::string value) {
  return op(from, to, kUpdate, kDone, std::move(value));
}
Operation erase(std::uint64_t from, std::uint64_t to) { return op(from, to, kErase, kDone); }
Operation unknown(std::uint64_t from, OperationKind kind, std::string value = {}) {
  return op(from, Operation::kNever, kind, kUnknown, std::move(value));
}

// From `to` on it cannot happen any more.
Operation unknown_until(std::uint64_t from, std::uint64_t to, OperationKind kind,
                        std::string value = {}) {
  return op(from, to, kind, kUnknown, std::move(value));
}

using History = std::vector<Operation>;

void expect_legal(const History& history, const std::optional<std::string>& initial = {}) {
  const Verdict verdict = check_register(history, initial);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kLinearizable) << verdict.explanation;
}

void expect_illegal(const History& history, const std::optional<std::string>& initial = {}) {
  const Verdict verdict = check_register(history, initial);
  EXPECT_EQ(verdict.kind, Verdict::Kind::kNotLinearizable);
  EXPECT_FALSE(verdict.explanation.empty());
}

TEST(CheckRegister, EmptyHistoryIsLegal) { expect_legal({}); }

TEST(CheckRegister, SequentialOperations) {
  expect_legal({get_nothing(1, 2), insert(3, 4, "a"), get(5, 6, "a"), insert_refused(7, 8),
                update(9, 10, "b"), get(11, 12, "b"), erase(13, 14), get_nothing(15, 16)});
}

TEST(CheckRegister, InitialValueCounts) {
  expect_legal({get(1, 2, "old"), update(3, 4, "new")}, "old");
  expect_illegal({get(1, 2, "old")});
  expect_illegal({get_nothing(1, 2)}, "old");
}

TEST(CheckRegister, EmptyValueIsNotAbsence) {
  expect_legal({put(1, 2, ""), get(3, 4, "")});
  expect_illegal({put(1, 2, ""), get_nothing(3, 4)});
  expect_illegal({get(1, 2, "")});
}

TEST(CheckRegister, StaleReadIsIllegal) {
  expect_illegal({put(1, 2, "a"), put(3, 4, "b"), get(5, 6, "a")});
}

TEST(CheckRegister, ReadDuringWriteMaySeeEither) {
  expect_legal({put(1, 2, "a"), put(3, 10, "b"), get(4, 5, "a"), get(6, 7, "b")});
}

TEST(CheckRegister, NewThenOldDuringOneWriteIsIllegal) {
  expect_illegal({put(1, 2, "a"), put(3, 10, "b"), get(4, 5, "b"), get(6, 7, "a")});
}

TEST(CheckRegister, LostUpdateIsIllegal) {
  expect_illegal({put(1, 2, "a"), update(3, 4, "b"), get(5, 6, "a"), get(7, 8, "a")});
}

TEST(CheckRegister, TwoInsertsMayNotBothWin) {
  expect_illegal({insert(1, 10, "a"), insert(2, 9, "b")});
  expect_legal({insert(1, 10, "a"), insert(2, 9, "b"), erase(3, 8)});
}

TEST(CheckRegister, TwoErasesMayNotBothFindTheKey) {
  expect_illegal({erase(1, 10), erase(2, 9)}, "a");
}

TEST(CheckRegister, ErasedKeyMayNotComeBack) {
  expect_illegal({put(1, 2, "a"), erase(3, 4), get(5, 6, "a")});
  expect_illegal({put(1, 2, "a"), erase(3, 4), insert_refused(5, 6)});
  expect_illegal({put(1, 2, "a"), erase(3, 4), update(5, 6, "b")});
}

TEST(CheckRegister, KeyMayNotVanishForAMoment) {
  expect_illegal({put(1, 2, "a"), update(3, 10, "b"), get_nothing(4, 5)});
}

TEST(CheckRegister, ValueNeverWrittenIsIllegal) {
  expect_illegal({put(1, 2, "a"), put(1, 4, "b"), get(3, 5, "ab")});
}

TEST(CheckRegister, RefusedInsertNeedsThePresentKey) {
  expect_illegal({insert_refused(1, 2)});
  expect_legal({insert_refused(1, 4), put(2, 3, "a")});
}

TEST(CheckRegister, UnknownWriteMayHaveHappenedOrNot) {
  expect_legal({put(1, 2, "a"), unknown(3, kPut, "b"), get(4, 5, "a")});
  expect_legal({put(1, 2, "a"), unknown(3, kPut, "b"), get(4, 5, "b")});
}

TEST(CheckRegister, UnknownWriteMayHappenLate) {
  expect_legal({put(1, 2, "a"), unknown(3, kPut, "b"), get(4, 5, "a"), get(6, 7, "b")});
}

TEST(CheckRegister, UnknownWriteHappensAtMostOnce) {
  expect_illegal(
      {put(1, 2, "a"), unknown(3, kPut, "b"), get(4, 5, "b"), put(6, 7, "c"), get(8, 9, "b")});
  expect_illegal(
      {put(1, 2, "a"), unknown(3, kErase), get_nothing(4, 5), put(6, 7, "c"), get_nothing(8, 9)});
}

TEST(CheckRegister, UnknownWriteNotBeforeItsCall) {
  expect_illegal({put(1, 2, "a"), get(3, 4, "b"), unknown(5, kPut, "b")});
}

TEST(CheckRegister, UnknownInsertDoesNotReplace) {
  expect_illegal({put(1, 2, "a"), unknown(3, kInsert, "b"), get(4, 5, "b")});
  expect_legal({unknown(1, kInsert, "b"), get(2, 3, "b")});
}

TEST(CheckRegister, UnknownWriteMayNotHappenAfterItsEnd) {
  expect_legal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), get(5, 6, "a")});
  expect_legal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), get(5, 6, "b")});
  expect_legal({put(1, 2, "a"), unknown_until(3, 6, kPut, "b"), get(4, 5, "a"), get(7, 8, "b")});
  expect_illegal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), get(5, 6, "a"), get(7, 8, "b")});
  expect_illegal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), put(5, 6, "c"), get(7, 8, "b")});
  expect_illegal({put(1, 2, "a"), unknown_until(3, 4, kErase), get(5, 6, "a"), get_nothing(7, 8)});
}

// Nor after another unknown one that came after its end.
TEST(CheckRegister, UnknownWritesHappenInTheOrderOfTheirEnds) {
  expect_illegal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), unknown(5, kPut, "c"),
                  get(6, 7, "c"), get(8, 9, "b")});
  expect_legal({put(1, 2, "a"), unknown_until(3, 4, kPut, "b"), unknown(5, kPut, "c"),
                get(6, 7, "b"), get(8, 9, "c")});
}

// A read that fits is not hurried past a write that would have to come before it.
TEST(CheckRegister, AReadDoesNotCutOffAWriteThatAnotherReadNeeds) {
  expect_legal(
      {unknown_until(3, 10, kPut, "b"), get(5, 20, "b"), put(5, 20, "a"), get(11, 19, "a")}, "a");
}

TEST(CheckRegister, UnansweredGetSaysNothing) {
  expect_legal({unknown(1, kGet, "whatever"), get_nothing(2, 3)});
}

TEST(CheckRegister, ExplanationNamesTheOperation) {
  const Verdict verdict = check_register(History{put(1, 2, "apple"), get(3, 4, "pear")});
  EXPECT_NE(verdict.explanation.find("get 'pear'"), std::string::npos) << verdict.explanation;
  EXPECT_NE(verdict.explanation.find("put 'apple'"), std::string::npos) << verdict.explanation;
}

TEST(CheckRegister, LimitGivesUndecidedNotAHang) {
  History history;
  for (int i = 0; i < 24; ++i) history.push_back(put(1, 100, std::to_string(i)));
  history.push_back(get(101, 102, "never written"));
  const Verdict verdict = check_register(history, std::nullopt, {.configurations = 1000});
  EXPECT_EQ(verdict.kind, Verdict::Kind::kUndecided);
}

TEST(KeyedHistoryTest, NamesTheKeyAtFault) {
  KeyedHistory history;
  history.set_initial("good", "g");
  history.add("good", get(1, 2, "g"));
  history.add("bad", get(1, 2, "b"));
  const Verdict verdict = history.check();
  EXPECT_EQ(verdict.kind, Verdict::Kind::kNotLinearizable);
  EXPECT_NE(verdict.explanation.find("'bad'"), std::string::npos) << verdict.explanation;
  EXPECT_EQ(verdict.key, "bad");
  EXPECT_EQ(history.operations(), 2u);
  EXPECT_EQ(history.of_key("good").operations.size(), 1u);
  EXPECT_TRUE(history.of_key("none").operations.empty());
}

// ---- Against brute force ----

std::optional<std::optional<std::string>> apply_plainly(const Operation& operation,
                                                        const std::optional<std::string>& state) {
  using Next = std::optional<std::optional<std::string>>;
  const bool present = state.has_value();
  if (operation.result == kNotFound) return present ? Next() : Next(state);
  if (operation.result == kExists) return present ? Next(state) : Next();
  switch (operation.kind) {
    case kGet:
      return state == operation.value ? Next(state) : Next();
    case kPut:
      return Next(operation.value);
    case kInsert:
      return present ? Next() : Next(operation.value);
    case kUpdate:
      return present ? Next(operation.value) : Next();
    case kErase:
      return present ? Next(std::optional<std::string>()) : Next();
  }
  return {};
}

// Every order of every subset of the unknown operations with all others, no cleverness.
bool has_legal_order(const History& history, std::vector<bool> used,
                     const std::optional<std::string>& state) {
  bool all_done = true;
  for (std::size_t i = 0; i < history.size(); ++i) {
    if (used[i]) continue;
    if (history[i].result != kUnknown) all_done = false;
    bool preceded = false;
    for (std::size_t j = 0; j < history.size(); ++j) {
      preceded = preceded || (!used[j] && history[j].result != kUnknown &&
                              history[j].responded < history[i].invoked);
      // One of unknown outcome that has ended, when something came that began later.
      preceded = preceded || (used[j] && history[i].result == kUnknown &&
                              history[i].responded < history[j].invoked);
    }
    if (preceded) continue;
    const auto next = apply_plainly(history[i], state);
    if (!next) continue;
    used[i] = true;
    if (has_legal_order(history, used, *next)) return true;
    used[i] = false;
  }
  return all_done;
}

Operation random_operation(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t n) { return random() % n; };
  Operation operation;
  operation.kind = static_cast<OperationKind>(pick(5));
  operation.value = std::string(1, static_cast<char>('a' + pick(3)));
  operation.invoked = pick(12);
  operation.responded = operation.invoked + 1 + pick(6);
  operation.result = kDone;
  const std::uint64_t outcome = pick(6);
  if (outcome == 0) {
    operation.result = kUnknown;
    if (pick(2) == 0) operation.responded = Operation::kNever;
  } else if (outcome <= 2) {
    if (operation.kind == kInsert) operation.result = kExists;
    if (operation.kind != kInsert && operation.kind != kPut) operation.result = kNotFound;
  }
  return operation;
}

TEST(CheckRegister, AgreesWithBruteForceOnRandomHistories) {
  std::mt19937_64 random(20);
  int legal = 0;
  constexpr int kHistories = 20'000;
  for (int round = 0; round < kHistories; ++round) {
    History history(1 + random() % 6);
    for (Operation& operation : history) operation = random_operation(random);
    const std::optional<std::string> initial =
        random() % 2 == 0 ? std::optional<std::string>("a") : std::nullopt;
    const bool expected = has_legal_order(history, std::vector<bool>(history.size()), initial);
    const Verdict verdict = check_register(history, initial);
    ASSERT_EQ(verdict.linearizable(), expected) << [&] {
      std::string text = "initially " + initial.value_or("absent") + "\n";
      for (const Operation& operation : history) text += to_string(operation) + "\n";
      return text;
    }();
    if (expected) ++legal;
  }
  // Both verdicts must be common, or the comparison says little.
  EXPECT_GT(legal, kHistories / 20);
  EXPECT_LT(legal, kHistories * 19 / 20);
}

// What is left out of a legal history leaves it legal: so a part without a legal order proves that
// the whole has none.
TEST(ShortestContradiction, IsNeverMadeOfALegalHistory) {
  std::mt19937_64 random(21);
  int illegal = 0;
  constexpr int kHistories = 20'000;
  for (int round = 0; round < kHistories; ++round) {
    KeyHistory history{
        .initial = random() % 2 == 0 ? std::optional<std::string>("a") : std::nullopt,
        .operations = History(1 + random() % 6)};
    for (Operation& operation : history.operations) operation = random_operation(random);
    const std::size_t size = history.operations.size();
    const bool legal =
        has_legal_order(history.operations, std::vector<bool>(size), history.initial);
    const KeyHistory part = shortest_contradiction(history);
    if (legal) {
      ASSERT_EQ(part.operations.size(), size);
      ASSERT_EQ(part.initial, history.initial);
    } else {
      ++illegal;
      std::vector<std::optional<std::string>> starts = {part.initial};
      if (part.any_initial) starts = {std::nullopt, history.initial};
      for (const auto& start : starts) {
        ASSERT_FALSE(
            has_legal_order(part.operations, std::vector<bool>(part.operations.size()), start));
      }
    }
  }
  EXPECT_GT(illegal, kHistories / 20);
}

// A register that really is one: operations take effect at a random moment between call and
// answer. `clients` run at once.
History simulate(std::mt19937_64& random, std::size_t clients, std::size_t count) {
  History history;
  std::optional<std::string> state;
  struct Running {
    Operation operation;
    bool effective = false;
  };
  std::vector<std::optional<Running>> running(clients);
  std::uint64_t now = 0;
  while (history.size() < count) {
    auto& slot = running[random() % clients];
    ++now;
    if (!slot) {
      slot = Running{};
      slot->operation.kind = static_cast<OperationKind>(random() % 5);
      slot->operation.value = std::to_string(now);
      slot->operation.invoked = now;
    } else if (!slot->effective) {
      Operation& operation = slot->operation;
      operation.result = kDone;
      if (operation.kind == kGet) operation.value = state.value_or("");
      if (operation.kind == kInsert && state) operation.result = kExists;
      if (operation.kind != kInsert && operation.kind != kPut && !state) {
        operation.result = kNotFound;
      }
      if (const auto next = apply_plainly(operation, state)) state = *next;
      slot->effective = true;
    } else {
      slot->operation.responded = now;
      history.push_back(slot->operation);
      slot.reset();
    }
  }
  // Those still running have no answer; some of them have had their effect.
  for (const auto& slot : running) {
    if (!slot) continue;
    Operation operation = slot->operation;
    operation.result = kUnknown;
    operation.responded = Operation::kNever;
    history.push_back(operation);
  }
  return history;
}

TEST(CheckRegister, LongHistoriesOfManyClientsAreQuick) {
  std::mt19937_64 random(7);
  const auto begin = std::chrono::steady_clock::now();
  for (const std::size_t clients : {1u, 4u, 16u, 32u}) {
    expect_legal(simulate(random, clients, 20'000));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(CheckRegister, OneWrongReadInALongHistoryIsFound) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 20; ++round) {
    History history = simulate(random, 8, 2'000);
    std::vector<std::size_t> reads;
    for (std::size_t i = 200; i < history.size(); ++i) {
      if (history[i].kind == kGet && history[i].result == kDone) reads.push_back(i);
    }
    ASSERT_FALSE(reads.empty());
    // A value from long ago, when all its overlapping operations had ended.
    history[reads[random() % reads.size()]].value = "1";
    history.insert(history.begin(), put(0, 0, "1"));
    expect_illegal(history);
    // It takes a read and what overlaps it, of 2,000.
    const KeyHistory part = shortest_contradiction({.initial = {}, .operations = history});
    EXPECT_LT(part.operations.size(), 50u);
    for (const auto& initial : {std::optional<std::string>(), std::optional<std::string>("1")}) {
      expect_illegal(part.operations, initial);
    }
  }
}

TEST(ShortestContradiction, LeavesOutWhatDoesNotMatter) {
  const History history = {
      insert(1, 2, "a"),      get(3, 4, "a"),   update(5, 6, "b"), get(7, 12, "b"),
      put(8, 9, "c"),         get(10, 11, "c"), get(13, 14, "b"),  // stale: "c" was there
      insert_refused(15, 16), erase(17, 18),    put(19, 20, "d"),
  };
  const KeyHistory part = shortest_contradiction({.initial = {}, .operations = history});
  EXPECT_TRUE(part.any_initial);
  ASSERT_EQ(part.operations.size(), 2u);
  EXPECT_EQ(to_string(part.operations[0]), "[10, 11] client 0: get 'c' -> done");
  EXPECT_EQ(to_string(part.operations[1]), "[13, 14] client 0: get 'b' -> done");
}

// Who has not answered by then may have happened: it stays.
TEST(ShortestContradiction, KeepsWritesWithoutAnswer) {
  const KeyHistory part = shortest_contradiction(
      {.initial = "o",
       .operations = {unknown(1, kPut, "x"), put(2, 45, "a"), get(40, 41, "z"), get(50, 51, "a")}});
  ASSERT_EQ(part.operations.size(), 3u);
  EXPECT_EQ(part.operations[0].value, "x");
  EXPECT_EQ(part.operations[1].result, kUnknown);
  EXPECT_EQ(part.operations[2].value, "z");
}

}  // namespace
}  // namespace pando::lab::check
