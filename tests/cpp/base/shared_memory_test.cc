#include "base/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace torch_ucc {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = 4 * kPage;

char* bytes_of(const SharedMemory& memory) { return static_cast<char*>(memory.data()); }

std::optional<SharedMemory> read(const SharedMemory& memory) {
  return SharedMemory::of_peer(memory.address(), kBytes, kBytes, SharedMemory::Access::read);
}

// The parts of an address
struct Address {
  unsigned long long space = 0;
  int pid = 0;
  int file = 0;
  unsigned long long key = 0;

  explicit Address(const std::string& text) {
    EXPECT_EQ(std::sscanf(text.c_str(), "%llu:%d:%d:%llu", &space, &pid, &file, &key), 4);
  }
  std::string text() const {
    return std::to_string(space) + ":" + std::to_string(pid) + ":" + std::to_string(file) + ":" + std::to_string(key);
  }
};

// Runs `body` in a process of its own, and returns the number that it returns. Returns -1 if the
// process was killed.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedMemory, BeginsAsZeros) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const std::string zeros(kBytes - SharedMemory::kKeyBytes, '\0');
  EXPECT_EQ(std::string(bytes_of(memory) + SharedMemory::kKeyBytes, zeros.size()), zeros);
}

TEST(SharedMemory, IsReadByAnotherProcess) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const std::string address = memory.address();
  std::memcpy(bytes_of(memory) + kPage, "hello", 6);
  EXPECT_EQ(in_child([&] {
              const auto peer = SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::read);
              return peer && std::strcmp(bytes_of(*peer) + kPage, "hello") == 0 ? 7 : 0;
            }),
            7);
  // A peer that may write
  EXPECT_EQ(in_child([&] {
              const auto peer = SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::write);
              if (peer) {
                bytes_of(*peer)[kBytes - 1] = 'x';
              }
              return 0;
            }),
            0);
  EXPECT_EQ(bytes_of(memory)[kBytes - 1], 'x');
}

TEST(SharedMemory, IsReadOnlyForAPeerThatReads) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const auto peer = read(memory);
  ASSERT_TRUE(peer);
  EXPECT_DEATH(bytes_of(*peer)[kPage] = 1, "");
  EXPECT_EQ(bytes_of(memory)[kPage], 0);
}

TEST(SharedMemory, RefusesAddressesThatAreGarbage) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const std::string good = memory.address();
  ASSERT_TRUE(read(memory));
  std::vector<std::string> bad{"",
                               "nonsense",
                               "1:2:3",
                               "::::",
                               "-1:-1:-1:-1",
                               good.substr(0, good.size() / 2),
                               "9" + good,
                               "99999999999999999999999999:99999999999999:99999999999:99999999999999999999999999",
                               std::string(100000, '1'),
                               std::string("\0\xff\x80", 3)};
  for (int change = 0; change < 6; ++change) {
    Address address(good);
    switch (change) {
      case 0:
        ++address.space;
        break;
      case 1:
        address.pid = 0x3fffffff;
        break;
      case 2:
        address.file = 1000000;
        break;
      case 3:
        address.file = -1;
        break;
      case 4:
        ++address.key;
        break;
      default:
        address.pid = -address.pid;
    }
    bad.push_back(address.text());
  }
  for (const std::string& address : bad) {
    EXPECT_FALSE(SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::read)) << address.substr(0, 200);
    EXPECT_FALSE(SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::write)) << address.substr(0, 200);
  }
}

TEST(SharedMemory, RefusesMemoryOfAnotherSize) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  for (const std::size_t bytes : {std::size_t{0}, kPage, kBytes - 1, kBytes + 1, 2 * kBytes}) {
    EXPECT_FALSE(SharedMemory::of_peer(memory.address(), bytes, kPage, SharedMemory::Access::read)) << bytes;
  }
}

// Another process may have closed the file, and opened something else in its place.
TEST(SharedMemory, RefusesFilesThatAreNoMemoryOfThisKind) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file), kBytes), 0);
  const int growing = ::memfd_create("growing", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(growing, kBytes), 0);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const SharedMemory memory("torch_ucc_test", kBytes);
  for (const int other : {::fileno(file), growing, pipe[1]}) {
    Address address(memory.address());
    address.file = other;
    address.key = 0;  // as an empty file has
    EXPECT_FALSE(SharedMemory::of_peer(address.text(), kBytes, kBytes, SharedMemory::Access::read)) << other;
  }
  // Who opens a pipe without a writer waits for one, unless told not to.
  ::close(pipe[1]);
  Address address(memory.address());
  address.file = pipe[0];
  EXPECT_FALSE(SharedMemory::of_peer(address.text(), kBytes, kBytes, SharedMemory::Access::read));
  std::fclose(file);
  ::close(growing);
  ::close(pipe[0]);
}

TEST(SharedMemory, IsNotFoundOnceItsProcessHasEnded) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(in_child([&] {
              const SharedMemory memory("torch_ucc_test", kBytes);
              const std::string address = memory.address();
              return ::write(ends[1], address.data(), address.size()) > 0 ? 0 : 1;
            }),
            0);
  char address[200] = {};
  ASSERT_GT(::read(ends[0], address, sizeof(address) - 1), 0);
  EXPECT_FALSE(SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::read));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(SharedMemory, StaysWithAPeerThatHasMappedIt) {
  auto memory = std::make_unique<const SharedMemory>("torch_ucc_test", kBytes);
  const auto peer = read(*memory);
  ASSERT_TRUE(peer);
  bytes_of(*memory)[kPage] = 5;
  memory.reset();
  EXPECT_EQ(bytes_of(*peer)[kPage], 5);
}

