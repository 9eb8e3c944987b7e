"""`@kernel` itself: declaration, text, launch records, and the checks of a call."""

from __future__ import annotations

import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx import Kernel, RunTime, Tile, kernel, ptx, ptx_kernel, reg, types
from jax_ptx.types import b32, bf16, f16x2, f32, f64, u32, u64


def copy_kernel(**options) -> Kernel:
    @kernel(
        in_specs=(Tile("m", "n", f32), Tile("n", bf16)),
        out_specs=(Tile("m", "n", f32),),
        grid=lambda m, n: (m, n // 8),
        block=(32, 2, 1),
        **options,
    )
    def copy(x, w, y, *, eps=1e-6, mode="plain"):
        ptx.bar.sync()
        reg.scalar(f32, init=eps)
        if mode == "plain":
            ptx.ret()

    return copy


def test_a_copy_of_a_kernel_is_the_kernel():
    """As of a function, so that a model that holds one can be copied."""
    text = ptx_kernel(
        copy_kernel().ptx(m=8, n=8),
        in_specs=(Tile(8, 8, f32), Tile(8, bf16)),
        out_specs=(Tile(8, 8, f32),),
    )
    for original in (copy_kernel(), text):
        assert copy.copy(original) is original
        assert copy.deepcopy({"norm": original})["norm"] is original


@kernel(in_specs=(Tile(1, f32),), out_specs=(Tile(1, f32),))
def of_this_module(x, y):
    ptx.ret()


def test_a_kernel_is_pickled_by_name():
    """As a function is."""
    assert pickle.loads(pickle.dumps([of_this_module]))[0] is of_this_module
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"copy_kernel.<locals>.copy"):
        pickle.dumps(copy_kernel())
    text = ptx_kernel(of_this_module.ptx(), in_specs=(Tile(1, f32),), out_specs=(Tile(1, f32),))
    with pytest.raises(TypeError, match=r"of_this_module: .* pickle the text, and call ptx_kernel"):
        pickle.dumps(text)


def test_the_text_of_a_bare_kernel():
    @kernel
    def nothing(a, b):
        ptx.ret()

    assert nothing.ptx() == (
        ".version 7.0\n"
        ".target sm_80\n"
        ".address_size 64\n"
        "\n"
        ".visible .entry nothing(\n"
        "    .param .u64 a,\n"
        "    .param .u64 b\n"
        ")\n"
        ".reqntid 1, 1, 1\n"
        "{\n"
        "\n"
        "    ret;\n"
        "}\n"
    )
    with pytest.raises(
        TypeError, match=r"nothing: a call needs the tensors' tiles: @kernel\(in_specs="
    ):
        nothing()
    with pytest.raises(TypeError, match="nothing: a launch needs the tensors' tiles"):
        nothing.launch()


def test_what_was_declared_can_be_read_and_not_written():
    k = copy_kernel(arch="sm_90a", smem=128, cluster=(2, 1, 1))
    assert k.in_specs == (Tile("m", "n", f32), Tile("n", dtype=bf16))
    assert k.out_specs == (Tile("m", "n", f32),)
    assert callable(k.grid)
    assert (k.block, k.cluster, k.smem, k.arch) == ((32, 2, 1), (2, 1, 1), 128, "sm_90a")
    assert k.__name__ == "copy"
    assert str(inspect.signature(k)) == "(x, w, /, *, eps=1e-06, mode='plain')"
    for name in ("in_specs", "out_specs", "grid", "block", "cluster", "smem", "arch"):
        with pytest.raises(AttributeError):
            setattr(k, name, None)


def test_constants_specialise_the_text():
    k = copy_kernel()
    assert "0f358637BD" in k.ptx(m=1, n=8)
    assert "0f3F000000" in k.ptx(m=1, n=8, eps=0.5)
    with pytest.raises(
        TypeError, match="copy: unexpected keyword 'epsilon'; it takes m, n, eps, mode"
    ):
        k.ptx(m=1, n=8, epsilon=1.0)
    with pytest.raises(ValueError, match="copy: the variable 'n' of its tiles needs a value"):
        k.ptx(m=1)
    with pytest.raises(ValueError, match=r"copy: n must be an int of 0 or more, got 1.5"):
        k.ptx(m=1, n=1.5)


