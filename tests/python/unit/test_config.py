"""`torch_ucc.config`: what is read from the environment, what is refused, what ranks must agree on."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_ucc import config
from torch_ucc.config import Config, from_environment


def test_defaults() -> None:
    assert from_environment({}) == Config()
    assert from_environment({"PATH": "/bin", "UCC_TLS": "ucp", "TORCH_UC": "1"}).sources == {}


def test_every_setting_has_a_name_a_help_and_a_source() -> None:
    texts = {timedelta: "500us", int: "4", str: "here"}
    choices = {"device_p2p": "direct", "device_collectives": "native"}
    for field in dataclasses.fields(Config):
        if not field.metadata or field.name == "profile":  # tests/python/unit/tuning
            continue
        name = "TORCH_UCC_" + field.name.upper()
        text = choices.get(field.name) or texts.get(type(field.default)) or "01"[not field.default]
        needs = {"TORCH_UCC_TRACE_DUMP": "there"} if name == "TORCH_UCC_TRACE_SIGNAL" else {}
        read = from_environment({name: text, **needs})
        assert getattr(read, field.name) in (timedelta(microseconds=500), 4, text, not field.default), name
        assert getattr(read, field.name) != field.default
        assert read.sources[field.name] == f"environment variable {name}"
        assert field.metadata["help"].endswith(".")


def test_a_signal_has_nothing_to_write_to_without_a_directory() -> None:
    with pytest.raises(ValueError, match="TORCH_UCC_TRACE_SIGNAL=1 needs TORCH_UCC_TRACE_DUMP"):
        from_environment({"TORCH_UCC_TRACE_SIGNAL": "1"})


def test_a_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().spin = timedelta()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0us", 0.0), ("200us", 200e-6), ("1.5ms", 1.5e-3), ("30s", 30.0), ("5m", 300.0), (" 7 ms ", 7e-3)],
)
def test_durations(text: str, seconds: float) -> None:
    assert from_environment({"TORCH_UCC_CLOSE_TIMEOUT": text}).close_timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "yes", "true", "2", "01"])
def test_what_is_no_switch(text: str) -> None:
    with pytest.raises(ValueError, match=r"TORCH_UCC_CROSS_CHECK=.* is not 0 or 1"):
        from_environment({"TORCH_UCC_CROSS_CHECK": text})


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("none", False), ("", False), ("0", False), ("All", True), ("1", True), ("allreduce, send,", True)],
)
def test_blocking_wait_takes_values_of_earlier_versions(text: str, blocks: bool) -> None:
    assert from_environment({"TORCH_UCC_BLOCKING_WAIT": text}).blocking_wait is blocks


@pytest.mark.parametrize("text", ["some", "allreduce,some", "all,none", "0,allreduce"])
def test_what_is_no_blocking_wait(text: str) -> None:
    with pytest.raises(ValueError, match=r"TORCH_UCC_BLOCKING_WAIT=.* is not 0, 1, none or all"):
        from_environment({"TORCH_UCC_BLOCKING_WAIT": text})


@pytest.mark.parametrize("text", ["", "5", "ms", "-1s", "1h", "1e3s", "nan s", "1,5ms", "1s 2ms", "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"TORCH_UCC_CLOSE_TIMEOUT=.* is not a duration such as"):
        from_environment({"TORCH_UCC_CLOSE_TIMEOUT": text})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("65536", 65536), ("512k", 512 << 10), ("4M", 4 << 20), ("4mb", 4 << 20), ("1 g", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert from_environment({"TORCH_UCC_SEGMENT_BYTES": text}).segment_bytes == size


@pytest.mark.parametrize("text", ["", "0", "0k", "-1", "1.5m", "4t", "0x10", "1_000", "m"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"TORCH_UCC_SEGMENT_BYTES=.* is not a size in bytes above 0"):
        from_environment({"TORCH_UCC_SEGMENT_BYTES": text})


@pytest.mark.parametrize("text", ["", "0", "9", "-1", "2.0", "two", "12"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match=r"TORCH_UCC_SEGMENT_WINDOW=.* is not a number from 1 to 8"):
        from_environment({"TORCH_UCC_SEGMENT_WINDOW": text})


@pytest.mark.parametrize("text", ["1", "8", " 3 "])
def test_windows(text: str) -> None:
    assert from_environment({"TORCH_UCC_SEGMENT_WINDOW": text}).segment_window == int(text)


@pytest.mark.parametrize(("what", "other"), [("P2P", "direct"), ("COLLECTIVES", "native")])
def test_tensors_of_devices_go_one_way_or_the_other(what: str, other: str) -> None:
    name = f"TORCH_UCC_DEVICE_{what}"
    with pytest.raises(ValueError, match=rf"{name}='cuda' is not staged or {other}"):
        from_environment({name: "cuda"})
    assert not hasattr(config.native(from_environment({}), SimpleNamespace(), {}), other)
    asked = config.native(from_environment({name: other}), SimpleNamespace(), {})
    known = [("cuda", "rocm" if torch.version.hip else "cuda")]
    assert {"direct": asked.direct, "native": asked.native} == {"direct": [], "native": [], other: known}


def test_pauses_in_the_wrong_order() -> None:
    with pytest.raises(ValueError, match="TORCH_UCC_PAUSE_MIN is longer than TORCH_UCC_PAUSE_MAX"):
        from_environment({"TORCH_UCC_PAUSE_MIN": "2ms"})
    with pytest.raises(ValueError, match="PAUSE_MIN"):
        from_environment({"TORCH_UCC_PAUSE_MAX": "1us"})
    assert from_environment({"TORCH_UCC_PAUSE_MIN": "1ms"}).pause_min == timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TORCH_UCC_SEGMENT_BYTE", "TORCH_UCC_SEGMENT_BYTES"),
        ("TORCH_UCC_CLOSETIMEOUT", "TORCH_UCC_CLOSE_TIMEOUT"),
        ("TORCH_UCC_YIELD", "TORCH_UCC_YIELD_FOR"),
        ("TORCH_UCC_spin", "TORCH_UCC_SPIN"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is not a setting of torch_ucc: did you mean {meant}\?$"):
        from_environment({name: "1"})


def test_an_unknown_name_that_is_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="known are TORCH_UCC_AS_DEFAULT, ") as raised:
        from_environment({"TORCH_UCC_QQQQ": "1"})
    for name in config.names():
        assert "TORCH_UCC_" + name.upper() in str(raised.value)


def test_where_libraries_are_is_no_setting() -> None:
    assert from_environment({"TORCH_UCC_BENCH_PEERS": "anywhere"}) == Config()


def test_what_ranks_must_agree_on() -> None:
    environment = {
        "TORCH_UCC_SEGMENT_BYTES": "2m",
        "TORCH_UCC_SPIN": "1ms",
        "UCC_TL_UCP_TUNE": "allreduce:@1",
        "UCC_CLS": "basic",
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "eth0",
        "HOME": "elsewhere",
    }
    agreed = from_environment(environment).agreed(environment)
    assert agreed == [
        ("segment_bytes", str(2 << 20)),
        ("segment_window", "2"),
        ("cross_check", "False"),
        ("device_collectives", "staged"),
        ("host_path", "True"),
        ("levels_from", "1"),
        ("life_lines", "True"),
        ("UCC_CLS", "basic"),
        ("UCC_TL_UCP_TUNE", "allreduce:@1"),
        ("UCX_TLS", "tcp"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "UCC_LOG_LEVEL",
        "UCC_LOG_FILE",
        "UCC_COLL_TRACE",
        "UCC_PROFILE_MODE",
        "UCC_HOME",
        "UCC_CONFIG_FILE",
    ],
)
def test_what_is_each_ranks_own(name: str) -> None:
    assert Config().agreed({name: "x"}) == Config().agreed({})


def test_the_order_of_the_environment_does_not_matter() -> None:
    forth = {"UCC_A": "1", "UCC_B": "2"}
    back = {"UCC_B": "2", "UCC_A": "1"}
    assert Config().agreed(forth) == Config().agreed(back)


def test_native_carries_every_setting_that_it_has() -> None:
    environment = {"TORCH_UCC_SPIN": "3us", "UCC_CLS": "basic"}
    read = from_environment(environment)
    filled = config.native(read, SimpleNamespace(), environment)
    for field in dataclasses.fields(Config):
        if field.metadata.get("native"):
            assert getattr(filled, field.name) == getattr(read, field.name)
    assert ("UCC_CLS", "basic") in filled.agreed


@pytest.mark.parametrize("name", config.OLD_NAMES)
def test_a_setting_of_earlier_versions_is_explained_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config.in_force.cache_clear()
    monkeypatch.setenv(name, "1")
    with pytest.warns(RuntimeWarning, match=f"{name} has no effect any more: [a-z]") as warned:
        assert config.in_force() is config.in_force()
    assert len(warned) == 1
    config.in_force.cache_clear()


def test_what_is_listed_can_be_set_again() -> None:
    rows = {row.variable: row for row in config.listing({"TORCH_UCC_SPIN": "1500us", "UCX_TLS": "tcp"})}
    assert rows["TORCH_UCC_SPIN"].value == "1500us" and "TORCH_UCC_SPIN" in rows["TORCH_UCC_SPIN"].source
    assert rows["TORCH_UCC_YIELD_FOR"].source == "default" and rows["UCX_TLS"].value == "tcp"
    ours = {name: row.value for name, row in rows.items() if name.startswith("TORCH_UCC_")}
    again = from_environment(ours)
    assert again == from_environment({"TORCH_UCC_SPIN": "1500us"})
    assert len(ours) == len(config.names())


def test_the_reference_page_is_current() -> None:
    """To renew it: `torch-ucc config --reference >docs/settings.md`."""
    page = Path(__file__).parents[3] / "docs" / "settings.md"
    assert page.read_text() == config.reference()
