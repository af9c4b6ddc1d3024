"""Values as JSON, in both directions, without pickle.

This module's text is also sent into the student's kernel, so it needs the standard library and
numpy alone. What comes back is read strictly: known tags, known kinds of numbers, sizes that match.
"""

from __future__ import annotations

import base64
import decimal
import json
import math
import numbers
from typing import Any

import numpy as np

#: Largest array that is sent, in bytes; how deep lists may be nested; how many entries they have.
LARGEST, DEEPEST, LONGEST = 8_000_000, 8, 100_000


class Code:
    """A function that is sent as its source, with the constants that it uses.

    >>> decode(encode(Code("lambda z: np.tanh(w * z)", w=0.0)), callables=True)(3.0)
    np.float64(0.0)
    """

    def __init__(self, source: str, **names: Any):
        self.source, self.names = source, names


class Tensor:
    """An array that arrives as a torch tensor in double precision."""

    def __init__(self, value: Any):
        self.value = np.asarray(value)


def encode(value: Any, depth: int = 0) -> Any:
    """Return a value as something that JSON can say."""
    if depth > DEEPEST:
        raise ValueError(f"a value is nested more than {DEEPEST} deep")
    if value is None or isinstance(value, (bool, int, str)):
        if isinstance(value, int) and abs(value) > 10**300:
            raise ValueError("an integer has more than 300 digits")
        if isinstance(value, str) and len(value) > LARGEST:
            raise ValueError(f"a text has more than {LARGEST} characters")
        return {"t": "plain", "v": value}
    if isinstance(value, float):
        return {"t": "float", "v": value if math.isfinite(value) else repr(float(value))}
    if isinstance(value, complex):
        return {"t": "complex", "v": [encode(value.real), encode(value.imag)]}
    if isinstance(value, np.generic):
        return encode(value.item(), depth + 1)
    if isinstance(value, (numbers.Real, decimal.Decimal)):  # a fraction, say
        return encode(float(value), depth + 1)
    if isinstance(value, Code):
        names = {name: encode(one, depth + 1) for name, one in value.names.items()}
        return {"t": "code", "v": value.source, "names": names}
    if isinstance(value, Tensor):
        return {"t": "tensor", "v": encode(value.value, depth + 1)}
    if hasattr(value, "detach"):  # a torch tensor, without importing torch for it
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise ValueError(f"an array holds {value.dtype}, not numbers")
        if value.nbytes > LARGEST:
            raise ValueError(f"an array has {value.nbytes} bytes, more than {LARGEST}")
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
        return {"t": "array", "dtype": value.dtype.str, "shape": list(value.shape), "v": data}
    if isinstance(value, (list, tuple, set, frozenset)):
        if len(value) > LONGEST:
            raise ValueError(f"a list has {len(value)} entries, more than {LONGEST}")
        tag = "list" if isinstance(value, list) else "tuple"
        if isinstance(value, (set, frozenset)):
            value, tag = sorted(value, key=repr), "set"
        return {"t": tag, "v": [encode(one, depth + 1) for one in value]}
    if isinstance(value, dict):
        if len(value) > LONGEST:
            raise ValueError(f"a dictionary has {len(value)} entries, more than {LONGEST}")
        return {
            "t": "dict",
            "v": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()],
        }
    raise ValueError(
        f"a {type(value).__name__} is not a number, an array, a text or a list of such"
    )


def decode(said: Any, *, callables: bool = False, depth: int = 0) -> Any:
    """Return the value that `encode` wrote; code only where the reader trusts the writer."""
    if depth > DEEPEST + 2 or not isinstance(said, dict):
        raise ValueError("a value is not written as it should be")
    tag, value = said.get("t"), said.get("v")

    def inside(one: Any) -> Any:
        return decode(one, callables=callables, depth=depth + 1)

    if tag == "plain" and (value is None or isinstance(value, (bool, int, str))):
        return value
    if tag == "float" and isinstance(value, (float, int, str)):
        if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
            raise ValueError("a number is not written as it should be")
        return float(value)
    if tag == "complex" and isinstance(value, list) and len(value) == 2:
        return complex(float(inside(value[0])), float(inside(value[1])))
    if tag == "array":
        dtype, shape = np.dtype(str(said.get("dtype"))), list(said.get("shape") or [])
        whole = len(shape) <= DEEPEST
        if (
            not whole
            or any(type(n) is not int or n < 0 for n in shape)
            or dtype.kind not in "biufc"
        ):
            raise ValueError("an array is not written as it should be")
        data = base64.b64decode(str(value), validate=True)
        if len(data) != math.prod(shape) * dtype.itemsize or len(data) > LARGEST:
            raise ValueError("an array has another size than it says")
        return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
    if tag in ("list", "tuple", "set") and isinstance(value, list):
        items = [inside(one) for one in value]
        return items if tag == "list" else tuple(items) if tag == "tuple" else frozenset(items)
    if tag == "dict" and isinstance(value, list):
        return {inside(pair[0]): inside(pair[1]) for pair in value}
    if callables and tag == "tensor":
        import torch

        return torch.from_numpy(inside(value))
    if callables and tag == "code":
        names = {name: inside(one) for name, one in said["names"].items()}
        return eval(str(value), {"np": np, "math": math, **names})
    raise ValueError("a value is not written as it should be")


def dumps(value: Any) -> str:
    """Return a value as a line of JSON."""
    return json.dumps(encode(value), allow_nan=False)


def loads(text: str) -> Any:
    """Return the value of a line of JSON that nobody vouches for."""
    try:
        return decode(json.loads(text))
    except (TypeError, KeyError, IndexError, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"a value is not written as it should be ({error})") from None