def test_a_constant_without_a_default_and_one_named_like_a_variable():
    seen = []

    @kernel(in_specs=(Tile("n", f32),), out_specs=())
    def k(x, *, n, scale):
        seen.append((n, scale))

    with pytest.raises(TypeError, match="k: the constant 'scale' has no default; pass scale="):
        k.ptx(n=4)
    k.ptx(n=4, scale=2)
    assert seen == [(4, 2)]
    with pytest.raises(TypeError, match=r"k: unexpected keyword 'foo'; it takes n, scale$"):
        k.ptx(n=4, scale=2, foo=3)


def test_a_launch_record():
    launch = copy_kernel(smem=64).launch(m=3, n=16)
    assert launch.entry == "copy"
    assert (launch.grid, launch.block, launch.cluster) == ((3, 2, 1), (32, 2, 1), (1, 1, 1))
    assert launch.smem_bytes == 64
    assert launch.unit_bytes == (3 * 16 * 4, 16 * 2, 3 * 16 * 4)
    assert launch.dims == (0, 0, 0)
    assert launch.ptx == copy_kernel(smem=64).ptx(m=3, n=16)


def test_launches_are_remembered():
    k = copy_kernel()
    assert k.launch(m=3, n=16) is k.launch(n=16, m=3)
    assert k.launch(m=3, n=16, eps=1e-6) is k.launch(m=3, n=16)
    assert k.launch(m=3, n=16, eps=0.0).ptx != k.launch(m=3, n=16, eps=-0.0).ptx
    assert k.launch(m=3, n=16, eps=1) is not k.launch(m=3, n=16, eps=1.0)
    with pytest.raises(
        TypeError, match="copy: the constant mode must be hashable, got list; a tuple does"
    ):
        k.launch(m=3, n=16, mode=[1])
    with ThreadPoolExecutor(8) as pool:
        launches = list(pool.map(lambda i: copy_kernel() and k.launch(m=5, n=8), range(64)))
    assert all(launch is launches[0] for launch in launches)


def test_run_time_dimensions():
    @kernel(
        in_specs=(Tile(RunTime("rows"), 8, f32), Tile(8, f32), Tile(RunTime("groups"), 8, bf16)),
        out_specs=(Tile(RunTime("rows"), 8, f32),),
        grid=(2**31 - 1, 1, 1),
        rows_per_cta=4,
    )
    def k(x, w, g, y):
        assert x.shape == (RunTime("rows"), 8)
        rows = ptx.run_time_dim("rows")
        assert rows.dtype is u64
        ptx.run_time_dim("groups")
        with pytest.raises(ValueError, match=r"the tiles' run-time dimensions are: rows, groups"):
            ptx.run_time_dim("x")

    launch = k.launch()
    assert launch.dims == (1, 0, 2, 1)
    assert launch.unit_bytes == (32, 32, 16, 32)
    assert (launch.grid, launch.rows_per_cta) == ((2**31 - 1, 1, 1), 4)
    assert ".param .u64 y,\n    .param .u64 rows,\n    .param .u64 groups\n)" in launch.ptx
    assert "ld.param.u64 %rd0, [rows];" in launch.ptx


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"block": (1025, 1, 1)}, ValueError, r"k: block must lie between \(1, 1, 1\) and"),
        (
            {"block": (64, 32, 1)},
            ValueError,
            "a CTA has at most 1024 threads, and block=.* asks for 2048",
        ),
        ({"block": (1, 1, 65)}, ValueError, "block must lie between"),
        ({"block": (1.5, 1, 1)}, TypeError, "block must be an int or a tuple of one to three ints"),
        ({"cluster": (17, 1, 1)}, ValueError, "a cluster has 1 to 16 CTAs"),
        ({"smem": -1}, ValueError, "smem must be a number of bytes"),
        ({"arch": "sm_91"}, ValueError, 'arch must be "auto" or one of'),
        ({"version": 8.0}, TypeError, r"version must be \(major, minor\) or None"),
        ({"in_specs": (f32,)}, TypeError, "in_specs must be a tuple of Tile, got f32 at"),
        (
            {"in_specs": (Tile(1, f32),) * 3},
            TypeError,
            r"3 in_specs and 0 out_specs, and the function has 1",
        ),
        ({"rows_per_cta": 2}, ValueError, "rows_per_cta= needs a tile with a RunTime dimension"),
    ],
)
def test_declarations_that_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):

        @kernel(**options)
        def k(x):
            pass


