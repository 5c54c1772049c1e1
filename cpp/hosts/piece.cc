#include "hosts/piece.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shm/collective.h"
#include "ucc/coll_args.h"
#include "ucc/collective.h"

namespace torch_ucc::hosts {
namespace {

using Kind = shm::Movement::Kind;

// Shares begin at a cache line of the whole data, if its beginning does.
constexpr std::size_t kAligned = 64;
// A shorter share takes less time than its messages, so little data goes through few rows. A shorter
// slice takes less time than its steps.
constexpr std::size_t kLeastShare = std::size_t{64} << 10U;
constexpr std::size_t kLeastSlice = std::size_t{16} << 10U;

std::size_t share_of(std::size_t bytes, std::size_t rows) {
  const std::size_t even = std::max(kLeastShare, (bytes + rows - 1) / rows);
  return (even + kAligned - 1) / kAligned * kAligned;
}

Part slice(const Part& all, std::size_t begin, std::size_t bytes) {
  const std::size_t from = std::min(all.bytes, begin);
  return {static_cast<char*>(all.data) + from, std::min(bytes, all.bytes - from)};
}

// What one rank has of the data that is cut into pieces. Empty for a barrier.
const shm::Parts& data_of(const shm::Movement& movement) {
  return movement.kind == Kind::reduce_scatter || movement.sources.empty() ? movement.destinations : movement.sources;
}

// One step; Transport is shm::Collective on the board, and torch_ucc::Collective in the row.
template <typename Transport>
class Step final : public Transport {
 public:
  using Transport::Transport;
  std::string describe() const override { return "a part of a collective between hosts"; }
};

// Fills in the steps of one piece.
class Maker {
 public:
  Maker(const Levels& levels, const shm::Movement& all, const UccReduction& ucc, std::size_t begin, std::size_t unit,
        Piece& piece)
      : levels_(levels), layout_(*levels.layout), all_(all), ucc_(ucc), begin_(begin), unit_(unit), piece_(piece) {}

  void make() {
    switch (all_.kind) {
      case Kind::barrier:
        return barrier();
      case Kind::broadcast:
        return broadcast();
      case Kind::all_gather:
        return all_gather();
      case Kind::reduce_scatter:
        return reduce_scatter();
      default:
        return reduce();
    }
  }

 private:
  std::size_t hosts() const { return layout_.hosts(); }
  bool is_with_root() const { return levels_.host == layout_.host_of(all_.root); }
  bool is_root() const { return is_with_root() && levels_.place() == layout_.place_of(all_.root); }
  char* memory() const { return piece_.memory.get(); }

  // This piece of a part.
  Part of(const Part& part) const { return slice(part, begin_, unit_); }
  // The shares of this piece of a part, by place on the host: one for each row, and nothing for other
  // ranks.
  shm::Parts shares_of(const Part& part) const {
    const Part whole = of(part);
    const std::size_t share = share_of(whole.bytes, layout_.rows());
    std::vector<Part> shares(levels_.board->size(), slice(whole, whole.bytes, 0));
    for (std::size_t row = 0; row < layout_.rows(); ++row) {
      shares[row] = slice(whole, row * share, share);
    }
    return shm::Parts(std::move(shares));
  }
  // This piece of the parts of the ranks on a host.
  shm::Parts parts_on(std::size_t host, const shm::Parts& parts) const {
    std::vector<Part> found;
    for (const std::size_t rank : layout_.on(host)) {
      found.push_back(of(parts.of(rank)));
    }
    return shm::Parts(std::move(found));
  }

  void on_board(Piece::Stage stage, shm::Movement movement) {
    movement.type = all_.type;
    movement.op = all_.op;
    movement.part_of = {all_.kind, data_of(all_).empty() ? 0 : data_of(all_).only().bytes};
    piece_.steps[stage].push_back(std::make_unique<Step<shm::Collective>>(levels_.board, std::move(movement)));
  }
  void in_row(const ucc_coll_args_t& args, std::size_t bytes) {
    Pieces whole;
    whole.total = bytes;
    piece_.steps[Piece::in_row].push_back(std::make_unique<Step<torch_ucc::Collective>>(levels_.row, args, std::move(whole)));
  }
  // Each rank of the row gives what lies in its place of `all`.
  void gather_in_row(char* all, std::size_t bytes) {
    in_row(allgather_args(nullptr, all, bytes, static_cast<int>(hosts()), UCC_MEMORY_TYPE_HOST), bytes * hosts());
  }
  // Adds up the parts of all hosts, which lie one after the other.
  void add_up(const char* parts, void* to, std::size_t bytes, bool is_result) {
    for (std::size_t host = 0; host < hosts(); ++host) {
      piece_.sum.sources.push_back(parts + host * bytes);
    }
    piece_.sum.to = to;
    piece_.sum.bytes = bytes;
    piece_.sum.is_result = is_result;
  }

