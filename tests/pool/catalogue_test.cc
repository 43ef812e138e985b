#include "pool/catalogue/catalogue.h"

#include <set>

#include "cluster.h"
#include "pool/catalogue/catalogue_entry.h"
#include "support/fault_fabric.h"

namespace pando::pool {
namespace {

using std::chrono::milliseconds;

const PoolOptions kHasty = {.lease = milliseconds(30)};

// The catalogue's methods as plain calls.
struct Calls {
  Member& member;

  Result<IndexRecord> begin_create(std::string_view name) {
    return member.run(
        member.node->catalogue().begin_create(*member.session, name, 3, "sherman:keys=bytes"));
  }
  Status publish(const IndexRecord& record) {
    Operation op(*member.session);
    return member.run(member.node->catalogue().publish(op, record));
  }
  Status abandon(const IndexRecord& record) {
    Operation op(*member.session);
    return member.run(member.node->catalogue().abandon(op, record));
  }
  IndexRecord create(std::string_view name) {
    IndexRecord record = begin_create(name).value();
    EXPECT_TRUE(publish(record));
    return record;
  }
  Result<IndexRecord> open(std::string_view name) {
    Operation op(*member.session);
    return member.run(member.node->catalogue().open(op, name));
  }
  Status close(const IndexRecord& record) {
    Operation op(*member.session);
    return member.run(member.node->catalogue().close(op, record));
  }
  Result<IndexRecord> begin_drop(std::string_view name) {
    return member.run(member.node->catalogue().begin_drop(*member.session, name));
  }
  Status finish_drop(const IndexRecord& record) {
    Operation op(*member.session);
    return member.run(member.node->catalogue().finish_drop(op, record));
  }
  std::set<std::string> names() {
    Operation op(*member.session);
    std::set<std::string> names;
    for (const auto& record : member.run(member.node->catalogue().list(op)).value()) {
      names.insert(record.name);
    }
    return names;
  }
};

ErrorCode code(const auto& result) { return result ? ErrorCode{255} : result.error().code(); }

TEST(Catalogue, CreateOpenCloseDrop) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Calls calls{member};
  EXPECT_EQ(code(calls.open("users")), ErrorCode::kNotFound);
  const IndexRecord record = calls.begin_create("users").value();
  EXPECT_NE(record.index_id, 0u);
  EXPECT_EQ(code(calls.open("users")), ErrorCode::kNotFound);  // until it is published
  EXPECT_TRUE(calls.names().empty());
  EXPECT_TRUE(calls.publish(record));
  EXPECT_EQ(code(calls.begin_create("users")), ErrorCode::kExists);

  const IndexRecord opened = calls.open("users").value();
  EXPECT_EQ(opened.entry, record.entry);
  EXPECT_EQ(opened.index_id, record.index_id);
  EXPECT_EQ(opened.seed, record.seed);
  EXPECT_EQ(opened.format_version, 3u);
  EXPECT_EQ(opened.options, "sherman:keys=bytes");
  EXPECT_EQ(read_word(member, opened.root_word()), 0u);
  EXPECT_EQ(calls.names(), std::set<std::string>{"users"});

  EXPECT_EQ(code(calls.begin_drop("users")), ErrorCode::kBusy);
  EXPECT_TRUE(calls.open("users"));  // twice here: closed when both are
  EXPECT_TRUE(calls.close(opened));
  EXPECT_EQ(code(calls.begin_drop("users")), ErrorCode::kBusy);
  EXPECT_TRUE(calls.close(opened));
  const IndexRecord dropped = calls.begin_drop("users").value();
  EXPECT_EQ(code(calls.open("users")), ErrorCode::kNotFound);
  EXPECT_EQ(code(calls.begin_drop("users")), ErrorCode::kNotFound);
  EXPECT_TRUE(calls.finish_drop(dropped));
  EXPECT_EQ(code(calls.begin_drop("users")), ErrorCode::kNotFound);

