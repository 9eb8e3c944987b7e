"""rms_norm on drawn shapes, dtypes, mapped axes and transformations, against float64.

An example is one program on one set of values. Programs run eagerly, a primitive at a time, so that
what XLA compiled for one of them serves the others; each family of transformations also draws jit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_ptx
from tests.ops import oracle
from tests.tolerance import assert_close

EPS = 1e-5
DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float64": np.float64,
}
# Leading dimensions, row length, x's dtype, the weight's, what is added to the weight. Not their
# product, each of which XLA would compile anew: maps and transformations make enough of them.
ROWS = (
    ((3,), 2, "float64", "float16", 0.0),
    ((), 3, "bfloat16", "float32", 1.0),
    ((2,), 4, "float16", "float64", 0.0),
    ((2, 2), 33, "float32", "bfloat16", 1.0),
    ((5,), 130, "float32", "float32", 0.0),
)
OPERANDS = ("x only", "weight only", "both")


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of some of x, w, x_dot, w_dot, dy, and the same in float64.

    `expected` gives for each result its value and the size that errors are relative to.
    """

    takes: tuple[str, ...]
    function: Callable[..., tuple[Any, ...]]
    expected: Callable[..., list[Any]]


def exact_value(x, w):
    y = oracle.rms_norm(x, w, eps=EPS)
    return [(y, np.abs(y))]


def exact_tangent(x, w, x_dot, w_dot):
    """y, and its tangent; a tangent that is not there is None."""
    wide, w = (np.asarray(v).astype(np.float64) for v in (x, w))
    rstd = 1 / np.sqrt(np.mean(wide * wide, -1, keepdims=True) + EPS)
    normal = wide * rstd
    y_dot = size = np.zeros_like(wide)
    if x_dot is not None:
        x_dot = np.asarray(x_dot).astype(np.float64)
        y_dot = rstd * w * (x_dot - normal * np.mean(normal * x_dot, -1, keepdims=True))
        mean = np.mean(np.abs(normal * x_dot), -1, keepdims=True)
        size = np.abs(rstd * w) * (np.abs(x_dot) + np.abs(normal) * mean)
    if w_dot is not None:
        part = normal * np.asarray(w_dot).astype(np.float64)
        y_dot, size = y_dot + part, size + np.abs(part)
    return [*exact_value(x, w), (y_dot, size)]


def exact_pull(x, w, dy, which: str):
    dx, dw, size = oracle.rms_norm_grad(x, w, dy, eps=EPS)
    lead = tuple(range(dx.ndim - 1))
    results = [(dx, size), (dw.sum(lead), np.abs(dw).sum(lead))]
    return {"x only": results[:1], "weight only": results[1:], "both": results}[which]


def exact_jacobian(x, w, which: str):
    """One pull-back for each element of y."""
    shape = np.shape(x)
    pulls = []
    for index in range(int(np.prod(shape))):
        dy = np.zeros(shape)
        dy.flat[index] = 1
        pulls.append(exact_pull(x, w, dy, which))
    return [
        tuple(np.stack(parts).reshape(*shape, *parts[0].shape) for parts in zip(*each, strict=True))
        for each in zip(*pulls, strict=True)
    ]


