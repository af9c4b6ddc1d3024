"""Training as a dynamical system: gradient descent, gradient flow, and the linear picture."""

from deqbook.dynamics.descent import gradient_descent
from deqbook.dynamics.flow import flow_error, gradient_flow
from deqbook.dynamics.linear import linearised_descent, linearised_flow
from deqbook.dynamics.oracle import LeftRegion
from deqbook.dynamics.sweep import sweep
from deqbook.dynamics.trajectory import Record, Trajectory

__all__ = [
    "LeftRegion",
    "Record",
    "Trajectory",
    "flow_error",
    "gradient_descent",
    "gradient_flow",
    "linearised_descent",
    "linearised_flow",
    "sweep",
]
