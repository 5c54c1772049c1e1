// Threads that play the ranks of a job over one fake store.
#pragma once

#include <thread>
#include <vector>

#include "fakes/fake_kv_store.h"

namespace torch_ucc {

struct FakeJob {
  explicit FakeJob(int size) {
    stores.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      stores.emplace_back(server);
    }
  }
  FakeJob(const FakeJob&) = delete;
  FakeJob& operator=(const FakeJob&) = delete;

  FakeKvServer server;
  std::vector<FakeKvStore> stores;  // by rank

  int size() const { return static_cast<int>(stores.size()); }
  FakeKvStore& store(int rank) { return stores.at(static_cast<std::size_t>(rank)); }

  // Runs `body(rank, store)` in one thread for each of `ranks`, and waits for all.
  template <typename Body>
  void run(const std::vector<int>& ranks, Body body) {
    std::vector<std::thread> threads;
    threads.reserve(ranks.size());
    for (const int rank : ranks) {
      threads.emplace_back([this, &body, rank] { body(rank, store(rank)); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
  }
  template <typename Body>
  void run(Body body) {
    std::vector<int> all(stores.size());
    for (int rank = 0; rank < size(); ++rank) {
      all[static_cast<std::size_t>(rank)] = rank;
    }
    run(all, std::move(body));
  }
};

}  // namespace torch_ucc
