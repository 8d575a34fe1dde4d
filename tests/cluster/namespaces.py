"""A cluster of Ray's on this machine whose nodes are machines of their own to the network: one namespace each.

``python tests/cluster/namespaces.py COMMAND…`` makes a head and two workers of two cores each, runs the command on the
head with ``RAY_ADDRESS``, and removes everything. Needs root, ``ip`` and ``ray``. Nodes share the file system.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

BRIDGE = "demapps0"
PORT = 6379
#: A hundredth of what Ray would take of this machine; nothing but orders and statuses goes through it.
STORE = 80_000_000
RAY = str(Path(sys.executable).with_name("ray"))


def permitted() -> str | None:
    """Why namespaces cannot be made here; None if they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the command ip"
    tried = subprocess.run(["ip", "netns", "add", "demapps-try"], capture_output=True, text=True)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", "demapps-try"], check=True)
    return None


class Machine:
    """A network namespace with an address, joined to the others by a bridge."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = f"demapps-{name}", f"10.77.0.{number}"
        veth = f"demv{number}"
        for line in (
            f"ip netns add {self.name}",
            f"ip link add {veth} type veth peer name eth0 netns {self.name}",
            f"ip link set {veth} master {BRIDGE} up",
            f"ip -n {self.name} addr add {self.address}/24 dev eth0",
            f"ip -n {self.name} link set eth0 up",
            f"ip -n {self.name} link set lo up",
        ):
            subprocess.run(line.split(), check=True)

    def command(self, *command: str) -> list[str]:
        """The command, to be run on this machine."""
        return ["ip", "netns", "exec", self.name, *command]

    def processes(self) -> list[int]:
        """Of everything that runs on it."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self, but: int | None = None) -> int:
        """The power goes: every process at once, but for one; how many there were."""
        killed = 0
        while pids := [pid for pid in self.processes() if pid != but]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        return killed

    def remove(self) -> None:
        """The namespace, with what runs in it."""
        self.kill()
        subprocess.run(["ip", "netns", "delete", self.name], check=True)


class Network:
    """Machines that see each other; a context manager."""

    def __init__(self, machines: int) -> None:
        self._number, self._machines = machines, list[Machine]()

    def __enter__(self) -> list[Machine]:
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        try:
            subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
            for number in range(self._number):
                self._machines.append(Machine(f"node{number}", number + 1))
        except BaseException:
            self.__exit__()
            raise
        return self._machines

    def __exit__(self, *_: object) -> None:
        for machine in self._machines:
            machine.remove()
        subprocess.run(["ip", "link", "delete", BRIDGE], check=True)


class Cluster:
    """A head, which runs no jobs, and workers; a context manager.

    Args:
        workers: how many.
        cores: of each.
        private: a folder that each worker has for itself, empty at first: a disk that is not shared.
    """

    def __init__(self, workers: int = 2, cores: int = 2, private: Path | None = None) -> None:
        self._cores, self._private, self._network = cores, private, Network(1 + workers)

    def __enter__(self) -> Cluster:
        # sockets lie in it, and their paths must be short
        self._temporary = Path(tempfile.mkdtemp(prefix="dc-", dir="/tmp"))
        self.machines = self._network.__enter__()
        try:
            self.address = f"{self.machines[0].address}:{PORT}"
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._network.__exit__()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def start(self) -> None:
        """Start Ray on all machines, for the first time or again."""
        self._start(self.machines[0], "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
        for machine in self.machines[1:]:
            self.join(machine)

    def join(self, machine: Machine) -> None:
        """Start Ray on a worker, for the first time or again."""
        own = (
            () if self._private is None else ("sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(self._private))
        )
        self._start(machine, f"--address={self.address}", f"--num-cpus={self._cores}", before=own)

    def on_head(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a command where the head is."""
        environment = {**os.environ, "RAY_ADDRESS": self.address}
        return subprocess.Popen(self.machines[0].command(*command), env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]

    def _start(self, machine: Machine, *flags: str, before: Sequence[str] = ()) -> None:
        command = machine.command(
            *before, RAY, "start", *flags, f"--node-ip-address={machine.address}", f"--object-store-memory={STORE}",
            "--disable-usage-stats", f"--temp-dir={self._temporary / machine.name[-1]}",
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> int:
    """Run the command of the command line."""
    if (why := permitted()) is not None:
        print(f"skipped: {why}", file=sys.stderr)
        return 77
    with Cluster() as cluster:
        return cluster.on_head(sys.argv[1:]).wait()


if __name__ == "__main__":
    sys.exit(main())
