"""vLLM, pipeline parallelism on two simulated hosts with one rank each, as in train_vllm_hosts.py."""

import sys

import train_vllm_hosts

if __name__ == "__main__":
    sys.exit(train_vllm_hosts.main(pipeline_parallel_size=2))
