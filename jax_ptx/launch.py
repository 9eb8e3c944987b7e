"""The launch record and the primitive that carries it into XLA.

A kernel reaches XLA as text: the record below becomes the attributes of one custom call, so a compiled
program, an export or a cache entry is complete without this process. This is the only module that
uses `jax.ffi`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jax_ptx import _ext, slices
from jax_ptx.ahead import load_ahead
from jax_ptx.ptx_text import access_alignment

TARGET = "jax_ptx_launch"
"""Name of the FFI target. Exported programs refer to it: see `export_checks`."""

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel, ready to launch: a PTX text and the geometry and sizes that belong to it.

    Attributes:
        ptx: the module's text.
        entry: name of the `.entry` to launch. Its parameters are one `.u64` a tensor (operands, then
            results), then one `.u64` a run-time dimension.
        grid: CTAs along x, y, z. With `rows_per_cta`, x is only an upper bound.
        block: threads of a CTA along x, y, z.
        cluster: CTAs of a cluster along x, y, z.
        smem_bytes: dynamic shared memory of a CTA.
        unit_bytes: size of each tensor in bytes, per element of its run-time dimension if it has one.
        dims: the run-time dimension of each tensor, counted from 1; 0 means that its size is fixed.
        rows_per_cta: when positive, the grid's x follows run-time dimension 1 of the buffers:
            ceil(rows / rows_per_cta). The partitioner may hand a device part of the rows.
        retrace: builds the launch that does a whole batch at once, given the batch's shape and, for
            each tensor, which of its axes the tensor has; elements lie `slices.slice_bytes` apart. None:
            one launch for each element.
    """

    ptx: str
    entry: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem_bytes: int
    unit_bytes: tuple[int, ...]
    dims: tuple[int, ...]
    rows_per_cta: int = 0
    retrace: Callable[[tuple[int, ...], tuple[tuple[bool, ...], ...]], Launch] | None = field(
        default=None, compare=False
    )

    @functools.cached_property
    def access_bytes(self) -> int:
        """What the kernel's widest access to global memory wants its address to be a multiple of."""
        return access_alignment(self.ptx)

    @functools.cached_property
    def key(self) -> int:
        """A hash of the text, with which the extension finds the loaded kernel (and then compares)."""
        digest = hashlib.blake2b(f"{self.entry}\0{self.ptx}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def __hash__(self) -> int:  # the text is long and jit hashes its parameters at every trace
        return hash((self.key, self.grid, self.block, self.unit_bytes))

    def __repr__(self) -> str:  # what a jaxpr prints
        return f"Launch({self.entry}, grid={self.grid}, block={self.block}, {len(self.ptx)} bytes of PTX)"

    def attributes(
        self,
        batch: tuple[int, ...] = (),
        batch_mask: tuple[tuple[bool, ...], ...] = (),
        global_dims: tuple[int, ...] = (),
    ) -> dict[str, Any]:
        """The record as the custom call's attributes (`LaunchRecord` in ffi/launch.h).

        Args:
            batch: leading axes over which the kernel is launched again and again.
            batch_mask: for each tensor, which of them it has.
            global_dims: the size of each run-time dimension before XLA splits it over devices, 0 where
                it is not known; then, if padding of one of them must be noticed, the first operand's
                leading dimensions; (): none is known.
        """
        return {
            "ptx": self.ptx,
            "entry": self.entry,
            "key": self.key,
            "grid": np.array(self.grid, np.int64),
            "block": np.array(self.block, np.int64),
            "cluster": np.array(self.cluster, np.int64),
            "smem_bytes": self.smem_bytes,
            "rows_per_cta": self.rows_per_cta,
            "unit_bytes": np.array(self.unit_bytes, np.int64),
            "dims": np.array(self.dims, np.int64),
            "global_dims": np.array(global_dims or (0,) * max(self.dims, default=0), np.int64),
            "batch": np.array(batch, np.int64),
            "batch_mask": np.array([axis for axes in batch_mask for axis in axes], np.int64),
        }


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What `jax.export.export(..., disabled_checks=)` needs to accept this library's custom call.

    An artefact holds the PTX and its launch record; the process that runs it only imports jax_ptx.
    """
    return [jax.export.DisabledSafetyCheck.custom_call(TARGET)]


def ptx_call(
    launch: Launch,
    *operands: Any,
    result_types: Sequence[jax.ShapeDtypeStruct],
    input_output_aliases: tuple[tuple[int, int], ...] = (),
) -> list[jax.Array]:
    """Launches a kernel on arrays: on an NVIDIA GPU, or in the emulator on a CPU.

    Args:
        launch: the record.
        *operands: arrays, in the order of the entry's parameters.
        result_types: shape and dtype of each result.
        input_output_aliases: pairs (operand, result) that share memory, for kernels that write in place.

    Raises:
        TypeError: a result's dtype is not enabled (float64 without `jax_enable_x64`).
        jax.errors.JaxRuntimeError: when XLA compiles, for text that does not parse or limits that do
            not hold; at the call, for what the driver or the emulator found.
    """
    for result in result_types:
        if jax.dtypes.canonicalize_dtype(result.dtype) != result.dtype:
            raise TypeError(
                f"{launch.entry}: a result has dtype {result.dtype}, which JAX would narrow; "
                "set jax.config.update('jax_enable_x64', True)"
            )
    return bind_varying(
        ptx_call_p,
        *operands,
        launch=launch,
        result_types=tuple(result_types),
        aliases=input_output_aliases,
        batch=(),
        batch_mask=((),) * (len(operands) + len(result_types)),
    )


def bind_varying(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Binds with every operand varying over the union of the manual axes that any varies over.

    `shard_map(check_vma=True)` wants it so; the cast's transpose is the `psum` of a cotangent.
    """
    types = [jax.typeof(operand).manual_axis_type for operand in operands]
    union = frozenset[Any]().union(*(t.varying for t in types))
    operands = tuple(
        jax.lax.pcast(operand, tuple(union - t.varying), to="varying")
        if union - t.varying
        else operand
        for operand, t in zip(operands, types, strict=True)
    )
    return primitive.bind(*operands, **params)


def new_primitive(name: str) -> Primitive:
    """A primitive with several results, which outside jit runs as a jit of itself."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    return primitive


def ptx_lowering(
    ctx: mlir.LoweringRuleContext,
    *operands: Any,
    launch: Launch,
    batch: tuple[int, ...] = (),
    batch_mask: tuple[tuple[bool, ...], ...] = (),
    aliases: tuple[tuple[int, int], ...] = (),
    extra_attributes: dict[str, Any] | None = None,
    leading: tuple[int, ...] = (),
) -> Any:
    """Lowers to the custom call. Layouts are the default, row-major ones, which XLA then enforces.

    `leading`: leading dimensions of the first operand of which XLA must not pad any (`global_dims`).
    """
    if batch and launch.retrace is not None:
        with contextlib.suppress(NotImplementedError):  # then the handler launches once an element
            launch, batch, batch_mask = launch.retrace(batch, batch_mask), (), ()
    lower = jax.ffi.ffi_lowering(
        TARGET, operand_output_aliases=dict(aliases), extra_attributes=extra_attributes
    )
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    global_dims = (*_global_dims(launch, avals, batch, batch_mask), *leading)
    attributes = launch.attributes(batch, batch_mask, global_dims)
    if "cuda" in ctx.module_context.platforms:
        load_ahead(attributes)
    return lower(ctx, *operands, **attributes)


def _global_dims(
    launch: Launch,
    avals: Sequence[Any],
    batch: tuple[int, ...],
    batch_mask: tuple[tuple[bool, ...], ...],
) -> tuple[int, ...]:
    """The run-time dimensions of tensors of these types; 0 for one that is symbolic."""
    sizes = [0] * max(launch.dims, default=0)
    for index, (aval, dim) in enumerate(zip(avals, launch.dims, strict=False)):
        if dim == 0 or not all(isinstance(size, int) for size in aval.shape):
            continue
        axes = batch_mask[index] if batch else ()
        unit_bytes = launch.unit_bytes[index] * math.prod(
            size for size, has in zip(batch, axes, strict=True) if has
        )
        if unit_bytes > 0:
            sizes[dim - 1] = math.prod(aval.shape) * aval.dtype.itemsize // unit_bytes
    return tuple(sizes)


# ---- the generic primitive: a kernel as its author wrote it ----

ptx_call_p: Primitive = new_primitive("ptx_call")


def _ptx_call_abstract(
    *operands: Any,
    launch: Launch,
    result_types: tuple[jax.ShapeDtypeStruct, ...],
    batch: tuple[int, ...],
    **_: Any,
) -> list[Any]:
    for index, operand in enumerate(operands):
        if any(axis is not None for axis in operand.sharding.spec.partitions):
            raise ValueError(
                f"{launch.entry}: operand {index} is {operand}, sharded over an explicit mesh axis; a "
                "kernel sees whole arrays: call it under jax.shard_map, or jax.reshard the operand"
            )
    like = operands[0] if operands else None
    results = []
    for result in result_types:
        shape = (*batch, *result.shape)
        if like is None:
            results.append(ShapedArray(shape, result.dtype))
        else:
            sharding = jax.sharding.NamedSharding(like.sharding.mesh, jax.sharding.PartitionSpec())
            results.append(
                like.update(shape=shape, dtype=result.dtype, weak_type=False, sharding=sharding)
            )
    return results


def _ptx_call_batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    launch: Launch,
    result_types: tuple[jax.ShapeDtypeStruct, ...],
    batch: tuple[int, ...],
    batch_mask: tuple[tuple[bool, ...], ...],
    aliases: tuple[tuple[int, int], ...],
) -> tuple[list[Any], list[int]]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    written = {operand for operand, _ in aliases}
    moved, mapped = [], []
    for index, (operand, axis) in enumerate(zip(operands, axes, strict=True)):
        if axis is not None:
            operand = jax.numpy.moveaxis(operand, axis, 0)
        elif index in written:  # each element of the batch writes its own copy
            operand = jax.numpy.broadcast_to(operand, (size, *operand.shape))
        moved.append(operand)
        mapped.append(axis is not None or index in written)
    mapped += [True] * (len(batch_mask) - len(operands))
    inner_mask = batch_mask
    batch_mask = tuple((m, *mask) for m, mask in zip(mapped, inner_mask, strict=True))
    params: dict[str, Any] = {"aliases": aliases}
    if slices.must_be_apart(launch, batch_mask, _elements(moved, batch_mask, result_types)):
        params |= {"launch": launch, "result_types": result_types}
        params |= {"batch": batch, "batch_mask": inner_mask}
        results = _one_by_one(moved, mapped, params)
        return results, [0] * len(results)
    batch = (size, *batch)
    launch, moved, types = slices.pad(launch, batch_mask, moved, result_types)
    params |= {"launch": launch, "result_types": types, "batch": batch, "batch_mask": batch_mask}
    results = [
        slices.unpad(result, batch, padded, wanted)
        for result, padded, wanted in zip(
            bind_varying(ptx_call_p, *moved, **params), types, result_types, strict=True
        )
    ]
    return results, [0] * len(results)


def _elements(
    operands: Sequence[Any], mask: Sequence[Sequence[bool]], result_types: Sequence[Any]
) -> list[Any]:
    """One element of each tensor."""
    inputs = [
        jax.ShapeDtypeStruct(operand.shape[sum(axes) :], operand.dtype)
        for operand, axes in zip(operands, mask, strict=False)
    ]
    return [*inputs, *result_types]


def _one_by_one(
    operands: Sequence[Any], mapped: Sequence[bool], params: dict[str, Any]
) -> list[jax.Array]:
    """A call for each element of the leading axis, on buffers of their own."""

    def call(elements: dict[int, jax.Array]) -> list[jax.Array]:
        each = [elements.get(index, operand) for index, operand in enumerate(operands)]
        return bind_varying(ptx_call_p, *each, **params)

    return jax.lax.map(call, {i: x for i, x in enumerate(operands) if mapped[i]})


def _ptx_call_jvp(*_: Any, launch: Launch, **__: Any) -> Any:
    raise NotImplementedError(
        f"{launch.entry}: a kernel has no derivative of its own; wrap the call in jax.custom_jvp or "
        "jax.custom_vjp and give the rule, or jax.lax.stop_gradient its operands"
    )


def _ptx_call_transpose(*_: Any, launch: Launch, **__: Any) -> Any:
    raise NotImplementedError(
        f"{launch.entry}: a kernel has no transpose of its own: reverse mode (grad, vjp, "
        "linear_transpose) came to its call, as it does where a custom_jvp rule calls a kernel on "
        "tangents; wrap the call in jax.custom_vjp and give the backward pass there, or write the "
        "rule in jax.numpy"
    )


def _ptx_call_lowering(
    ctx: mlir.LoweringRuleContext, *operands: Any, result_types: Any, **params: Any
) -> Any:
    return ptx_lowering(ctx, *operands, **params)


ptx_call_p.def_abstract_eval(_ptx_call_abstract)
batching.primitive_batchers[ptx_call_p] = _ptx_call_batch
ad.primitive_jvps[ptx_call_p] = _ptx_call_jvp
ad.primitive_transposes[ptx_call_p] = _ptx_call_transpose
for _platform in ("cpu", "cuda"):
    # inline=False: call sites that are alike share one copy of the text.
    mlir.register_lowering(ptx_call_p, _ptx_call_lowering, platform=_platform, inline=False)


# ---- registration ----


def _runtime_ffi_version() -> tuple[int, ...]:
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    parts = (re.search(rf"define XLA_FFI_API_{part} (\d+)", header) for part in ("MAJOR", "MINOR"))
    return tuple(int(part[1]) if part else 0 for part in parts)


def _register() -> None:
    # XLA refuses a handler that is newer than itself, and the whole CPU backend with it.
    if tuple(_ext.ffi_api_version) > _runtime_ffi_version():
        raise ImportError(
            f"jax_ptx was built for XLA FFI {_ext.ffi_api_version} and the installed jaxlib has "
            f"{_runtime_ffi_version()}; reinstall jax_ptx, or install a newer jaxlib"
        )
    for platform, handlers in _ext.registrations().items():
        jax.ffi.register_ffi_target(TARGET, handlers, platform=platform)
    jax.ffi.register_ffi_target_as_batch_partitionable(TARGET)


_register()
