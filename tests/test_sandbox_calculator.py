"""The calculator's arithmetic is exact and bounded, and whatever is typed into it is answered in words."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.sandbox.boxed.tools import ToolError
from prorl_cli.sandbox.boxed.tools.calculator import evaluate, run, show


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2"),
        ("1 / 3", "0.333333333333"),
        ("-2 / 3", "-0.666666666667"),
        ("0.1 + 0.2", "0.3"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("2 ** 0.5", "1.41421356237"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("10 ** 30", "1" + "0" * 30),
        ("123456789012345678901234567890 + 1", "123456789012345678901234567891"),
        ("10 ** 30 / 3", "3.33333333333e+29"),
        ("1 / 10 ** 20", "1e-20"),
        ("0 ** 0", "1"),
        ("(-1) ** 1000000001", "-1"),
        ("1e3", "1000"),
        ("1.50", "1.5"),
        (" +5 ", "5"),
        ("3 × 4 − 6 ÷ 2", "9"),
    ],
)
def test_values_are_exact_and_integers_print_as_integers(expression, answer):
    assert run({"expression": expression}) == answer


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "not an expression"),
        ("1 +", "not an expression"),
        ("1 = 1", "not an expression"),
        ("2 2", "not an expression"),
        ("1\x00", "not an expression"),
        ("1 / 0", "division by zero"),
        ("5 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("x + 1", "only numbers"),
        ("__import__('os')", "only numbers"),
        ("'a' * 3", "not a number"),
        ("True + 1", "not a number"),
        ("3j", "not a number"),
        ("[1][0]", "only numbers"),
        ("1 < 2", "only numbers"),
        ("2 ^ 3", r"a power is written \*\*"),
        ("(-8) ** 0.5", "no real fractional power"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 5000", "too large"),
        ("(2 ** 4000) * (2 ** 4000)", "too large"),
        ("0.5 ** 99999999999", "too large"),
        ("1e999999999", "not a number"),
        ("1e9999999999999999999", "not a number"),
        ("(10 ** 600) ** 1.5", "too large"),
        ("1" * 1001, "longer than"),
        ("(" * 400 + "1" + ")" * 400, "not an expression|nested"),
        ("-" * 990 + "1", "nested"),
    ],
)
def test_what_it_does_not_compute_is_refused_in_words_at_once(expression, words):
    began = time.process_time()
    with pytest.raises(ToolError, match=words):
        run({"expression": expression})
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("arguments", [{}, {"expression": 3}, {"expression": "1", "more": 1}, {"expr": "1"}])
def test_other_arguments_are_refused_in_words(arguments):
    with pytest.raises(ToolError, match="arguments must be"):
        run(arguments)


numbers = st.integers(0, 10**6).map(str) | st.decimals(0, 1000, places=3).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=8,
)


@given(expressions)
def test_it_agrees_with_exact_fractions(expression):
    import re

    exact = re.sub(r"[\d.]+", lambda number: f"F('{number[0]}')", expression)
    try:
        expected = Fraction(eval(exact, {"F": Fraction}))
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == expected
        assert abs(Fraction(show(expected)) - expected) <= abs(expected) / 10**11


@given(st.text(alphabet="0123456789+-*/%().e^ \n", max_size=40))
def test_any_text_has_a_number_or_words_for_an_answer(text):
    try:
        Fraction(run({"expression": text}))
    except ToolError as error:
        assert str(error)
