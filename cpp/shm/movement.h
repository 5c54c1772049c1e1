// What one collective moves and reduces, seen from one rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/part.h"
#include "shm/kernels.h"

namespace torch_ucc::shm {

// The memory of the caller on one side of a collective: one part for all ranks, or one for each.
class Parts {
 public:
  Parts() = default;
  explicit Parts(Part only) : only_(only), has_one_(true) {}
  explicit Parts(std::vector<Part> all) : all_(std::move(all)) {}

  bool empty() const { return !has_one_ && all_.empty(); }
  std::span<Part> all() { return has_one_ ? std::span<Part>(&only_, 1) : std::span<Part>(all_); }
  std::span<const Part> all() const { return has_one_ ? std::span<const Part>(&only_, 1) : std::span<const Part>(all_); }
  const Part& only() const { return only_; }
  const Part& of(std::size_t rank) const { return all_[rank]; }
  // Of all parts together.
  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const Part& part : all()) {
      bytes += part.bytes;
    }
    return bytes;
  }
  // Copies what the parts hold, and lets them name the copy, which is returned.
  std::unique_ptr<char[]> replace_by_copy();

 private:
  Part only_;
  bool has_one_ = false;
  std::vector<Part> all_;
};

struct Movement {
  // What the sources and destinations hold:
  //                  sources                    destinations
  //  barrier         nothing                    nothing
  //  broadcast       root: one                  others: one
  //  all_gather      one                        one of each rank
  //  gather          one                        root: one of each rank
  //  scatter         root: one for each rank    one
  //  all_to_all      one for each rank          one of each rank
  //  all_reduce      one                        one
  //  reduce          one                        root: one
  //  reduce_scatter  one for each rank          one
  enum class Kind : std::uint8_t {
    barrier,
    broadcast,
    all_gather,
    gather,
    scatter,
    all_to_all,
    all_reduce,
    reduce,
    reduce_scatter,
  };

  // A destination is apart from all sources, or it is the memory of the source that this rank gives
  // to itself, or of the only source.
  Kind kind = Kind::barrier;
  std::size_t root = 0;
  DataType type = DataType::uint8;  // of a reduction, like `op`
  ReduceOp op = ReduceOp::sum;
  Parts sources{};
  Parts destinations{};
  // Whether that memory belongs to the operation. Memory of the caller is used within the lease only.
  bool owns_sources = false;
  bool owns_destinations = false;
  // The collective that this one is a part of, on one of several hosts, and the bytes that it has of
  // one rank
  struct Whole {
    Kind kind = Kind::barrier;
    std::uint64_t bytes = 0;
  };
  std::optional<Whole> part_of{};

  // Whether each rank reads from all others in each step.
  bool is_mutual() const {
    return kind == Kind::barrier || kind == Kind::all_gather || kind == Kind::all_to_all || kind == Kind::all_reduce ||
           kind == Kind::reduce_scatter;
  }
  bool reduces() const { return kind >= Kind::all_reduce; }
  std::uint64_t bytes_given() const { return sources.bytes(); }
  // The properties that must be equal on all ranks, in one number.
  std::uint64_t call() const {
    return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(op) << 8U | static_cast<std::uint64_t>(type) << 16U |
           (part_of ? static_cast<std::uint64_t>(part_of->kind) + 1 : 0) << 24U | shape() << 32U;
  }

 private:
  // The root, or 32 bits of a digest: of the sizes of the sources in a reduce_scatter, and in a part of a
  // collective also of the root and the size of the whole.
  std::uint64_t shape() const {
    if (kind != Kind::reduce_scatter && !part_of) {
      return root;
    }
    std::uint64_t digest = 0xcbf29ce484222325;
    const auto add = [&](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3; };
    if (part_of) {
      add(root);
      add(part_of->bytes);
    }
    for (const Part& part : kind == Kind::reduce_scatter ? sources.all() : std::span<const Part>()) {
      add(part.bytes);
    }
    return digest >> 32U;
  }
};

// Describes what a rank said with Movement::call() and Movement::bytes_given(), for errors.
std::string describe_call(std::uint64_t call, std::uint64_t bytes);

}  // namespace torch_ucc::shm
