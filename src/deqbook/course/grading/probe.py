"""Ask a student's kernel for values: the only thing of a submission that counts.

The text that is sent takes nothing from the student's namespace but the object asked for, and works
in a namespace of its own. The answer carries a word that is new for every question. A kernel that
forges answers gives other values; that is all it can do.
"""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Callable
from typing import Any

from deqbook.course.grading import codec
from deqbook.course.grading.kernel import Ran

#: What is run in the kernel: read the question, answer it, publish the answer under the word.
INSIDE = """
def _answer(question, kind):
    import json
    said = json.loads(question)
    names = said["names"]
    try:
        found = namespace
        if names[0] not in found:
            return {{"missing": names[0]}}
        value = found[names[0]]
        for name in names[1:]:
            value = getattr(value, name)
        if said["call"]:
            args = [decode(one, callables=True) for one in said["args"]]
            more = {{name: decode(one, callables=True) for name, one in said["more"].items()}}
            value = value(*args, **more)
    except NotImplementedError:
        return {{"empty": True}}
    except BaseException as error:
        return {{"raised": type(error).__name__, "told": str(error)[:300]}}
    try:
        return {{"value": encode(value)}}
    except BaseException as error:
        return {{"unreadable": str(error)[:300]}}

def _publish(question, kind):
    import json
    from IPython import get_ipython
    text = json.dumps(_answer(question, kind), allow_nan=False)
    get_ipython().display_pub.publish({{kind: text}}, {{}})

_publish({question!r}, {kind!r})
"""


class ProbeError(Exception):
    """The kernel gave no value; the sentence is for the student, the fault for the report."""

    def __init__(self, sentence: str, fault: str):
        super().__init__(sentence)
        self.sentence, self.fault = sentence, fault


#: Runs code in the kernel and returns what came of it; raises `ProbeError` if it cannot.
Runner = Callable[[str, float | None, str], Ran]


class Probe:
    """Questions to one kernel."""

    def __init__(self, run: Runner):
        self._run = run

    def value(self, name: str, seconds: float | None = None) -> Any:
        """Return the value of a variable."""
        return self._ask(name, {"call": False, "args": [], "more": {}}, seconds)

    def call(self, name: str, *args: Any, seconds: float | None = None, **more: Any) -> Any:
        """Return what a student's function returns for these inputs."""
        encoded = {
            "args": [codec.encode(one) for one in args],
            "more": {key: codec.encode(one) for key, one in more.items()},
        }
        return self._ask(name, {"call": True, **encoded}, seconds)

    def _ask(self, name: str, question: dict[str, Any], seconds: float | None) -> Any:
        kind = f"application/x-deqbook-{secrets.token_hex(16)}"
        text = json.dumps({"names": name.split("."), **question})
        source = inspect.getsource(codec) + INSIDE.format(question=text, kind=kind)
        # A fresh namespace: a student's variable called `json` or `np` must not get in the way.
        sent = (
            f"exec(compile({source!r}, '<judge>', 'exec'), "
            "{'__name__': 'judge', '__builtins__': __import__('builtins'), 'namespace': globals()})"
        )
        shown = f"`{name}(…)`" if question["call"] else f"`{name}`"
        ran = self._run(sent, seconds, kind)
        if ran.trouble:
            raise ProbeError(f"{shown} gave no answer: {ran.trouble}.", "no answer in time")
        if "text" not in ran.private:
            raise ProbeError(f"{shown} gave no answer.", "no answer")
        try:
            answer = json.loads(ran.private["text"])
            if "value" in answer:
                return codec.loads(json.dumps(answer["value"]))
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise ProbeError(
                f"{shown} gave an answer that cannot be read: {error}.", "unreadable"
            ) from None
        raise refusal(shown, answer)


def refusal(shown: str, answer: dict[str, Any]) -> ProbeError:
    """Return the error that says why there is no value."""
    if "missing" in answer:
        return ProbeError(f"There is no `{answer['missing']}` in the notebook.", "missing")
    if "empty" in answer:
        return ProbeError(f"{shown} is not written yet.", "not written")
    if "raised" in answer:
        told = f": {answer['told']}" if answer.get("told") else ""
        return ProbeError(f"{shown} raised {answer['raised']}{told}.", f"raised {answer['raised']}")
    return ProbeError(
        f"{shown} returned what cannot be marked: {answer.get('unreadable')}.", "wrong type"
    )
