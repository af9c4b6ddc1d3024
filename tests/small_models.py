"""Small models of every kind that has closed forms, for the tests of gradients and kernels."""

from __future__ import annotations

from collections.abc import Callable

from deqbook.models import EquilibriumModel, MonDEQ, ReLUImplicit, VanillaDEQ
from deqbook.runtime import generator, normal


def tanh_deq() -> VanillaDEQ:
    base = VanillaDEQ.init(8, 3, seed=1)
    return VanillaDEQ(*(p.detach() for p in (base.W, base.U, base.a)), sigma="tanh")


def skewed() -> MonDEQ:
    g = generator(3)
    A, B, U, a = (normal(*s, g=g) for s in ((6, 6), (6, 6), (6, 3), (6,)))
    return MonDEQ(0.3 * A, 3 * B, U, a, 0.5)


def biased(kind: type[VanillaDEQ] | type[MonDEQ]) -> EquilibriumModel:
    b = normal(6, g=generator(4))
    if kind is MonDEQ:
        base = MonDEQ.init(6, 3, seed=1)
        return MonDEQ(*(p.detach() for p in (base.A, base.B, base.U, base.a)), 0.5, b=b)
    plain = VanillaDEQ.init(6, 3, seed=1)
    return VanillaDEQ(*(p.detach() for p in (plain.W, plain.U, plain.a)), b=b, sigma="tanh")


MODELS: dict[str, Callable[[], EquilibriumModel]] = {
    "ReLUImplicit": lambda: ReLUImplicit.init(8, 3, gamma=0.3, seed=1),
    "implicit only, relu": lambda: ReLUImplicit.init_implicit_only(8, 3, gamma=0.3, seed=1),
    "implicit only, tanh": lambda: ReLUImplicit.init_implicit_only(
        8, 3, gamma=0.3, seed=1, phi="tanh"
    ),
    "VanillaDEQ, relu": lambda: VanillaDEQ.init(8, 3, seed=1),
    "VanillaDEQ, tanh": tanh_deq,
    "MonDEQ": lambda: MonDEQ.init(6, 3, seed=1),
    "MonDEQ, large skew": skewed,
    "VanillaDEQ, bias": lambda: biased(VanillaDEQ),
    "MonDEQ, bias": lambda: biased(MonDEQ),
}
