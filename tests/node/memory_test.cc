#include "fabric/node/memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/machine_memory.h"
#include "base/parse.h"
#include "fabric/node/process.h"

namespace pando::fabric::node {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kBytes = 4 << 20;

// A name of POSIX shared memory, removed at the end.
class ShmName {
 public:
  explicit ShmName(const char* test)
      : name_("pando-" + std::string(test) + std::to_string(getpid())) {
    shm_unlink(("/" + name_).c_str());
  }
  ~ShmName() { shm_unlink(("/" + name_).c_str()); }
  const std::string& get() const { return name_; }

 private:
  std::string name_;
};

std::uint64_t word_at(const SharedLineMemory& lines, std::uint64_t offset) {
  std::uint64_t word = 0;
  EXPECT_TRUE(lines.read(offset, reinterpret_cast<std::byte*>(&word), sizeof(word)));
  return word;
}

TEST(NodeMemory, SharedMemorySurvivesItsProcess) {
  const ShmName name("survives");
  const MemoryOptions options{.bytes = kBytes, .shm = name.get(), .cluster = "blue"};
  std::uint64_t life = 0;
  {
    const auto memory = NodeMemory::make(options).value();
    EXPECT_FALSE(memory.survived());
    life = memory.life();
    std::uint64_t previous = 0;
    ASSERT_TRUE(memory.main_lines(0).fetch_add(4096, 77, previous));
  }
  const auto memory = NodeMemory::make(options).value();
  EXPECT_TRUE(memory.survived());
  EXPECT_EQ(memory.life(), life);
  EXPECT_EQ(word_at(memory.main_lines(0), 4096), 77u);
}

TEST(NodeMemory, TwoLivesAreTwo) {
  EXPECT_NE(NodeMemory::make({.bytes = kBytes}).value().life(),
            NodeMemory::make({.bytes = kBytes}).value().life());
}

struct Refused {
  MemoryOptions options;
  const char* reason;
};

TEST(NodeMemory, WhatIsThereIsNotOverwritten) {
  const ShmName name("refused");
  {
    ASSERT_TRUE(NodeMemory::make({.bytes = kBytes, .shm = name.get(), .cluster = "blue"}));
  }
  const Refused cases[] = {
      {{.bytes = 2 * kBytes, .shm = name.get(), .cluster = "blue"},
       "give the size that it was made"},
      {{.bytes = kBytes - 4096, .shm = name.get(), .cluster = "blue"}, "was made with size 4MiB"},
      {{.bytes = kBytes, .shm = name.get(), .cluster = "red"},
       "belongs to cluster 'blue', not 'red'"},
      {{.bytes = kBytes, .onchip_bytes = 64, .shm = name.get(), .cluster = "blue"}, "on-chip"},
  };
  for (const Refused& each : cases) {
    const auto made = NodeMemory::make(each.options);
    ASSERT_FALSE(made) << each.reason;
    EXPECT_EQ(made.error().code(), ErrorCode::kIncompatible);
    EXPECT_THAT(made.error().detail(), HasSubstr(each.reason));
  }
  EXPECT_TRUE(NodeMemory::make({.bytes = kBytes, .shm = name.get(), .cluster = "blue"}));
}

TEST(NodeMemory, MemoryOfSomethingElseIsLeftAlone) {
  const ShmName name("foreign");
  std::uint64_t mapped = 0;
  {
    const auto memory = NodeMemory::make({.bytes = kBytes, .shm = name.get()}).value();
    memory.header().magic = 0x1234;  // not a node any more
    mapped = memory.life();
  }
  const auto made = NodeMemory::make({.bytes = kBytes, .shm = name.get()});
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().detail(), HasSubstr("no memory node"));
  (void)mapped;
}