def test_functions_that_are_refused():
    with pytest.raises(ValueError, match="the name '<lambda>' is not a PTX identifier"):
        kernel(lambda x: None)

    def generator(x):
        yield

    def variadic(*xs):
        pass

    def default(x=1):
        pass

    def reserved(smem):
        pass

    with pytest.raises(TypeError, match="must not yield or await"):
        kernel(generator)
    with pytest.raises(TypeError, match=r"a kernel takes no \*xs"):
        kernel(variadic)
    with pytest.raises(TypeError, match="the tensor x has a default; constants come after a `\\*`"):
        kernel(default)
    with pytest.raises(ValueError, match="the tensor's name 'smem' is given out by the language"):
        kernel(reserved)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Tile(4, 8), TypeError, "Tile takes a dtype of jax_ptx.types last.*got 8"),
        (lambda: Tile("n", np.float32), TypeError, "got <class 'numpy.float32'>"),
        (lambda: Tile(4, f32, dtype=f32), TypeError, "Tile got two dtypes"),
        (lambda: Tile(4, types.pred), TypeError, "no array has elements of type pred"),
        (lambda: Tile(4, f16x2), TypeError, "no array has elements of type f16x2"),
        (lambda: Tile(4.0, f32), TypeError, "dimension 0 is 4.0; a dimension is an int, a string"),
        (lambda: Tile(-1, f32), ValueError, "dimension 0 is -1; it must be 0 or more"),
        (lambda: Tile("a b", f32), ValueError, "'a b' of dimension 0 is not an identifier"),
        (
            lambda: Tile(4, RunTime("rows"), f32),
            ValueError,
            "only the leading dimension may be a RunTime",
        ),
    ],
)
def test_tiles_that_are_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("grid", "kind", "message"),
    [
        ((1, 65536, 1), ValueError, "k: grid must lie between"),
        ((2**31, 1, 1), ValueError, "k: grid must lie between"),
        ((1, 2, 3, 4), TypeError, "grid must be an int or a tuple of one to three ints"),
        (lambda: 1.5, TypeError, "grid must be an int or a tuple of one to three ints, got 1.5"),
        (3, ValueError, r"grid \(3, 1, 1\) is not a multiple of cluster \(2, 1, 1\)"),
        (lambda m: m, TypeError, "k: grid takes 'm', which is no variable of a tile"),
    ],
)
def test_grids_that_are_refused(grid, kind, message):
    def k():
        pass

    with pytest.raises(kind, match=message):  # a callable's result at the launch, all else before
        kernel(in_specs=(), out_specs=(), grid=grid, cluster=(2, 1, 1))(k).launch()


def test_an_empty_grid_for_tensors_that_are_not() -> None:
    """A division rounded down leaves results that nobody writes."""
    k = copy_kernel()
    with pytest.raises(
        ValueError, match=r"grid \(2, 0, 1\) is empty for .*that rounds up is -\(-n"
    ):
        k(jnp.ones((2, 4)), jnp.ones(4, jnp.bfloat16))
    assert k(jnp.ones((0, 4)), jnp.ones(4, jnp.bfloat16)).shape == (0, 4)


