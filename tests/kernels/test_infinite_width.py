"""Wide limits by independent routes: quadrature, simulation, neural-tangents, wide networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deqbook.kernels import (
    cosines,
    feature_limit,
    gram_parts,
    implicit_only_limit,
    kappa0,
    kappa1,
    kernel_regression,
    population_limit,
    relu_implicit_limit,
    relu_moments,
    vanilla_limit,
)
from deqbook.models import EquilibriumModel, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal, sphere

REFERENCE = Path(__file__).parent / "reference" / "untied_kernel.npz"
RHO = [-1.0, -0.95, -0.3, 0.0, 0.4, 0.9, 0.999, 1.0]


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def legendre(a: float, b: float, k: int = 200) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.legendre.leggauss(k)
    return (a + b + (b - a) * x) / 2, w * (b - a) / 2


# -- the two Gaussian moments ----------------------------------------------------------------------


@pytest.mark.parametrize("rho", RHO)
def test_the_arc_cosine_kernels_are_the_gaussian_moments(rho: float) -> None:
    """In polar coordinates s = r cos u, t = r cos(u - θ) the moments are integrals over u alone."""
    theta = math.acos(rho)
    u, w = legendre(theta - math.pi / 2, math.pi / 2, 40)  # where both are positive
    # E[r²] = 2, and u is uniform on a circle
    both_on = float((w / (2 * math.pi)).sum())
    product = float((w * 2 * np.cos(u) * np.cos(u - theta) / (2 * math.pi)).sum())
    assert abs(float(kappa0(real(rho))) - both_on) < 1e-12
    assert abs(float(kappa1(real(rho))) - product) < 1e-12


def test_the_second_kernel_has_the_first_as_derivative() -> None:
    rho = torch.linspace(-0.99, 0.99, 41, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(kappa1(rho).sum(), rho)
    rho = rho.detach()
    assert float((slope - kappa0(rho)).abs().max()) < 1e-12
    h = 1e-5
    difference = (kappa1(rho + h) - kappa1(rho - h)) / (2 * h)
    assert float((difference - kappa0(rho)).abs().max()) < 1e-9


def test_values_at_the_ends_and_rounding_beyond_them() -> None:
    ends = real(-1.0, 0.0, 1.0)
    assert kappa0(ends).tolist() == pytest.approx([0, 0.25, 0.5], abs=1e-12)
    assert kappa1(ends).tolist() == pytest.approx([0, 1 / (2 * math.pi), 0.5], abs=1e-12)
    over = 1 + 4e-16
    assert kappa0(real(over)) == 0.5
    assert kappa1(real(-over)) == 0
    assert torch.isnan(kappa0(real(math.nan))).all()
    with pytest.raises(ValueError, match=r"modulus 1\.2: divide the covariance"):
        kappa0(real(0.3, -1.2))


def test_moments_for_any_covariance() -> None:
    """Simulated, with different variances on the two sides and a variable that is constant."""
    g = generator(0)
    L = normal(5, 5, g=g)
    L[2] = 0
    draws = normal(400_000, 5, g=g) @ L.mT
    cov = L @ L.mT
    s, t = draws[:, :3], draws[:, 3:]
    product, both = relu_moments(cov[:3, 3:], cov.diagonal()[:3], cov.diagonal()[3:])
    simulated = s.relu().mT @ t.relu() / len(s)
    on = (s > 0).double().mT @ (t > 0).double() / len(s)
    spread = (s.relu().square().mT @ t.relu().square() / len(s) - simulated**2).clamp(min=0).sqrt()
    assert bool(((product - simulated).abs() <= 4 * spread / math.sqrt(len(s))).all())
    assert float((both - on).abs().max()) < 4 * 0.5 / math.sqrt(len(s))
    assert product[2].tolist() == [0, 0]
    assert both[2].tolist() == [0, 0]


def test_moments_of_one_pair_and_the_shapes_asked_for() -> None:
    product, both = relu_moments(real(0.6)[0], real(1.0)[0], real(4.0)[0])
    assert float(product) == pytest.approx(2 * float(kappa1(real(0.3))), abs=1e-12)
    assert float(both) == pytest.approx(float(kappa0(real(0.3))), abs=1e-12)
    with pytest.raises(ValueError, match=r"expected \(2, 3\), got \(2, 2\)"):
        relu_moments(torch.eye(2), torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"at least 0, got -0\.5"):
        relu_moments(torch.eye(2), torch.tensor([1.0, -0.5]), torch.ones(2))


def test_a_repeated_point_has_cosine_one_in_a_cross_block_too() -> None:
    """κ₀ leaves 1 like a square root: without care a rounding error of 1e-16 costs 1e-9."""
    X = normal(200, 7, g=generator(4))
    same = cosines(X @ X.mT, X.pow(2).sum(1), X.pow(2).sum(1)).diagonal()
    opposite = cosines(-2 * X @ X.mT, X.pow(2).sum(1), (2 * X).pow(2).sum(1)).diagonal()
    assert bool((same == 1).all())
    assert bool((opposite == -1).all())
    # two points at a small angle are still told apart
    near = cosines(real(math.cos(1e-6))[None], real(1.0), real(1.0))
    assert 0 < 1 - float(near) < 1e-12


def test_the_feature_limit() -> None:
    X, X2 = normal(6, 4, g=generator(1)), normal(5, 4, g=generator(2))
    G = feature_limit(X)
    assert float((G.diagonal() / X.pow(2).sum(1) - 0.5).abs().max()) < 1e-12
    both = feature_limit(torch.cat([X, X2]))
    assert float((feature_limit(X, X2) - both[:6, 6:]).abs().max()) < 1e-12
    U = normal(400_000, 4, g=generator(3))
    phi = (X @ U.mT).relu() / math.sqrt(len(U))
    assert float((phi @ phi.mT - G).abs().max()) < 0.01 * float(G.max())
    assert float(torch.linalg.eigvalsh(G)[0]) > 1e-3
    X[5] = 2 * X[0]  # parallel: the kernel of features is singular
    assert abs(float(torch.linalg.eigvalsh(feature_limit(X))[0])) < 1e-12
    pairs = torch.cat([sphere(3, 2, 0), -sphere(3, 2, 0)])  # three antipodal pairs in the plane
    assert abs(float(torch.linalg.eigvalsh(feature_limit(pairs))[0])) < 1e-12


# -- the population kernel -------------------------------------------------------------------------


def reference() -> dict[str, Tensor]:
    with np.load(REFERENCE) as file:
        assert "neural-tangents" in str(file["versions"][0])
        return {k: torch.from_numpy(a) for k, a in file.items() if a.dtype == np.float64}


@pytest.mark.parametrize("i", [0, 1])
def test_neural_tangents_finds_the_same_tangent_kernel(i: int) -> None:
    """Its untied network, deep and wide, and our limit for shared weights."""
    stored = reference()
    variance, X = float(stored["variances"][i]), stored["X"]
    blocks = vanilla_limit(X, stored["X2"], variance=variance, m=7)
    ours = blocks["a"] / 7 + 2 * variance * blocks["W"] / 7 + 2 * blocks["U"] / X.shape[1]
    assert float((ours - stored[f"tangent_{i}"]).abs().max()) < 1e-12


@pytest.mark.parametrize("variance", [0.0, 0.08, 0.5, 0.95])
def test_newton_and_picard_solve_the_scalar_equation(variance: float) -> None:
    X = normal(6, 3, g=generator(0))
    X[5] = -X[0]
    S = X @ X.mT / 3
    newton, picard = (population_limit(S, variance, method=w) for w in ("newton", "picard"))
    assert float((newton.K - picard.K).abs().max()) < 1e-12 * float(newton.K.max())
    assert float((newton.cosine - picard.cosine).abs().max()) < 1e-13
    cosine = newton.cosine
    hat = cosines(S, S.diagonal(), S.diagonal())
    residual = 2 * variance * kappa1(cosine) + (1 - variance) * hat - cosine
    assert float(residual.abs().max()) < 1e-12
    assert bool((cosine.diagonal() == 1).all())
    assert newton.K.diagonal().tolist() == pytest.approx(
        (S.diagonal() / (1 - variance)).tolist(), rel=1e-12
    )
    assert float(cosine[0, 5]) == -1 if variance == 0 else float(cosine[0, 5]) > -1


def test_the_limit_between_two_samples() -> None:
    X, X2 = normal(4, 3, g=generator(0)), normal(5, 3, g=generator(1))
    X2[2] = X[1]
    T, diagonals = X @ X2.mT / 3, (X.pow(2).sum(1) / 3, X2.pow(2).sum(1) / 3)
    both = torch.cat([X, X2])
    whole = population_limit(both @ both.mT / 3, 0.2)
    block = population_limit(T, 0.2, S_diag=diagonals)
    assert float((block.K - whole.K[:4, 4:]).abs().max()) < 1e-12
    assert float((block.cosine - whole.cosine[:4, 4:]).abs().max()) < 1e-12
    assert block.cosine[1, 2] == 1


def test_parallel_inputs_make_the_limit_singular_and_antipodal_ones_do_not() -> None:
    X = sphere(4, 3, 0)
    least = [
        float(torch.linalg.eigvalsh(population_limit(Y @ Y.mT, 0.08).K)[0])
        for Y in (X, torch.cat([X, X[:1]]), torch.cat([X, -X]))
    ]
    assert least[0] > 0.05
    assert abs(least[1]) < 1e-12
    assert least[2] > 1e-3  # four antipodal pairs in space: one ReLU layer could not separate them
    assert abs(float(torch.linalg.eigvalsh(feature_limit(torch.cat([X, -X])))[0])) < 1e-12


def test_what_the_population_kernel_refuses() -> None:
    S = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got 1\.0: from 1 on the states"):
        population_limit(S, 1.0)
    with pytest.raises(ValueError, match="'newton' or 'picard', got 'secant'"):
        population_limit(S, 0.1, method="secant")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"S is \(2, 3\), a block between two samples: pass S_diag"
    ):
        population_limit(S[:2], 0.1)
    skew = S.clone()
    skew[0, 1] = 0.5
    with pytest.raises(ValueError, match=r"differs from its transpose by 0\.5"):
        population_limit(skew, 0.1)


# -- the limits of the tangent kernel --------------------------------------------------------------

N, D = 4, 5
UNIT = sphere(N, D, 3)
LONG = math.sqrt(D) * UNIT


@cache
def simulated(gamma: float) -> dict[str, Tensor]:
    return dict(relu_implicit_limit(UNIT, gamma=gamma, samples=200_000, seed=0).blocks)


Case = tuple[Tensor, Callable[[int, int], EquilibriumModel], Callable[[int], dict[str, Tensor]]]
CASES: dict[str, Case] = {
    "vanilla": (
        LONG,
        lambda m, seed: VanillaDEQ.init(m, D, variance=0.08, seed=seed),
        lambda m: vanilla_limit(LONG, variance=0.08, m=m),
    ),
    "implicit only": (
        UNIT,
        lambda m, seed: ReLUImplicit.init_implicit_only(m, D, gamma=0.4, seed=seed, phi="identity"),
        lambda m: {"W": implicit_only_limit(UNIT, gamma=0.4)},
    ),
    "relu implicit": (
        UNIT,
        lambda m, seed: ReLUImplicit.init(m, D, gamma=0.4, seed=seed),
        lambda m: simulated(0.4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_wide_networks_approach_the_limit_like_one_over_root_width(name: str) -> None:
    """Root mean square over seeds of the relative error, block by block."""
    X, make, limit = CASES[name]
    widths, draws = (64, 256, 768), (80, 40, 20)
    errors: dict[str, list[float]] = {}
    for m, seeds in zip(widths, draws):
        blocks = [gram_parts(make(m, seed), X, tol=1e-7) for seed in range(seeds)]
        for key, K in limit(m).items():
            relative = [float((b[key] - K).norm() / K.norm()) for b in blocks]
            errors.setdefault(key, []).append(math.sqrt(sum(e**2 for e in relative) / seeds))
            # no bias is left at the largest width: the mean is much closer than one draw
            if m == widths[-1]:
                mean = torch.stack([b[key] for b in blocks]).mean(dim=0)
                assert float((mean - K).norm() / K.norm()) < 0.5 * errors[key][-1], key
    for key, series in errors.items():
        exponent = float(np.polyfit(np.log(widths), np.log(series), 1)[0])
        assert abs(exponent + 0.5) < 0.1, (key, exponent, series)


def test_cross_blocks_and_diagonals_of_the_limits() -> None:
    X, X2 = LONG, torch.cat([normal(3, D, g=generator(1)), LONG[2:3]])
    both = torch.cat([X, X2])
    whole, block = (vanilla_limit(*args, variance=0.08, m=10) for args in ((both,), (X, X2)))
    assert set(block) == {"W", "U", "a"}
    for key in block:
        assert float((block[key] - whole[key][:N, N:]).abs().max()) < 1e-13, key
    P = 0.5 / (1 - 0.08)  # κ₀(1) = ½
    assert float(block["W"][2, 3]) == pytest.approx(10 * P / 0.92, rel=1e-12)
    assert float(block["U"][2, 3]) == pytest.approx(D * P, rel=1e-12)
    H = implicit_only_limit(both, gamma=0.6)
    assert float((implicit_only_limit(X, X2, gamma=0.6) - H[:N, N:]).abs().max()) < 1e-13
    on_sphere = implicit_only_limit(UNIT, gamma=0.6).diagonal()
    assert on_sphere.tolist() == pytest.approx([0.36 * (0.5 / 0.82) ** 2] * N, rel=1e-12)


def test_the_limit_of_one_entry_solves_the_printed_equations() -> None:
    """K, P and H of gao2023 entry by entry, by plain iteration of a scalar equation."""
    gamma, H = 0.6, implicit_only_limit(UNIT, gamma=0.6)
    inner = float(UNIT[0] @ UNIT[1])
    rho = inner
    for _ in range(200):
        rho = gamma**2 * float(kappa1(real(rho))) + (1 - gamma**2 / 2) * inner
    K = float(kappa1(real(rho))) / (1 - gamma**2 / 2)
    P = float(kappa0(real(rho))) / (1 - gamma**2 * float(kappa0(real(rho))))
    assert float(H[0, 1]) == pytest.approx(gamma**2 * P * K, rel=1e-13)


def test_the_simulated_limit_and_its_error() -> None:
    """The diagonal against a two-dimensional quadrature; two seeds differ as the error says."""
    gamma = 0.6
    limits = [relu_implicit_limit(UNIT, gamma=gamma, samples=200_000, seed=s) for s in range(4)]
    g, wg = legendre(-9, 9, 400)
    s, ws = legendre(0, 9, 200)
    density = wg * np.exp(-(g**2) / 2) / math.sqrt(2 * math.pi)
    positive = ws * np.exp(-(s**2) / 2) / math.sqrt(2 * math.pi)
    k = 0.5
    for _ in range(60):  # s < 0 has chance ½ and gives E[σ(γg)²] = γ²k/2
        h = gamma * math.sqrt(k) * g[:, None] + s
        k = 0.25 * gamma**2 * k + float(density @ np.maximum(h, 0) ** 2 @ positive)
    pi = 0.25 + float(density @ (h > 0) @ positive)
    for limit in limits:
        assert limit.error < 0.01
        # the fixed point magnifies the error of the expectation by 1/(1 - γ²/2) at most
        assert float((limit.K.diagonal() - k).abs().max()) < 4 * limit.error / (1 - gamma**2 / 2)
        assert float((limit.M.diagonal() - pi / (1 - gamma**2 * pi)).abs().max()) < 0.01
        assert float((limit.H - sum(limit.blocks.values())).abs().max()) < 1e-12
    assert not torch.equal(limits[0].K, limits[1].K)
    again = relu_implicit_limit(UNIT, gamma=gamma, samples=200_000, seed=0)
    assert torch.equal(limits[0].K, again.K)


def test_what_the_limits_refuse() -> None:
    for call in (implicit_only_limit, relu_implicit_limit):
        with pytest.raises(ValueError, match=r"between 0 and √2, got 1\.5: beyond, the wide"):
            call(UNIT, gamma=1.5)
    with pytest.raises(ValueError, match=r"between 0 and √2, got -0\.5"):
        implicit_only_limit(UNIT, gamma=-0.5)
    with pytest.raises(ValueError, match="samples must be at least 2, got 1"):
        relu_implicit_limit(UNIT, gamma=0.5, samples=1)


# -- regression ------------------------------------------------------------------------------------


def test_kernel_regression_is_the_linear_solve() -> None:
    X, X2, y = sphere(8, 4, 0), sphere(3, 4, 1), normal(8, 2, g=generator(2))
    K, K_test = feature_limit(X), feature_limit(X2, X)
    for ridge in (0.0, 0.3):
        expected = K_test @ torch.linalg.solve(K + ridge * torch.eye(8, dtype=K.dtype), y)
        found = kernel_regression(K, y, K_test, ridge=ridge)
        assert float((found - expected).abs().max()) < 1e-10
        alone = kernel_regression(K, y[:, 0], K_test, ridge=ridge)
        assert float((alone - found[:, 0]).abs().max()) < 1e-12
    assert float((kernel_regression(K, y, K) - y).abs().max()) < 1e-12  # it interpolates


def test_kernel_regression_is_the_end_of_the_frozen_flow() -> None:
    X, X2, y = sphere(5, 4, 0), sphere(3, 4, 1), normal(5, g=generator(2))
    K, K_test = feature_limit(X), feature_limit(X2, X)
    # dα/dt = y - Kα moves the predictions by -K(ŷ - y)
    alpha, step = torch.zeros(5, dtype=torch.float64), 1 / float(torch.linalg.eigvalsh(K)[-1])
    for _ in range(20_000):
        alpha = alpha + step * (y - K @ alpha)
    assert float((K_test @ alpha - kernel_regression(K, y, K_test)).abs().max()) < 1e-10


def test_what_kernel_regression_refuses() -> None:
    X, y = sphere(4, 3, 0), normal(4, g=generator(0))
    twice = torch.cat([X, X[:1]])
    K = feature_limit(twice)
    labels = torch.cat([y, y[:1]])
    with pytest.raises(ValueError, match=r"singular to working precision.*Drop repeated .* ridge"):
        kernel_regression(K, labels, K)
    assert torch.isfinite(kernel_regression(K, labels, K, ridge=1e-3)).all()
    K = feature_limit(X)
    with pytest.raises(ValueError, match=r"with 4 labels .* got \(4, 4\) and \(4, 5\)"):
        kernel_regression(K, y, feature_limit(X, twice))
    with pytest.raises(ValueError, match="differs from its transpose"):
        kernel_regression(K + torch.triu(K), y, K)
    with pytest.raises(ValueError, match="ridge must be at least 0, got -1"):
        kernel_regression(K, y, K, ridge=-1)
    with pytest.raises(ValueError, match="differs from its transpose by nan"):
        kernel_regression(K * math.nan, y, K)
