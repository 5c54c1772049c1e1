// How the copies of an operation that goes in pieces are cut: into slices of one or several pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "ops/prepared.h"

namespace torch_ucc {

// A tensor holds the parts of one or several ranks, and a slice has a share of each part.
struct Slices {
  std::size_t number;
  std::size_t part;    // bytes
  std::size_t share;   // bytes that a slice has of each part; the last slice may have fewer
  std::size_t pieces;  // in a slice; the last slice may have fewer
  std::size_t last;    // the last piece

  // `parts`: how many parts all tensors have together. A slice takes one copy of each part, and all
  // slices together take at most `most` copies. Returns nothing if this leaves one slice.
  static std::optional<Slices> of(const Pieces& pieces, std::size_t parts, std::size_t most) {
    const std::size_t wanted = parts == 0 ? 0 : std::min(pieces.number(), most / parts);
    if (wanted < 2) {
      return std::nullopt;
    }
    const std::size_t each = (pieces.number() + wanted - 1) / wanted;
    return Slices{(pieces.number() + each - 1) / each, pieces.total * pieces.element_size, pieces.offset_of(each), each,
                  pieces.number() - 1};
  }

  // The slice that a piece belongs to, and whether the piece is the last one of its slice.
  std::size_t of_piece(std::size_t piece) const { return piece / pieces; }
  bool end_with(std::size_t piece) const { return (piece + 1) % pieces == 0 || piece == last; }
  // Where in each part a slice begins, and how many bytes of the part it has.
  std::size_t offset_of(std::size_t slice) const { return slice * share; }
  std::size_t bytes_of(std::size_t slice) const { return std::min(share, part - offset_of(slice)); }
};

}  // namespace torch_ucc