def programs(implementation: Any, which: str, offset: float) -> dict[str, Program]:
    options = {"eps": EPS, "weight_offset": offset, "implementation": implementation}
    f = lambda x, w: jax_ptx.rms_norm(x, w, **options)
    argnums = {"x only": (0,), "weight only": (1,), "both": (0, 1)}[which]
    dots = tuple(("x_dot", "w_dot")[i] for i in argnums)

    def of(x, w):
        """f as a function of the operands that are differentiated, and their values."""
        full = (x, w)

        def inner(*values):
            operands = list(full)
            for i, value in zip(argnums, values, strict=True):
                operands[i] = value
            return f(*operands)

        return inner, tuple(full[i] for i in argnums)

    def jvp(x, w, *tangents):
        inner, values = of(x, w)
        return jax.jvp(inner, values, tangents)

    def linearize(x, w, *tangents):
        inner, values = of(x, w)
        y, tangent = jax.linearize(inner, *values)
        return y, tangent(*tangents)

    def expected_tangent(x, w, *tangents):
        named = dict(zip(dots, tangents, strict=True))
        return exact_tangent(x, w, named.get("x_dot"), named.get("w_dot"))

    def vjp(x, w, dy):
        inner, values = of(x, w)
        return jax.vjp(inner, *values)[1](dy)

    def grad(x, w, dy):
        wide = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
        loss = lambda x, w: (f(x, w).astype(wide) * dy.astype(wide)).sum()
        return jax.grad(loss, argnums)(x, w)

    def remat(x, w, dy):
        inner, values = of(x, w)
        return jax.vjp(jax.checkpoint(inner), *values)[1](dy)

    def transpose(x, w, dy):
        return jax.linear_transpose(lambda w: f(x, w), w)(dy)

    def jacfwd(x, w):
        # JAX makes one basis for operands of several dtypes.
        with jax.numpy_dtype_promotion("standard"):
            return jax.jacfwd(f, argnums)(x, w)

    pull = lambda x, w, dy: exact_pull(x, w, dy, which)
    only_weight = lambda x, w, dy: exact_pull(x, w, dy, "weight only")
    jacobian = lambda x, w: exact_jacobian(x, w, which)
    return {
        "value": Program(("x", "w"), lambda x, w: (f(x, w),), exact_value),
        "jvp": Program(("x", "w", *dots), jvp, expected_tangent),
        "linearize": Program(("x", "w", *dots), linearize, expected_tangent),
        "vjp": Program(("x", "w", "dy"), vjp, pull),
        "grad": Program(("x", "w", "dy"), grad, pull),
        "remat": Program(("x", "w", "dy"), remat, pull),
        "linear_transpose": Program(("x", "w", "dy"), transpose, only_weight),
        "jacrev": Program(("x", "w"), lambda x, w: jax.jacrev(f, argnums)(x, w), jacobian),
        "jacfwd": Program(("x", "w"), jacfwd, jacobian),
    }


FAMILIES = {
    "value": ("value",),
    "forward mode": ("jvp", "linearize"),
    "reverse mode": ("vjp", "grad", "remat", "linear_transpose"),
    "jacobian": ("jacrev", "jacfwd"),
}
# Examples of each family. XLA compiles the formula op by op for each shape, so it gets fewer.
EXAMPLES = {
    "ptx": {"value": 900, "forward mode": 420, "reverse mode": 450, "jacobian": 40},
    "xla": {"value": 100, "forward mode": 40, "reverse mode": 40, "jacobian": 20},
}


@dataclasses.dataclass(frozen=True)
class Map:
    """One vmap: its size, the axis of each operand (None: not mapped), and of each result."""

    size: int
    in_axes: tuple[int | None, ...]
    out_axis: int


