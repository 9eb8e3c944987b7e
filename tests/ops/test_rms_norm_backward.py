"""The fused backward kernel, emulated, and the formula: values, and how often each runs."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ptx
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.parts import Parts, backward_parts
from jax_ptx.types import by_numpy_name
from tests.ops import oracle
from tests.ops.test_rms_norm_values import DTYPES, IMPLEMENTATIONS, ODD_LENGTHS, draw
from tests.tolerance import assert_close

LENGTHS = (*ODD_LENGTHS[::2], 512, 1000, 1001, 1024, 1025, 4096, 8192)


def check(x, w, implementation: str = "ptx", argnums=(0, 1)) -> tuple[jax.Array, ...]:
    """Compares the gradients for a random cotangent with float64."""
    dy = draw(x.shape, x.dtype, 7)
    f = lambda x, w: jax_ptx.rms_norm(x, w, eps=1e-5, implementation=implementation)

    @jax.jit
    def pull(x, w, dy):
        operands = (x, w)

        def of(*values):
            full = list(operands)
            for index, value in zip(argnums, values, strict=True):
                full[index] = value
            return f(*full)

        return jax.vjp(of, *(operands[i] for i in argnums))[1](dy)

    got = pull(x, w, dy)
    dx, dw, size = oracle.rms_norm_grad(x, w, dy, eps=1e-5)
    n, lead = x.shape[-1], tuple(range(x.ndim - 1))
    for index, value in zip(argnums, got, strict=True):
        assert value.dtype == (x, w)[index].dtype
        if index == 0:
            assert_close(value, dx, n, scale=size)
        else:
            if x.dtype != jnp.float64:  # the sums are float32, whatever the weight's dtype
                value = value.astype(jnp.float32) if w.dtype == jnp.float64 else value
            assert_close(value, dw.sum(lead), n, scale=np.abs(dw).sum(lead))
    return got


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(dtype: str, n: int) -> None:
    check(draw((5, n), dtype), draw(n, dtype, 1))


# Rows of a warp, of a CTA, of its ring, that start anywhere, and of a cluster.
@pytest.mark.parametrize("n", [40, 1024, 4096, 4097, 65536])
@pytest.mark.parametrize("blocks", [1, 2])
def test_rows_are_taken_from_the_last_of_a_block_back(n: int, blocks: int) -> None:
    facts = {"n": n, "x_dtype": "float32", "weight_dtype": "float32", "grouped": False}
    facts |= {"weight_offset": 0.0, "addend": False, "need_dx": True, "final": False, "target": 90}
    launch = backward_launch(runs=1, one_block=blocks == 1, **facts)
    assert launch
    # Added up from the last row on, and so only, the small one is not lost behind a large one.
    dy = np.tile(np.repeat(np.float32([[1], [1e8], [-1e8]]), n, 1), (blocks, 1))
    rows, cluster = len(dy), launch.cluster[0]
    like_dw = jax.ShapeDtypeStruct((blocks * cluster, n // cluster), np.float32)
    operands = [np.ones_like(dy), dy, np.ones(rows, np.float32), np.ones(n, np.float32)]
    report = jax_ptx.emulate(launch, *operands, result_types=[jax.typeof(dy), like_dw])
    np.testing.assert_array_equal(np.asarray(report.outputs[1]), 1)


@pytest.mark.parametrize("n", [12289, 40000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_too_long_for_the_kernel_take_the_formula(dtype: str, n: int) -> None:
    check(draw((2, n), dtype), draw(n, dtype, 1))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_long_rows_that_are_sharded(kind: AxisType) -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    x, w = draw((16, 20000), "float32"), draw(20000, "float32", 1)
    with jax.set_mesh(mesh):
        args = (
            jax.device_put(x, NamedSharding(mesh, P("d"))),
            jax.device_put(w, NamedSharding(mesh, P())),
        )
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*args).compile()
        assert "all-gather" not in compiled.as_text()
        got = compiled(*args)
    for value, alone in zip(got, jax.grad(loss, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(value, alone, rtol=1e-4, atol=1e-4)


def test_which_rows_the_kernel_takes() -> None:
    bf16, f32 = by_numpy_name("bfloat16"), by_numpy_name("float32")
    for n, dtype, target in (
        (16384, bf16, 80),
        (8192, f32, 80),
        (262144, bf16, 90),
        (131072, f32, 90),
    ):
        assert backward_config(n, dtype, target) is not None
        assert backward_config(n + 16, dtype, target) is None


@pytest.mark.parametrize("rows", [1, 2, 15, 47, 132, 133, 1000])
@pytest.mark.parametrize("n", [4, 33, 160, 2048])
def test_any_number_of_rows(rows: int, n: int) -> None:
    check(draw((rows, n), "bfloat16", rows), draw(n, "float32", 1))


@pytest.mark.parametrize("x_dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("w_dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_mixed_dtypes(x64, x_dtype: str, w_dtype: str, implementation: str) -> None:
    check(draw((6, 40), x_dtype), draw(40, w_dtype, 1), implementation)


@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1)])
def test_each_operand_alone(argnums) -> None:
    check(draw((3, 7, 100), "float32"), draw(100, "float32", 1), argnums=argnums)


def test_without_a_weight() -> None:
    check(draw((9, 100), "float32"), None, argnums=(0,))


def test_rows_whose_rstd_cubed_underflows() -> None:
    x = jnp.full((2, 64), 1e15, jnp.float32) * jnp.linspace(1, 2, 64)[None]
    check(x, draw(64, "float32", 1))


def test_the_weights_gradient_is_the_same_run_after_run() -> None:
    x, w = draw((999, 64), "float32"), draw(64, "float32", 1)
    first, second = (check(x, w)[1] for _ in range(2))
    assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


# ---- what runs ----


def kernels(f, *args) -> collections.Counter[str]:
    """How often each primitive of the library stands in a function's jaxpr."""
    counts: collections.Counter[str] = collections.Counter()

    def visit(jaxpr) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name.startswith("ptx_"):
                counts[eqn.primitive.name] += 1
            for value in eqn.params.values():
                for inner in value if isinstance(value, tuple | list) else (value,):
                    if hasattr(inner, "eqns"):
                        visit(inner)
                    elif hasattr(inner, "jaxpr"):
                        visit(inner.jaxpr)

    visit(jax.make_jaxpr(f)(*args).jaxpr)
    return counts