  const IndexRecord again = calls.create("users");
  EXPECT_GT(again.index_id, record.index_id);
  EXPECT_NE(again.seed, record.seed);
}

TEST(Catalogue, AnotherComputeNodesUseCounts) {
  Cluster cluster(4 * kMiB, 1, /*native_masked_cas=*/false);
  Member member = cluster.join(kHasty);
  Member other = cluster.join();
  Calls calls{member};
  Calls others{other};
  calls.create("t");
  const IndexRecord record = others.open("t").value();
  const auto busy = calls.begin_drop("t");
  EXPECT_EQ(code(busy), ErrorCode::kBusy);
  EXPECT_NE(busy.error().detail().find("1 compute node"), std::string::npos);
  EXPECT_TRUE(others.close(record));
  EXPECT_TRUE(calls.begin_drop("t"));
}

TEST(Catalogue, TheDeadUseNothing) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  Calls calls{member};
  calls.create("t");
  {
    Member other = cluster.join();
    ASSERT_TRUE(Calls{other}.open("t"));
  }
  const auto start = std::chrono::steady_clock::now();
  while (code(calls.begin_drop("t")) == ErrorCode::kBusy) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
  EXPECT_EQ(code(calls.open("t")), ErrorCode::kNotFound);
}

TEST(Catalogue, ANewcomerDoesNotInheritWhatItsPredecessorHadOpen) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  Calls calls{member};
  const IndexRecord record = calls.create("t");
  {
    Member other = cluster.join();
    ASSERT_TRUE(Calls{other}.open("t"));
  }
  while (Slot::from_word(read_word(member, member_address(1))).state == SlotState::kAlive) {
    ASSERT_TRUE(member.beat());
  }
  const fabric::Address users =
      catalogue_address(record.entry) + offsetof(CatalogueEntry, users_words);
  EXPECT_EQ(read_word(member, users), 2u);
  Member newcomer = cluster.join();
  EXPECT_EQ(newcomer.node->membership().self(), make_owner(1, 2));
  EXPECT_EQ(read_word(member, users), 0u);
  EXPECT_TRUE(calls.begin_drop("t"));
}

// Newcomers clear their bits in every entry at any time, by atomics: no WRITE may race with those.
// Bits that an entry has kept are of compute nodes that have gone, and disturb nobody.
TEST(Catalogue, CreatingLeavesTheUsersWordsAlone) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Calls calls{member};
  const fabric::Address users = catalogue_address(0) + offsetof(CatalogueEntry, users_words);
  const std::uint64_t gone = std::uint64_t{1} << 9;
  write_bytes(member, users, &gone, sizeof(gone));
  EXPECT_EQ(calls.create("users").entry, 0u);
  EXPECT_EQ(read_word(member, users), gone);
  const IndexRecord opened = calls.open("users").value();
  EXPECT_EQ(read_word(member, users), gone | 1);
  EXPECT_TRUE(calls.close(opened));
  EXPECT_TRUE(calls.finish_drop(calls.begin_drop("users").value()));
}

TEST(Catalogue, AbandonedAndCrashedCreations) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  Calls calls{member};
  EXPECT_TRUE(calls.abandon(calls.begin_create("a").value()));
  calls.create("a");
  std::size_t entry = 0;
  {
    Member other = cluster.join();
    entry = Calls{other}.begin_create("b").value().entry;
  }
  EXPECT_EQ(code(calls.open("b")), ErrorCode::kNotFound);
  EXPECT_EQ(calls.create("b").entry, entry);  // after its maker's lease
  EXPECT_TRUE(calls.open("b"));
}

TEST(Catalogue, CrashedDrops) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  Calls calls{member};
  calls.create("a");
  calls.create("b");
  {
    Member other = cluster.join();
    ASSERT_TRUE(Calls{other}.begin_drop("a"));
    ASSERT_TRUE(Calls{other}.begin_drop("b"));
  }
  EXPECT_EQ(code(calls.open("a")), ErrorCode::kNotFound);
  EXPECT_TRUE(calls.names().empty());
  EXPECT_EQ(code(calls.begin_create("a")), ErrorCode::kBusy);
  for (const char* name : {"a", "b"}) {  // and goes on with it
    ASSERT_TRUE(calls.finish_drop(calls.begin_drop(name).value()));
  }
  calls.create("a");
  EXPECT_EQ(calls.names(), std::set<std::string>{"a"});
}

TEST(Catalogue, ADropIsGoneOnWithByWhoeverWants) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Member other = cluster.join();
  Calls calls{member};
  Calls others{other};
  calls.create("a");
  const IndexRecord record = calls.begin_drop("a").value();
  EXPECT_EQ(code(calls.begin_drop("a")), ErrorCode::kNotFound);  // it is under way
  EXPECT_EQ(code(others.begin_drop("a")), ErrorCode::kNotFound);
  {
    Operation op(*member.session);
    ASSERT_TRUE(member.run(member.node->catalogue().pause_drop(op, record)));
  }
  EXPECT_EQ(code(calls.open("a")), ErrorCode::kNotFound);
  EXPECT_EQ(others.begin_drop("a").value().index_id, record.index_id);
  EXPECT_EQ(code(calls.begin_drop("a")), ErrorCode::kNotFound);
}

