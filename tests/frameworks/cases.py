"""What ci/integration trains with each framework: one program a framework, started anew for each case.

`cases.py NAME` prints the cases of a framework, one a line, and behind a case that repeats another one the
name of the other one. It prints an empty line for a program that is not in the table and takes no case.
`cases.py NAME /CASE` prints one case, after the one that it repeats.
With --times it knows only the cases that ci/integration --times measures: those with nothing but a sharding.

This file imports nothing that has to be installed, because ci/integration reads it outside of environments.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    # float32; mixed: weights and gradients are float32, and the network computes in bfloat16; bfloat16: the
    # weights and gradients are bfloat16; compressed: float32, but DDP sends the gradients as float16.
    precision: str = "float32"
    # ddp; fsdp2: torch's fully_shard; zero1, zero2, zero3: the stages of DeepSpeed's ZeRO.
    sharding: str = "ddp"
    # The name of the case that this case repeats with a checkpoint in the middle, or nothing. After
    # problem.EPOCHS_BEFORE epochs the training saves a checkpoint; a network with other weights and a new
    # optimizer load it and train the remaining epochs. Both cases must end with the same losses and weights.
    resumes: str = ""
    # The program gives the name of the backend to an argument of the framework that refuses ucc. The test is
    # that the argument refuses ucc, and accepts it with the patch in tests/frameworks/patches.
    by_argument: bool = False
    # The argument is one of the command line, which a parser of the framework reads.
    command_line: bool = False


DDP = {
    "ddp": Case(),
    "ddp-bfloat16": Case(precision="bfloat16"),
    "ddp-resumed": Case(resumes="ddp"),
}
ARGUMENT = {"argument": Case(by_argument=True)}
CASES: dict[str, dict[str, Case]] = {
    "lightning": {
        **DDP,
        "ddp-mixed": Case(precision="mixed"),
        "fsdp2": Case(sharding="fsdp2"),
        "fsdp2-bfloat16": Case(sharding="fsdp2", precision="bfloat16"),
        "fsdp2-resumed": Case(sharding="fsdp2", resumes="fsdp2"),
    },
    "accelerate": {
        **DDP,
        "ddp-mixed": Case(precision="mixed"),
        "ddp-compressed": Case(precision="compressed"),
        **ARGUMENT,
    },
    "transformers": {
        **DDP,
        "ddp-mixed": Case(precision="mixed"),
        **ARGUMENT,
        "command-line": Case(by_argument=True, command_line=True),
    },
    "deepspeed": {
        **{
            f"zero{stage}{ending}": Case(sharding=f"zero{stage}", precision=precision)
            for stage in (1, 2, 3)
            for ending, precision in (("", "float32"), ("-bfloat16", "bfloat16"))
        },
        **{
            f"zero{stage}-resumed": Case(sharding=f"zero{stage}", resumes=f"zero{stage}")
            for stage in (1, 2, 3)
        },
    },
    "ray": {**DDP, "fsdp2": Case(sharding="fsdp2")},
    "ignite": {**DDP, **ARGUMENT},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("wanted", nargs="?", default="")
    parser.add_argument("--times", action="store_true")
    asked = parser.parse_args()
    name, wanted = asked.name, asked.wanted.removeprefix("/")
    cases = CASES.get(name, {})
    if asked.times:
        cases = {each: case for each, case in cases.items() if case == Case(sharding=case.sharding)}
    if not wanted:
        print("\n".join(f"{each} {case.resumes}" for each, case in cases.items()))
        return
    if wanted not in cases:
        sys.exit(f"{sys.argv[0]}: {name} has no case {wanted}; there are: {', '.join(cases)}")
    repeated = cases[wanted].resumes
    print(*([f"{repeated} "] if repeated else []), f"{wanted} {repeated}", sep="\n")


if __name__ == "__main__":
    main()
