"""A machine that cannot run the GPU check is told so in one line."""

from importlib.metadata import PackageNotFoundError
from unittest import mock

import pytest

from benchmarks.gpu import ready


def run(versions, arguments, gpu=True):
    def version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    with mock.patch.object(ready, "version", version), mock.patch("torch.cuda.is_available", return_value=gpu):
        return ready.main(arguments)


@pytest.mark.parametrize("torch", ["2.11.0+cu130", "2.13.0", "3.0.1"])
def test_versions_from_the_least_on_will_do(torch):
    assert run({"torch": torch, "triton": "3.6.0"}, []) == 0
    assert run({"torch": torch, "triton": "3.10.1"}, ["--dry-run"], gpu=False) == 0


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"torch": "2.9.1", "triton": "3.7.1"}, "error: torch is 2.9.1, 2.11 or newer is needed"),
        ({"torch": "2.13.0", "triton": "3.5.0"}, "error: triton is 3.5.0, 3.6 or newer is needed"),
        ({"torch": "2.13.0"}, "error: triton is not installed, 3.6 or newer is needed"),
    ],
)
def test_what_is_too_old_or_missing_is_named(versions, message, capsys):
    assert run(versions, []) == 2
    assert capsys.readouterr().err == message + "\n"


def test_without_a_gpu_only_a_rehearsal_is_possible(capsys):
    assert run({"torch": "2.13.0", "triton": "3.7.1"}, [], gpu=False) == 2
    assert capsys.readouterr().err == "error: torch sees no GPU; --dry-run rehearses on a CPU\n"
