#include "base/machine_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace pando::base {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// The files of a machine with 16 GiB, of which 8 can be had.
class MachineMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "pando-memory-XXXXXX";
    root_ = mkdtemp(pattern.data());
    write("proc/meminfo", "MemTotal:  16777216 kB\nMemFree:  1 kB\nMemAvailable:  8388608 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MachineMemory look() const { return machine_memory(root_); }

 private:
  fs::path root_;
};

TEST_F(MachineMemoryTest, IsTheMachinesWithoutLimits) {
  const MachineMemory memory = look();
  EXPECT_EQ(memory.total, 16 * kGiB);
  EXPECT_EQ(memory.available, 8 * kGiB);
  EXPECT_EQ(memory.to_string(), "this machine has 16GiB of memory");
}

TEST_F(MachineMemoryTest, IsLessInAGroupWithALimit) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
  write("sys/fs/cgroup/outer/memory.max", "4294967296\n");
  write("sys/fs/cgroup/outer/memory.current", "3221225472\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 1073741824\n");
  const MachineMemory memory = look();
  EXPECT_EQ(memory.total, 4 * kGiB);
  EXPECT_EQ(memory.available, 2 * kGiB) << "what files hold is dropped when it is needed";
  EXPECT_EQ(memory.to_string(), "processes of control group '/outer' may have 4GiB of memory");
}

TEST_F(MachineMemoryTest, IsTheLeastOfAllGroupsAbove) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "2147483648\n");
  write("sys/fs/cgroup/outer/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.max", "3221225472\n");
  EXPECT_EQ(look().total, kGiB);
  EXPECT_EQ(look().available, kGiB) << "never more than all";
}

// The path is that of the machine, the files are the container's.
TEST_F(MachineMemoryTest, IsTheContainersWithTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/docker/x\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "536870912\n");
  EXPECT_EQ(look().total, kGiB);
  EXPECT_EQ(look().available, kGiB / 2);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(look().total, 16 * kGiB);
}

TEST(MachineMemory, IsKnownHere) {
  const MachineMemory memory = machine_memory();
  EXPECT_LT(memory.total, MachineMemory::kUnknown);
  EXPECT_GT(memory.available, 0u);
  EXPECT_LE(memory.available, memory.total);
}

TEST(MachineMemory, WhereNothingIsToldNothingIsRefused) {
  const MachineMemory memory = machine_memory("/no/such/folder");
  EXPECT_TRUE(check_fits("size", std::uint64_t{1} << 60, memory));
  EXPECT_TRUE(check_available("size", std::uint64_t{1} << 60, memory));
}

TEST(MachineMemory, WhatDoesNotFitIsNamedWithWhatThereIs) {
  const MachineMemory memory{.total = 16 * kGiB, .available = 2 * kGiB, .group = {}};
  EXPECT_TRUE(check_fits("size", 16 * kGiB, memory));
  const Status never = check_fits("--size", 900 * kGiB, memory);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(never.error().detail(),
              AllOf(HasSubstr("--size: 900GiB can never fit"), HasSubstr("has 16GiB")));
  EXPECT_TRUE(check_available("size", 2 * kGiB, memory));
  const Status now = check_available("size", 3 * kGiB, memory);
  ASSERT_FALSE(now);
  EXPECT_EQ(now.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(now.error().detail(), AllOf(HasSubstr("3GiB"), HasSubstr("2GiB is available")));
}

}  // namespace
}  // namespace pando::base
