"""Start kernels as forks of one process that has imported what most chapters import: each saves seconds of imports. Linux only.

    with warm(environment) as kernels:
        client = NotebookClient(nb, kernel_manager_class=kernels, ...)

A kernel is still a process of its own, that has run nothing but imports. On macOS a fork of a process that has loaded the system's
frameworks may crash, and Windows has none: there, and where a kernel wants another environment, kernels start as always.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner

POSSIBLE = sys.platform == "linux"
# what takes longest, if it is installed; none of it computes anything, or starts a thread, when it is imported
IMPORTS = ("torch", "torch._dynamo", "matplotlib.pyplot", "ipykernel.kernelapp", "transformers.models.gpt2.modeling_gpt2", "pytest")


class Kernel:
    """A forked kernel, as much like `subprocess.Popen` as a provisioner needs."""

    stdin = stdout = stderr = None

    def __init__(self, server: Server, pid: int):
        self.server, self.pid, self.returncode = server, pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask(wait_for=self.pid)
        return self.returncode

    def wait(self) -> int | None:
        return self.poll()  # the provisioner asks when it is over

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Server:
    """The process that forks, with the socket by which it is asked."""

    def __init__(self, env: Mapping[str, str]):
        self.env = dict(env)
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, os.path.abspath(__file__), str(theirs.fileno()), *IMPORTS]
        # before pyplot is imported, as ipykernel sets it for itself
        inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        self.process = subprocess.Popen(command, env=self.env | inline, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def ask(self, *, stderr: int | None = None, **request: Any) -> Any:
        socket.send_fds(self.socket, [json.dumps(request).encode() + b"\n"], [] if stderr is None else [stderr])
        with self.socket.makefile("rb") as answers:
            if not (answer := answers.readline()):
                raise RuntimeError("the process that starts the kernels has ended; what it said stands above")
        return json.loads(answer)

    def close(self) -> None:
        self.socket.close()  # it ends when nobody can ask any more
        self.process.wait()


class Provisioner(LocalProvisioner):
    """Jupyter's, which asks a server for the kernel where the environment is the server's."""

    server: Server

    async def launch_kernel(self, cmd: list[str], **how: Any) -> Any:
        own = {name: value for name, value in how["env"].items() if not name.startswith("JPY_")}
        if own != self.server.env:
            return await super().launch_kernel(cmd, **how)
        log = how["stderr"].fileno()
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        pid = self.server.ask(stderr=log, arguments=arguments, folder=str(how["cwd"]))
        self.process, self.pid, self.pgid, self.cwd = Kernel(self.server, pid), pid, pid, how["cwd"]
        return self.connection_info


@contextlib.contextmanager
def warm(env: Mapping[str, str]) -> Iterator[type[AsyncKernelManager]]:
    """Yield a class of kernel managers, whose kernels with this environment are forked."""
    server = Server(env)

    class Manager(AsyncKernelManager):
        def __init__(self, **how: Any):
            super().__init__(**how)
            self.provisioner = Provisioner(kernel_id="", kernel_spec=self.kernel_spec, parent=self)
            self.provisioner.server = server

    try:
        yield Manager
    finally:
        server.close()


def _become_kernel(request: dict[str, Any], log: int) -> None:
    """Go on as the kernel, in a forked process; `log` is where it says what no cell says."""
    os.setsid()  # so that a signal to its group reaches the kernel and what it has started
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    os.chdir(request["folder"])
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # it ends when that one has
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


def _serve(channel: socket.socket, imports: Sequence[str]) -> None:
    """Fork a kernel for each request for one, and say of the others whether they have ended; end with the one who asks."""
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a kernel need not look through what was imported, which would also copy its pages, least of all when it ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl+C is for whoever runs the notebooks
    while True:
        data, files, _, _ = socket.recv_fds(channel, 65536, 1)
        if not data:
            return
        request = json.loads(data)
        if pid := request.get("wait_for"):
            ended, status = os.waitpid(pid, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if not answer:
                channel.close()
                _become_kernel(request, files[0])
                sys.exit()
        for file in files:
            os.close(file)
        channel.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    del sys.path[0]  # this folder is on the path of the kernels anyway
    asked = socket.socket(fileno=int(sys.argv[1]))
    asked.set_inheritable(False)
    _serve(asked, sys.argv[2:])
