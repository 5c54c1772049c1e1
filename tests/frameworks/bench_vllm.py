"""Tokens in a second of vLLM, tensor parallelism of two ranks on this host, by each way to exchange tensors:

    .deps/integration/vllm/bin/python tests/frameworks/bench_vllm.py

Tensors go through vLLM's own kernel for shared memory or through the group, and the group is of gloo or of
ucc (`TORCH_UCC_REPLACE_GLOO=1`), which makes four ways. The model is a small Llama with random weights. The
program starts the engines of all ways first. An engine that has nothing to do waits without using a core.
Then the engines generate in turns, and each turn begins with another way. A ratio compares times of the same
turn. The program ends with status 1 if the tokens differ between the ways.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

RANKS = 2
KERNEL, GROUP = "vLLM's kernel", "the group"
WAYS = [(carrier, backend) for carrier in (KERNEL, GROUP) for backend in ("gloo", "ucc")]
BASE = (KERNEL, "gloo")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--turns", type=int, default=5)
    add("--batches", type=int, nargs="+", default=[1, 16], help="prompts at a time")
    add("--tokens", type=int, default=64, help="to generate for each prompt")
    add("--layers", type=int, default=8)
    add("--width", type=int, default=512)
    add("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    add("--compile", action="store_true", help="with torch.compile, vLLM's default; otherwise eager")
    add("--log", type=Path, help="file for what the engines print; without it, an error shows that")
    add("--way", type=int, help=argparse.SUPPRESS)  # a rank: the number of its way
    add("--model", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.turns < 1:
        parser.error("--turns must be at least 1")
    return asked


def rank_main(asked: argparse.Namespace) -> None:
    """A rank: it makes its engine, then reads sizes of batches from stdin. Rank 0 answers each with JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer

    import small_vllm
    from vllm import LLM, SamplingParams
    from vllm.distributed.device_communicators import cpu_communicator
    from vllm.distributed.parallel_state import get_tp_group

    carrier, _ = WAYS[asked.way]
    if carrier == GROUP:
        small_vllm.turn_kernel_off()
    # With an external launcher, vLLM names the shared memory of every job "//-tp:0-[0-1]-cpushm".
    cpu_communicator._CPUSHMDistributed.make_group_name = staticmethod(
        lambda each: f"bench-vllm-{os.environ['MASTER_PORT']}-{each.unique_name}"
    )

    model = LLM(
        **small_vllm.options(
            asked.model,
            tensor_parallel_size=RANKS,
            dtype=asked.dtype,
            max_model_len=small_vllm.LENGTH + asked.tokens,
            kv_cache_memory_bytes=2**28,
            enforce_eager=not asked.compile,
            disable_log_stats=True,
        )
    )
    group = get_tp_group()
    carries = type(group.device_communicator.dist_module).__name__
    greedy = SamplingParams(temperature=0, max_tokens=asked.tokens, ignore_eos=True, detokenize=False)
    if int(os.environ["RANK"]) == 0:
        made_by = small_vllm.problem.made_by(group.device_group)
        print(json.dumps({"carries": carries, "made_by": made_by}), file=answers, flush=True)
    for line in sys.stdin:
        prompts = small_vllm.prompts(int(line), small_vllm.MODEL.vocab_size)
        torch.distributed.barrier()
        start = time.perf_counter()
        outputs = model.generate(prompts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - start
        if int(os.environ["RANK"]) == 0:
            tokens = [[*each.outputs[0].token_ids] for each in outputs]
            print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers, flush=True)