@st.composite
def examples(draw: st.DrawFn, family: str) -> dict[str, Any]:
    """What one example runs, and on what."""
    name = draw(st.sampled_from(FAMILIES[family]))
    small = family == "jacobian"
    row = draw(st.sampled_from(ROWS[:3] if small else ROWS))
    example: dict[str, Any] = {
        "name": name,
        "which": draw(st.sampled_from(OPERANDS)),
        **dict(zip(("lead", "n", "x_dtype", "w_dtype", "offset"), row, strict=True)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "scale": draw(st.sampled_from((1e-3, 1.0, 30.0))),
        "jit": draw(st.integers(0, 19)) == 13,
    }
    takes = programs("xla", example["which"], 0.0)[name].takes
    ranks = [1 if t in ("w", "w_dot") else len(example["lead"]) + 1 for t in takes]
    maps = []
    for _ in range(draw(st.sampled_from((0, 0, 1) if small else (0, 1, 1, 2)))):
        mapped = draw(st.lists(st.booleans(), min_size=len(takes), max_size=len(takes)))
        mapped[draw(st.integers(0, len(takes) - 1))] = True
        axes = [
            draw(st.integers(-r - 1, r)) if m else None for r, m in zip(ranks, mapped, strict=True)
        ]
        ranks = [rank + m for rank, m in zip(ranks, mapped, strict=True)]
        maps.append(Map(2, tuple(axes), draw(st.sampled_from((0, 0, -1)))))
    example["maps"] = maps
    return example


def draw_operands(example: dict[str, Any], takes: tuple[str, ...]) -> list[np.ndarray]:
    """Values of the operands, with an axis put in for each map, the innermost first."""
    random = np.random.default_rng(example["seed"])
    n, values = example["n"], []
    for index, name in enumerate(takes):
        shape = (n,) if name in ("w", "w_dot") else (*example["lead"], n)
        for each in example["maps"]:
            axis = each.in_axes[index]
            if axis is not None:
                axis %= len(shape) + 1
                shape = (*shape[:axis], each.size, *shape[axis:])
        dtype = DTYPES[example["w_dtype" if name in ("w", "w_dot") else "x_dtype"]]
        scale = example["scale"] if name == "x" else 1.0
        values.append((random.standard_normal(shape) * scale).astype(dtype))
    return values


def mapped_expected(expected: Callable[..., Any], maps: list[Map], operands: list[np.ndarray]):
    """vmap by hand: a loop over slices, the outermost map first."""
    if not maps:
        return expected(*operands)
    *inner, outer = maps
    slices = []
    for i in range(outer.size):
        picked = [
            v if axis is None else np.take(v, i, axis)
            for v, axis in zip(operands, outer.in_axes, strict=True)
        ]
        slices.append(mapped_expected(expected, inner, picked))
    return [
        tuple(np.stack(parts, outer.out_axis) for parts in zip(*result, strict=True))
        for result in zip(*slices, strict=True)
    ]


def run(example: dict[str, Any], implementation: str) -> None:
    program = programs(implementation, example["which"], example["offset"])[example["name"]]
    operands = draw_operands(example, program.takes)
    f = program.function
    for each in example["maps"]:
        f = jax.vmap(f, each.in_axes, each.out_axis)
    wide = "float64" in (example["x_dtype"], example["w_dtype"])
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        results = (jax.jit(f) if example["jit"] else f)(*map(jnp.asarray, operands))
        shifted = [
            value.astype(np.float64) + example["offset"] if name == "w" else value
            for name, value in zip(program.takes, operands, strict=True)
        ]
        expected = mapped_expected(program.expected, example["maps"], shifted)
        assert len(results) == len(expected)
        terms = example["n"] * int(np.prod(example["lead"]))
        for result, (value, size) in zip(results, expected, strict=True):
            if result.dtype == jnp.float64 and example["x_dtype"] != "float64":
                result = result.astype(jnp.float32)  # the sums are float32, whatever the weight is
            assert_close(result, value, terms, scale=size)


# Families share what XLA compiled for an implementation: each has a worker of pytest-xdist to itself.
IMPLEMENTATIONS = [
    pytest.param(name, marks=pytest.mark.xdist_group(f"drawn programs, {name}"))
    for name in EXAMPLES
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_programs(family: str, implementation: str, record_property) -> None:
    count = itertools.count()

    @settings(
        max_examples=EXAMPLES[implementation][family],
        derandomize=True,  # the same examples in each run
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(examples(family))
    def check(example: dict[str, Any]) -> None:
        next(count)
        run(example, implementation)

    check()
    ran = next(count)
    assert ran >= EXAMPLES[implementation][family]
    record_property("examples", ran)  # the summary adds them up (conftest.py)


def test_there_are_two_thousand_examples() -> None:
    assert sum(sum(each.values()) for each in EXAMPLES.values()) >= 2000
