"""Looks for problems of this machine, and says how to solve them.

Under torchrun, as `torchrun ... -m torch_ucc doctor`, it looks at all hosts of the job and at the network
between them. Exit status: 0 if there is neither an error nor a warning, 1 if something costs speed or is a
risk (a warning), 2 if something cannot work (an error).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from textwrap import wrap

from torch_ucc import _register
from torch_ucc._style import bold, green, red, yellow
from torch_ucc.cli.topo import machine
from torch_ucc.topology.doctor import (
    BROKEN,
    CHECKS,
    COSTLY,
    NOTE,
    OF_MACHINE,
    Finding,
    Patient,
    examine,
    passed,
    status,
)
from torch_ucc.topology.reach import compare_makers, survey

_TOGETHER = timedelta(minutes=2)
"""How long the ranks may take to come together."""
_WIDTH, _INDENT = 110, " " * 9


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, for a report")
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="look at the machine that `torch-ucc topo --save` wrote to FILE instead of this one",
    )
    asked = parser.parse_args(arguments)
    try:
        patient = Patient(machine(asked.replay)) if asked.replay else patient_here()
    except (OSError, ValueError) as error:
        print(f"torch-ucc doctor: {error}", file=sys.stderr)
        return 2
    findings = examine(patient)
    well = passed(patient, OF_MACHINE if asked.replay else CHECKS)
    if "RANK" in os.environ and not asked.replay:
        between, makers = between_hosts(patient)
        findings += between + makers
        well += [] if between else ["connections and clocks of the hosts"]
        if os.environ.get("LOCAL_RANK", "0") != "0":
            return status(findings)
    if asked.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(text(patient.host.host, well, findings))
    return status(findings)


_SHOWN: dict[str, tuple[str, Callable[[str], str]]] = {
    BROKEN: ("error", red),
    COSTLY: ("warning", yellow),
    NOTE: ("note", str),
}


def text(host: str, well: Sequence[str], findings: Sequence[Finding]) -> str:
    lines = [bold(f"Host {host}")]
    lines += [f"{green('ok')}       {name}" for name in well]
    for finding in findings:
        grade, style = _SHOWN[finding.grade]
        head = f"{grade:<9}{finding.name}: {finding.what}"
        first, *rest = wrap(head, _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
        lines += [style(grade) + first.removeprefix(grade), *rest]
        lines += wrap(f"cure: {finding.cure}", _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
    counts = [sum(each.grade == grade for each in findings) for grade in _SHOWN]
    summary = ", ".join(
        f"{count} {name}{'s' * (count != 1)}"
        for count, (name, _) in zip(counts, _SHOWN.values(), strict=True)
    )
    return "\n".join([*lines, "", summary if findings else "No problem was found."])


def between_hosts(patient: Patient) -> tuple[list[Finding], list[Finding]]:
    """About connections and clocks, and about who serves groups."""
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, size = next(rendezvous("env://"))
        between = survey(store, rank, size, patient.host, _TOGETHER)
        return between, compare_makers(store, rank, size, _register.makers(), _TOGETHER)
    except RuntimeError as error:  # of the store
        alone = Finding(
            "alone",
            BROKEN,
            f"the ranks could not compare what they see: {str(error).splitlines()[0]}",
            "run this command on every rank at the same time; all hosts must be able to connect to "
            "MASTER_PORT of MASTER_ADDR",
        )
        return [alone], []


def built_with() -> dict[str, str]:
    """The versions of UCC and UCX that the extension was built with. Empty if there is no extension."""
    from torch_ucc._native import extension

    try:
        info = extension.build_info()
    except ImportError:
        return {}
    return {"UCC": info.UCC, "UCX": info.UCX}


def patient_here() -> Patient:
    import torch.distributed as dist

    from torch_ucc import config
    from torch_ucc._native import extension

    extension_error = settings_error = ""
    try:
        extension.compiled()
    except ImportError as error:
        extension_error = str(error)
    try:
        config.from_environment()
    except ValueError as error:
        settings_error = str(error)
    return Patient(
        host=machine(None),
        environment=dict(os.environ),
        extension_error=extension_error,
        settings_error=settings_error,
        old_settings={name: why for name, why in config.OLD_NAMES.items() if name in os.environ},
        built_with=built_with(),
        torch_has_ucc=dist.is_available() and dist.is_ucc_available(),
    )