TEST(Catalogue, ADeadHoldersLockIsTakenOver) {
  constexpr fabric::Address kLock = tables_field(offsetof(PoolTables, catalogue_lock_word));
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  const auto word_of = [](const Member& who) {
    return (std::uint64_t{who.node->membership().self()} << 32) | 1;
  };
  std::uint64_t holder = 0;
  {
    Member other = cluster.join();
    holder = word_of(other);
    write_bytes(member, kLock, &holder, 8);
    Member hurried = cluster.join({.deadline = milliseconds(20)});
    EXPECT_EQ(code(Calls{hurried}.begin_create("a")), ErrorCode::kTimeout);  // alive: wait
  }
  Calls{member}.create("a");
  EXPECT_EQ(read_word(member, kLock), 0u);

  // One's own, which could not be given back: the housekeeper sees to it.
  holder = word_of(member);
  write_bytes(member, kLock, &holder, 8);
  member.node->abandoned_locks().add(kLock, holder);
  {
    Operation op(*member.session);
    EXPECT_TRUE(member.run(member.node->abandoned_locks().take_back(op)));
  }
  EXPECT_EQ(read_word(member, kLock), 0u);
  Calls{member}.create("b");
}

TEST(Catalogue, Full) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join(kHasty);
  Calls calls{member};
  for (std::size_t i = 0; i + 1 < kMaxIndexes; ++i) calls.create("index " + std::to_string(i));
  {
    Member other = cluster.join();
    ASSERT_TRUE(Calls{other}.begin_create("the last"));
    EXPECT_EQ(code(calls.begin_create("more")), ErrorCode::kOutOfMemory);
  }
  const auto start = std::chrono::steady_clock::now();
  for (;;) {  // the last one's maker is dead: its entry can be had in time
    const auto created = calls.begin_create("more");
    if (created) break;
    ASSERT_EQ(code(created), ErrorCode::kOutOfMemory);
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

TEST(Catalogue, Names) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Calls calls{member};
  for (const std::string& name : {std::string("x"), std::string(128, 'n'),
                                  std::string("Gr\u00fc\u00dfe \u4e16\u754c \U0001f332"),
                                  std::string("with spaces/and:signs")}) {
    calls.create(name);
    EXPECT_EQ(calls.open(name).value().name, name);
  }
  for (const std::string& name :
       {std::string(), std::string(129, 'n'), std::string("a\0b", 3), std::string("line\n"),
        std::string("del\x7f"), std::string("\xff"), std::string("\xc3"),
        std::string("\xed\xa0\x80"), std::string("\xc0\x80"), std::string("\xf4\x90\x80\x80")}) {
    EXPECT_EQ(code(calls.begin_create(name)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(calls.open(name)), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(calls.begin_drop(name)), ErrorCode::kInvalidArgument);
  }
}

TEST(Catalogue, DamagedEntriesAreReported) {
  Cluster cluster(4 * kMiB);
  Member member = cluster.join();
  Calls calls{member};
  const IndexRecord record = calls.create("damaged");
  calls.create("good");
  const char other = 'D';
  write_bytes(member, catalogue_address(record.entry) + offsetof(CatalogueEntry, name), &other, 1);
  EXPECT_EQ(code(calls.open("damaged")), ErrorCode::kCorrupt);
  EXPECT_TRUE(calls.open("good"));
}

TEST(Catalogue, CreatesOfOneNameOnManyThreadsMakeOne) {
  Cluster cluster(4 * kMiB);
  std::atomic<int> created{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Member member = cluster.join();
      Calls calls{member};
      for (int i = 0; i < 10; ++i) {
        const auto record = calls.begin_create("index " + std::to_string(i));
        if (!record) {
          EXPECT_EQ(code(record), ErrorCode::kExists);
          continue;
        }
        EXPECT_TRUE(calls.publish(*record));
        ++created;
      }
      EXPECT_TRUE(member.close());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(created, 10);
}

// ---- Unknown outcomes ----

// The catalogue is on node 0, whose link is cut at the verb that matters.
class Unheard : public ::testing::Test {
 protected:
  // Node 0 does what it is told, and its answers are lost.
  template <class Call>
  auto with_answers_lost(Call call) {
    faults_->cut(0, pando::testing::Fate::kHappensUnheard);
    auto result = call();
    faults_->mend(0);
    return result;
  }
  void keep_house() {
    Operation op(*first_.session);
    ASSERT_TRUE(first_.run(first_.node->abandoned_locks().take_back(op)));
    ASSERT_TRUE(first_.run(first_.node->catalogue().tidy(op)));
  }

  // The first one's link breaks when the drop is marked in the catalogue.
  void begin_to_drop(std::string_view name, pando::testing::Fate fate) {
    faults_->hold_one_up_at(5);  // lock, four READs, the maker's WRITE, state
    std::thread trying(
        [&] { EXPECT_EQ(code(Calls{first_}.begin_drop(name)), ErrorCode::kIndeterminate); });
    ASSERT_TRUE(faults_->wait_until_held_up(milliseconds(5000)));
    faults_->cut(0, fate);
    faults_->go_on();
    trying.join();
    faults_->mend(0);
  }

  Cluster cluster_{4 * kMiB};
  std::shared_ptr<pando::testing::Faults> faults_ = std::make_shared<pando::testing::Faults>();
  Member first_ = [this] {
    Member member(pando::testing::with_faults(cluster_.attach(), faults_), {});
    EXPECT_TRUE(member.open());
    return member;
  }();
  Member second_ = cluster_.join();
};

TEST_F(Unheard, ACreationThatIsAbandonedFreesTheName) {
  Calls first{first_};
  Calls second{second_};
  const IndexRecord record = first.begin_create("a").value();
  EXPECT_FALSE(with_answers_lost([&] { return first.abandon(record); }));
  keep_house();
  EXPECT_TRUE(second.begin_create("a")) << "though its first maker lives";
}

TEST_F(Unheard, ACloseDoesNotLeaveAUserBehind) {
  Calls first{first_};
  Calls second{second_};
  first.create("a");
  const IndexRecord record = first.open("a").value();
  faults_->cut(0, pando::testing::Fate::kNever);
  EXPECT_FALSE(first.close(record));
  faults_->mend(0);
  EXPECT_FALSE(second.begin_drop("a"));
  keep_house();
  EXPECT_TRUE(second.begin_drop("a"));
}

TEST_F(Unheard, ADropThatIsTriedAgainWaitsUntilTheFirstIsTakenBack) {
  Calls first{first_};
  Calls second{second_};
  first.create("a");
  begin_to_drop("a", pando::testing::Fate::kHappensUnheard);
  // The housekeeper was kicked, and is about to send its swap.
  faults_->hold_one_up_at(0);
  std::atomic<bool> dropped{false};
  std::thread housekeeper([&] {
    task::Worker own;
    auto session = first_.node->make_session(own).value();
    // Again and again: it does not wait while another has the catalogue's lock.
    do {
      Operation op(*session);
      (void)own.run(first_.node->abandoned_locks().take_back(op));
      (void)own.run(first_.node->catalogue().tidy(op));
    } while (!dropped);
  });
  ASSERT_TRUE(faults_->wait_until_held_up(milliseconds(5000)));
  std::thread again([&] {
    EXPECT_TRUE(first.begin_drop("a"));
    dropped = true;
  });
  std::this_thread::sleep_for(milliseconds(20));  // it waits
  faults_->go_on();
  again.join();
  housekeeper.join();
  EXPECT_EQ(code(second.open("a")), ErrorCode::kNotFound) << "its blocks are being freed";
  EXPECT_FALSE(first_.node->abandoned_locks().any());
  keep_house();
}

// Both use the same word for it.
TEST_F(Unheard, ADropThatMayHaveBegunDoesNotUndoAnothers) {
  Calls first{first_};
  Calls second{second_};
  first.create("a");
  begin_to_drop("a", pando::testing::Fate::kNever);
  {
    Operation op(*first_.session);  // the catalogue's lock
    ASSERT_TRUE(first_.run(first_.node->abandoned_locks().take_back(op)));
  }
  const IndexRecord record = second.begin_drop("a").value();
  keep_house();
  EXPECT_EQ(code(first.open("a")), ErrorCode::kNotFound) << "its blocks are being freed";
  EXPECT_TRUE(second.finish_drop(record));
}

TEST_F(Unheard, ADropThatIsGoneOnWithDoesNotBlockTheName) {
  Calls second{second_};
  const IndexRecord record = second.create("a");
  ASSERT_TRUE(second.begin_drop("a"));
  {
    Operation op(*second_.session);
    ASSERT_TRUE(second_.run(second_.node->catalogue().pause_drop(op, record)));
  }
  begin_to_drop("a", pando::testing::Fate::kHappensUnheard);
  keep_house();
  EXPECT_TRUE(second.begin_drop("a")) << "nobody drops it";
}

}  // namespace
}  // namespace pando::pool
