"""Control flow at run time: branches and loops. Python's own `if` and `for` unroll instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from jax_ptx.dsl.author import author_line
from jax_ptx.dsl.jumps import check_jumps
from jax_ptx.dsl.operands import Value, plain
from jax_ptx.dsl.operators import widen
from jax_ptx.dsl.reg import NotPred, Reg
from jax_ptx.dsl.trace import Trace, current
from jax_ptx.types import DType, pred, s32, s64, u32, u64


class _Block:
    """A stretch of the body between two labels.

    Attributes:
        what: its name, for messages.
        statement: what the author enters it with.
    """

    what: str = "a block"
    statement: str = "with"
    trace: Trace
    number: int

    def __new__(cls, *_: object, **__: object) -> Self:
        block = super().__new__(cls)
        current().unused[block] = author_line()
        return block

    def __enter__(self) -> None:
        self.trace = current()
        self.trace.unused.pop(self, None)
        check_jumps(self.trace, f"{self.statement} {self.what}(…):")
        self.number = self.trace.block_number()
        self.open()
        self.trace.blocks.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.trace.blocks.pop()
        if kind is None:
            self.close()

    def open(self) -> None:
        """Emits what comes before the body."""

    def close(self) -> None:
        """Emits what comes after the body."""


class if_(_Block):  # noqa: N801  (spelled like the statement)
    """`with ptx.if_(p):` runs the body in the threads where p holds. One branch, over the body."""

    what = "ptx.if_"

    def __init__(self, condition: Reg | NotPred) -> None:
        self.condition = condition

    def open(self) -> None:
        self.trace.branch(f"$else_{self.number}", _negated(self.trace, self.what, self.condition))

    def close(self) -> None:
        self.trace.label(f"$else_{self.number}")
        self.trace.closed_if = (f"$endif_{self.number}", len(self.trace.body))


class else_(_Block):  # noqa: N801
    """`with ptx.else_():` straight after a `ptx.if_` runs in the other threads."""

    what = "ptx.else_"
    end: str

    def open(self) -> None:
        trace = self.trace
        end, position = trace.closed_if or ("", None)
        if position != len(trace.body):
            raise trace.error(
                ValueError, "ptx.else_() belongs straight after the end of a `with ptx.if_(…):`"
            )
        # The label that closed the ptx.if_ becomes the start of this body.
        start = trace.body.pop()
        trace.branch(end)
        trace.body.append(start)
        self.end, trace.closed_if = end, None

    def close(self) -> None:
        self.trace.label(self.end)


class _Loop(_Block):
    """A loop: `again` is where `ptx.continue_` goes, `end` is where `ptx.break_` goes."""

    continued: bool = False
    broken: bool = False

    @property
    def end(self) -> str:
        self.broken = True
        return f"$endloop_{self.number}"

    @property
    def again(self) -> str:
        self.continued = True
        return f"$next_{self.number}"

    def close_labels(self) -> None:
        if self.broken:
            self.trace.label(f"$endloop_{self.number}")


class while_(_Loop):  # noqa: N801
    """`with ptx.while_(lambda: i < n):` runs the body as long as the condition holds.

    The function is called once: what it emits stands in front of the body, and runs before each
    pass.
    """

    what = "ptx.while_"

    def __init__(self, condition: Callable[[], Reg | NotPred]) -> None:
        self.condition = condition

    def open(self) -> None:
        self.trace.label(f"$loop_{self.number}")
        if not callable(self.condition):
            raise self.trace.error(
                TypeError, "ptx.while_ takes a function, as in ptx.while_(lambda: i < n)"
            )
        condition = self.condition()
        self.trace.branch(self.end, _negated(self.trace, self.what, condition))

    @property
    def again(self) -> str:
        return f"$loop_{self.number}"

    def close(self) -> None:
        self.trace.branch(f"$loop_{self.number}")
        self.close_labels()


class loop(_Loop):  # noqa: N801
    """A loop whose test comes after the body.

    `with ptx.loop(count):` runs the body `count` times: an int, or a register, which is copied.
    `with ptx.loop("name", pred=p):` runs it until p, as the body leaves it, is false; `name` is the
    label (None: the next number). Without a predicate only `ptx.break_` or `ptx.ret` ends it.
    """

    what = "ptx.loop"
    left: Reg

    def __init__(
        self, count_or_label: int | Reg | str | None = None, *, pred: Reg | NotPred | None = None
    ) -> None:
        count_or_label = plain(count_or_label)
        self.count: int | Reg | None = (
            None if isinstance(count_or_label, str | None) else count_or_label
        )
        self.name: str | None = count_or_label if isinstance(count_or_label, str) else None
        self.pred = pred

    def open(self) -> None:
        trace, count = self.trace, self.count
        if self.name is not None:
            trace.claim(self.name)
        if count is not None:
            if self.pred is not None:
                raise trace.error(TypeError, "ptx.loop takes a count or pred=, not both")
            self.left = _counter(trace, count)
            if not isinstance(count, int) or count == 0:
                trace.branch(self.end, self.left == 0)
        trace.label(self.name or f"$loop_{self.number}")

    def close(self) -> None:
        trace = self.trace
        if self.continued:
            trace.label(f"$next_{self.number}")
        condition = self.pred
        if self.count is not None:
            self.left -= 1
            condition = self.left != 0
        trace.branch(self.name or f"$loop_{self.number}", condition)
        self.close_labels()


class _Range(_Loop):
    what = "ptx.range_"
    statement = "for … in"
    index: Reg  # it is numbered where the loop begins

    def __init__(self, stop: int | Reg, step: int | Reg) -> None:
        self.stop, self.step = stop, step
        self.left_early = False

    def open(self) -> None:
        self.trace.label(f"$loop_{self.number}")
        down = isinstance(self.step, int) and self.step < 0
        done = self.index <= self.stop if down else self.index >= self.stop
        self.trace.branch(self.end, done)

    def close(self) -> None:
        if not self.left_early:
            if self.continued:
                self.trace.label(f"$next_{self.number}")
            self.index += self.step
            self.trace.branch(f"$loop_{self.number}")
        self.close_labels()


def range_(
    start: int | Reg,
    stop: int | Reg | None = None,
    step: int | Reg = 1,
    *,
    dtype: DType | None = None,
) -> Iterator[Reg]:
    """`for i in ptx.range_(start, stop, step):` is a loop at run time; `i` is a register.

    The body is traced once. A Python `break` in it leaves the loop at run time too, in its first
    pass, as it says; to leave the loop where a predicate holds, use `ptx.break_(p)`.

    Args:
        start: the first index; with one argument, the stop, and the start is 0.
        stop: the index to stop before: an int or a register.
        step: a positive or negative int, or a register whose value is positive.
        dtype: the type of the index. None: that of a register among the arguments, else u32, or s32
            where an int is negative.
    """
    first, last = (0, plain(start)) if stop is None else (plain(start), plain(stop))
    trace, step = current(), plain(step)
    if isinstance(step, int) and step == 0:
        raise trace.error(ValueError, "ptx.range_: the step is 0")
    dtype = dtype or _index_type(trace, (first, last, step))
    return _iterate(trace, _Range(last, step), first, dtype)


def _iterate(trace: Trace, block: _Range, start: int | Reg, dtype: DType) -> Iterator[Reg]:
    index = Reg(trace, trace.register_name(dtype), dtype)
    if isinstance(start, Reg) and start.dtype.bits < dtype.bits:
        start = widen(start)
    index.assign(start)
    block.index = index
    block.__enter__()
    finished = False
    try:
        yield index
        finished = True
    finally:
        if not trace.is_over:  # an iterator that was kept is closed at any time
            if not finished:  # Python left the `for` statement, by `break` or by an exception
                trace.branch(block.end)
                block.left_early = True
            if block in trace.blocks:
                del trace.blocks[trace.blocks.index(block) :]
            block.close()


def break_(pred: Reg | NotPred | None = None) -> None:
    """Leaves the innermost loop, in the threads where the predicate holds."""
    trace = current()
    trace.branch(_innermost(trace, "ptx.break_").end, pred)


def continue_(pred: Reg | NotPred | None = None) -> None:
    """Goes on with the innermost loop's next pass, in the threads where the predicate holds."""
    trace = current()
    trace.branch(_innermost(trace, "ptx.continue_").again, pred)


