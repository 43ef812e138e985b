// RapidCheck: sequences of operations by several compute nodes against a model. A failing sequence
// shrinks to a short one, printed with the seed that replays it.
#include <rapidcheck.h>
#include <rapidcheck/detail/Configuration.h>
#include <rapidcheck/state.h>

#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <sstream>

#include "support/conformance.h"

namespace pando::testing {
namespace {

// The system: one index and compute nodes whose caches age differently.
struct System {
  std::vector<Index> nodes;
};

using ModelMap = std::map<std::string, std::string>;
using Command = rc::state::Command<ModelMap, System>;

// Which keys sequences use. RapidCheck builds commands by default construction, so what the case
// needs to say to them is kept here while its check runs.
KeyType generated_type = KeyType::kInteger;

rc::Gen<std::string> integer_key_bytes() {
  const auto number = rc::gen::weightedOneOf<std::uint64_t>(
      {{6, rc::gen::inRange<std::uint64_t>(0, 60)},
       {2, rc::gen::inRange<std::uint64_t>(0, 5'000)},
       {1, rc::gen::element<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 63,
                                           std::numeric_limits<std::uint64_t>::max(),
                                           std::numeric_limits<std::uint64_t>::max() - 1)}});
  return rc::gen::map(number, [](std::uint64_t n) { return order_bytes(n); });
}

rc::Gen<std::string> byte_key_bytes() {
  const auto letter = rc::gen::element('a', 'b', '\0', '\xff');
  const auto shared_prefix = rc::gen::element<std::size_t>(0, 0, 0, 8, 64, 1'000);
  const auto tail = rc::gen::resize(6, rc::gen::container<std::string>(letter));
  return rc::gen::map(rc::gen::pair(shared_prefix, tail), [](const auto& parts) {
    return std::string(parts.first, 'p') + parts.second;
  });
}

std::string any_key() {
  return generated_type == KeyType::kInteger ? *integer_key_bytes() : *byte_key_bytes();
}

std::string any_value() {
  const auto size = *rc::gen::element<std::size_t>(0, 1, 8, 8, 8, 9, 60, 200, 3'000);
  return patterned_value(size, *rc::gen::arbitrary<std::uint64_t>());
}

Model as_model(const ModelMap& entries) {
  Model model(generated_type);
  for (const auto& [key, value] : entries) {
    must(model.put(from_order_bytes(generated_type, key), value));
  }
  return model;
}

void require(const ::testing::AssertionResult& outcome) {
  if (!outcome) RC_FAIL(outcome.message());
}

// One operation on one key through one compute node.
class KeyCommand : public Command {
 public:
  KeyCommand(std::string name, bool with_value) : name_(std::move(name)) {
    if (with_value) value_ = any_value();
  }
  void show(std::ostream& out) const override {
    out << name_ << "(node " << node_ << ", " << ::pando::testing::show(key()) << ", "
        << value_.size() << " bytes)";
  }

 protected:
  OwnedKey key() const { return from_order_bytes(generated_type, key_bytes_); }
  const Index& at(const System& system) const { return system.nodes[node_ % system.nodes.size()]; }
  Result<std::string> expected_get(const ModelMap& model) const {
    const auto found = model.find(key_bytes_);
    return found != model.end() ? Result<std::string>(found->second) : fail(ErrorCode::kNotFound);
  }
  // OK exactly where the key's presence is as `present` says, else `otherwise`.
  Status expected(const ModelMap& model, bool present, ErrorCode otherwise) const {
    return model.contains(key_bytes_) == present ? Status() : fail(otherwise);
  }

  std::string name_;
  std::string key_bytes_ = any_key();
  std::string value_;
  std::size_t node_ = *rc::gen::inRange<std::size_t>(0, 3);
};

struct Put : KeyCommand {
  Put() : KeyCommand("put", true) {}
  void apply(ModelMap& model) const override { model[key_bytes_] = value_; }
  void run(const ModelMap&, System& system) const override {
    require(succeeded(at(system).put(key(), value_)));
  }
};

struct Insert : KeyCommand {
  Insert() : KeyCommand("insert", true) {}
  void apply(ModelMap& model) const override { model.try_emplace(key_bytes_, value_); }
  void run(const ModelMap& model, System& system) const override {
    require(
        same_outcome(at(system).insert(key(), value_), expected(model, false, ErrorCode::kExists)));
  }
};

struct Update : KeyCommand {
  Update() : KeyCommand("update", true) {}
  void apply(ModelMap& model) const override {
    if (const auto found = model.find(key_bytes_); found != model.end()) found->second = value_;
  }
  void run(const ModelMap& model, System& system) const override {
    require(same_outcome(at(system).update(key(), value_),
                         expected(model, true, ErrorCode::kNotFound)));
  }
};

struct Erase : KeyCommand {
  Erase() : KeyCommand("erase", false) {}
  void apply(ModelMap& model) const override { model.erase(key_bytes_); }
  void run(const ModelMap& model, System& system) const override {
    require(same_outcome(at(system).erase(key()), expected(model, true, ErrorCode::kNotFound)));
  }
};

struct Get : KeyCommand {
  Get() : KeyCommand("get", false) {}
  void run(const ModelMap& model, System& system) const override {
    require(same_outcome(at(system).get(key()), expected_get(model)));
  }
};

struct Scan : KeyCommand {
  Scan() : KeyCommand("scan", false) {}
  void run(const ModelMap& model, System& system) const override {
    const auto scanned = at(system).scan(key(), limit_);
    require(succeeded(scanned));
    require(same_entries(*scanned, as_model(model).scan(key(), limit_)));
  }
  std::size_t limit_ = *rc::gen::inRange<std::size_t>(0, 50);
};

// Everything there is, through one compute node.
struct CompareAll : Command {
  void show(std::ostream& out) const override { out << "compare_all(node " << node_ << ")"; }
  void run(const ModelMap& model, System& system) const override {
    require(holds_exactly(system.nodes[node_ % system.nodes.size()], as_model(model)));
  }
  std::size_t node_ = *rc::gen::inRange<std::size_t>(0, 3);
};

// Many neighbours at once, so that short sequences reach splits and merges.
class RunCommand : public Command {
 public:
  void show(std::ostream& out) const override {
    out << (erase_ ? "erase" : "put") << "_run(node " << node_ << ", " << first_ << " + " << count_
        << ")";
  }
  void apply(ModelMap& model) const override {
    for_each([&](const std::string& key, std::uint64_t n) {
      if (erase_) {
        model.erase(key);
      } else {
        model[key] = numbered_value(n);
      }
    });
  }
  void run(const ModelMap& model, System& system) const override {
    const Index& index = system.nodes[node_ % system.nodes.size()];
    for_each([&](const std::string& bytes, std::uint64_t n) {
      const OwnedKey key = from_order_bytes(generated_type, bytes);
      if (erase_) {
        const Status expected = model.contains(bytes) ? Status() : fail(ErrorCode::kNotFound);
        require(same_outcome(index.erase(key), expected));
      } else {
        require(succeeded(index.put(key, numbered_value(n))));
      }
    });
  }

 private:
  template <class Body>
  void for_each(const Body& body) const {
    for (std::uint64_t n = first_; n < first_ + count_; ++n) {
      body(order_bytes(numbered_key(generated_type, n)), n);
    }
  }
  bool erase_ = *rc::gen::arbitrary<bool>();
  std::size_t node_ = *rc::gen::inRange<std::size_t>(0, 3);
  std::uint64_t first_ = *rc::gen::inRange<std::uint64_t>(0, 400);
  std::uint64_t count_ = *rc::gen::inRange<std::uint64_t>(1, 200);
};

class Properties : public ConformanceTest {
 protected:
  using Clock = std::chrono::steady_clock;
  // Shrinking a failure that does not always show may go on for ever; this long it may take.
  static constexpr std::chrono::seconds kShrinkingTime{20};

  // A check as many times as fits the build.
  static void expect_for_all(const std::function<void()>& property) {
    // A new seed each time; RC_PARAMS="seed=…" in the environment replays one.
    rc::detail::TestParams params = rc::detail::configuration().testParams;
    params.maxSuccess = static_cast<int>(scaled(60, 10));
    const auto bounded = [&property, give_up = std::optional<Clock::time_point>()]() mutable {
      if (give_up && Clock::now() > *give_up) return;
      try {
        property();
      } catch (...) {
        if (!give_up) give_up = Clock::now() + kShrinkingTime;
        throw;
      }
    };
    const auto result = rc::detail::checkTestable(std::function<void()>(bounded),
                                                  rc::detail::TestMetadata(), params);
    if (!result.template is<rc::detail::SuccessResult>()) {
      std::ostringstream text;
      rc::detail::printResultMessage(result, text);
      text << "\nreplay with RC_PARAMS=\"seed=" << params.seed << "\"";
      ADD_FAILURE() << text.str();
    }
  }
};

TEST_P(Properties, AnySequenceOfOperationsMatchesTheModel) {
  generated_type = key_type();
  expect_for_all([this] {
    Pool pool = open_pool("64MiB");
    // The second node caches nothing, the third a little.
    Pool uncached = must(pool.attach({.compute_budget = 0}));
    Pool small = must(pool.attach({.compute_budget = 128 << 10}));
    const Index index = must(pool.create_index("index", GetParam().options()));
    System system{{index, must(uncached.open_index("index")), must(small.open_index("index"))}};
    ModelMap initial;
    rc::state::check(initial, system,
                     rc::state::gen::execOneOfWithArgs<Put, Insert, Update, Erase, Get, Scan,
                                                       CompareAll, RunCommand>());
    require(succeeded(index.check()));
  });
}

// Whatever the keys and their order, a scan of everything is the sorted set of them.
TEST_P(Properties, ScanIsTheSortedSetOfKeys) {
  generated_type = key_type();
  expect_for_all([this] {
    Pool pool = open_pool("64MiB");
    const Index index = must(pool.create_index("index", GetParam().options()));
    const auto keys = *rc::gen::container<std::vector<std::string>>(
        generated_type == KeyType::kInteger ? integer_key_bytes() : byte_key_bytes());
    Model model(generated_type);
    for (const std::string& bytes : keys) {
      const OwnedKey one = from_order_bytes(generated_type, bytes);
      require(same_outcome(index.insert(one, bytes), model.insert(one, bytes)));
    }
    require(holds_exactly(index, model));
    require(succeeded(index.check()));
  });
}

PANDO_FOR_ALL_CASES_OF_ONE_THREAD(Properties);

}  // namespace
}  // namespace pando::testing