X, W = jnp.ones((3, 16)), jnp.ones(16, jnp.bfloat16)


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ((X,), TypeError, r"copy: expected 2 inputs \(x, w\), got 1; outputs are returned"),
        ((X, W, X), TypeError, "copy: expected 2 inputs"),
        (
            (X, X[0]),
            TypeError,
            r"argument w must have dtype bfloat16 \(bf16\), got float32; cast it",
        ),
        ((X.astype(int), W), TypeError, "argument x must have dtype float32"),
        (
            (1.0, W),
            TypeError,
            "argument x must be a JAX array, a NumPy array or a PyTorch tensor, got float",
        ),
        (([X], W), TypeError, "argument x must be a JAX array"),
        ((X > 0, W), TypeError, "argument x must have dtype float32 .f32., got bool"),
        ((X[0], W), ValueError, r"argument x must have rank 2, shape \(m, n\), got \(16,\)"),
        (
            (X, W[:8]),
            ValueError,
            "the dimension 'n' is 16 in dimension 1 of argument x and 8 in dimension 0",
        ),
    ],
)
@pytest.mark.parametrize("jit", [False, True])
def test_arguments_that_are_refused(arrays, kind, message, jit):
    k = copy_kernel()
    traced = jit and all(isinstance(a, jax.Array) for a in arrays)
    call = jax.jit(k) if traced else k
    with pytest.raises(kind, match=message):
        call(*arrays)


def test_a_fixed_dimension_that_does_not_fit():
    @kernel(in_specs=(Tile("m", 8, f32),), out_specs=(Tile("m", f32),))
    def k(x, y):
        pass

    with pytest.raises(
        ValueError, match=r"k: argument x must have 8 in dimension 1, shape \(m, 8\), got \(3, 16\)"
    ):
        k(X)
    with pytest.raises(ValueError, match="'m' is 4 in the keyword argument and 3 in dimension 0"):
        k(X[:, :8], m=4)


def test_a_variable_that_only_an_output_has():
    @kernel(in_specs=(Tile("m", f32),), out_specs=(Tile("m", "p", f32), Tile("p", b32)))
    def k(x, y, z):
        pass

    with pytest.raises(ValueError, match="no input has the dimension 'p'; pass p= by name"):
        k(X[0])
    y, z = jax.eval_shape(lambda x: k(x, p=5), X[0])
    assert (y.shape, y.dtype, z.shape, z.dtype) == ((16, 5), jnp.float32, (5,), jnp.uint32)


def test_bit_types_take_any_array_of_their_width():
    @kernel(in_specs=(Tile("m", b32),), out_specs=(Tile("m", u32),))
    def k(x, y):
        pass

    for dtype in (jnp.float32, jnp.int32, jnp.uint32):
        assert jax.eval_shape(k, jnp.ones(3, dtype)).dtype == jnp.uint32
    with pytest.raises(TypeError, match="argument x must have dtype uint32"):
        k(jnp.ones(3, jnp.bfloat16))


def test_float64_is_never_narrowed():
    @kernel(in_specs=(Tile("m", f64),), out_specs=(Tile("m", f64),))
    def k(x, y):
        pass

    with pytest.raises(TypeError, match="argument x has dtype float64, which JAX would narrow"):
        k(np.ones(3))


def test_numpy_arrays_are_taken():
    k = copy_kernel()
    shape = jax.eval_shape(lambda: k(np.ones((3, 16), np.float32), np.ones(16, W.dtype)))
    assert (shape.shape, shape.dtype) == ((3, 16), jnp.float32)


def test_a_call_inside_jit_is_one_primitive_with_the_launch():
    k = copy_kernel()
    jaxpr = jax.make_jaxpr(k)(X, W)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["ptx_call"]
    assert jaxpr.eqns[0].params["launch"] is k.launch(m=3, n=16)