class Engine:
    """The ranks of one way."""

    def __init__(self, way: int, model: Path, log: Path) -> None:
        carrier, backend = WAYS[way]
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._log = log
        self._ranks = []
        common = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_UCC_REPLACE_GLOO": str(int(backend == "ucc")),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        command = [sys.executable, __file__, *sys.argv[1:], "--way", str(way), "--model", str(model)]
        with log.open("a") as output:
            for rank in range(RANKS):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self._ranks.append(
                    subprocess.Popen(
                        command,
                        env={**common, **own},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=output,
                        text=True,
                    )
                )
        started = self._answer()
        expected = {
            "carries": "_CPUSHMDistributed" if carrier == KERNEL else "module",
            "made_by": "UccBackend" if backend == "ucc" else "ProcessGroupGloo",
        }
        if started != expected:
            raise RuntimeError(f"{carrier}, {backend}: the engine has {started}, not {expected}")

    def _answer(self) -> dict[str, Any]:
        line = self._ranks[0].stdout.readline()
        if not line:
            raise RuntimeError(f"rank 0 ended with status {self._ranks[0].wait()}; see {self._log}")
        return json.loads(line)

    def generate(self, batch: int) -> tuple[float, list[list[int]]]:
        """(seconds, the tokens of each prompt)"""
        for rank in self._ranks:
            rank.stdin.write(f"{batch}\n")
            rank.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["tokens"]

    def close(self) -> None:
        """End the ranks: at the end of their input they remove their shared memory and exit."""
        for rank in self._ranks:
            rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(timeout=30)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


@contextlib.contextmanager
def engines(model: Path, log: Path) -> Iterator[list[Engine]]:
    made: list[Engine] = []
    try:
        for way in range(len(WAYS)):
            made.append(Engine(way, model, log))
        yield made
    finally:
        for engine in made:
            engine.close()


def measure(
    made: Sequence[Engine], asked: argparse.Namespace
) -> tuple[dict[tuple[int, int], list[float]], list[str]]:
    """(seconds by (way, batch) and turn, how the tokens differ between ways)"""
    seconds: dict[tuple[int, int], list[float]] = {}
    first: dict[int, list[list[int]]] = {}
    differences = []
    for turn in range(-1, asked.turns):  # the first turn warms up
        print(f"turn {turn + 1} of {asked.turns}", file=sys.stderr, flush=True)
        for batch in asked.batches:
            for step in range(len(WAYS)):
                way = (turn + step) % len(WAYS)
                took, tokens = made[way].generate(batch)
                if tokens != first.setdefault(batch, tokens):
                    name = " over ".join(WAYS[way])
                    differences.append(f"batch {batch}, turn {turn}: other tokens by {name}")
                if turn >= 0:
                    seconds.setdefault((way, batch), []).append(took)
    return seconds, differences


def span(values: Sequence[float], digits: int) -> str:
    """Median, least and most."""
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def report(seconds: dict[tuple[int, int], list[float]], asked: argparse.Namespace) -> Iterator[str]:
    base = WAYS.index(BASE)
    for batch in asked.batches:
        yield ""
        yield f"| batch {batch}: tensors go through | groups of | tokens/s | ratio to {' over '.join(BASE)} |"
        yield "|---|---|---|---|"
        for way, (carrier, backend) in enumerate(WAYS):
            took = seconds[way, batch]
            speeds = [batch * asked.tokens / each for each in took]
            ratios = [of_base / own for own, of_base in zip(took, seconds[base, batch], strict=True)]
            ratio = "1" if way == base else span(ratios, 2)
            yield f"| {carrier} | {backend} | {span(speeds, 0)} | {ratio} |"


def main() -> int:
    asked = arguments()
    if asked.way is not None:
        rank_main(asked)
        return 0
    import small_vllm
    from transformers import LlamaConfig

    settings = {
        **small_vllm.MODEL.to_dict(),
        "hidden_size": asked.width,
        "intermediate_size": 4 * asked.width,
        "num_hidden_layers": asked.layers,
        "num_attention_heads": asked.width // 64,
        "num_key_value_heads": asked.width // 128,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "dtype": asked.dtype,
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        log = (asked.log or Path(folder) / "log").absolute()
        small_vllm.save_model(model, LlamaConfig(**settings))
        print(
            f"{asked.layers} layers of width {asked.width}, {asked.dtype}, "
            f"{'compiled' if asked.compile else 'eager'}, {asked.tokens} tokens for each prompt, "
            f"{RANKS} ranks, {asked.turns} turns: median (least to most)",
            flush=True,
        )
        load = os.getloadavg()[0]
        try:
            with engines(model, log) as made:
                seconds, differences = measure(made, asked)
        except RuntimeError:
            if not asked.log:
                print(log.read_text(), file=sys.stderr)
            raise
    print(*report(seconds, asked), sep="\n")
    print(f"\nLoad of the machine before the start: {load:.1f}, on {os.cpu_count()} cores")
    print(*(differences or ["The tokens are the same by each way."]), sep="\n")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
