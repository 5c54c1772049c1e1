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
  ucc_coll_args_t args{};  // all zero: fields that were left alone have made UCC time out at random
  args.coll_type = type;
  return args;
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

ucc_coll_args_t barrier_args() { return args_of(UCC_COLL_TYPE_BARRIER); }

}  // namespace torch_ucc