def loss(x, w):
    return (jax_ptx.rms_norm(x, w, implementation="ptx") ** 2).sum()


def test_a_gradient_is_one_forward_and_one_backward_kernel() -> None:
    x, w = draw((4, 16), "float32"), draw(16, "float32", 1)
    expected = {"ptx_rms_norm": 1, "ptx_rms_norm_backward": 1}
    for argnums in (0, 1, (0, 1)):
        assert kernels(jax.grad(loss, argnums), x, w) == expected
    assert kernels(jax.vmap(jax.grad(loss, 1), (0, None)), x[:, None], w) == expected


def test_nothing_is_computed_that_is_not_asked_for() -> None:
    x, w = draw((4, 16), "float32"), draw(16, "float32", 1)
    text = lambda f: str(jax.make_jaxpr(f)(x, w))
    assert "with_rstd=False" in text(loss)
    assert "with_rstd=True" in text(jax.grad(loss))
    assert "parts=None" in text(jax.grad(loss, 0))
    assert "need_dx=False" in text(jax.grad(loss, 1))


def test_what_a_gradient_keeps() -> None:
    x, w = draw((4, 16), "bfloat16"), draw(16, "float32", 1)
    f = lambda x, w: jax_ptx.rms_norm(x, w, implementation="ptx")
    _, pull = jax.vjp(f, x, w)
    kept = sorted((leaf.size, leaf.dtype.name) for leaf in jax.tree.leaves(pull))
    # x, the weight and rstd; the tangent of x, instantiated as zeros, is not among them.
    assert kept == [(4, "float32"), (16, "float32"), (64, "bfloat16")]


