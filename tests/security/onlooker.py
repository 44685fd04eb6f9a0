"""Another user of the machine, who looks at a running job: its processes, files, sockets, and the gateway to its JVM.

    onlooker.py PROCESS SECRET DIRECTORY [TOKEN]

It lists the processes below PROCESS and everything below DIRECTORY, gives up its rights, and prints a line for each thing
that it could get: a command line or an environment with the secret, a file that it could open, a socket that it could
connect to, a port whose JVM ran a call for it (with the token of the gateway, if it has one).
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator

from attacker import NOBODY, ports_of

ASK_JVM = b"c\nz:java.lang.System\ngetProperty\nsjava.version\ne\n"
"""Py4J's form of a call of `System.getProperty("java.version")`."""


def below(process: int) -> list[int]:
    """A process and its descendants."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        parents.setdefault(parent, []).append(int(name))
    found = [process]
    for each in found:
        found += parents.get(each, [])
    return found


def content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def of_processes(processes: list[int], secret: bytes) -> Iterator[str]:
    for process in processes:
        for name in ("cmdline", "environ"):
            if secret in content(f"/proc/{process}/{name}"):
                yield f"/proc/{process}/{name}"
        for name in ("mem", "environ", "maps"):
            try:
                os.close(os.open(f"/proc/{process}/{name}", os.O_RDONLY))
                yield f"/proc/{process}/{name}"
            except OSError:
                continue


def of_files(found: list[tuple[str, int]]) -> Iterator[str]:
    for path, mode in found:
        try:
            if stat.S_ISSOCK(mode):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(3)
                    client.connect(path)
            else:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        yield path


def answers_call(port: int, token: str) -> bool:
    with socket.socket() as client:
        client.settimeout(3)
        try:
            client.connect(("127.0.0.1", port))
            if token:
                client.sendall(f"A\n{token}\n".encode())
                if not client.recv(64).startswith(b"!y"):
                    return False
            client.sendall(ASK_JVM)
            return client.recv(256).startswith(b"!ys")
        except OSError:
            return False


def main(process: int, secret: str, directory: str, token: str = "") -> None:
    processes = below(process)
    ports = sorted({port for each in processes for port in ports_of(each)})
    found = []
    for at, directories, files in os.walk(directory):
        for name in (*directories, *files):
            found.append((path := os.path.join(at, name), os.lstat(path).st_mode))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for line in (*of_processes(processes, secret.encode()), *of_files(found)):
        print(line)
    for port in ports:
        if answers_call(port, token):
            print(f"gateway {port}")
    print(f"looked at {len(processes)} processes, {len(found)} files and {len(ports)} ports")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
