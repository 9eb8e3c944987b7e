"""What the operators of a register emit.

Widths follow the pointer arithmetic that kernels do: `ptr + off` is one `add.s64`, `idx * 4` one
`mul.wide.u32` whose result is 64 bits wide, so that a byte offset never wraps at 4 GiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeGuard, cast

from jax_ptx.dsl.operands import Value, float_text, plain
from jax_ptx.types import DType, f32, f64, pred, s64, u64

if TYPE_CHECKING:
    from jax_ptx.dsl.reg import NotPred, Reg

# How the author wrote them.
_WRITTEN = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "shl": "<<",
    "shr": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "not": "~",
}


def binary(
    op: str, left: Reg, right: object, *, out: Reg | None = None, swapped: bool = False
) -> Reg:
    """`add`, `sub`, `mul`, `max` or `min`. `swapped` exchanges the operands: `1.0 - f`."""
    left, right = prepare(op, left, out), plain(right)
    if left.dtype.kind == "float":
        rounding = ".rn" if op in ("add", "sub", "mul") else ""
        return _float(f"{op}{rounding}", left, right, out, swapped)
    if op == "mul":
        return _product(left, right, out)
    if op in ("max", "min"):
        _check_range(op, left, right)
    left, right = same_width(op, left, right, out)
    # Pointer arithmetic is signed: an offset may be negative.
    suffix = "s64" if left.dtype.bits == 64 and op in ("add", "sub") else sign(left.dtype)
    return _emit(f"{op}.{suffix}", left.dtype, left, right, out, swapped)


def divide(
    symbol: str, left: Reg, right: object, *, out: Reg | None = None, swapped: bool = False
) -> Reg:
    """`/` of floats; `//` and `%` of unsigned integers."""
    left, right = prepare(symbol, left, out), plain(right)
    if (left.dtype.kind == "float") != (symbol == "/"):
        refuse(
            left,
            f"`{symbol}` of {left.dtype} registers; `/` is for floats, `//` and `%` for integers",
        )
    if symbol == "/":
        return _float("div.rn", left, right, out, swapped)
    op = "div" if symbol == "//" else "rem"
    if left.dtype.kind == "signed":
        refuse(
            left,
            f"`{symbol}` of {left.dtype} registers: Python rounds down and PTX towards zero; "
            f"ptx.inst.{op}.{left.dtype} is the PTX one",
        )
    left, right = same_width(symbol, left, right, out)
    return _emit(f"{op}.{sign(left.dtype)}", left.dtype, left, right, out, swapped)


def shift(op: str, left: Reg, right: object, *, out: Reg | None = None) -> Reg:
    """`shl`, or `shr`: arithmetic for a signed left side."""
    left, right = prepare(op, left, out), plain(right)
    if left.dtype.kind == "float":
        _refuse_float(op, left)
    if is_reg(right):
        right = prepare(op, right)
        if right.dtype.bits != 32 or right.dtype.kind == "float":
            refuse(
                left,
                f"`{written(op)}` takes an amount of 32 bits, got a register of type {right.dtype}",
            )
    elif not isinstance(right, int):
        _unknown(op, left, right)
    elif right < 0:
        raise left.trace.error(
            ValueError, f"`{written(op)}` of {left.text} by {right}; the amount is 0 or more"
        )
    suffix = sign(left.dtype) if op == "shr" else f"b{left.dtype.bits}"
    return _emit(f"{op}.{suffix}", left.dtype, left, right, out, False)


def logic(op: str, left: Reg, right: object, *, out: Reg | None = None) -> Reg:
    """`and`, `or`, `xor`, of integers and of predicates."""
    if left.dtype is pred:
        check_writable(out)
        if getattr(right, "dtype", None) is not pred:
            refuse(
                left,
                f"`{written(op)}` of a predicate with {shown(right)}; both must be predicates",
            )
        right = materialise(cast("Reg | NotPred", right))
        return _emit(f"{op}.pred", pred, left, right, out, False)
    left, right = prepare(op, left, out), plain(right)
    if left.dtype.kind == "float":
        _refuse_float(op, left)
    left, right = same_width(op, left, right, out)
    return _emit(f"{op}.b{left.dtype.bits}", left.dtype, left, right, out, False)


def unary(op: str, value: Reg) -> Reg:
    """`neg`, `abs`, `not`."""
    value = prepare(op, value)
    dtype = value.dtype
    if op == "not":
        if dtype.kind == "float":
            _refuse_float(op, value)
        suffix = f"b{dtype.bits}"
    else:
        suffix = dtype.name if dtype.kind == "float" else f"s{dtype.bits}"
    result = value.fresh(dtype)
    value.trace.emit(f"{op}.{suffix}", (result, value))
    return result


def compare(op: str, left: Reg, right: object) -> Reg:
    """`setp`: a new predicate. Untyped bits compare unsigned; `!=` of floats is true for NaN."""
    left, right = prepare(op, left), plain(right)
    dtype = left.dtype
    if dtype is pred:
        refuse(left, "comparison of a predicate; combine predicates with &, |, ^ and ~")
    if dtype.kind == "float":
        right = _float_operand(op, left, right)
        suffix, op = dtype.name, "neu" if op == "ne" else op
    else:
        if isinstance(right, int) and right < 0 and dtype.kind != "signed":
            refuse(left, f"comparison of an unsigned {dtype} register with {right}", ValueError)
        _check_range(op, left, right)
        left, right = same_width(op, left, right, None)
        suffix = sign(left.dtype)
    result = left.fresh(pred)
    left.trace.emit(f"setp.{op}.{suffix}", (result, left, right))
    return result


# ---- operands ----


def prepare(op: str, value: Reg, out: Reg | None = None) -> Reg:
    """A register that arithmetic can read: a special register is copied first."""
    check_writable(out)
    dtype = value.dtype
    if dtype is pred:
        refuse(
            value, f"`{written(op)}` of a predicate register; ptx.inst.selp turns it into a number"
        )
    if dtype.bits < 16:
        refuse(
            value, f"`{written(op)}` of a {dtype} register, which only loads, stores and cvt take"
        )
    if value.operand.kind != "special":
        return value
    copy = value.fresh(dtype)
    value.trace.emit(f"mov.{dtype.move}", (copy, value))
    return copy


def same_width(op: str, left: Reg, right: object, out: Reg | None) -> tuple[Reg, object]:
    """Both integer operands in one width: the narrower of 32 and 64 bits is widened."""
    if not is_reg(right):
        if not isinstance(right, int):
            _unknown(op, left, right)
        return left, int(right)
    right = prepare(op, right)
    if right.dtype.kind == "float":
        _refuse_mixed(op, left, right)
    bits = (left.dtype.bits, right.dtype.bits)
    if bits == (64, 32):
        right = widen(right)
    elif bits == (32, 64):
        if out is not None:
            refuse(
                left,
                f"`{written(op)}=` of {left.dtype} and {right.dtype} registers; it would be 64-bit",
            )
        left = widen(left)
    elif bits[0] != bits[1]:
        _refuse_mixed(op, left, right)
    return left, right


def widen(value: Reg) -> Reg:
    """A 32-bit integer as a 64-bit one."""
    signed = value.dtype.kind == "signed"
    result = value.fresh(s64 if signed else u64)
    value.trace.emit("cvt.s64.s32" if signed else "cvt.u64.u32", (result, value))
    return result


def materialise(value: Reg | NotPred) -> Reg:
    """A predicate register; a negated one is computed (`not.pred`)."""
    if is_reg(value):
        return value
    negated = cast("Reg", ~value)  # of a NotPred: the register that it negates
    result = negated.fresh(pred)
    negated.trace.emit("not.pred", (result, negated))
    return result


def check_writable(out: Reg | None) -> None:
    """Refuses to write a special register."""
    if out is not None and not out.writable:
        refuse(out, f"{out.text} is a special register and cannot be written; reg.from_ copies it")


def is_reg(value: object) -> TypeGuard[Reg]:
    """Whether it is a register."""
    return isinstance(value, Value) and hasattr(value, "writable")


def sign(dtype: DType) -> str:
    """The integer type that arithmetic on it uses; untyped bits are unsigned."""
    return f"{'s' if dtype.kind == 'signed' else 'u'}{dtype.bits}"


def written(op: str) -> str:
    """The operator as the author wrote it; `max` and the like are methods."""
    return _WRITTEN.get(op.split(".")[0], op)


def shown(value: object) -> str:
    """What an operand is, for messages."""
    return f"{value.dtype} register {value.text}" if is_reg(value) else repr(value)


def refuse(value: Reg, message: str, kind: type[Exception] = TypeError) -> NoReturn:
    """Raises an error at the author's line."""
    raise value.trace.error(kind, message)


