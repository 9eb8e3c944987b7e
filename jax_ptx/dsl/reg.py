"""Registers: `reg.scalar`, `reg.array`, `reg.from_`, and the operators of a register."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn, TypeAlias, overload

from jax_ptx.dsl import isa, operators
from jax_ptx.dsl.operands import REGISTER, SPECIAL, Value, float_text, plain
from jax_ptx.dsl.trace import Trace, current
from jax_ptx.types import DType, pred, u32

Operand: TypeAlias = "Reg | int | float"


class Reg(Value):
    """A register. Its operators emit one instruction each; the in-place ones write this register.

    Attributes:
        dtype: the type of the value that it holds.
    """

    __slots__ = ("dtype",)
    writable = True
    __array_ufunc__ = None  # NumPy's scalars leave `scalar * register` to the register

    def __init__(self, trace: Trace, text: str, dtype: DType) -> None:
        super().__init__(trace, text, REGISTER[dtype])
        self.dtype: DType = dtype

    def fresh(self, dtype: DType) -> Reg:
        """A new register of the same trace."""
        return Reg(self.trace, self.trace.register_name(dtype), dtype)

    @property
    def name(self) -> str:
        """The register's name, such as `%r0`."""
        return self.text

    def __repr__(self) -> str:
        return f"Reg({self.text}, {self.dtype})"

    def assign(self, value: Operand | str | Value) -> None:
        """Copies a value into this register (`mov`)."""
        operators.check_writable(self)
        _move(self, value)

    def max(self, other: Operand) -> Reg:
        """The larger of two values."""
        return operators.binary("max", self, other)

    def min(self, other: Operand) -> Reg:
        """The smaller of two values."""
        return operators.binary("min", self, other)

    def __add__(self, other: Operand) -> Reg:
        return operators.binary("add", self, other)

    def __radd__(self, other: Operand) -> Reg:
        return operators.binary("add", self, other)

    def __iadd__(self, other: Operand) -> Reg:
        return operators.binary("add", self, other, out=self)

    def __sub__(self, other: Operand) -> Reg:
        return operators.binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Reg:
        return operators.binary("sub", self, other, swapped=True)

    def __isub__(self, other: Operand) -> Reg:
        return operators.binary("sub", self, other, out=self)

    def __mul__(self, other: Operand) -> Reg:
        return operators.binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Reg:
        return operators.binary("mul", self, other)

    def __imul__(self, other: Operand) -> Reg:
        return operators.binary("mul", self, other, out=self)

    def __truediv__(self, other: Operand) -> Reg:
        return operators.divide("/", self, other)

    def __rtruediv__(self, other: Operand) -> Reg:
        return operators.divide("/", self, other, swapped=True)

    def __itruediv__(self, other: Operand) -> Reg:
        return operators.divide("/", self, other, out=self)

    def __floordiv__(self, other: Operand) -> Reg:
        return operators.divide("//", self, other)

    def __rfloordiv__(self, other: Operand) -> Reg:
        return operators.divide("//", self, other, swapped=True)

    def __ifloordiv__(self, other: Operand) -> Reg:
        return operators.divide("//", self, other, out=self)

    def __mod__(self, other: Operand) -> Reg:
        return operators.divide("%", self, other)

    def __rmod__(self, other: Operand) -> Reg:
        return operators.divide("%", self, other, swapped=True)

    def __imod__(self, other: Operand) -> Reg:
        return operators.divide("%", self, other, out=self)

    def __lshift__(self, other: Operand) -> Reg:
        return operators.shift("shl", self, other)

    def __ilshift__(self, other: Operand) -> Reg:
        return operators.shift("shl", self, other, out=self)

    def __rshift__(self, other: Operand) -> Reg:
        return operators.shift("shr", self, other)

    def __irshift__(self, other: Operand) -> Reg:
        return operators.shift("shr", self, other, out=self)

    def __and__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("and", self, other)

    def __rand__(self, other: Operand) -> Reg:
        return operators.logic("and", self, other)

    def __iand__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("and", self, other, out=self)

    def __or__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("or", self, other)

    def __ror__(self, other: Operand) -> Reg:
        return operators.logic("or", self, other)

    def __ior__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("or", self, other, out=self)

    def __xor__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("xor", self, other)

    def __rxor__(self, other: Operand) -> Reg:
        return operators.logic("xor", self, other)

    def __ixor__(self, other: Operand | NotPred) -> Reg:
        return operators.logic("xor", self, other, out=self)

    def __neg__(self) -> Reg:
        return operators.unary("neg", self)

    def __abs__(self) -> Reg:
        return operators.unary("abs", self)

    def __invert__(self) -> Reg | NotPred:
        return NotPred(self) if self.dtype is pred else operators.unary("not", self)

    def __lt__(self, other: Operand) -> Reg:
        return operators.compare("lt", self, other)

    def __le__(self, other: Operand) -> Reg:
        return operators.compare("le", self, other)

    def __gt__(self, other: Operand) -> Reg:
        return operators.compare("gt", self, other)

    def __ge__(self, other: Operand) -> Reg:
        return operators.compare("ge", self, other)

    def __eq__(self, other: object) -> Reg:  # type: ignore[override]
        return operators.compare("eq", self, other)

    def __ne__(self, other: object) -> Reg:  # type: ignore[override]
        return operators.compare("ne", self, other)

    def __hash__(self) -> int:  # `==` emits an instruction: a register is its own key
        return object.__hash__(self)

    def __rlshift__(self, other: object) -> NoReturn:
        self._number_first("<<", other)

    def __rrshift__(self, other: object) -> NoReturn:
        self._number_first(">>", other)

    def __pow__(self, other: object) -> NoReturn:
        raise current().error(
            TypeError, "PTX has no `**`: `x * x`, or ptx.inst.ex2 and ptx.inst.lg2"
        )

    __rpow__ = __pow__

    def _number_first(self, symbol: str, number: object) -> NoReturn:
        raise current().error(
            TypeError,
            f"`{number!r} {symbol} {self.text}`: what is shifted is a register, "
            f"as in reg.scalar(u32, {number!r}) {symbol} {self.text}",
        )

    def _no_value(self, what: str, mend: str) -> NoReturn:
        raise current().error(
            TypeError,
            f"{self.text} has no {what} while the kernel is traced, only when it runs; {mend}",
        )

    def __bool__(self) -> NoReturn:
        self._no_value("truth value", "branch with `with ptx.if_(p):`; `and` of predicates is &")

    def __int__(self) -> NoReturn:
        self._no_value("int value", "ptx.inst.cvt converts it when it runs")

    def __index__(self) -> NoReturn:
        self._no_value(
            "int value",
            "`for i in ptx.range_(n):` counts to a register; a Python list takes an int, and an "
            "array that a register indexes is one in shared memory, smem.alloc",
        )

    def __float__(self) -> NoReturn:
        self._no_value("float value", "ptx.inst.cvt converts it when it runs")


