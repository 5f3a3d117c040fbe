"""CloudWatch's metric math, as much of it as alarms need: numbers, metrics, IF, FILL and sums."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Value = float | None
"""A metric's value in one period; None where the metric has no data."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "SUM": sum,
    "MIN": min,
    "MAX": max,
    "AVG": lambda values: sum(values) / len(values),
}


class ExpressionError(Exception):
    """An expression is not metric math, or uses what is not emulated."""


def evaluate(
    expression: str, values: Mapping[str, Value], others: Mapping[str, str] | None = None
) -> Value:
    """Return an expression's value in one period; None where it has none.

    `values` are those of metrics, `others` the expressions that this one may name, by their ids.

    Raises:
        ExpressionError: it cannot be evaluated.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise ExpressionError(f"{expression!r} is not an expression: {error}") from error
    known, unresolved = dict(values), dict(others or {})
    for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
        if name in unresolved and name not in known:
            # Without itself, so that expressions which name each other end as unknown names.
            known[name] = evaluate(unresolved.pop(name), values, unresolved)
    return _value(tree.body, known)


def _value(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = _value(inner, values)
            return None if found is None else -found
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _applied(_BINARY[type(sign)], _value(left, values), _value(right, values))
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            compare = _COMPARED.get(type(sign))
            if compare is not None:
                return _applied(compare, _value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _called(name, arguments, values)
    raise ExpressionError(f"{ast.unparse(node)!r} is not emulated")


def _applied(operation: Callable[[float, float], Any], left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    try:
        return float(operation(left, right))
    except ZeroDivisionError:
        return None  # CloudWatch draws no data point there


def _called(name: str, arguments: Sequence[ast.expr], values: Mapping[str, Value]) -> Value:
    match name, list(arguments):
        case "IF", [condition, then, otherwise]:
            return _value(then if _value(condition, values) else otherwise, values)
        case "FILL", [metric, filler]:
            found = _value(metric, values)
            return _value(filler, values) if found is None else found
        case _, [ast.List(elts=elements)] if name in _AGGREGATES:
            known = [v for e in elements if (v := _value(e, values)) is not None]
            return _AGGREGATES[name](known) if known else None
    raise ExpressionError(f"{name}() is not emulated with these arguments")
