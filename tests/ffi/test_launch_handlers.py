"""The FFI handlers as XLA calls them, on the CPU."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_ptx.launch import TARGET, Launch, ptx_call

DOUBLE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry double(.param .u64 x, .param .u64 y, .param .u64 rows)
{
  .reg .pred %p<1>;
  .reg .u32 %r<5>;
  .reg .u64 %rd<7>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  ld.param.u64 %rd5, [rows];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  cvt.u64.u32 %rd6, %r1;
  setp.ge.u64 %p0, %rd6, %rd5;
  @%p0 ret;
  mad.lo.u32 %r2, %r1, 8, %r0;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd0, %rd2;
  add.s64 %rd4, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  add.u32 %r4, %r3, %r3;
  st.global.u32 [%rd4], %r4;
  ret;
}
"""


def attributes(**changes: Any) -> dict[str, Any]:
    record = {
        "ptx": DOUBLE,
        "entry": "double",
        "key": 0,
        "grid": (2**31 - 1, 1, 1),
        "block": (8, 1, 1),
        "cluster": (1, 1, 1),
        "smem_bytes": 0,
        "rows_per_cta": 1,
        "unit_bytes": (32, 32),
        "dims": (1, 1),
        "global_dims": (0,),
        "batch": (),
        "batch_mask": (),
        **changes,
    }
    return {k: np.array(v, np.int64) if isinstance(v, tuple) else v for k, v in record.items()}


def double(x: jax.Array, *, aliases: dict[int, int] | None = None, **changes: Any) -> jax.Array:
    """2 * x by rows of 8 32-bit integers, a CTA each; the number of rows comes from the buffers."""
    call = jax.ffi.ffi_call(
        TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype), input_output_aliases=aliases or {}
    )
    return call(x, **attributes(**changes))


def rows(*shape: int) -> jax.Array:
    return jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(*shape)


@pytest.mark.parametrize("n_rows", [1, 3, 100])
def test_the_grid_follows_the_buffers(n_rows: int) -> None:
    x = rows(n_rows, 8)
    np.testing.assert_array_equal(jax.jit(double)(x), 2 * x)
    np.testing.assert_array_equal(double(x), 2 * x)


def test_the_grid_is_whole_clusters() -> None:
    x = rows(5, 8)  # six CTAs, the last without a row
    np.testing.assert_array_equal(jax.jit(lambda x: double(x, cluster=(2, 1, 1)))(x), 2 * x)


def test_no_rows() -> None:
    assert jax.jit(double)(rows(0, 8)).shape == (0, 8)


@pytest.mark.parametrize("donate", [False, True])
def test_a_result_in_an_operands_memory(donate: bool) -> None:
    x = rows(4, 8)
    expected = 2 * np.asarray(x)
    function = jax.jit(lambda x: double(x, aliases={0: 0}), donate_argnums=(0,) if donate else ())
    np.testing.assert_array_equal(function(x), expected)
    if not donate:
        np.testing.assert_array_equal(x, expected // 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ptx": "no PTX at all"}, r"kernel `double`: "),
        ({"ptx": ""}, "kernel `double`: the launch record has no PTX text"),
        ({"block": (2048, 1, 1)}, r"kernel `double`: block \(2048, 1, 1\)"),
        ({"dims": (1,)}, "kernel `double`: attribute dims must have 2 elements, got 1"),
        ({"smem_bytes": 1 << 20}, "kernel `double`: smem_bytes must be between 0 and 232448"),
        ({"extra": 1}, "Wrong number of attributes"),
        ({"grid": 1}, "Wrong attribute type"),
    ],
)
def test_a_wrong_record_is_an_error_when_xla_compiles(
    changes: dict[str, Any], message: str
) -> None:
    lowered = jax.jit(lambda x: double(x, **changes)).lower(rows(4, 8))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        lowered.compile()


def test_buffers_of_another_size_are_an_error_at_the_call() -> None:
    compiled = jax.jit(lambda x: double(x, unit_bytes=(32, 64))).lower(rows(4, 8)).compile()
    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match=r"kernel `double`: result 0 must have 256 bytes .* got 128",
    ):
        compiled(rows(4, 8))


def test_a_failed_call_leaves_the_next_one_unharmed() -> None:
    x = rows(4, 8)
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(lambda x: double(x, unit_bytes=(32, 64)))(x))
    np.testing.assert_array_equal(jax.jit(double)(x), 2 * x)


def test_calls_from_many_threads_do_not_wait_for_each_other() -> None:
    # Each call spreads its CTAs over XLA's pool, from inside that pool.
    function, x = jax.jit(double), rows(64, 8)
    function(x).block_until_ready()
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(function(x), 2 * np.asarray(x)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "the calls wait for each other"
    assert not wrong


def test_every_fake_device_at_once() -> None:
    mesh = jax.make_mesh((len(jax.devices()),), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    x = jax.device_put(rows(8 * len(jax.devices()), 8), jax.NamedSharding(mesh, spec))
    mapped = jax.shard_map(double, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_array_equal(jax.jit(mapped)(x), 2 * np.asarray(x))


def test_a_share_of_rows_that_were_split_unevenly_is_refused() -> None:
    text = DOUBLE.replace("rows)", "rows, .param .u64 sums)")

    def launch(local_rows: int, *global_dims: int) -> jax.Array:
        """On a device that has some of the rows, and two of the sums over them."""
        call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((2, 8), jnp.int32))
        return call(
            rows(local_rows, 8), **attributes(ptx=text, dims=(1, 2), global_dims=global_dims)
        )

    with pytest.raises(jax.errors.JaxRuntimeError, match="XLA split the rows unevenly"):
        launch(8, 60, 12).block_until_ready()  # of eight devices
    launch(2, 16, 16).block_until_ready()
    # By number a half of each; but 20 rows over three devices would be 8 each, too.
    for leading, message in ((16, "outside|beyond|past"), (20, "XLA split the rows unevenly")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            launch(8, 16, 4, leading).block_until_ready()


def two_dims(x: jax.Array, y: jax.Array) -> jax.Array:
    launch = Launch(
        ptx="",
        entry="f",
        grid=(1, 1, 1),
        block=(1, 1, 1),
        cluster=(1, 1, 1),
        smem_bytes=0,
        unit_bytes=(32, 16, 16),
        dims=(2, 1, 2),
    )
    result = jax.ShapeDtypeStruct((*x.shape[:-1], 4), jnp.int32)
    return ptx_call(launch, x, y, result_types=[result])[0]


def test_the_record_says_how_large_the_whole_is() -> None:
    def global_dims(function: Any, *shapes: Any) -> str:
        types = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
        checks = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
        exported = jax.export.export(jax.jit(function), disabled_checks=checks)(*types)
        return exported.mlir_module().split("global_dims = dense<")[1].split(">")[0]

    (b,) = jax.export.symbolic_shape("b")
    assert global_dims(two_dims, (6, 5, 8), (12, 4)) == "[12, 30]"
    assert global_dims(two_dims, (b, 5, 8), (12, 4)) == "[12, 0]"
    mapped = jax.vmap(two_dims, (0, None))  # the batch is no part of the dimensions
    assert global_dims(mapped, (3, 6, 5, 8), (12, 4)) == "[12, 30]"
    assert global_dims(two_dims, (6, 0, 8), (0, 4)) == "0"  # of either


def test_the_cuda_stages_are_registered_and_lower_without_a_gpu() -> None:
    text = jax.jit(double).trace(rows(4, 8)).lower(lowering_platforms=("cuda",)).as_text()
    assert f"@{TARGET}" in text
    assert "visible .entry double" in text
