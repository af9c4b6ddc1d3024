"""The lab of page 4: Hermite expansions, kernels layer by layer, and the rebuilt Gram matrix."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.kernels import population_limit, relu_moments
from deqbook.models import VanillaDEQ
from deqbook.pages.p04_ntk.lab.hermite import hermite, relu_coefficients
from deqbook.pages.p04_ntk.lab.population import inputs, population_kernels, reconstruct
from deqbook.runtime import generator, normal, sphere

REFERENCE = Path(__file__).parents[2] / "kernels" / "reference" / "untied_kernel.npz"


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- Hermite polynomials ---------------------------------------------------------------------------


def test_hermite_polynomials_are_orthonormal() -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    x, w = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    h = hermite(12, x)
    assert float(((h * w) @ h.mT - torch.eye(13)).abs().max()) < 1e-12
    t = real(-1.5, 0.2, 2.0)
    by_hand = torch.stack([torch.ones(3), t, (t**2 - 1) / math.sqrt(2), (t**3 - 3 * t) / 6**0.5])
    assert float((hermite(3, t) - by_hand).abs().max()) < 1e-12
    assert hermite(0, t).shape == (1, 3)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        hermite(-1, t)


def test_the_coefficients_of_relu() -> None:
    """Against the integral over the half line, and against the closed form."""
    k = 12
    nodes, weights = np.polynomial.legendre.leggauss(400)
    x, w = 7 * (1 + nodes), 7 * weights  # on [0, 14]
    density = torch.from_numpy(w * x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
    integral = hermite(k, torch.from_numpy(x)) @ density
    a = relu_coefficients(k)
    assert float((a - integral).abs().max()) < 1e-13
    for j in range(2, k + 1, 2):
        odd = math.prod(range(j - 3, 0, -2))
        closed = (-1) ** (j // 2 - 1) * odd / math.sqrt(2 * math.pi * math.factorial(j))
        assert float(a[j]) == pytest.approx(closed, rel=1e-12)
    assert a[3::2].tolist() == [0.0] * len(a[3::2])
    # Parseval, E[σ²] = ½, and the tail falls like k^(-3/2)
    missing = [0.5 - float(relu_coefficients(j).square().sum()) for j in (100, 400)]
    assert 0 < missing[1] < missing[0] < 1e-4
    assert missing[0] / missing[1] == pytest.approx(8, rel=0.05)
    assert len(relu_coefficients(0)) == 1


# -- the population kernel, layer by layer ---------------------------------------------------------


@pytest.mark.parametrize("i", [0, 1])
def test_neural_tangents_finds_the_same_untied_kernel(i: int) -> None:
    """1e-6 is what is asked; both are in double precision and do better."""
    with np.load(REFERENCE) as stored:
        assert "neural-tangents" in str(stored["versions"][0])
        X, X2, K, cross = (torch.from_numpy(stored[k]) for k in ("X", "X2", f"K_{i}", f"cross_{i}"))
        variance = float(stored["variances"][i])
    both, n = torch.cat([X, X2]), len(X)
    found = torch.stack(population_kernels(both @ both.mT / X.shape[1], variance, len(K)))
    assert len(K) == 6
    assert float((found[:, :n, :n] - K).abs().max()) < 1e-12
    assert float((found[:, :n, n:] - cross).abs().max()) < 1e-12
    # the depths differ among themselves far more than that
    assert float((found[5] - found[4])[:n, :n].abs().max()) > 1e-7


def test_the_recursion_is_what_wide_untied_networks_do() -> None:
    """Fresh weights in every layer; the mean over draws has no bias left above its noise."""
    n, d, m, variance, depth, draws = 4, 3, 400, 0.5, 4, 60
    X = normal(n, d, g=generator(0))
    S = X @ X.mT / d
    g = generator(1)
    found = []
    for _ in range(draws):
        z, layers = torch.zeros(n, m, dtype=torch.float64), []
        for _ in range(depth):
            W = normal(m, m, g=g) * math.sqrt(2 * variance / m)
            U = normal(m, d, g=g) * math.sqrt(2 / d)
            z = (z @ W.mT + X @ U.mT).relu()
            layers.append(z @ z.mT / m)
        found.append(torch.stack(layers))
    sample = torch.stack(found)
    noise = sample.std(dim=0) / math.sqrt(draws)
    expected = torch.stack(population_kernels(S, variance, depth))
    assert bool(((sample.mean(dim=0) - expected).abs() <= 5 * noise + 1 / m).all())
    assert bool(((expected[3] - expected[1]).abs() > 5 * noise[3] + 1 / m).any())


def test_the_recursion_of_the_diagonal_and_the_first_layer() -> None:
    X = sphere(5, 6, 0) * math.sqrt(6)
    S = X @ X.mT / 6
    for k, K in enumerate(population_kernels(S, 0.3, 8), start=1):
        assert K.diagonal().tolist() == pytest.approx([(1 - 0.3**k) / 0.7] * 5, rel=1e-12)
    assert torch.equal(
        population_kernels(S, 0.3, 1)[0], 2 * relu_moments(S, *2 * [S.diagonal()])[0]
    )


@pytest.mark.parametrize("variance", [0.0, 0.08, 0.5, 0.95])
def test_a_long_recursion_ends_at_the_limit(variance: float) -> None:
    X = normal(6, 3, g=generator(0))
    X[5] = -X[0]
    S = X @ X.mT / 3
    deep = population_kernels(S, variance, 1000)[-1]
    limit = population_limit(S, variance).K
    assert float((limit - deep).abs().max()) < 1e-12 * float(deep.max())


# -- fresh randomness ------------------------------------------------------------------------------


def dead_first_input(m: int) -> tuple[VanillaDEQ, Tensor]:
    """Return a network in which no unit fires on the first input: p = 0 in every layer."""
    drawn, X = VanillaDEQ.init(m, 7, seed=0), inputs(0, 2, 7)
    U = drawn.U.detach()
    return VanillaDEQ(drawn.W, torch.where(U @ X[0] > 0, -1.0, 1.0)[:, None] * U, drawn.a), X


def repeated_input(m: int) -> tuple[VanillaDEQ, Tensor]:
    """Return two equal inputs: q = p, so nothing is left of it in every layer."""
    return VanillaDEQ.init(m, 7, seed=0), inputs(0, 1, 7).repeat(2, 1)


@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("instance", [dead_first_input, repeated_input])
def test_the_gram_matrix_is_rebuilt_when_a_layer_adds_no_direction(instance, layer: int) -> None:
    m, variance = 40, 0.08
    model, X = instance(m)
    r = reconstruct(model, X, layer, variance=variance)
    h = torch.stack([r.h, r.other])
    rebuilt = torch.relu(h @ r.M.mT)
    assert float((rebuilt - r.states[layer + 1]).abs().max()) < 1e-12
    now = r.states[layer] @ r.states[layer].mT
    assert float((h @ h.mT - variance / m * now - X @ X.mT / 7).abs().max()) < 1e-12
    # the columns of M are W on 2ℓ orthonormal directions
    basis = torch.linalg.solve(model.W.detach(), r.M[:, : 2 * layer]) * math.sqrt(variance / m)
    assert basis.shape == (m, 2 * layer)
    assert float((basis.mT @ basis - torch.eye(2 * layer)).abs().max()) < 1e-9


def test_a_narrow_network_has_no_room_for_the_directions() -> None:
    model, X = dead_first_input(3)
    with pytest.raises(ValueError, match="up to 4 directions by layer 2, m = 3"):
        reconstruct(model, X, 2, variance=0.08)