class Special(Reg):
    """A special register, such as `%tid.x`: read-only, and an operand of `mov` alone.

    The operators copy it into a register first.
    """

    __slots__ = ()
    writable = False

    def __init__(self, trace: Trace, text: str, dtype: DType) -> None:
        super().__init__(trace, text, dtype)
        self.operand: isa.Operand = SPECIAL[dtype]


class NotPred(Value):
    """The negation of a predicate register, `!%p0`: for guards and branches; no instruction."""

    __slots__ = ("reg",)
    dtype: DType = pred

    def __init__(self, register: Reg) -> None:
        super().__init__(register.trace, f"!{register.text}", register.operand)
        self.reg: Reg = register

    def __repr__(self) -> str:
        return f"NotPred({self.reg.text})"

    def __invert__(self) -> Reg:
        return self.reg

    def __and__(self, other: Reg | NotPred) -> Reg:
        return operators.logic("and", operators.materialise(self), other)

    def __or__(self, other: Reg | NotPred) -> Reg:
        return operators.logic("or", operators.materialise(self), other)

    def __xor__(self, other: Reg | NotPred) -> Reg:
        return operators.logic("xor", operators.materialise(self), other)

    def __bool__(self) -> NoReturn:
        self.reg.__bool__()


class RegArray(Sequence[Reg]):
    """Registers of one type, by number. Assigning to an element copies into its register."""

    __slots__ = ("_regs", "dtype")

    def __init__(self, regs: list[Reg], dtype: DType) -> None:
        self._regs = regs
        self.dtype: DType = dtype

    def __len__(self) -> int:
        return len(self._regs)

    def __iter__(self) -> Iterator[Reg]:
        return iter(self._regs)

    @overload
    def __getitem__(self, index: int) -> Reg: ...
    @overload
    def __getitem__(self, index: slice) -> list[Reg]: ...
    def __getitem__(self, index: int | slice) -> Reg | list[Reg]:
        if isinstance(index, Value):
            mend = "an array that a register indexes is one in shared memory, smem.alloc"
            raise current().error(
                TypeError, f"a register array takes an int, got {index!r}; {mend}"
            )
        try:
            return self._regs[index]
        except IndexError:
            raise current().error(
                IndexError, f"element {index} of a register array of {len(self)}"
            ) from None

    def __setitem__(self, index: int, value: Operand) -> None:
        target = self[index]
        if value is not target:  # `a[i] += x` has written the register already
            target.assign(value)

    def __repr__(self) -> str:
        names = f"{self._regs[0].text}…{self._regs[-1].text}" if self._regs else ""
        return f"RegArray({names}, {self.dtype})"


