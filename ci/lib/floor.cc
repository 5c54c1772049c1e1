// Three collectives among the ranks of one host, through memory that they share. The bench compares
// the extension with these loops to show what is left to gain. ci/bench builds this file, and
// torch_ucc.bench.libraries.floor calls it. It shares no code with the extension.
//
// A collective takes one round for each chunk of its data. In a round, a rank writes its chunk into a
// slot and then publishes the round number; the other ranks wait for that number and read the slot.
// No rank waits for the end of a round, since each rank has four slots, which it uses in turn.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace {

constexpr std::uint64_t kSlots = 4;          // of a rank
constexpr std::size_t kFloats = 16 << 10;    // of a chunk
constexpr std::size_t kFewFloats = 2 << 10;  // each rank adds up so many itself; of more, one part
constexpr std::size_t kPage = 4096;

// The first numbers are in the cache line of `step`, so that a small message costs one cache miss.
struct alignas(kPage) Slot {
  std::atomic<std::uint64_t> step;  // 2 * round: written; 2 * round + 1: this rank's part is added up
  alignas(32) float numbers[kFloats];
};

// One in each rank's process.
struct Place {
  int rank = 0;
  int size = 0;
  bool crowded = false;  // more processes than cores: a rank that waits yields its core
  Slot* slots = nullptr;
  std::uint64_t round = 0;  // the last one that this rank has begun
} here;

Slot& slot(int rank, std::uint64_t round) { return here.slots[static_cast<std::uint64_t>(rank) * kSlots + round % kSlots]; }

void publish(std::uint64_t round, std::uint64_t phase = 0) {
  slot(here.rank, round).step.store(2 * round + phase, std::memory_order_release);
}

void wait_for(int rank, std::uint64_t round, std::uint64_t phase = 0) {
  const auto& step = slot(rank, round).step;
  // After so many looks, the rank that is waited for probably has no core.
  constexpr int kLooks = 10000;
  for (int looks = 0; step.load(std::memory_order_acquire) < 2 * round + phase; ++looks) {
    if (here.crowded || looks > kLooks) {
      sched_yield();
    }
  }
}

void wait_for_all(std::uint64_t round) {
  for (int rank = 0; rank < here.size; ++rank) {
    wait_for(rank, round);
  }
}

std::size_t begin_of_part(int rank, std::size_t count) {
  return count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(here.size);
}

void copy(float* to, const float* from, std::size_t begin, std::size_t end) {
  std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
}

// A rank may write one chunk ahead of the one that it reads. A rank that has published round R - 2 has
// therefore read all slots of round R - 4, and these are the ones that round R uses again.
void wait_for_slot(std::uint64_t round) {
  if (round > 2) {
    wait_for_all(round - 2);
  }
}

void put(std::uint64_t round, const float* data, std::size_t count, bool by_parts) {
  wait_for_slot(round);
  float* slot_numbers = slot(here.rank, round).numbers;
  copy(slot_numbers, data, 0, by_parts ? begin_of_part(here.rank, count) : count);
  if (by_parts) {  // nobody else adds up this rank's part
    copy(slot_numbers, data, begin_of_part(here.rank + 1, count), count);
  }
  publish(round);
}

void add(float* sums, const float* more, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    sums[i] += more[i];
  }
}

// Each rank adds up all numbers, in the order of the ranks, so that all have the same sums.
void add_up(std::uint64_t round, std::size_t count, float* sums) {
  wait_for_all(round);
  copy(sums, slot(0, round).numbers, 0, count);
  for (int rank = 1; rank < here.size; ++rank) {
    add(sums, slot(rank, round).numbers, 0, count);
  }
}

// Each rank adds up one part of the chunk, publishes the sums in its slot, and copies the other parts
// from the slots of the other ranks.
void add_up_by_parts(std::uint64_t round, std::size_t count, float* sums) {
  const std::size_t begin = begin_of_part(here.rank, count);
  const std::size_t end = begin_of_part(here.rank + 1, count);
  for (int step = 1; step < here.size; ++step) {
    const int rank = (here.rank + step) % here.size;
    wait_for(rank, round);
    add(sums, slot(rank, round).numbers, begin, end);
  }
  copy(slot(here.rank, round).numbers, sums, begin, end);
  publish(round, 1);
  for (int step = 1; step < here.size; ++step) {
    const int rank = (here.rank + step) % here.size;
    wait_for(rank, round, 1);
    copy(sums, slot(rank, round).numbers, begin_of_part(rank, count), begin_of_part(rank + 1, count));
  }
}

void all_reduce(float* data, std::size_t count) {
  const bool by_parts = count > kFewFloats;
  const auto put_chunk = [&](std::uint64_t round, std::size_t first) {
    put(round, data + first, std::min(kFloats, count - first), by_parts);
  };
  put_chunk(here.round + 1, 0);
  for (std::size_t first = 0; first < count; first += kFloats) {
    const std::uint64_t round = ++here.round;
    if (first + kFloats < count) {  // the others need not wait for it while this rank adds up
      put_chunk(round + 1, first + kFloats);
    }
    const auto sum = by_parts ? add_up_by_parts : add_up;
    sum(round, std::min(kFloats, count - first), data + first);
  }
}

// From rank 0.
void broadcast(float* data, std::size_t count) {
  for (std::size_t first = 0; first < count; first += kFloats) {
    const std::uint64_t round = ++here.round;
    const std::size_t length = std::min(kFloats, count - first);
    if (here.rank == 0) {
      put(round, data + first, length, false);
    } else {
      wait_for(0, round);
      std::memcpy(data + first, slot(0, round).numbers, length * sizeof(float));
      publish(round);
    }
  }
}

void barrier(float* /*data*/, std::size_t /*count*/) {
  publish(++here.round);
  wait_for_all(here.round);
}

double repeat(void (*call)(float*, std::size_t), float* data, std::size_t count, int times) {
  timespec start{};
  timespec end{};
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int turn = 0; turn < times; ++turn) {
    call(data, count);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
}

}  // namespace

extern "C" {

// The size of the memory that so many ranks share.
std::uint64_t floor_bytes(int size) { return static_cast<std::uint64_t>(size) * kSlots * sizeof(Slot); }

// `memory` is shared by all ranks and starts at a page. It has floor_bytes(), all zeros until the first
// rank makes a collective. No rank may make one before every rank has mapped it.
void floor_open(int rank, int size, int crowded, void* memory) {
  here = {rank, size, crowded != 0, static_cast<Slot*>(memory), 0};
}

// Each function makes its collective so many times, on numbers of float32, and returns the seconds.
double floor_all_reduce(float* data, std::uint64_t count, int times) { return repeat(all_reduce, data, count, times); }
double floor_broadcast(float* data, std::uint64_t count, int times) { return repeat(broadcast, data, count, times); }
double floor_barrier(float* data, std::uint64_t count, int times) { return repeat(barrier, data, count, times); }

}  // extern "C"