  void barrier() {
    on_board(Piece::on_host, {});
    if (levels_.place() == 0) {
      in_row(barrier_args(), 0);
    }
    on_board(Piece::on_host_again, {});
  }

  // The host of the root has all data at once. Each row brings its share to the other hosts.
  void broadcast() {
    const Part whole = is_root() ? of(all_.sources.only()) : of(all_.destinations.only());
    const shm::Parts shares = shares_of(is_root() ? all_.sources.only() : all_.destinations.only());
    const std::size_t mine = shares.of(levels_.place()).bytes;
    const shm::Parts own(Part{memory(), mine});
    if (is_with_root()) {
      const std::size_t root = layout_.place_of(all_.root);
      on_board(Piece::on_host, {.kind = Kind::scatter,
                                .root = root,
                                .sources = is_root() ? shares : shm::Parts(),
                                .destinations = own,
                                .owns_destinations = true});
      on_board(Piece::on_host, {.kind = Kind::broadcast,
                                .root = root,
                                .sources = is_root() ? shm::Parts(whole) : shm::Parts(),
                                .destinations = is_root() ? shm::Parts() : shm::Parts(whole)});
    }
    if (mine != 0) {
      const auto root = static_cast<int>(layout_.host_of(all_.root));
      in_row(broadcast_args(memory(), mine, root, UCC_MEMORY_TYPE_HOST), mine);
    }
    if (!is_with_root()) {
      on_board(Piece::on_host_again, {.kind = Kind::all_gather, .sources = own, .destinations = shares, .owns_sources = true});
    }
  }

  void all_gather() {
    const Part mine = of(all_.sources.only());
    if (mine.bytes != 0) {
      std::memcpy(memory() + levels_.host * mine.bytes, mine.data, mine.bytes);
    }
    on_board(Piece::on_host,
             {.kind = Kind::all_gather, .sources = shm::Parts(mine), .destinations = parts_on(levels_.host, all_.destinations)});
    gather_in_row(memory(), mine.bytes);
    for (std::size_t host = 0; host < hosts(); ++host) {
      if (host != levels_.host) {
        on_board(Piece::on_host_again, {.kind = Kind::all_gather,
                                        .sources = shm::Parts(Part{memory() + host * mine.bytes, mine.bytes}),
                                        .destinations = parts_on(host, all_.destinations),
                                        .owns_sources = true});
      }
    }
  }

  void reduce_scatter() {
    const Part result = of(all_.destinations.only());
    char* const received = memory() + hosts() * result.bytes;
    for (std::size_t host = 0; host < hosts(); ++host) {
      on_board(Piece::on_host, {.kind = Kind::reduce_scatter,
                                .sources = parts_on(host, all_.sources),
                                .destinations = shm::Parts(Part{memory() + host * result.bytes, result.bytes}),
                                .owns_destinations = true});
    }
    in_row(alltoall_args(memory(), received, result.bytes, static_cast<int>(hosts()), UCC_MEMORY_TYPE_HOST),
           hosts() * result.bytes);
    add_up(received, result.data, result.bytes, true);
  }

  // all_reduce and reduce: each row reduces its share.
  void reduce() {
    const shm::Parts shares = shares_of(all_.sources.only());
    const std::size_t mine = shares.of(levels_.place()).bytes;
    const bool by_ucc = is_reduced_by_ucc(all_.kind, hosts());
    char* const own = memory() + (by_ucc ? 0 : levels_.host * mine);
    on_board(Piece::on_host, {.kind = Kind::reduce_scatter,
                              .root = all_.root,  // to be compared
                              .sources = shares,
                              .destinations = shm::Parts(Part{own, mine}),
                              .owns_destinations = true});
    if (mine != 0) {
      by_ucc ? reduce_in_row(mine) : exchange_in_row(mine);
    }
    const shm::Parts result(Part{memory(), mine});
    if (all_.kind == Kind::all_reduce) {
      on_board(Piece::on_host_again, {.kind = Kind::all_gather,
                                      .sources = result,
                                      .destinations = shares_of(all_.destinations.only()),
                                      .owns_sources = true});
    } else if (is_with_root()) {
      on_board(Piece::on_host_again, {.kind = Kind::gather,
                                      .root = layout_.place_of(all_.root),
                                      .sources = result,
                                      .destinations = is_root() ? shares_of(all_.destinations.only()) : shm::Parts(),
                                      .owns_sources = true});
    }
  }

