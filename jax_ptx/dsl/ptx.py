"""Instructions and what goes with them: `ptx.inst`, addresses, pointers, barriers, control flow."""

from __future__ import annotations

from collections.abc import Sequence

from jax_ptx.dsl.control import bra as bra
from jax_ptx.dsl.control import break_ as break_
from jax_ptx.dsl.control import continue_ as continue_
from jax_ptx.dsl.control import else_ as else_
from jax_ptx.dsl.control import if_ as if_
from jax_ptx.dsl.control import label as label
from jax_ptx.dsl.control import loop as loop
from jax_ptx.dsl.control import range_ as range_
from jax_ptx.dsl.control import ret as ret
from jax_ptx.dsl.control import while_ as while_
from jax_ptx.dsl.isa.spelling import read, spelled
from jax_ptx.dsl.operands import Address, Value, plain
from jax_ptx.dsl.reg import NotPred, Reg, RegArray
from jax_ptx.dsl.smem import SharedArray
from jax_ptx.dsl.special import SpecialRegisters
from jax_ptx.dsl.tile import Tensor
from jax_ptx.dsl.trace import current
from jax_ptx.dsl.warp import Warp
from jax_ptx.types import b64, u64

Operand = Value | int | float | str | Sequence["Value | int | float | str"] | RegArray
Predicate = Reg | NotPred | None


class Instruction:
    """An instruction under its dotted name: `ptx.inst.ld.global_.v4.f32(values, ptx.addr(p))`.

    A trailing `_` and a leading `_` before a digit are dropped (`and_`, `_2d`); `__` is `::`.
    Calling it emits the instruction, guarded if `pred` is given, and returns the first operand if
    that is a register.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Instruction:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)  # Python's own protocols, such as copying
        word = read(attribute)
        child = Instruction(f"{self._name}.{word}" if self._name else word)
        self.__dict__[attribute] = child  # found at once the next time
        return child

    def __call__(self, *operands: Operand, pred: Predicate = None, **unknown: object) -> Reg | None:
        if unknown:
            raise current().error(
                TypeError, f"{self!r} takes operands and pred=, got {next(iter(unknown))}="
            )
        current().emit(self._name, operands, pred)
        if operands and isinstance(operands[0], Reg):
            return operands[0]
        return None

    def __repr__(self) -> str:
        return f"ptx.inst.{spelled(self._name)}" if self._name else "ptx.inst"


class _Bar:
    """The namespace `ptx.bar`."""

    def sync(
        self, n: int | Reg = 0, count: int | Reg | None = None, *, pred: Predicate = None
    ) -> None:
        """Waits at barrier n for all threads of the CTA, or for `count` of them (whole warps)."""
        current().emit("bar.sync", (n,) if count is None else (n, count), pred)


class _Cluster:
    """The namespace `ptx.cluster`: the barrier of the cluster's threads (sm_90).

    `aligned` promises that all threads of a warp execute the same instruction.
    """

    def arrive(self, *, aligned: bool = False, pred: Predicate = None) -> None:
        """Arrives, and releases this thread's writes to the cluster."""
        current().emit("barrier.cluster.arrive" + ".aligned" * aligned, (), pred)

    def wait(self, *, aligned: bool = False, pred: Predicate = None) -> None:
        """Waits until every thread of the cluster has arrived."""
        current().emit("barrier.cluster.wait" + ".aligned" * aligned, (), pred)

    def sync(self, *, aligned: bool = False, pred: Predicate = None) -> None:
        """Arrives and waits."""
        self.arrive(aligned=aligned, pred=pred)
        self.wait(aligned=aligned, pred=pred)


inst: Instruction = Instruction()
special: SpecialRegisters = SpecialRegisters()
warp: Warp = Warp()
bar: _Bar = _Bar()
cluster: _Cluster = _Cluster()


def addr(base: Reg | SharedArray | Tensor | Address | str, offset: int | None = None) -> Address:
    """The address `[base+offset]`.

    Args:
        base: a register of 32 or 64 bits, a shared array, a tensor (its parameter) or a symbol.
        offset: bytes, a constant; a register offset is added to the base first, `base + offset`.
    """
    trace = current()
    offset = 0 if offset is None else plain(offset)
    if isinstance(base, Value) and base.trace is not trace:
        raise trace.error(TypeError, f"{base!r} belongs to another run of a kernel")
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise trace.error(
            TypeError,
            f"ptx.addr takes an offset that is an int, got {offset!r}; add a register to the base, "
            "as in ptx.addr(base + offset)",
        )
    if not -(1 << 31) <= offset < 1 << 31:
        raise trace.error(ValueError, f"ptx.addr takes an offset of 32 bits, got {offset}")
    if isinstance(base, SharedArray):
        return Address(trace, base.symbol(offset), None, 0, "shared")
    if isinstance(base, Tensor | str):
        name = str(base)
        if isinstance(base, str):
            trace.mention(name)
        is_parameter = name in trace.tensors or name in trace.run_time_dims
        return Address(trace, name, None, offset, "param" if is_parameter else "")
    if isinstance(base, Reg) and base.operand.kind == "register":
        return Address(trace, base.text, base.dtype, offset)
    raise trace.error(
        TypeError, f"ptx.addr takes a register, a shared array, a tensor or a symbol, got {base!r}"
    )


def global_ptrs(*tensors: Tensor) -> tuple[Reg, ...]:
    """The global addresses of tensors: for each, `ld.param.u64` and `cvta.to.global.u64`."""
    trace = current()
    pointers = []
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise trace.error(
                TypeError, f"ptx.global_ptrs takes the kernel's tensors, got {tensor!r}"
            )
        pointer = Reg(trace, trace.register_name(b64), b64)
        trace.emit("ld.param.u64", (pointer, addr(tensor)))
        result = Reg(trace, trace.register_name(b64), b64)
        trace.emit("cvta.to.global.u64", (result, pointer))
        pointers.append(result)
    return tuple(pointers)


def run_time_dim(name: str) -> Reg:
    """The size of a `RunTime` dimension, in a new u64 register."""
    trace = current()
    if name not in trace.run_time_dims:
        known = ", ".join(trace.run_time_dims) or "none"
        raise trace.error(
            ValueError, f"ptx.run_time_dim({name!r}): the tiles' run-time dimensions are: {known}"
        )
    result = Reg(trace, trace.register_name(u64), u64)
    trace.emit("ld.param.u64", (result, addr(name)))
    return result


def raw(line: str) -> None:
    """Appends a line of PTX as it is, past the instruction table.

    The table's version and target do not cover it: give `@kernel(arch=, version=)` what it needs.
    """
    trace = current()
    if not isinstance(line, str) or not line.strip():
        raise trace.error(TypeError, f"ptx.raw takes a line of PTX, got {line!r}")
    trace.raw = True
    trace.body.append(f"    {line.strip()}")
