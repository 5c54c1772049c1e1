// Arguments of the collectives, filled so that UCC 1.9 does what its header says. Counts are in elements of `datatype`.
#pragma once

#include <ucc/api/ucc.h>

#include <cstddef>

namespace torch_ucc {

ucc_coll_args_t allreduce_in_place_args(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_reduction_op_t op,
                                        ucc_memory_type_t memory);

ucc_coll_args_t broadcast_args(void* buffer, std::size_t bytes, int root, ucc_memory_type_t memory);

// `all` holds `bytes` for each of `size` ranks. With `mine` null the own part is in its place in `all` already.
ucc_coll_args_t allgather_args(const void* mine, void* all, std::size_t bytes, int size, ucc_memory_type_t memory);

ucc_coll_args_t barrier_args();

}  // namespace torch_ucc
