"""vLLM, pipeline parallelism of two ranks, which have one layer of the model each.

Rank 0 sends the output of its layer to rank 1, which broadcasts the logits.
"""

import small_vllm

if __name__ == "__main__":
    small_vllm.infer_on_this_rank(pipeline_parallel_size=2)
