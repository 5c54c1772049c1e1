"""vLLM, which infers: tensor parallelism of two ranks over a small Llama with random weights.

Its groups on CPUs are of gloo, whatever the default group is.
"""

import small_vllm

if __name__ == "__main__":
    small_vllm.infer_on_this_rank(tensor_parallel_size=2)
