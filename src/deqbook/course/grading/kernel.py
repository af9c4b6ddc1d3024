"""Talk to a kernel that is not to be trusted: with time limits, size limits, and no second try.

This is a client of the Jupyter protocol of its own, because the usual one waits, reconnects and
collects without limits. A message is JSON; nothing is unpickled. Larger messages than `LARGEST` end
the connection.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

import zmq
from jupyter_client.session import Session

from deqbook.course.grading.sandbox import Clock, Sandbox, sockets_ready

#: Largest message that is received.
LARGEST = 24 * 2**20
#: How long a kernel may take to start, to give up a cell, to send what belongs to a reply.
START, GRACE, ECHO = 120.0, 3.0, 20.0
#: Kinds of output that are kept: none of them is code to a browser.
KINDS = ("text/plain", "image/png", "image/jpeg")
#: Longest text of one output, and largest picture, that are kept.
TEXT, PICTURE = 20_000, 2_000_000


class Lost(RuntimeError):
    """The kernel is gone; the message says why."""


@dataclass
class Ran:
    """What running one cell gave: its outputs, and what stopped it, if something did."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    private: dict[str, Any] = field(default_factory=dict)  # of the kind that the caller asked for


class Client:
    """One connection to one kernel."""

    def __init__(self, box: Sandbox):
        self.box, self.spent = box, 0.0  # the seconds of all that was run
        self.session = Session(key=box.connection["key"].encode())
        self.context = zmq.Context()
        if not sockets_ready(box, START):
            raise Lost(box.stopped or f"the kernel did not start ({box.said()})")
        self.shell = self._connect(zmq.DEALER, "shell")
        self.control = self._connect(zmq.DEALER, "control")
        self.iopub = self._connect(zmq.SUB, "iopub")
        self.iopub.setsockopt(zmq.SUBSCRIBE, b"")
        self._greet()

    def _connect(self, kind: int, channel: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        socket.setsockopt(zmq.RCVHWM, 200)
        # A kernel that was lost stays lost: what listens at its address then may be another.
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(
            f"ipc://{self.box.connection['ip']}-{self.box.connection[channel + '_port']}"
        )
        return socket

    def _greet(self) -> None:
        """Ask for the kernel's name until the answer and its echo on iopub have both come."""
        end = time.monotonic() + START
        while time.monotonic() < end:
            self._send(self.shell, "kernel_info_request", {})
            if self._receive(self.shell, 1.0) and self._receive(self.iopub, 0.2):
                self._drain()
                return
            if not self.box.alive():
                break
        raise Lost(self.box.stopped or f"the kernel did not answer ({self.box.said()})")

    def close(self) -> None:
        """Close the sockets."""
        self.context.destroy(linger=0)

    def _send(self, socket: zmq.Socket[bytes], kind: str, content: dict[str, Any]) -> str:
        message = self.session.send(socket, kind, content) or {}
        return message["header"]["msg_id"]

    def _receive(self, socket: zmq.Socket[bytes], seconds: float) -> dict[str, Any] | None:
        """Return the next message, or nothing if none comes, or none that can be read."""
        if not socket.poll(max(0, int(1000 * seconds))):
            return None
        try:
            _, parts = self.session.feed_identities(socket.recv_multipart())
            return self.session.deserialize(parts)
        except Exception:  # whatever a hostile kernel may send
            return {"header": {}, "parent_header": {}, "msg_type": "", "content": {}}

    def _drain(self) -> None:
        for socket in (self.shell, self.iopub):
            end = time.monotonic() + 1
            while time.monotonic() < end and self._receive(socket, 0) is not None:
                pass

    def run(self, code: str, seconds: float, output: int, private: str = "") -> Ran:
        """Run code; interrupt it when it takes too long or prints too much.

        Raises `Lost` if the kernel dies, or does not give up. The seconds are those of `Clock`.
        """
        clock = Clock(self.box)
        try:
            return self._run(code, seconds, output, private)
        finally:
            self.spent += clock()

    def _run(self, code: str, seconds: float, output: int, private: str) -> Ran:
        ran, clock, limit, seen = Ran(), Clock(self.box), seconds, 0
        request = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        asked = self._send(self.shell, "execute_request", {**request, "stop_on_error": False})
        replied = idle = 0.0
        while True:
            now = time.monotonic()
            if idle and replied:
                return ran
            if replied and now > replied + ECHO:  # a message above the limit ended the connection
                why = f"it printed more than the {output / 2**20:.3g} MB that are read"
                self.box.stop(why)
                raise Lost(why)
            if not self.box.alive():
                raise Lost(self.box.stopped or "the kernel ended itself")
            if now > clock.start + limit and clock() > limit:
                if ran.trouble:
                    self.box.stop(ran.trouble)
                    raise Lost(ran.trouble)
                ran.trouble = f"it ran longer than {seconds:.3g} s and was stopped"
                self._send(self.control, "interrupt_request", {})
                clock, limit = Clock(self.box), GRACE
            # iopub first: outputs come before the reply that ends the cell
            message = self._receive(self.iopub, 0.02 if replied else 0.05)
            if message is not None and parent(message) == asked:
                kind, content = message["msg_type"], message["content"]
                if kind == "status" and content.get("execution_state") == "idle":
                    idle = now
                seen += keep(kind, content, ran, private)
                if seen > output and not ran.trouble:
                    ran.trouble = f"it printed more than {output / 2**20:.3g} MB and was stopped"
                    self._send(self.control, "interrupt_request", {})
                    clock, limit = Clock(self.box), GRACE
            if not replied:
                message = self._receive(self.shell, 0)
                if message is not None and parent(message) == asked:
                    replied = now


def parent(message: dict[str, Any]) -> str:
    """Return which request a message answers."""
    with contextlib.suppress(AttributeError, TypeError):
        return str(message["parent_header"].get("msg_id", ""))
    return ""


def keep(kind: str, content: dict[str, Any], ran: Ran, private: str) -> int:
    """Take in a message that is an output, cut to size; return how much there was of it."""
    try:
        return _keep(kind, content, ran, private)
    except (AttributeError, KeyError, TypeError, ValueError):  # not what the protocol says
        return 1000


def _keep(kind: str, content: dict[str, Any], ran: Ran, private: str) -> int:
    if kind == "stream":
        text, name = str(content["text"]), "stderr" if content["name"] == "stderr" else "stdout"
        last = ran.outputs[-1] if ran.outputs else {}
        if last.get("output_type") == "stream" and last["name"] == name:
            last["text"] = cut(last["text"] + text) if len(last["text"]) < TEXT else last["text"]
        elif len(ran.outputs) < 100:
            ran.outputs.append({"output_type": "stream", "name": name, "text": cut(text)})
        return len(text)
    if kind == "error":
        lines = [str(line) for line in content["traceback"]]
        name, value = str(content["ename"])[:200], cut(str(content["evalue"]))
        trace = [cut("\n".join(lines))]
        if len(ran.outputs) < 100:
            ran.outputs.append(
                {"output_type": "error", "ename": name, "evalue": value, "traceback": trace}
            )
        return sum(map(len, lines))
    if kind in ("execute_result", "display_data"):
        data = dict(content["data"])
        if private and private in data:
            ran.private = {"text": str(data[private])}
            return 0
        kept = {
            name: cut(str(data[name])) if name == "text/plain" else str(data[name])
            for name in KINDS
            if name in data and len(str(data[name])) <= (PICTURE if name != "text/plain" else 2**40)
        }
        if kept and len(ran.outputs) < 100:
            ran.outputs.append({"output_type": "display_data", "data": kept, "metadata": {}})
        return sum(len(str(value)) for value in data.values())
    return 0


def cut(text: str) -> str:
    """Return a text, shortened if it is long."""
    return text if len(text) <= TEXT else text[:TEXT] + "\n… (cut)"