def scalar(dtype: DType, init: Operand | None = None, name: str | None = None) -> Reg:
    """A new register.

    Args:
        dtype: the type of its values.
        init: its first value, which one `mov` puts there: a number, or a register to copy. A float
            register takes the exact bits of the number rounded to nearest. None: no value yet.
        name: its name in the text; None: the next number.
    """
    trace = current()
    register = _new(trace, dtype, name)
    if init is not None:
        _move(register, init)
    return register


def array(dtype: DType, count: int, name: str | None = None) -> RegArray:
    """`count` new registers; with a name they are `name0`, `name1`, …"""
    trace, count = current(), plain(count)
    if isinstance(count, bool) or not isinstance(count, int):
        raise trace.error(TypeError, f"reg.array takes a count that is an int, got {count!r}")
    if count < 0:
        raise trace.error(ValueError, f"reg.array takes a count of 0 or more, got {count}")
    if name is None:
        return RegArray([_new(trace, dtype, None) for _ in range(count)], dtype)
    _check_type(trace, dtype)
    trace.declare_register(dtype, name, count)
    return RegArray([Reg(trace, f"{name}{index}", dtype) for index in range(count)], dtype)


def from_(src: Operand | str | Value, dtype: DType) -> Reg:
    """A new register, with one `mov` from a register, a special register, a number or a symbol."""
    register = _new(current(), dtype, None)
    _move(register, src)
    return register


def _new(trace: Trace, dtype: DType, name: str | None) -> Reg:
    _check_type(trace, dtype)
    if name is None:
        return Reg(trace, trace.register_name(dtype), dtype)
    trace.declare_register(dtype, name)
    return Reg(trace, name, dtype)


def _check_type(trace: Trace, dtype: object) -> None:
    if not isinstance(dtype, DType):
        raise trace.error(
            TypeError, f"a register takes a type of jax_ptx.types, such as f32; got {dtype!r}"
        )


def _move(register: Reg, value: object) -> None:
    trace, dtype = register.trace, register.dtype
    value = plain(value)
    if isinstance(value, NotPred):
        trace.emit("not.pred", (register, value.reg))
        return
    if isinstance(value, bool) and dtype is not pred:
        value = int(value)
    is_byte = dtype.kind == "float" and dtype.bits == 8
    if is_byte and isinstance(value, int):
        if not 0 <= value < 256:
            raise trace.error(
                ValueError, f"{value} is not the bits of a value of type {dtype} (0 to 255)"
            )
    elif dtype.kind == "float" and isinstance(value, int | float):
        try:
            value = float_text(float(value), dtype)
        except (TypeError, OverflowError) as e:
            raise trace.error(type(e), f"{value} in a register of type {dtype}: {e}") from None
    elif isinstance(value, float):
        raise trace.error(
            TypeError,
            f"the float {value} does not go into a register of type {dtype}; "
            f"int({value}) does, or a register of type f32",
        )
    elif isinstance(value, int):
        low, high = integer_range(dtype)
        if not low <= value <= high:
            raise trace.error(
                ValueError, f"{value} does not fit in a register of type {dtype} ({low} to {high})"
            )
        if dtype is pred:  # `mov.pred` takes no immediate
            trace.emit("setp.ne.u32", (register, scalar(u32, int(value)), 0))
            return
    trace.emit(f"mov.{dtype.move}", (register, value))


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the largest int that a register of this type takes."""
    if dtype is pred:
        return 0, 1
    return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - (dtype.kind == "signed"))) - 1
