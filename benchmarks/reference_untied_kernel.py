r"""Reference values of the untied kernel, computed by neural-tangents.

``python benchmarks/reference_untied_kernel.py tests/kernels/reference/untied_kernel.npz`` writes
the arrays that ``tests/pages/p04_ntk/test_lab.py`` compares with ``population_kernels``. It is run
by hand; the tests need only its output. neural-tangents is not a dependency of the book: install
it in an environment of its own, with a jax that it can import
(``pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30 tf2jax==0.3.6``).

The network is :math:`z^{(\ell)}=\sigma(W^{(\ell)}z^{(\ell-1)}+U^{(\ell)}x)`, :math:`z^{(0)}=0`,
with fresh weights in every layer: entries of variance :math:`2\sigma_w^2/m` and :math:`2/d`. In the
parameterisation of neural-tangents these are ``W_std`` :math:`=\sqrt2\,\sigma_w` and
:math:`\sqrt2`, without bias, and its ``nngp`` after the last ReLU is
:math:`\lim\tfrac1mz_i^{(\ell)}\cdot z_j^{(\ell)}=K^{(\ell)}_{ij}`. Whether U is drawn anew in every
layer does not matter to this limit. Double precision; the inputs have different lengths on purpose,
and the kernel is asked for on one sample and between two.

``tangent`` is the tangent kernel of a network so deep that depth no longer matters, with a read-out
of ``W_std`` 1 on top. A factor ``W_std`` in front of the weights multiplies their block by its
square, so it is :math:`K+P\circ(2\sigma_w^2K+2S)` in the letters of ``vanilla_limit``: shared
weights and fresh ones have the same limit.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from neural_tangents import stax

DEPTH, VARIANCES = 6, (0.08, 0.4)
DEEP = (15, 40)  # σ_w² to this power is below rounding


def network(depth: int, variance: float) -> Any:
    """Return the untied network, the input injected into every layer."""
    inject = stax.Dense(1, W_std=math.sqrt(2))
    net = stax.serial(inject, stax.Relu())
    for _ in range(depth - 1):
        through = stax.serial(net, stax.Dense(1, W_std=math.sqrt(2 * variance)))
        net = stax.serial(
            stax.FanOut(2), stax.parallel(through, inject), stax.FanInSum(), stax.Relu()
        )
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description="Write reference values of the untied kernel.")
    parser.add_argument("file", type=Path, help="the .npz file to write")
    file = parser.parse_args().file
    jax.config.update("jax_enable_x64", True)
    sys.setrecursionlimit(20_000)  # a network is nested as deep as it is
    warnings.filterwarnings("ignore", message="`FanIn` layers assume independent inputs")
    rng = np.random.default_rng(0)
    X, X2 = rng.standard_normal((6, 5)), rng.standard_normal((4, 5))
    X[5] = -0.5 * X[0]  # an antipodal pair of different lengths
    X2[3] = X[1]  # a point of both samples
    arrays: dict[str, np.ndarray] = {"X": X, "X2": X2, "variances": np.array(VARIANCES)}
    for i, variance in enumerate(VARIANCES):
        kernels = [network(depth, variance)[2] for depth in range(1, DEPTH + 1)]
        arrays[f"K_{i}"] = np.stack([np.asarray(k(X, None, "nngp")) for k in kernels])
        arrays[f"cross_{i}"] = np.stack([np.asarray(k(X, X2, "nngp")) for k in kernels])
        deep = stax.serial(network(DEEP[i], variance), stax.Dense(1, W_std=1.0))[2]
        arrays[f"tangent_{i}"] = np.asarray(deep(X, X2, "ntk"))
    packages = ("neural-tangents", "jax", "jaxlib", "numpy")
    arrays["versions"] = np.array([f"{p} {version(p)}" for p in packages])
    arrays["recipe"] = np.array("benchmarks/reference_untied_kernel.py")
    assert all(a.dtype == np.float64 for k, a in arrays.items() if k[0] in "XKct")
    np.savez_compressed(file, **arrays)
    print(f"{file}: {', '.join(arrays['versions'])}")


if __name__ == "__main__":
    main()