def _refuse_float(op: str, value: Reg) -> NoReturn:
    refuse(
        value,
        f"`{written(op)}` of a {value.dtype} register; ptx.inst.mov copies its bits "
        f"into a register of type b{value.dtype.bits}",
    )


def _refuse_mixed(op: str, left: Reg, right: Reg) -> NoReturn:
    refuse(
        left,
        f"`{written(op)}` of {left.dtype} and {right.dtype} registers; convert one by ptx.inst.cvt",
    )


def _check_range(op: str, left: Reg, right: object) -> None:
    """Refuses an int whose bits would be read as another number."""
    half = 1 << (left.dtype.bits - 1)
    low, high = (-half, half - 1) if left.dtype.kind == "signed" else (0, 2 * half - 1)
    if isinstance(right, int) and not low <= right <= high:
        raise left.trace.error(
            ValueError,
            f"`{written(op)}` of a {left.dtype} register and {right}, which does not fit "
            f"({low} to {high})",
        )


def _unknown(op: str, left: Reg, right: object) -> NoReturn:
    hint = "; a float goes with float registers" if isinstance(right, float) else ""
    refuse(left, f"`{written(op)}` of a {left.dtype} register and {shown(right)}{hint}")


# ---- emission ----


def _emit(name: str, dtype: DType, left: Reg, right: object, out: Reg | None, swapped: bool) -> Reg:
    result = left.fresh(dtype) if out is None else out
    left.trace.emit(name, (result, right, left) if swapped else (result, left, right))
    return result