bool there_is(const ShmName& name) {
  const int descriptor = shm_open(("/" + name.get()).c_str(), O_RDONLY, 0);
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

TEST(NodeMemory, WhatIsTakenBackWasNeverThere) {
  const ShmName name("taken-back");
  const MemoryOptions options{.bytes = kBytes, .shm = name.get()};
  {
    auto memory = NodeMemory::make(options).value();
    memory.take_back();
  }
  EXPECT_FALSE(there_is(name));
  {
    const auto memory = NodeMemory::make(options).value();
    EXPECT_FALSE(memory.survived());
  }
  // Now it is another start's.
  auto memory = NodeMemory::make(options).value();
  EXPECT_TRUE(memory.survived());
  memory.take_back();
  EXPECT_TRUE(there_is(name));
}

// Somebody else has made the file: it stays, with the size that it had, and nothing in it.
TEST(NodeMemory, AFileThatWasThereIsLeftAsItWas) {
  constexpr std::uint64_t kMapped = kBytes + (2 << 20);
  for (const std::uint64_t size : {std::uint64_t{0}, kMapped}) {
    std::string path = ::testing::TempDir() + "pando-file-XXXXXX";
    const int descriptor = mkstemp(path.data());
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(ftruncate(descriptor, static_cast<off_t>(size)), 0);
    close(descriptor);
    for (int round = 0; round < 2; ++round) {
      auto memory = NodeMemory::make({.bytes = kBytes, .file = path}).value();
      EXPECT_FALSE(memory.survived()) << round;
      memory.take_back();
    }
    EXPECT_EQ(std::filesystem::file_size(path), size);
    std::filesystem::remove(path);
  }
}

// What a card held is lost however often the node fails to start.
TEST(NodeMemory, LostMemoryStaysLostUntilANodeHasStarted) {
  const ShmName name("lost");
  const MemoryOptions options{.bytes = kBytes, .shm = name.get()};
  NodeMemory::make(options).value().header().onchip_in_card = 1;
  for (int round = 0; round < 2; ++round) {
    auto memory = NodeMemory::make(options).value();
    EXPECT_TRUE(memory.lost()) << round;
    EXPECT_FALSE(memory.survived()) << round;
    memory.take_back();
  }
}

TEST(NodeMemory, WhatFailsLeavesNothing) {
  const ShmName name("fails");
  const auto bound = NodeMemory::make({.bytes = kBytes, .shm = name.get(), .numa_node = 5000});
  EXPECT_FALSE(bound);
  EXPECT_FALSE(there_is(name));
  const auto stopped = NodeMemory::make(
      {.bytes = kBytes, .shm = name.get(), .prefault = true, .progress = {}, .stopped = [] {
         return true;
       }});
  ASSERT_FALSE(stopped);
  EXPECT_THAT(stopped.error().detail(), HasSubstr("stopped, with 0B of 6MiB touched"));
  EXPECT_FALSE(there_is(name));
}

// What another node has is not taken back by one that finds it in use.
TEST(NodeMemory, WhatIsAnothersStays) {
  const ShmName name("anothers");
  const MemoryOptions options{.bytes = kBytes, .shm = name.get()};
  const auto memory = NodeMemory::make(options).value();
  const pid_t child = fork();
  if (child == 0) {
    const auto second = NodeMemory::make(options);
    _exit(!second && second.error().code() == ErrorCode::kBusy ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(there_is(name));
}

TEST(NodeMemory, WhatCannotFitIsRefusedBeforeItIsTaken) {
  const ShmName name("large");
  const std::uint64_t total = base::machine_memory().total;
  const std::uint64_t size = (total / (1 << 20) + 1024) << 20;
  const auto anonymous = NodeMemory::make({.bytes = size});
  ASSERT_FALSE(anonymous);
  EXPECT_EQ(anonymous.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(anonymous.error().detail(), HasSubstr("size: " + base::format_size(size)));
  EXPECT_THAT(anonymous.error().detail(), HasSubstr(base::machine_memory().to_string()));
  const auto shared = NodeMemory::make({.bytes = size, .shm = name.get()});
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(shared.error().detail(), HasSubstr("size: " + base::format_size(size)));
  EXPECT_FALSE(there_is(name));
}

TEST(NodeMemory, OptionsThatCannotBe) {
  const Refused cases[] = {
      {{.bytes = 4096}, "size: 4KiB is not between 1MiB and"},
      {{.bytes = kBytes, .onchip_bytes = 100}, "onchip: 100"},
      {{.bytes = kBytes, .onchip_bytes = 2 << 20}, "onchip"},
      {{.bytes = kBytes, .shm = "a", .file = "b"}, "one of them only"},
      {{.bytes = kBytes, .shm = "a/b"}, "without '/'"},
      {{.bytes = kBytes, .cluster = std::string(64, 'x')}, "63 bytes"},
      {{.bytes = kBytes, .numa_node = 5000}, "numa"},
  };
  for (const Refused& each : cases) {
    const auto made = NodeMemory::make(each.options);
    ASSERT_FALSE(made) << each.reason;
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().detail(), HasSubstr(each.reason));
  }
  const auto nowhere = NodeMemory::make({.bytes = kBytes, .file = "/no/such/folder/file"});
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().detail(), HasSubstr("/no/such/folder/file"));
}

TEST(NodeMemory, PrefaultTellsHowFarItIs) {
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  const auto memory = NodeMemory::make(
      {.bytes = 100 << 20, .prefault = true, .progress = [&](std::uint64_t done, std::uint64_t of) {
         EXPECT_GT(done, last);
         last = done;
         all = of;
       }});
  ASSERT_TRUE(memory) << memory.error().message();
  EXPECT_EQ(last, all);
  EXPECT_GE(all, 100u << 20);
}

TEST(NodeMemory, AnotherMappingSeesTheSame) {
  const auto memory = NodeMemory::make({.bytes = kBytes}).value();
  const auto other = NodeMemory::map(dup(memory.descriptor())).value();
  EXPECT_NE(memory.data(), other.data());
  std::uint64_t previous = 0;
  ASSERT_TRUE(other.main_lines(1).compare_swap(64, 0, 5, ~0ull, ~0ull, previous));
  EXPECT_EQ(word_at(memory.main_lines(0), 64), 5u);
  ASSERT_TRUE(memory.onchip_lines(0).fetch_add(64, 9, previous));
  EXPECT_EQ(word_at(other.onchip_lines(1), 64), 9u);
}

// ---- Writers that are killed ----

class CutOffWriter : public ::testing::Test {
 protected:
  static constexpr std::size_t kSlot = 3;
  static constexpr std::uint64_t kAt = 8192 + 40;

  // What a process leaves that is killed between two stores of a WRITE: the stripe held, its redo
  // slot filled, and `done` of the bytes there.
  void cut_off(std::span<const std::byte> bytes, std::size_t done) {
    const ManyProcesses writer(mapping(), kSlot);
    writer.announce(memory_.data() + kAt, bytes.data(), bytes.size());
    SharedLineMemory::Sequence& number = sequence(kAt);
    number.store(writer.held(number.load()));
    std::memcpy(memory_.data() + kAt, bytes.data(), done);
  }
  std::byte* mapping() const { return memory_.data() - kMemoryAt; }
  SharedLineMemory::Sequence& sequence(std::uint64_t offset) const {
    auto* const all = reinterpret_cast<SharedLineMemory::Sequence*>(mapping() + kSequencesAt);
    const std::uint64_t hash = offset / kStripeBytes * 0x9E3779B97F4A7C15u;
    return all[hash >> (64 - SharedLineMemory::kSequenceBits)];
  }

  NodeMemory memory_ = NodeMemory::make({.bytes = kBytes}).value();
};

TEST_F(CutOffWriter, IsFinishedWhole) {
  std::array<std::byte, 200> bytes;
  bytes.fill(std::byte{0x5A});
  for (const std::size_t done : {0u, 16u, 150u, 200u}) {
    std::memset(memory_.data() + kAt, 0, bytes.size());
    cut_off(bytes, done);
    EXPECT_EQ(memory_.finish(kSlot + 1), 0u) << "another's";
    EXPECT_EQ(memory_.finish(kSlot), 1u);
    EXPECT_EQ(memory_.finish(kSlot), 0u) << "once is enough";
    std::array<std::byte, 200> seen;
    ASSERT_TRUE(memory_.main_lines(0).read(kAt, seen.data(), seen.size()));
    EXPECT_EQ(seen, bytes) << done << " bytes were there";
  }
}

// Redo slots lie in memory that clients map, who may write anything there. Where a redo slot says
// what no writer says, its stripe is freed, and not a byte is written anywhere.
TEST_F(CutOffWriter, ARedoSlotThatLiesIsNotObeyed) {
  const std::uint64_t onchip_end = kOnChipAt + memory_.onchip_bytes();
  const std::uint64_t end = kMemoryAt + kBytes;
  struct Lie {
    std::uint64_t place;
    std::uint64_t length;
  };
  const std::array lies = {
      Lie{std::uint64_t{0} - kStripeBytes, kStripeBytes},  // before the mapping, by wrapping
      Lie{std::uint64_t{0} - 8, 16},                       // into its beginning
      Lie{~std::uint64_t{0}, 1},                           // the last byte there is
      Lie{end - 8, 16},                                    // beyond the end
      Lie{end, 8},                                         //
      Lie{kMemoryAt + 512, kStripeBytes},                  // more than a stripe
      Lie{kMemoryAt, kStripeBytes + 1},                    // more than a redo slot has
      Lie{kMemoryAt, ~std::uint64_t{0}},                   //
      Lie{onchip_end, 8},                                  // between the two memories
      Lie{onchip_end - 8, 16},                             //
      Lie{kRedoSlotsAt, 64},                               // redo slots
      Lie{kSequencesAt, 64},                               // stripes
      Lie{0, 64},                                          // the header
  };
  // What stands around every such place within the mapping.
  const std::vector<std::byte> before(mapping(), mapping() + end);
  for (const Lie& lie : lies) {
    RedoSlot& slot = memory_.redo_slot(kSlot);
    const RedoSlot honest = slot;
    slot.place = lie.place;
    slot.length = lie.length;
    std::memset(slot.bytes, 0x5A, sizeof(slot.bytes));
    SharedLineMemory::Sequence& number = sequence(kAt);
    number.store(ManyProcesses(mapping(), kSlot).held(0));
    EXPECT_EQ(memory_.finish(kSlot), 1u);
    EXPECT_EQ(number.load(), 2u) << "it is free";
    number.store(0);
    slot = honest;
    EXPECT_EQ(std::memcmp(mapping(), before.data(), before.size()), 0)
        << lie.place << ", " << lie.length;
  }
}

// Sizes decide what the node's process touches: what clients make of the header does not matter.
TEST(NodeMemory, SizesAreNotReadFromTheMappingAgain) {
  const auto memory = NodeMemory::make({.bytes = kBytes}).value();
  const std::uint64_t life = memory.life();
  const auto client = NodeMemory::map(dup(memory.descriptor())).value();
  client.header().memory_bytes = ~std::uint64_t{0};
  client.header().onchip_bytes = ~std::uint32_t{0};
  client.header().life = life + 1;
  EXPECT_EQ(memory.bytes(), kBytes);
  EXPECT_EQ(memory.onchip_bytes(), 256u << 10);
  EXPECT_EQ(memory.life(), life);
  for (const std::uint64_t bytes : {~std::uint64_t{0}, kBytes + (2 << 20), kBytes * 2}) {
    client.header().onchip_bytes = 0;
    client.header().memory_bytes = bytes;
    const auto another = NodeMemory::map(dup(memory.descriptor()));
    ASSERT_FALSE(another) << bytes;
    EXPECT_EQ(another.error().code(), ErrorCode::kCorrupt);
  }
}

TEST_F(CutOffWriter, WhoWaitsForAStoppedOneGivesUp) {
  std::array<std::byte, 64> bytes{};
  cut_off(bytes, 0);
  std::uint64_t previous = 0;
  EXPECT_FALSE(memory_.main_lines(0).fetch_add(kAt, 1, previous));
  EXPECT_TRUE(memory_.main_lines(0).fetch_add(kAt + (1 << 20), 1, previous)) << "others go on";
  memory_.finish(kSlot);
  EXPECT_TRUE(memory_.main_lines(0).fetch_add(kAt, 1, previous));
}

// A child writes for ever; it is killed somewhere in it, many times. Every line is whole.
TEST_F(CutOffWriter, RealProcessesKilledAnywhereLeaveWholeLines) {
  constexpr int kKills = 60;
  constexpr std::size_t kLines = 24;
  for (int i = 0; i < kKills; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto own = NodeMemory::map(dup(memory_.descriptor()));
      alignas(64) std::array<std::uint64_t, kLines * 8> words;
      for (std::uint64_t round = 1;; ++round) {
        words.fill(round);
        (void)!own->main_lines(kSlot).write(8192 + 512, reinterpret_cast<std::byte*>(words.data()),
                                            sizeof(words));
      }
    }
    usleep(static_cast<useconds_t>(500 + i * 97 % 3000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(process_started(child), 0u);
    memory_.finish(kSlot);
    std::array<std::uint64_t, kLines * 8> seen;
    ASSERT_TRUE(memory_.main_lines(0).read(8192 + 512, reinterpret_cast<std::byte*>(seen.data()),
                                           sizeof(seen)));
    for (std::size_t word = 0; word < seen.size(); ++word) {
      ASSERT_EQ(seen[word], seen[word / 8 * 8]) << "line " << word / 8 << " is torn";
    }
  }
}

TEST(Processes, AreKnownByTheirBeginning) {
  const std::uint64_t own = process_started(getpid());
  EXPECT_GT(own, 0u);
  EXPECT_EQ(process_started(getpid()), own);
  EXPECT_EQ(process_started(0x3fffffff), 0u);
}

}  // namespace
}  // namespace pando::fabric::node
