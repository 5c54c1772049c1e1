// Collectives with data in which every byte can be told apart, and what each rank must have in the
// end. Reductions add bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shm/movement.h"

namespace torch_ucc::shm {

using Bytes = std::vector<std::uint8_t>;

struct Call {
  using Kind = Movement::Kind;

  Kind kind = Kind::barrier;
  std::size_t bytes = 0;  // of the longest part
  std::size_t root = 0;   // 0 where there is none
  bool uneven = false;    // parts have different sizes, and some are empty

  bool lists_sources() const { return kind == Kind::scatter || kind == Kind::all_to_all || kind == Kind::reduce_scatter; }
  bool lists_destinations() const { return kind == Kind::gather || kind == Kind::all_gather || kind == Kind::all_to_all; }
  bool reduces() const { return kind >= Kind::all_reduce; }

  // How much `from` gives to `to`. `to` is 0 where `from` gives the same to all ranks.
  std::size_t bytes_of(std::size_t from, std::size_t to) const {
    const std::size_t which = kind == Kind::reduce_scatter ? to : from + 2 * to;
    if (!uneven || which % 3 == 0) {
      return bytes;
    }
    return which % 3 == 1 ? 0 : (bytes + 1) / 2;
  }
  Bytes given(std::size_t seed, std::size_t from, std::size_t to) const {
    Bytes data(bytes_of(from, to));
    std::uint64_t state = ((seed * 64 + from) * 64 + to) * 0x9e3779b97f4a7c15U + 1;
    for (std::uint8_t& byte : data) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      byte = static_cast<std::uint8_t>(state >> 56U);
    }
    return data;
  }
};
using Program = std::vector<Call>;

// The memory of one rank for one call.
class Tensors {
 public:
  static constexpr std::uint8_t kUntouched = 0xee;

  // `seed` makes the data of a call differ from that of other calls.
  Tensors(const Call& call, std::size_t seed, std::size_t ranks, std::size_t rank) : call_(call) {
    using Kind = Movement::Kind;
    const bool is_root = rank == call.root;
    if (call.lists_sources() && (call.kind != Kind::scatter || is_root)) {
      for (std::size_t to = 0; to < ranks; ++to) {
        sources_.push_back(call.given(seed, rank, to));
      }
    } else if (!call.lists_sources() && call.kind != Kind::barrier && (call.kind != Kind::broadcast || is_root)) {
      sources_.push_back(call.given(seed, rank, 0));
    }
    if (call.lists_destinations() && (call.kind != Kind::gather || is_root)) {
      for (std::size_t from = 0; from < ranks; ++from) {
        expected_.push_back(call.given(seed, from, call.lists_sources() ? rank : 0));
      }
    } else if (call.reduces() && (call.kind != Kind::reduce || is_root)) {
      const std::size_t to = call.lists_sources() ? rank : 0;
      Bytes sum(call.bytes_of(0, to));
      for (std::size_t from = 0; from < ranks; ++from) {
        const Bytes more = call.given(seed, from, to);
        std::transform(sum.begin(), sum.end(), more.begin(), sum.begin(),
                       [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>(a + b); });
      }
      expected_.push_back(std::move(sum));
    } else if (call.kind == Kind::scatter || (call.kind == Kind::broadcast && !is_root)) {
      expected_.push_back(call.given(seed, call.root, call.kind == Kind::scatter ? rank : 0));
    }
    for (const Bytes& bytes : expected_) {
      destinations_.emplace_back(bytes.size(), kUntouched);
    }
    given_ = sources_;
  }
  Tensors(Tensors&&) = default;

  // Refers to the memory of this object.
  Movement movement() {
    Movement movement;
    movement.kind = call_.kind;
    movement.root = call_.root;
    movement.sources = parts(sources_, call_.lists_sources());
    movement.destinations = parts(destinations_, call_.lists_destinations());
    return movement;
  }

  bool are_right() const { return destinations_ == expected_ && sources_ == given_; }
  bool have_sources_as_given() const { return sources_ == given_; }
  const std::vector<Bytes>& destinations() const { return destinations_; }

  // Writes to all memory, as its owner may when an operation was given up.
  void reuse(std::uint8_t value) {
    for (std::vector<Bytes>* const all : {&sources_, &destinations_}) {
      for (Bytes& bytes : *all) {
        std::fill(bytes.begin(), bytes.end(), value);
      }
    }
  }
  bool hold_only(std::uint8_t value) const {
    const auto hold = [value](const std::vector<Bytes>& all) {
      return std::all_of(all.begin(), all.end(), [value](const Bytes& bytes) {
        return std::all_of(bytes.begin(), bytes.end(), [value](std::uint8_t byte) { return byte == value; });
      });
    };
    return hold(sources_) && hold(destinations_);
  }

 private:
  static Parts parts(std::vector<Bytes>& all, bool is_list) {
    std::vector<Part> each;
    for (Bytes& bytes : all) {
      each.push_back({bytes.data(), bytes.size()});
    }
    if (each.empty()) {
      return {};
    }
    return is_list ? Parts(std::move(each)) : Parts(each.front());
  }

  Call call_;
  std::vector<Bytes> sources_;
  std::vector<Bytes> destinations_;
  std::vector<Bytes> given_;
  std::vector<Bytes> expected_;
};

}  // namespace torch_ucc::shm
