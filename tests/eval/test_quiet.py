"""Notices of other programs on the machine while rows are timed, on a made-up /proc/stat."""

from __future__ import annotations

import os
import platform
from types import SimpleNamespace

import pytest

from longgraft.eval.runs import provenance, quiet
from longgraft.eval.runs.prompt_rows import interleaved
from longgraft.eval.runs.quiet import OtherLoad, check_quiet, wait_for_quiet
from longgraft.eval.runs.variants import Variant


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose processors are busy by the given number of cores, of which this process uses one."""
    made = SimpleNamespace(now=0.0, busy=1.0, own=1.0, steal=0.0)
    tick = os.sysconf("SC_CLK_TCK")

    def stat() -> str:
        return f"cpu {int(made.now * made.busy * tick)} 0 0 99 7 0 0 {int(made.now * made.steal * tick)} 5 5\n"

    monkeypatch.setattr(quiet, "STAT", SimpleNamespace(read_text=lambda encoding: stat()))
    monkeypatch.setattr(quiet.os, "times", lambda: (made.now * made.own, 0.0, 0.0, 0.0, made.now))
    monkeypatch.setattr(quiet.time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(quiet.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(quiet.time, "sleep", lambda seconds: setattr(made, "now", made.now + seconds))
    return made


@pytest.mark.parametrize(
    ("busy", "own", "steal", "others"),
    [(1.0, 1.0, 0.0, 0.0), (1.5, 1.0, 0.0, 0.5), (1.0, 1.0, 0.25, 0.25), (0.9, 1.0, 0.0, 0.0)],
)
def test_load_of_others_is_the_busy_and_stolen_time_without_our_own(machine, busy, own, steal, others):
    machine.busy, machine.own, machine.steal = busy, own, steal
    load = OtherLoad()
    machine.now = 100.0
    assert load.cores() == pytest.approx(others, abs=0.01)
    load.begin()
    machine.now = 200.0
    assert load.cores() == pytest.approx(others, abs=0.01)


def test_load_is_unknown_without_proc_stat(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "STAT", tmp_path / "none")
    assert OtherLoad().cores() is None
    check_quiet(0.0)


def test_processor_is_named_with_its_widest_vectors(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "CPUINFO", tmp_path / "cpuinfo")
    machine = platform.machine()
    assert provenance.processor() == machine
    (tmp_path / "cpuinfo").write_text("model name\t: ACME 9 \nflags\t\t: fpu avx2 avx512f avx512_vnni\n")
    assert provenance.processor() == f"ACME 9, {machine}, avx512_vnni"


def test_busy_machine_is_refused_with_its_load(machine):
    check_quiet()
    machine.busy = 2.5
    with pytest.raises(ValueError, match=r"keep 1\.5 of .* cores busy .*Stop them, or leave out --quiet"):
        check_quiet()


def test_wait_ends_when_the_machine_is_quiet_and_when_patience_ends(machine, monkeypatch):
    machine.busy = 2.0
    monkeypatch.setattr(
        quiet.time,
        "sleep",
        lambda seconds: (
            setattr(machine, "now", machine.now + seconds),
            machine.now > 19 and setattr(machine, "busy", 1.0),
        ),
    )
    wait_for_quiet(seconds=2.0, patience=60.0)
    assert 19 < machine.now < 60
    machine.now, machine.own = 0.0, -1.0  # never quiet
    wait_for_quiet(seconds=2.0, patience=60.0)
    assert 60 <= machine.now < 66


def test_methods_are_timed_in_another_order_on_every_prompt_and_backwards_in_every_second_repeat():
    variants = [Variant.plain(), *map(Variant.parse, ("pld", "suffix", "samd", "retrieval"))]
    orders = [interleaved(variants, str(prompt), 0) for prompt in range(40)]
    assert all(order[0] == variants[0] and set(order) == set(variants) for order in orders)
    assert {order[1].name for order in orders} == {"pld", "suffix", "samd", "retrieval"}
    assert interleaved(variants, "3", 1) == orders[3][::-1] and interleaved(variants[:1], "3", 0) == variants[:1]
