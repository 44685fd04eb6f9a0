"""Another user of the machine, who connects to a port: prints what the port answers by itself.

knocker.py PORT
"""

from __future__ import annotations

import os
import socket
import sys

from attacker import NOBODY


def main(port: int) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with socket.socket() as client:
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        try:
            print("answered", client.recv(64).hex())
        except ConnectionError:
            print("answered ")


if __name__ == "__main__":
    main(int(sys.argv[1]))