def test_a_mapped_weight_has_a_gradient_of_its_own() -> None:
    x, w = draw((3, 5, 16), "float32"), draw((3, 16), "float32", 1)
    dx, dw = jax.vmap(jax.grad(loss, (0, 1)))(x, w)
    for i in range(3):
        alone = jax.grad(loss, (0, 1))(x[i], w[i])
        np.testing.assert_allclose(dx[i], alone[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(dw[i], alone[1], rtol=1e-5, atol=1e-5)


def test_a_mapped_weight_inside_a_map_over_rows() -> None:
    x, w = draw((2, 3, 5, 16), "float32"), draw((3, 16), "float32", 1)
    grad = jax.vmap(jax.vmap(jax.grad(loss, 1)), (0, None))
    dw = grad(x, w)
    for i in range(2):
        for j in range(3):
            alone = jax.grad(loss, 1)(x[i, j], w[j])
            np.testing.assert_allclose(dw[i, j], alone, rtol=1e-5, atol=1e-5)


# ---- how rows are cut ----


LEADS = [(1, 1), (1, 7), (8, 128), (1, 32768), (4, 4096, 2), (1, 10007), (2, 2, 3, 4, 6), (64,) * 5]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("n_devices", [1, 8, 64])
def test_parts_divide_the_rows(lead, n_devices: int) -> None:
    parts = backward_parts(lead, (1,) * len(lead), 0, n_devices, 264)
    assert all(size % block == 0 for size, block in zip(lead, parts.blocks, strict=True))
    assert len(parts.shape) == len(lead)
    assert 1 <= np.prod(parts.shape) <= min(4096, np.prod(lead))


def test_parts_follow_a_known_sharding_and_the_weights_dimensions() -> None:
    assert backward_parts((1, 64), (1, 32), 0, 1, 264).blocks == (1, 32)
    assert backward_parts((5, 64), (1, 1), 1, 8, 264).blocks[0] == 5
    assert backward_parts((5, 64), (1, 1), 2, 8, 264).shape == (5, 64)
    assert backward_parts((16, 2048), (1, 1), 0, 64, 264).blocks == (16, 64)


def test_one_device_has_one_block_and_one_row_one_final_part() -> None:
    assert backward_parts((8, 4096), (1, 1), 0, 1, 264) == Parts((1, 1), 264, n_whole=2)
    assert backward_parts((1, 3), (1, 1), 0, 1, 264) == Parts((1, 1), 1, True, 2)
    assert backward_parts((1, 100), (1, 1), 0, 1, 264).runs == 32  # a power of two


SHARDED = [
    ((8, 512, 16), (2, 4), P("a", "b")),
    ((8, 512, 16), (2, 4), P(None, "b")),
    ((16, 128, 4), (2,), P(None, "a")),
    ((4, 8, 4), (8,), P(None, "a")),
    ((8, 6, 4), (4, 2), P("a", "b")),
    ((2, 2, 3, 4, 6, 5), (2, 4), P(None, "a", None, "b")),
    ((10, 3), (5,), P("a")),
    ((12, 4), (6,), P("a")),
    ((3, 8, 4), (3,), P("a")),
    ((7, 2, 4), (7,), P("a")),
]


@pytest.mark.parametrize(("shape", "devices", "spec"), SHARDED)
def test_any_even_sharding_of_an_auto_mesh(shape, devices, spec) -> None:
    names = ("a", "b")[: len(devices)]
    mesh = jax.make_mesh(devices, names, axis_types=(AxisType.Auto,) * len(devices))
    x, w = draw(shape, "float32"), draw(shape[-1], "float32", 1)
    sharded = jax.device_put(x, NamedSharding(mesh, spec))
    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(sharded, w).compile()
    assert "all-gather" not in compiled.as_text()
    for got, alone in zip(compiled(sharded, w), jax.grad(loss, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(got, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
@pytest.mark.parametrize("rows", [60, 1054])
def test_uneven_rows_are_right_or_refused(rows: int, implementation) -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x, w = draw((rows, 16), "float32"), draw(16, "float32", 1)

    def f(x, w):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("d")))
        return (jax_ptx.rms_norm(x, w, implementation=implementation) ** 2).sum()

    uneven = jax.jit(jax.grad(f, 1))
    if implementation == "ptx" and rows == 1054:  # two blocks of rows, over eight devices
        with pytest.raises(jax.errors.JaxRuntimeError, match="XLA split the rows unevenly"):
            jax.block_until_ready(uneven(x, w))
    else:
        expected = jax.grad(loss, 1)(x, w)
        np.testing.assert_allclose(uneven(x, w), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, None])
def test_padding_behind_an_even_split_is_right_or_refused(implementation) -> None:
    # Four devices each take 2 of 7 rows; by number the 22 of a device are an eighth of 176, as if nothing
    # was padded, and a sum over some rows of one padded axis has padding in it.
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x, w = draw((22, 7, 16), "float32"), draw(16, "float32", 1)

    def f(x, w):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("a", "b")))
        return (jax_ptx.rms_norm(x, w, implementation=implementation) ** 2).sum()

    padded = jax.jit(jax.grad(f, 1))
    if implementation == "ptx":
        with pytest.raises(jax.errors.JaxRuntimeError, match="XLA split the rows unevenly"):
            jax.block_until_ready(padded(x, w))
    else:
        expected = jax.grad(loss, 1)(x, w)
        np.testing.assert_allclose(padded(x, w), expected, rtol=1e-4, atol=1e-3)


def test_a_process_whose_platforms_lack_the_cpu(monkeypatch) -> None:
    """As with JAX_PLATFORMS=cuda."""

    def device_count(backend: str | None = None) -> int:
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu. Available backends are ['cuda']")
        return 8

    monkeypatch.setattr(jax, "device_count", device_count)
    x, w = draw((40, 16), "float32"), draw(16, "float32", 1)
    assert jax.eval_shape(jax.grad(loss, 1), x, w).shape == (16,)


def test_more_devices_than_were_known_do_not_cut_the_runs(monkeypatch) -> None:
    """As in an export from a machine with one device: right, if slower, since rows are gathered."""
    monkeypatch.setattr(jax, "device_count", lambda *_: 1)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    x, w = draw((65536, 16), "float32"), draw(16, "float32", 1)
    sharded = jax.device_put(x, NamedSharding(mesh, P("d")))
    got = jax.jit(jax.grad(loss, 1))(sharded, w)
    wide = np.asarray(x, np.float64)
    normal = wide / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(got, 2 * np.asarray(w) * np.sum(normal**2, 0), rtol=1e-4)
