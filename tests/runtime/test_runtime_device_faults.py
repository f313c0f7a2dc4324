"""Tests for broken devices, and for ranks that no signal ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sailor_runtime.agent import ranks
from sailor_runtime.agent.device_faults import fault_in, kernel_log
from sailor_runtime.agent.ranks import Rank

OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"[ 12.3] {OFF_THE_BUS}\nmore", OFF_THE_BUS),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault", None),
        ("a line\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n", "uncorrectable ECC error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", None),
        ("CUDA error: device-side assert triggered", None),
    ],
)
def test_only_errors_of_hardware_are_faults(text: str, shown: str | None) -> None:
    found = fault_in(text)
    assert found is None if shown is None else shown in str(found)


def test_the_kernels_log_counts_from_the_start_of_a_generation(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(f"4,1,5000000,-;{OFF_THE_BUS}\n4,2,9000000,-;usb 1-1: new device\n SUBSYSTEM=usb\n")
    assert fault_in(kernel_log(4.0, log)) == OFF_THE_BUS
    assert kernel_log(8.0, log) == "usb 1-1: new device"
    assert kernel_log(0.0, tmp_path / "missing") == ""


class Held:
    """A process that a driver holds: no signal ends it."""

    returncode = None

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        raise AssertionError("this would never return")


def rank_of(number: int, process: object, folder: Path) -> Rank:
    return Rank(number=number, process=process, events=folder / "events", log=folder / "log")


def test_a_rank_that_no_signal_ends_does_not_hold_up_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_KILLED_S", 0.2)
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    held = rank_of(1, Held(), tmp_path)
    begun = time.monotonic()
    assert ranks.kill([rank_of(0, sleeping, tmp_path), held]) == [held]
    assert time.monotonic() - begun < 30.0
    assert sleeping.returncode == -9
