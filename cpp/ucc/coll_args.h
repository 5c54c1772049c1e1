// Arguments of the collectives, filled so that UCC 1.9 does what its header says. Counts are in
// elements of `datatype`.
#pragma once

#include <ucc/api/ucc.h>

#include <cstddef>
#include <cstdint>

namespace torch_ucc {

ucc_coll_args_t allreduce_in_place_args(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_reduction_op_t op,
                                        ucc_memory_type_t memory);

ucc_coll_args_t broadcast_args(void* buffer, std::size_t bytes, int root, ucc_memory_type_t memory);

// `all` has room for `bytes` bytes from each of `size` ranks. If `mine` is null, the part of this
// rank already lies in its place in `all`.
ucc_coll_args_t allgather_args(const void* mine, void* all, std::size_t bytes, int size, ucc_memory_type_t memory);

// The root gathers `bytes` bytes from each of `size` ranks. There, `buffer` has room for all, and its own
// already lie in their place. On other ranks, `buffer` holds what they give.
ucc_coll_args_t gather_args(void* buffer, std::size_t bytes, int size, int root, bool is_root, ucc_memory_type_t memory);

// Each side has `bytes` bytes for each of `size` ranks. The two must not overlap.
ucc_coll_args_t alltoall_args(const void* given, void* received, std::size_t bytes, int size, ucc_memory_type_t memory);

// `all` holds counts[r] bytes at displacements[r] for each rank r. Both arrays must live until the
// Collective that uses them is destroyed.
ucc_coll_args_t allgatherv_args(const void* mine, std::size_t bytes, void* all, const std::uint64_t* counts,
                                const std::uint64_t* displacements, ucc_memory_type_t memory);

// On the root, `buffer` holds the root's own data and then the result. On other ranks it is only
// read.
ucc_coll_args_t reduce_args(void* buffer, std::size_t count, ucc_datatype_t datatype, ucc_reduction_op_t op, int root,
                            bool is_root, ucc_memory_type_t memory);

// `all` holds `count` elements for each of `size` ranks. `mine` receives the reduced elements of
// this rank. The two buffers must not overlap.
ucc_coll_args_t reduce_scatter_args(const void* all, void* mine, std::size_t count, int size, ucc_datatype_t datatype,
                                    ucc_reduction_op_t op, ucc_memory_type_t memory);

// `all` holds counts[r] elements for each rank r, one part after the other, `total` elements in
// all. `mine` receives the reduced elements of this rank and must not overlap `all`. `counts` must
// live until the Collective that uses it is destroyed.
ucc_coll_args_t reduce_scatterv_args(const void* all, std::size_t total, void* mine, const std::uint64_t* counts,
                                     ucc_datatype_t datatype, ucc_reduction_op_t op, ucc_memory_type_t memory);

ucc_coll_args_t barrier_args();

}  // namespace torch_ucc
