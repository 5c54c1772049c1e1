// What the other ranks of a group do after one rank has stopped.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "shm/protocol_search.h"

namespace torch_ucc::shm {

class Survivors {
 public:
  // All ranks of `world` are real.
  Survivors(LoopToken& token, World& world, std::size_t stopped) : token_(token), world_(world), stopped_(stopped) {}

  // Lets all survivors go on until none of them can advance.
  void go_on() {
    for (bool advanced = true; advanced;) {
      advanced = false;
      for (std::size_t rank = 0; rank < world_.size(); ++rank) {
        advanced = (rank != stopped_ && world_.rank(rank).advance(token_)) || advanced;
      }
    }
  }

  // How many survivors wait.
  std::size_t waiting() const {
    std::size_t count = 0;
    for (std::size_t rank = 0; rank < world_.size(); ++rank) {
      count += rank != stopped_ && world_.rank(rank).goes_on() ? 1 : 0;
    }
    return count;
  }

  // By rank: how many calls have ended well.
  std::vector<std::size_t> done() const {
    std::vector<std::size_t> all;
    for (std::size_t rank = 0; rank < world_.size(); ++rank) {
      all.push_back(rank == stopped_ ? 0 : world_.rank(rank).done());
    }
    return all;
  }

  // The end of the stopped rank is reported, as by the watch: each survivor that waits for
  // something that this rank has never given gives its operation up. Afterwards none may wait.
  void learn_of_the_end() {
    go_on();
    while (waiting() != 0) {
      std::size_t gave_up = 0;
      for (std::size_t rank = 0; rank < world_.size(); ++rank) {
        if (rank != stopped_ && world_.real(rank).misses(stopped_)) {
          world_.real(rank).give_up(token_);
          ++gave_up;
        }
      }
      const std::size_t before = waiting();
      go_on();
      ASSERT_TRUE(gave_up != 0 || waiting() < before) << "survivors wait for nobody that has ended";
    }
  }

  // Checks what each survivor has now: right results of what ended well, errors that name a rank
  // that has stopped or failed, and memory that is the caller's own again.
  void expect_order() const {
    for (std::size_t rank = 0; rank < world_.size(); ++rank) {
      if (rank == stopped_) {
        continue;
      }
      EXPECT_TRUE(world_.rank(rank).has_right_results()) << "rank " << rank;
      EXPECT_TRUE(world_.real(rank).left_memory_alone()) << "rank " << rank;
      const Status& error = world_.rank(rank).error();
      if (error.ok() || error.code() == StatusCode::peer_gone) {
        continue;
      }
      EXPECT_EQ(error.code(), StatusCode::transport) << error.message();
      ASSERT_EQ(error.message().rfind("rank ", 0), 0U) << error.message();
      const std::size_t named = std::strtoul(error.message().c_str() + 5, nullptr, 10);
      ASSERT_LT(named, world_.size()) << error.message();
      EXPECT_TRUE(named == stopped_ || (named != rank && !world_.rank(named).error().ok())) << error.message();
    }
  }

 private:
  LoopToken& token_;
  World& world_;
  const std::size_t stopped_;
};

}  // namespace torch_ucc::shm
