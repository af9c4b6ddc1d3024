"""The slips of a tired mathematician, made from the source of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "Site", "functions", "mutants"]

#: Functions that draw an instance, or fetch one: another instance is no bug.
DRAWS = frozenset(
    {"generator", "normal", "signs", "sphere", "uniform", "rand", "randn", "randint", "randperm"}
    | {"default_rng", "load", "Trial", "arange", "linspace", "logspace", "range"}
)
#: Keywords that say how, not what.
MANNERS = frozenset(
    {"tol", "rtol", "atol", "max_steps", "seed", "dtype", "device", "dim", "axis", "keepdim"}
    | {"maxsize", "generator", "g"}
)
#: Of these measurements the last argument is a tolerance or a threshold of ours.
THRESHOLDS = frozenset({"within", "equal", "seen"})
SWAPPED_NAMES = {"n": "m", "m": "n", "d": "m"}
SWAPPED_CALLS = {
    "min": "max",
    "max": "min",
    "amin": "amax",
    "amax": "amin",
    "minimum": "maximum",
    "maximum": "minimum",
    "sum": "mean",
    "mean": "sum",
}
SWAPPED_COMPARISONS = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
PRODUCTS = (ast.Mult, ast.Div, ast.MatMult)
#: A number below this is a tolerance, and so is a constant of this name.
TINY = 1e-5
TOLERANCES = frozenset({"ROUNDING", "DOMAIN"})
#: Another seed is another draw.
SEEDS = frozenset({"seed"})


@dataclass(frozen=True)
class Mutant:
    """One slip: in which function, of which kind, what stood there and what stands there now.

    >>> print(Mutant("deqbook.linalg", "vec", "transpose", 12, "M.mT", "M", 0))
    deqbook.linalg:vec, line 12: transpose: M.mT → M
    """

    module: str
    function: str
    kind: str
    line: int
    before: str
    after: str
    copy: int

    @property
    def place(self) -> str:
        """Module and function."""
        return f"{self.module}:{self.function}"

    @property
    def change(self) -> str:
        """What was changed."""
        return f"{self.before} → {self.after}"

    @property
    def key(self) -> str:
        """A name that stays while the function does, whatever happens around it."""
        again = f" ({self.copy + 1})" if self.copy else ""
        return f"{self.place}: {self.kind}: {self.change}{again}"

    def __str__(self) -> str:
        return f"{self.place}, line {self.line}: {self.kind}: {self.change}"


@dataclass(frozen=True)
class Site:
    """A mutant and how to make it: which child of which node becomes what."""

    mutant: Mutant
    lines: range
    parent: ast.AST
    field: str
    index: int | None
    new: ast.expr

    def swap(self, node: ast.AST) -> ast.AST:
        """Put a node in the place; return the one that stood there."""
        if self.index is None:
            old = getattr(self.parent, self.field)
            setattr(self.parent, self.field, node)
        else:
            old = getattr(self.parent, self.field)[self.index]
            getattr(self.parent, self.field)[self.index] = node
        return old


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    r"""Yield the functions of a module and the methods of its classes, not those inside others.

    >>> [name for name, _ in functions(ast.parse("class A:\n def f(self): pass\ndef g(): pass"))]
    ['A.f', 'g']
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    yield f"{node.name}.{part.name}", part


def mutants(module: str, name: str, function: ast.FunctionDef) -> list[Site]:
    r"""Return every slip that can be made in a function.

    >>> tree = ast.parse("def f(n, m, x):\n    return 2 * x.mT / n")
    >>> for site in mutants("here", "f", tree.body[0]):
    ...     print(site.mutant.kind, site.mutant.change, sep=": ")
    factor: 2 * x.mT / n → 2 * x.mT / n * 2
    drop: 2 * x.mT / n → 2 * x.mT
    constant: 2 * x.mT → x.mT
    transpose: x.mT → x
    index: n → m
    """
    known = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
    known |= {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    found: list[Site] = []
    copies: dict[tuple[str, str, str], int] = {}
    for statement, parent, field, index, node, within_product in _places(function):
        for kind, new in _slips(node, known, within_product):
            before, after = ast.unparse(node), ast.unparse(new)
            copy = copies.get((kind, before, after), 0)
            copies[kind, before, after] = copy + 1
            mutant = Mutant(module, name, kind, node.lineno, before, after, copy)
            lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            new = ast.fix_missing_locations(ast.copy_location(new, node))
            found.append(Site(mutant, lines, parent, field, index, new))
    return found


Place = tuple[ast.stmt, ast.AST, str, int | None, ast.expr, bool]


def _places(function: ast.FunctionDef) -> Iterator[Place]:
    """Yield the expressions of a function in which a slip means something."""
    for statement in function.body:
        yield from _in_statement(statement)


def _in_statement(node: ast.stmt) -> Iterator[Place]:
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Global):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    refuses = isinstance(node, ast.If) and all(isinstance(s, ast.Raise) for s in node.body)
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args", "target", "targets"}:
            continue
        if refuses and field == "test":
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.stmt):
                yield from _in_statement(child)
            elif isinstance(child, ast.expr):
                yield from _in_expression(node, node, field, index, child, False)
            elif isinstance(child, ast.ExceptHandler | ast.withitem | ast.match_case):
                for part in ast.iter_child_nodes(child):
                    if isinstance(part, ast.stmt):
                        yield from _in_statement(part)