def label(name: str) -> None:
    """Puts a label here, for `ptx.bra`."""
    trace = current()
    trace.claim(name)
    trace.label(name)


def bra(label: str, *, pred: Reg | NotPred | None = None) -> None:
    """Branches to a label, in the threads where the predicate holds."""
    current().emit("bra", (label,), pred)


def ret(pred: Reg | NotPred | None = None) -> None:
    """Ends the thread, where the predicate holds."""
    current().emit("ret", (), pred)


def _innermost(trace: Trace, what: str) -> _Loop:
    for block in reversed(trace.blocks):
        if isinstance(block, _Loop):
            return block
    raise trace.error(ValueError, f"{what} is not inside a loop at run time")


def _negated(trace: Trace, what: str, condition: object) -> Value:
    if not isinstance(condition, Reg | NotPred) or condition.dtype is not pred:
        raise trace.error(
            TypeError,
            f"{what} takes a predicate register, such as `i < n`, got {condition!r}; "
            "what is known while tracing is for Python's own `if` and `while`",
        )
    return ~condition if isinstance(condition, NotPred) else NotPred(condition)


def _counter(trace: Trace, count: int | Reg) -> Reg:
    if isinstance(count, Reg):
        dtype = count.dtype
        if dtype.kind == "float" or dtype.bits not in (32, 64):
            raise trace.error(TypeError, f"ptx.loop takes a count of 32 or 64 bits, got {count!r}")
    elif isinstance(count, bool) or not isinstance(count, int):
        raise trace.error(TypeError, f"ptx.loop takes a count or a label, got {count!r}")
    elif count < 0:
        raise trace.error(ValueError, f"ptx.loop takes a count of 0 or more, got {count}")
    else:
        dtype = u32 if count < 1 << 32 else u64
    left = Reg(trace, trace.register_name(dtype), dtype)
    left.assign(count)
    return left


def _index_type(trace: Trace, bounds: tuple[object, ...]) -> DType:
    registers = [bound for bound in bounds if isinstance(bound, Reg)]
    ints = [bound for bound in bounds if isinstance(bound, int)]
    negative = any(bound < 0 for bound in ints)
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int | Reg):
            raise trace.error(TypeError, f"ptx.range_ takes ints and registers, got {bound!r}")
    for register in registers:
        if register.dtype.kind == "float" or register.dtype.bits not in (32, 64):
            raise trace.error(
                TypeError, f"ptx.range_ takes integers of 32 or 64 bits, got {register!r}"
            )
    wide = [register.dtype for register in registers if register.dtype.bits == 64]
    if registers:
        found = (wide or [registers[0].dtype])[0]
        if not negative or found.kind == "signed":
            return found
        return s64 if found.bits == 64 else s32
    # The index goes past the stop by up to one step, and must not wrap there.
    _, stop, step = ints
    low, high = (-(1 << 31), 1 << 31) if negative else (0, 1 << 32)
    if all(low <= value < high for value in (*ints, stop + step)):
        return s32 if negative else u32
    return s64 if negative else u64
