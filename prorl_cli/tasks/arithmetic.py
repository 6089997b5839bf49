"""The exact value of a plain arithmetic expression: how a source knows that an expression leads to its answer."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def leads_to(expression: object, answer: str) -> bool:
    """Whether `expression` is plain arithmetic (numbers, `+ - * /`, parentheses) whose exact value is `answer`."""
    if not isinstance(expression, str):
        return False
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body) == Fraction(answer)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
        return False


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    raise ValueError(f"not plain arithmetic: {ast.dump(node)}")
