"""`torch_ucc._group.group_options`: what may be set for one group, and what is told to whom."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch_ucc
from torch_ucc._group import group_options
from torch_ucc._native import extension


def checked(ucc: dict[str, str], ucx: dict[str, str]) -> group_options.Both:
    return group_options.checked(extension.compiled(), torch_ucc.Options(ucc=ucc, ucx=ucx))


def test_what_a_context_and_a_worker_take() -> None:
    tuned = {"TL_UCP_TUNE": "allreduce:@ring", "ESTIMATED_NUM_PPN": "2"}
    assert checked(tuned, {"RNDV_THRESH": "64k", "NET_DEVICES": "lo"}) == (
        [("NET_DEVICES", "lo"), ("RNDV_THRESH", "64k")],
        [("ESTIMATED_NUM_PPN", "2"), ("TL_UCP_TUNE", "allreduce:@ring")],
    )


@pytest.mark.parametrize(
    ("ucc", "ucx", "why"),
    [
        ({"UCC_TL_UCP_TUNE": "0"}, {}, r"Options\(ucc=\{'UCC_TL_UCP_TUNE': '0'\}\): .* without UCC_"),
        (
            {"CLS": "hier"},
            {},
            r"\{'CLS': 'hier'\}\): a UCC context refuses it .* set UCC_CLS in the environment",
        ),
        ({"TL_UCP_ALLREDUCE_KN_RADIX": "2"}, {}, "set UCC_TL_UCP_ALLREDUCE_KN_RADIX in the environment"),
        ({"ESTIMATED_NUM_PPN": "many"}, {}, "ESTIMATED_NUM_PPN"),
        ({"TL_UCP_TUNE": "\x1e"}, {}, "the value has characters that cannot be printed"),
        ({}, {"TLS": "tcp"}, "it holds for the whole process: set UCX_TLS in the environment"),
        ({}, {"LOG_LEVEL": "info"}, "set UCX_LOG_LEVEL in the environment, before the first group"),
        ({}, {"RNDV_THRESH": "large"}, r"a UCX worker refuses it \(ucp_config_modify RNDV_THRESH"),
        ({}, {"NO_SUCH_OPTION": "1"}, r"a UCX worker refuses it \(ucp_config_modify NO_SUCH_OPTION"),
    ],
)
def test_what_cannot_hold_for_one_group_is_refused(
    ucc: dict[str, str], ucx: dict[str, str], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        checked(ucc, ucx)


def test_values_are_text() -> None:
    with pytest.raises(TypeError):
        torch_ucc.Options(ucx={"RNDV_THRESH": 65536})


def test_options_decide_over_the_plan_and_devices_hold_for_both() -> None:
    planned = ([("NET_DEVICES", "lo")], [("ESTIMATED_NUM_PPN", "2"), ("NET_DEVICES", "lo")])
    own = ([("NET_DEVICES", "eth0")], [("TL_UCP_TUNE", "x")])
    assert group_options.told(planned, own) == (
        [("NET_DEVICES", "eth0")],
        [("ESTIMATED_NUM_PPN", "2"), ("NET_DEVICES", "eth0"), ("TL_UCP_TUNE", "x")],
    )


def test_each_is_shown_with_who_said_it() -> None:
    planned = ([("NET_DEVICES", "lo")], [("ESTIMATED_NUM_PPN", "2"), ("NET_DEVICES", "lo")])
    shown = group_options.shown(planned, ([("NET_DEVICES", "eth0")], [("TL_UCP_TUNE", "x")]))
    assert shown == {
        "UCX_NET_DEVICES": {"value": "eth0", "source": "Options"},
        "UCC_ESTIMATED_NUM_PPN": {"value": "2", "source": "plan"},
        "UCC_NET_DEVICES": {"value": "eth0", "source": "Options"},
        "UCC_TL_UCP_TUNE": {"value": "x", "source": "Options"},
    }


def test_a_group_of_another_backend_has_none() -> None:
    group = SimpleNamespace(_device_types=["cpu"], _get_backend=lambda device: SimpleNamespace())
    assert group_options.of(group) == ([], [])