  // The result comes to the beginning of the memory.
  void exchange_in_row(std::size_t mine) {
    if (all_.kind == Kind::all_reduce) {
      gather_in_row(memory(), mine);
    } else {
      const auto root = static_cast<int>(layout_.host_of(all_.root));
      char* const buffer = memory() + (is_with_root() ? 0 : levels_.host * mine);
      in_row(gather_args(buffer, mine, static_cast<int>(hosts()), root, is_with_root(), UCC_MEMORY_TYPE_HOST), mine);
    }
    if (all_.kind == Kind::all_reduce || is_with_root()) {
      add_up(memory(), memory(), mine, false);
    }
  }
  void reduce_in_row(std::size_t mine) {
    const std::size_t count = mine / shm::size_of(all_.type);
    if (all_.kind == Kind::all_reduce) {
      in_row(allreduce_in_place_args(memory(), count, ucc_.type, ucc_.op, UCC_MEMORY_TYPE_HOST), mine);
    } else {
      const auto root = static_cast<int>(layout_.host_of(all_.root));
      in_row(reduce_args(memory(), count, ucc_.type, ucc_.op, root, is_with_root(), UCC_MEMORY_TYPE_HOST), mine);
    }
  }

  const Levels& levels_;
  const Layout& layout_;
  const shm::Movement& all_;
  const UccReduction& ucc_;
  const std::size_t begin_;
  const std::size_t unit_;
  Piece& piece_;
};

}  // namespace

bool is_reduced_by_ucc(Kind kind, std::size_t hosts) { return (kind == Kind::all_reduce || kind == Kind::reduce) && hosts > 2; }

bool Piece::is_drained(LoopToken& token) const {
  const bool was_begun = stage > in_row || (stage == in_row && has_begun);
  const auto is_drained = [&](const std::unique_ptr<Op>& step) { return step->is_drained(token); };
  return !was_begun || std::all_of(steps[in_row].begin(), steps[in_row].end(), is_drained);
}

Cut::Cut(const Levels& levels, const shm::Movement& movement, const UccReduction& ucc) : ucc_(ucc) {
  const Layout& layout = *levels.layout;
  const std::size_t hosts = layout.hosts();
  const bool is_sliced = movement.kind == Kind::all_gather || movement.kind == Kind::reduce_scatter;
  const shm::Parts& data = data_of(movement);
  if (data.empty()) {
    return;
  }
  const std::size_t wanted = is_sliced ? std::max(levels.piece_bytes / layout.ranks(), kLeastSlice) : levels.piece_bytes;
  unit_ = std::max(wanted / kAligned, std::size_t{1}) * kAligned;
  const std::size_t longest = std::min(unit_, data.only().bytes);
  pieces_ = std::max<std::size_t>(1, (data.only().bytes + unit_ - 1) / unit_);
  const std::size_t share = std::min(longest, share_of(longest, layout.rows()));
  switch (movement.kind) {
    case Kind::broadcast:
      room_ = share;
      break;
    case Kind::all_gather:
      room_ = hosts * longest;
      break;
    case Kind::reduce_scatter:
      room_ = 2 * hosts * longest;
      break;
    default:
      room_ = is_reduced_by_ucc(movement.kind, hosts) ? share : hosts * share;
      break;
  }
}

std::unique_ptr<Piece> Cut::piece(std::size_t number, const Levels& levels, const shm::Movement& movement,
                                  std::unique_ptr<char[]> memory) const {
  auto piece = std::make_unique<Piece>();
  piece->memory = std::move(memory);
  Maker(levels, movement, ucc_, number * unit_, unit_, *piece).make();
  return piece;
}

}  // namespace torch_ucc::hosts