def _float(name: str, left: Reg, right: object, out: Reg | None, swapped: bool) -> Reg:
    right = _float_operand(name, left, right)
    return _emit(f"{name}.{left.dtype.name}", left.dtype, left, right, out, swapped)


def _float_operand(op: str, left: Reg, right: object) -> object:
    dtype = left.dtype
    if isinstance(right, int | float):
        if dtype is f32 or dtype is f64:
            return float(right)
        # PTX has no immediates of 16-bit floats.
        constant = left.fresh(dtype)
        left.trace.emit(f"mov.{dtype.move}", (constant, float_text(float(right), dtype)))
        return constant
    if not is_reg(right):
        _unknown(op, left, right)
    if right.dtype is not dtype and not (
        right.dtype.kind == "bits" and right.dtype.bits == dtype.bits
    ):
        _refuse_mixed(op, left, right)
    return right


def _product(left: Reg, right: object, out: Reg | None) -> Reg:
    bits = left.dtype.bits
    if bits == 64 or out is not None or bits == 16:
        left, right = same_width("mul", left, right, out)
        return _emit(f"mul.lo.{sign(left.dtype)}", left.dtype, left, right, out, False)
    signed = left.dtype.kind == "signed"
    wide = s64 if signed else u64
    if is_reg(right):
        right = prepare("mul", right)
        if right.dtype.kind == "float":
            _refuse_mixed("mul", left, right)
        fits = right.dtype.bits == 32
    elif isinstance(right, int):
        fits = (-(1 << 31) <= right < 1 << 31) if signed else (0 <= right < 1 << 32)
    else:
        _unknown("mul", left, right)
    if fits:
        return _emit(f"mul.wide.{sign(left.dtype)}", wide, left, right, out, False)
    # A factor of more than 32 bits, or a negative one: the 64-bit product.
    left, right = (widen(left), right) if not is_reg(right) else same_width("mul", left, right, out)
    return _emit(f"mul.lo.{sign(left.dtype)}", left.dtype, left, right, out, False)
