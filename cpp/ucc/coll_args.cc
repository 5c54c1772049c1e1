#include "ucc/coll_args.h"

#include <cstdint>

namespace torch_ucc {
namespace {

ucc_coll_buffer_info_t span(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_memory_type_t memory) {
  ucc_coll_buffer_info_t info{};
  info.buffer = buffer;
  info.count = count;
  info.datatype = datatype;
  info.mem_type = memory;
  return info;
}

ucc_coll_args_t args_of(ucc_coll_type_t type) {
  ucc_coll_args_t args{};  // all zero: UCC timed out at random when fields were not initialised
  args.coll_type = type;
  return args;
}

// Counts have 64 bits on every rank, because UCC chooses its algorithms by the width.
ucc_coll_buffer_info_v_t uneven_span(void* buffer, const std::uint64_t* counts, const std::uint64_t* displacements,
                                     ucc_datatype_t datatype, ucc_memory_type_t memory) {
  ucc_coll_buffer_info_v_t info{};
  info.buffer = buffer;
  // const_cast: UCC only reads these arrays, but takes pointers to non-const elements.
  info.counts = reinterpret_cast<ucc_count_t*>(const_cast<std::uint64_t*>(counts));
  info.displacements = reinterpret_cast<ucc_aint_t*>(const_cast<std::uint64_t*>(displacements));
  info.datatype = datatype;
  info.mem_type = memory;
  return info;
}

void set_64_bit(ucc_coll_args_t& args) {
  args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
  args.flags |= UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
}

void set_in_place(ucc_coll_args_t& args) {
  args.mask |= UCC_COLL_ARGS_FIELD_FLAGS;
  args.flags |= UCC_COLL_ARGS_FLAG_IN_PLACE;
}

}  // namespace

ucc_coll_args_t allreduce_in_place_args(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_reduction_op_t op,
                                        ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_ALLREDUCE);
  args.dst.info = span(buffer, count, datatype, memory);
  args.src.info = args.dst.info;
  args.op = op;
  set_in_place(args);
  return args;
}

ucc_coll_args_t broadcast_args(void* buffer, std::size_t bytes, int root, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_BCAST);
  args.src.info = span(buffer, bytes, UCC_DT_UINT8, memory);
  args.root = static_cast<std::uint64_t>(root);
  return args;
}

ucc_coll_args_t allgather_args(const void* mine, void* all, std::size_t bytes, int size, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_ALLGATHER);
  args.dst.info = span(all, bytes * static_cast<std::size_t>(size), UCC_DT_UINT8, memory);
  // const_cast: UCC takes one struct for both sides and does not write to src.
  args.src.info = span(const_cast<void*>(mine), bytes, UCC_DT_UINT8, memory);
  if (mine == nullptr) {
    set_in_place(args);
  }
  return args;
}

ucc_coll_args_t gather_args(void* buffer, std::size_t bytes, int size, int root, bool is_root, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_GATHER);
  if (is_root) {
    args.dst.info = span(buffer, bytes * static_cast<std::size_t>(size), UCC_DT_UINT8, memory);
    set_in_place(args);
  } else {
    args.src.info = span(buffer, bytes, UCC_DT_UINT8, memory);
  }
  args.root = static_cast<std::uint64_t>(root);
  return args;
}

ucc_coll_args_t alltoall_args(const void* given, void* received, std::size_t bytes, int size, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_ALLTOALL);
  const std::size_t total = bytes * static_cast<std::size_t>(size);
  args.src.info = span(const_cast<void*>(given), total, UCC_DT_UINT8, memory);  // const_cast: as above
  args.dst.info = span(received, total, UCC_DT_UINT8, memory);
  return args;
}

ucc_coll_args_t allgatherv_args(const void* mine, std::size_t bytes, void* all, const std::uint64_t* counts,
                                const std::uint64_t* displacements, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_ALLGATHERV);
  // const_cast: as above
  args.src.info = span(const_cast<void*>(mine), bytes, UCC_DT_UINT8, memory);
  args.dst.info_v = uneven_span(all, counts, displacements, UCC_DT_UINT8, memory);
  set_64_bit(args);
  return args;
}

ucc_coll_args_t reduce_args(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_reduction_op_t op, int root,
                            bool is_root, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_REDUCE);
  if (is_root) {
    args.dst.info = span(buffer, count, datatype, memory);
    set_in_place(args);
  } else {
    args.src.info = span(buffer, count, datatype, memory);
  }
  args.op = op;
  args.root = static_cast<std::uint64_t>(root);
  return args;
}

ucc_coll_args_t reduce_scatter_args(const void* all, void* mine, std::size_t count, int size, ucc_datatype_t datatype,
                                    ucc_reduction_op_t op, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_REDUCE_SCATTER);
  // const_cast: as above
  args.src.info = span(const_cast<void*>(all), count * static_cast<std::size_t>(size), datatype, memory);
  args.dst.info = span(mine, count, datatype, memory);
  args.op = op;
  return args;
}

ucc_coll_args_t reduce_scatterv_args(const void* all, std::size_t total, void* mine, const std::uint64_t* counts,
                                     ucc_datatype_t datatype, ucc_reduction_op_t op, ucc_memory_type_t memory) {
  ucc_coll_args_t args = args_of(UCC_COLL_TYPE_REDUCE_SCATTERV);
  args.src.info = span(const_cast<void*>(all), total, datatype, memory);  // const_cast: as above
  args.dst.info_v = uneven_span(mine, counts, nullptr, datatype, memory);
  args.op = op;
  set_64_bit(args);
  return args;
}

ucc_coll_args_t barrier_args() { return args_of(UCC_COLL_TYPE_BARRIER); }

}  // namespace torch_ucc
