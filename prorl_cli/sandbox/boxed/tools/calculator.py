"""Tool `calculator {"expression": str}`: exact + - * / // % ** and parentheses over integers and decimals.

Integers print as integers, other values as decimals of at most 12 significant digits. Refuses names, calls,
strings and numbers of more than `MAX_BITS` bits, in words.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from prorl_cli.sandbox.boxed.tools import ToolError

MAX_CHARACTERS = 1000
"""Bounds the depth of the syntax tree below Python's recursion limit."""
MAX_BITS = 4096
"""Of numerator or denominator: about 1200 digits, under Python's limit for printing an integer."""
SIGNIFICANT = 12

WARM = {"expression": "-(17.5 + 3) * 2 ** 4 // 7 % 5 - 1 / 3"}

_SIGNS = str.maketrans({"−": "-", "×": "*", "÷": "/"})
_EXPONENT = re.compile(r"[eE][+-]?\d{4,}")


def run(arguments: dict[str, Any]) -> str:
    """The value of `arguments["expression"]` in words."""
    expression = arguments.get("expression")
    if not isinstance(expression, str) or len(arguments) != 1:
        raise ToolError('the arguments must be {"expression": "..."}')
    return show(evaluate(expression))


def evaluate(expression: str) -> Fraction:
    """Exact value of an expression. Raises `ToolError`."""
    text = expression.translate(_SIGNS).strip()
    if len(text) > MAX_CHARACTERS:
        raise ToolError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        return _value(ast.parse(text, mode="eval").body, text)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError):
        raise ToolError(f"not an expression: {text[:80]}") from None
    except (RecursionError, MemoryError):  # the parser reports deep nesting as MemoryError
        raise ToolError("too deeply nested") from None


def show(value: Fraction) -> str:
    """An integer as an integer, anything else as a decimal of at most `SIGNIFICANT` digits."""
    if value.denominator == 1:
        return str(value.numerator)
    rounded = Context(prec=SIGNIFICANT).divide(Decimal(value.numerator), Decimal(value.denominator))
    return format(rounded.normalize(), "f" if -SIGNIFICANT < rounded.adjusted() < SIGNIFICANT else "g")


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant():
            return _number(node, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _bounded(_OPERATIONS[type(operation)](_value(left, text), _value(right, text)))
    hint = " (a power is written **)" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor) else ""
    raise ToolError(f"only numbers, + - * / // % ** and parentheses are understood{hint}")


def _number(node: ast.Constant, text: str) -> Fraction:
    if type(node.value) is int:
        return _bounded(Fraction(node.value))
    source = ast.get_source_segment(text, node) or ""
    if type(node.value) is not float or _EXPONENT.search(source):
        raise ToolError(f"not a number that is understood: {source[:80]}")
    return _bounded(Fraction(source))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError(f"the number is too large (more than {MAX_BITS} bits)")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(base, exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base not in (0, 1, -1) and (bits - 1) * abs(exponent) > MAX_BITS:
        raise ToolError(f"the number is too large (more than {MAX_BITS} bits)")
    return Fraction(base**exponent)


def _root(base: Fraction, exponent: Fraction) -> Fraction:
    """A power with a fractional exponent is irrational: the nearest double stands for it."""
    if base < 0:
        raise ToolError("a negative number has no real fractional power")
    try:
        return Fraction(float(base) ** float(exponent))
    except OverflowError:
        raise ToolError("the number is too large") from None


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