def _in_expression(
    statement: ast.stmt,
    parent: ast.AST,
    field: str,
    index: int | None,
    node: ast.expr,
    within_product: bool,
) -> Iterator[Place]:
    if isinstance(node, ast.JoinedStr | ast.Constant):
        return
    # In a nested statement (a loop's body) the innermost one says whether it ran.
    yield statement, parent, field, index, node, within_product
    here = isinstance(node, ast.BinOp) and isinstance(node.op, PRODUCTS)
    skipped: set[tuple[str, int | None]] = set()
    if isinstance(node, ast.Call):
        called = _called(node)
        if called in DRAWS:
            return
        if called in THRESHOLDS and node.args:
            skipped.add(("args", len(node.args) - 1))
    if isinstance(node, ast.Subscript):
        skipped.add(("slice", None))
    for name, value in ast.iter_fields(node):
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if (name, at) in skipped:
                continue
            if isinstance(child, ast.expr):
                yield from _in_expression(statement, node, name, at, child, here)
            elif isinstance(child, ast.keyword) and child.arg not in MANNERS:
                yield from _in_expression(statement, child, "value", None, child.value, False)
            elif isinstance(child, ast.comprehension):
                yield from _in_expression(statement, child, "iter", None, child.iter, False)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _called(node: ast.Call) -> str:
    return _name(node.func)


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _arithmetic(node: ast.BinOp) -> bool:
    """Whether a slip in an operation of numbers can mean something.

    Texts, lists and tuples are no numbers. A sum with a tolerance is not part of any formula, a
    product with 0 is 0, and another seed, or a draw times a constant, is another draw.
    """
    product = isinstance(node.op, PRODUCTS)
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp):
            return False
        if isinstance(side, ast.Name | ast.Attribute) and _name(side) in TOLERANCES | SEEDS:
            return False
        if isinstance(side, ast.Constant):
            if isinstance(side.value, str) or (_number(side) and 0 < abs(side.value) < TINY):  # type: ignore[arg-type]
                return False
            if product and side.value == 0:
                return False
            if product and isinstance(other, ast.Call) and _called(other) in DRAWS:
                return False
    return True


def _slips(node: ast.expr, known: set[str], within_product: bool) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.BinOp) and _arithmetic(node):
        yield from _of_operation(node, within_product)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if not _number(node.operand):
            yield "sign", node.operand
    elif isinstance(node, ast.Attribute) and node.attr in {"mT", "T"}:
        yield "transpose", node.value
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = SWAPPED_COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            yield "relation", ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if SWAPPED_NAMES.get(node.id) in known:
            yield "index", ast.Name(SWAPPED_NAMES[node.id], ast.Load())
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield from _of_subscript(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_operation(node: ast.BinOp, within_product: bool) -> Iterator[tuple[str, ast.expr]]:
    left, right = node.left, node.right
    if isinstance(node.op, PRODUCTS) and not within_product:
        yield "factor", ast.BinOp(node, ast.Mult(), ast.Constant(2))
    if isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "sign", ast.BinOp(left, other, right)
        yield "drop", left
    elif isinstance(node.op, ast.Mult):
        if _number(left):
            yield "constant", right
        elif _number(right):
            yield "constant", left
        else:
            yield "drop", left
    elif isinstance(node.op, ast.Div):
        yield ("constant" if _number(right) else "drop"), left
    elif isinstance(node.op, ast.Pow) and not (isinstance(left, ast.Constant) and left.value == 10):
        yield "power", left


def _of_subscript(node: ast.Subscript) -> Iterator[tuple[str, ast.expr]]:
    of_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    at = ast.unparse(node.slice)
    if at in {"0", "-1"} and not of_shape:
        other = ast.Constant(0) if at == "-1" else ast.UnaryOp(ast.USub(), ast.Constant(1))
        yield "index", ast.Subscript(node.value, other, node.ctx)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = _called(node)
    is_method = isinstance(node.func, ast.Attribute) and not (
        isinstance(node.func.value, ast.Name) and node.func.value.id in {"torch", "math", "np"}
    )
    if name in {"sqrt", "square"} or (name == "pow" and is_method):
        if is_method:
            yield "power", node.func.value  # type: ignore[attr-defined]
        elif len(node.args) == 1:
            yield "power", node.args[0]
    elif name in SWAPPED_CALLS and (node.args or is_method):
        func: ast.expr
        if isinstance(node.func, ast.Attribute):
            func = ast.Attribute(node.func.value, SWAPPED_CALLS[name], ast.Load())
        elif name in {"min", "max"}:
            func = ast.Name(SWAPPED_CALLS[name], ast.Load())
        else:
            return
        yield "extreme", ast.Call(func, node.args, node.keywords)