// So an access to the mapping cannot fail.
TEST(SharedMemory, CannotBeMadeShorter) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const int file = Address(memory.address()).file;
  EXPECT_NE(::ftruncate(file, 0), 0);
  EXPECT_NE(::ftruncate(file, 2 * kBytes), 0);
  EXPECT_EQ(bytes_of(memory)[kBytes - 1], 0);
}

TEST(SharedMemory, MovesWithItsAddress) {
  SharedMemory first("torch_ucc_test", kBytes);
  const std::string address = first.address();
  void* const data = first.data();
  const SharedMemory second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.address(), address);
  EXPECT_TRUE(read(second));
}

TEST(SharedMemory, HasNoAddressAtAPeer) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const auto peer = read(memory);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->address(), "");
}

bool is_mapped(const void* page) {
  unsigned char resident = 0;
  return ::mincore(const_cast<void*>(page), kPage, &resident) == 0;
}

TEST(SharedMemory, IsMappedOnlyAsFarAsAskedFor) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  bytes_of(memory)[kPage] = 3;
  const auto peer = SharedMemory::of_peer(memory.address(), kBytes, 2 * kPage, SharedMemory::Access::read);
  ASSERT_TRUE(peer);
  EXPECT_EQ(bytes_of(*peer)[kPage], 3);
}

// The flags that the kernel shows for the mapping that begins at `data`
std::string flags_of(const void* data) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(data) << "-";
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found = found || line.rfind(begin.str(), 0) == 0;
    if (found && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}

TEST(SharedMemory, IsNotWrittenToCoreDumps) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const auto peer = read(memory);
  ASSERT_TRUE(peer);
  EXPECT_NE(flags_of(memory.data()).find(" dd "), std::string::npos) << flags_of(memory.data());
  EXPECT_NE(flags_of(peer->data()).find(" dd "), std::string::npos);
}

TEST(SharedMemory, UnmapsItsEnd) {
  SharedMemory memory("torch_ucc_test", kBytes);
  const char* const data = bytes_of(memory);
  bytes_of(memory)[kPage] = 3;
  memory.trim(kBytes);
  memory.trim(2 * kBytes);  // it never grows
  EXPECT_TRUE(is_mapped(data + 3 * kPage));
  memory.trim(2 * kPage);
  EXPECT_TRUE(is_mapped(data + kPage));
  EXPECT_FALSE(is_mapped(data + 2 * kPage));
  EXPECT_FALSE(is_mapped(data + 3 * kPage));
  EXPECT_EQ(data[kPage], 3);
  EXPECT_TRUE(read(memory)) << "the memory itself keeps its size";
}

TEST(SharedMemory, IsKeptByThoseThatOpenedItBeforeItsFileIsClosed) {
  SharedMemory memory("torch_ucc_test", kBytes);
  char* const data = static_cast<char*>(memory.data());
  data[kPage] = 1;
  const std::string address = memory.address();
  const auto before = SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::read);
  ASSERT_TRUE(before);
  memory.close_file();
  memory.close_file();
  EXPECT_EQ(memory.address(), "");
  EXPECT_FALSE(SharedMemory::of_peer(address, kBytes, kBytes, SharedMemory::Access::read));
  const char* const seen = static_cast<const char*>(before->data());
  EXPECT_EQ(seen[kPage], 1);
  data[kPage] = 2;
  EXPECT_EQ(seen[kPage], 2);
  memory.discard(kPage, kPage);
  EXPECT_EQ(seen[kPage], 0);
}

TEST(SharedMemory, DiscardedPagesReadAsZeroInAllProcesses) {
  const SharedMemory memory("torch_ucc_test", kBytes);
  const auto peer = read(memory);
  ASSERT_TRUE(peer);
  std::memset(bytes_of(memory) + kPage, 1, 3 * kPage);
  struct stat before {};
  struct stat after {};
  const int file = Address(memory.address()).file;
  ASSERT_EQ(::fstat(file, &before), 0);
  memory.discard(kPage, 2 * kPage);
  ASSERT_EQ(::fstat(file, &after), 0);
  EXPECT_EQ(before.st_blocks - after.st_blocks, static_cast<blkcnt_t>(2 * kPage / 512)) << "the kernel has the memory back";
  EXPECT_EQ(before.st_size, after.st_size);
  for (const char* const data : {bytes_of(memory), bytes_of(*peer)}) {
    EXPECT_EQ(data[kPage], 0);
    EXPECT_EQ(data[3 * kPage - 1], 0);
    EXPECT_EQ(data[3 * kPage], 1);
  }
  EXPECT_EQ(in_child([&] { return bytes_of(*peer)[kPage] == 0 && bytes_of(*peer)[3 * kPage] == 1 ? 7 : 0; }), 7);
  EXPECT_TRUE(read(memory)) << "the key is still there";
  bytes_of(memory)[kPage] = 2;
  EXPECT_EQ(bytes_of(*peer)[kPage], 2);
}

// A file may not become longer than RLIMIT_FSIZE; the kernel would kill a process that tries.
TEST(SharedMemory, OnlyServesItsOwnProcessWhereFilesMustBeShort) {
  EXPECT_EQ(in_child([] {
              const rlimit limit{kPage, kPage};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              const SharedMemory memory("torch_ucc_test", kBytes);
              const SharedMemory fits("torch_ucc_test", kPage);
              bytes_of(memory)[kBytes - 1] = 9;
              memory.discard(3 * kPage, kPage);
              return memory.address().empty() && !fits.address().empty() && bytes_of(memory)[kBytes - 1] == 0 ? 7 : 1;
            }),
            7);
}

}  // namespace
}  // namespace torch_ucc
