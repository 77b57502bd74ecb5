"""Run a command without a network: python tools/alone.py COMMAND...

On Linux in a network namespace of its own, where only the loopback device is up. Where that is not allowed, behind a proxy
that cannot be reached: what speaks HTTP finds nobody, and the command is told so in GPT2_BOOK_ALONE=proxy.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # clone(2)
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # netdevice(7)
NOBODY = "http://127.0.0.1:9"


def leave_the_network() -> bool:
    """Move this process to a network of its own; return whether that was allowed."""
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    user, group = os.getuid(), os.getgid()
    if unshare is None or unshare(NEW_NETWORK | (NEW_USER if user else 0)):
        return False
    if user:  # within its own namespace a user may bring the device up
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{file}").write_text(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name, flags = struct.unpack("16sh", fcntl.ioctl(s, GET_FLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(s, SET_FLAGS, struct.pack("16sh", name, flags | UP))
    return True


def main(argv: Sequence[str]) -> int:
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    try:
        alone = leave_the_network()
    except OSError as e:
        print(f"alone: {e}", file=sys.stderr)
        alone = False
    env["GPT2_BOOK_ALONE"] = "namespace" if alone else "proxy"
    if not alone:
        env |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOBODY)
        env["no_proxy"] = "127.0.0.1,localhost"
    os.execvpe(argv[0], list(argv), env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
