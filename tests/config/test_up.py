"""`make up`, as a newcomer runs it: what it prints works, what it made stays, what it started ends."""

import json
import os
import signal
import socket
import stat
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
MARK = "MOORAGE_TEST_INSTANCE"
PATIENCE = 100.0


class Instance:
    """One `make up` in a process group of its own, with an environment that has almost nothing in it."""

    def __init__(self, folder, port):
        self.var, self.port = folder / "var", port
        self.output = folder / f"output-{port}"
        self.mark = f"{folder.name}-{port}-{os.getpid()}"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "VAR_DIR": str(self.var),
            "PORT": str(port),
            "WARM_WORKERS": "1",
            MARK: self.mark,
        }
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                ["make", "--no-print-directory", "up"],
                cwd=CHECKOUT,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self):
        return self.output.read_text()

    def until_up(self):
        until(lambda: "\nEND\n" in self.text or self.process.poll() is not None, self.output)
        assert self.process.poll() is None, self.text

    def credentials(self):
        return json.loads((self.var / "credentials.json").read_text())

    def first_program(self):
        """What the printed lines print when they are pasted into a shell that knows nothing."""
        first = next(line for line in self.text.splitlines() if line.endswith(" - <<'END'"))
        program = self.text[self.text.index(first) :]
        environment = {"PATH": "/usr/bin:/bin"}
        return subprocess.run(
            ["sh"], input=program, cwd="/", env=environment, capture_output=True, text=True, check=False
        )

    def processes(self):
        """Those that bear this instance's mark or descend from it: workers have an empty environment."""
        table = dict(process_table())
        ours = {pid for pid, (_, environment) in table.items() if f"{MARK}={self.mark}" in environment}
        while more := {pid for pid, (parent, _) in table.items() if parent in ours} - ours:
            ours |= more
        return ours

    def ended(self):
        """Wait for the end of `make`; then nothing that was there before may be there any more."""
        self.process.wait(timeout=PATIENCE)
        return self.process.returncode


def process_table():
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if state != "Z":
                yield int(folder.name), (int(parent), environment)


def until(condition, output):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)


@contextmanager
def up(folder, port):
    instance = Instance(folder, port)
    try:
        yield instance
    finally:
        for pid in instance.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        instance.process.wait(timeout=PATIENCE)


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def assert_gone(instance, before):
    """Nothing of the instance is left, neither by its mark nor by the numbers it had."""
    until(lambda: not instance.processes(), instance.output)
    still = {pid: entry for pid, entry in process_table() if pid in before and started_by(pid, before)}
    assert not still


def started_by(pid, before):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == before[pid]
    except FileNotFoundError:
        return False


def start_times(pids):
    times = {}
    for pid in pids:
        try:
            times[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except FileNotFoundError:
            continue
    return times


def test_the_first_start(tmp_path, port):
    with up(tmp_path, port) as instance:
        instance.until_up()
        assert instance.text.rstrip().endswith("\nEND")

        file = instance.var / "credentials.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        access = instance.credentials()
        assert set(access) == {"url", "ws_url", "api_key", "admin_user", "admin_password"}
        assert access["url"] == f"http://127.0.0.1:{port}"
        assert access["ws_url"] == f"ws://127.0.0.1:{port}/monty-ws/"
        assert access["api_key"] not in instance.text

        ran = instance.first_program()
        assert ran.stdout == "42\n", ran.stderr + instance.text

        # `make` passes SIGTERM on; nobody tells the others.
        before = start_times(instance.processes())
        assert len(before) >= 6  # make, up, Valkey, the server, Celery's worker and beat
        instance.process.send_signal(signal.SIGTERM)
        instance.ended()
        assert_gone(instance, before)
        assert "Traceback" not in instance.text


def test_a_second_start_keeps_all_and_ctrl_c_ends_it(tmp_path, port):
    with up(tmp_path, port) as first:
        first.until_up()
        access = first.credentials()
        os.killpg(first.process.pid, signal.SIGTERM)
        first.ended()
        assert not first.processes()
    with up(tmp_path, port) as second:
        second.until_up()
        assert second.credentials() == access
        ran = second.first_program()
        assert ran.stdout == "42\n", ran.stderr + second.text

        with up(tmp_path, port + 1) as same_folder:
            assert same_folder.ended() != 0
            assert "Moorage runs already in" in same_folder.text
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        with up(elsewhere, port) as same_port:
            assert same_port.ended() != 0
            assert f"Port {port} of 127.0.0.1 is taken" in same_port.text
            assert "Traceback" not in same_port.text
        assert second.process.poll() is None

        # Ctrl-C at a terminal: SIGINT to the whole group in the foreground.
        before = start_times(second.processes())
        os.killpg(second.process.pid, signal.SIGINT)
        second.ended()
        assert_gone(second, before)
        assert "Traceback" not in second.text
