"""The trace: the one mutable object, which collects what a kernel's body emits, in program order.

A trace is current in its context (`contextvars`), so threads trace independently, and everything
that has a number has it from the trace: the same kernel gives the same text wherever it is traced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from jax_ptx.dsl import isa
from jax_ptx.dsl.author import author_line, shown
from jax_ptx.dsl.endings import check_symbols, check_unused
from jax_ptx.dsl.isa.spelling import spelled
from jax_ptx.dsl.module import Module, SharedLayout, SharedSize, SharedVariable, lay_out_shared
from jax_ptx.dsl.operands import SPECIAL, SYMBOL, Address, Value, encode, literal
from jax_ptx.dsl.spaces import check_address
from jax_ptx.dsl.special_types import TYPES, is_of_cluster
from jax_ptx.dsl.target import (
    AUTO_TARGETS,
    NEWEST_VERSION,
    Target,
    Version,
    least_version,
    supports,
    version_text,
)

if TYPE_CHECKING:
    from jax_ptx.dsl.batch import Batch
    from jax_ptx.dsl.tile import Tensor
    from jax_ptx.types import DType

_current: ContextVar[Trace | None] = ContextVar("jax_ptx_trace", default=None)

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$%][A-Za-z0-9_$]+")
# What the trace gives out itself, and the one word that PTX reserves where no dot stands before it.
_TAKEN = re.compile(r"%(?:p|h|r|rd|f|fd)\d+|\$\w+_\d+|smem(?:_\d+)?|WARP_SZ")


class Trace:
    """One run of a kernel's body.

    Attributes:
        name: the kernel's name, and the entry's.
        target, version: what the author asked for, or None.
        tensors: the kernel's tensors, in order.
        run_time_dims: the names of the run-time dimensions, in order.
        dynamic_bytes: shared memory that the author manages (`@kernel(smem=)`).
        batch: how one launch covers a batch, or None.
        body: the lines so far.
        blocks: the open `ptx.if_`, `ptx.else_` and loops, outermost first.
        unused: the branches and loops that were made and not entered yet, with the author's lines.
        closed_if: the label that a `ptx.else_` would end at, and where in the body it may begin.
        raw: whether `ptx.raw` put in lines that nobody has read.
        shared: the shared arrays so far.
        names: those that the author gave, and the parameters'.
        mentioned: the symbols that the author wrote, with the author's lines.
    """

    def __init__(
        self,
        name: str,
        *,
        target: Target | None = None,
        version: Version | None = None,
        run_time_dims: Sequence[str] = (),
        dynamic_bytes: int = 0,
    ) -> None:
        self.name = name
        self.target = target
        self.version = version
        self.tensors: dict[str, Tensor] = {}
        self.run_time_dims: tuple[str, ...] = tuple(run_time_dims)
        self.dynamic_bytes = dynamic_bytes
        self.batch: Batch | None = None
        self.body: list[str] = []
        self.blocks: list[Any] = []
        self.unused: dict[Any, str] = {}
        self.closed_if: tuple[str, int] | None = None
        self.raw = False
        self.shared: list[SharedVariable] = []
        self._shared_size = SharedSize(dynamic_bytes)
        self.mentioned: dict[str, str] = {}
        self._registers: dict[str, tuple[str, int]] = {}  # prefix: register type, how many
        self._named: dict[str, str] = {}  # declaration by name
        self.names: set[str] = {*run_time_dims, name}
        self._n_blocks = 0
        self._forms: set[object] = set()
        self._least_version: Version = (0, 0)
        self._targets = AUTO_TARGETS if target is None else (target,)  # that have everything so far

    @staticmethod
    def gives_out(name: str) -> bool:
        """Whether the name is one that the language gives out itself."""
        return _TAKEN.fullmatch(name) is not None

    @property
    def is_over(self) -> bool:
        """Whether another trace, or none, is the current one."""
        return _current.get() is not self

    # ---- names ----

    def add_tensor(self, tensor: Tensor) -> None:
        """Appends a parameter of the entry."""
        self.names.add(tensor.name)
        self.tensors[tensor.name] = tensor

    def register_name(self, dtype: DType) -> str:
        """The next name of a register that holds this type."""
        prefix = dtype.prefix
        _, count = self._registers.get(prefix, ("", 0))
        self._registers[prefix] = (dtype.register, count + 1)
        return f"{prefix}{count}"

    def declare_register(self, dtype: DType, name: str, count: int | None = None) -> None:
        """Declares a register (or, with a count, `name0`, `name1`, …) that the author named."""
        self.claim(name)
        for index in range(count or 0):
            self.claim(f"{name}{index}")
        suffix = "" if count is None else f"<{count}>"
        self._named[name] = f".reg .{dtype.register} {name}{suffix};"

    def claim(self, name: str) -> None:
        """Takes a name that the author gave, once."""
        why = name_fault(name)
        if why is None and name in self.names:
            why = "is already taken in this kernel"
        if why is not None:
            raise self.error(ValueError, f"the name {name!r} {why}")
        self.names.add(name)

    def block_number(self) -> int:
        """The number of the next branch or loop, for its labels."""
        self._n_blocks += 1
        return self._n_blocks - 1

    def mention(self, symbol: str) -> None:
        """Notes a symbol that the author wrote, to look for it at the end."""
        name = symbol.partition("+")[0]
        if name not in self.mentioned and name not in ("_", "WARP_SZ"):
            self.mentioned[name] = author_line()

    def add_shared(self, variable: SharedVariable) -> None:
        """Appends a shared array; refuses it here and now if the target has not as much."""
        self.shared.append(variable)
        if not self._shared_size.add(variable, self.target):
            self.lay_out_shared()

    def lay_out_shared(self) -> SharedLayout:
        """Places the shared arrays so far; refuses more than the target has."""
        try:
            return lay_out_shared(self.shared, self.dynamic_bytes, self.target)
        except ValueError as e:
            raise self.error(ValueError, str(e)) from None

    # ---- instructions ----

    def emit(self, name: str, operands: Sequence[object], pred: object = None) -> None:
        """Appends one instruction, checked against the instruction table."""
        if _current.get() is not self:  # written out: this runs for every instruction
            self._refuse_stale(operands)
        texts, kinds, restricted = [], [], False
        try:
            for operand in operands:
                if isinstance(operand, Value):
                    if operand.trace is not self:
                        self.check_owner(operand)
                    texts.append(operand.text)
                    kinds.append(operand.operand)
                    if isinstance(operand, Address) and operand.place:
                        restricted = True
                else:
                    text, kind = encode(self, operand)
                    texts.append(text)
                    kinds.append(kind)
            form = isa.find(name, tuple(kinds), predicated=pred is not None)
            if texts and texts[0] is not None and texts[0].startswith("!"):
                raise TypeError(f"{texts[0]} is no destination: give the predicate register itself")
            for index, text in enumerate(texts):
                if text is None:
                    texts[index] = literal(operands[index], form.places[index])
            if restricted:
                addresses = (o for o in operands if isinstance(o, Address))
                for position, address in enumerate(addresses):
                    check_address(name, position, address)
            needed = (name, *form[1:5])
            if needed not in self._forms:
                also = [Target(*t) for t in form.also]
                self.require(form.version, Target(form.target, form.suffix), f"`{name}`", also)
                self._forms.add(needed)
            guard = "" if pred is None else self._guard(pred)
        except (TypeError, ValueError, OverflowError) as e:
            self._refuse(name, operands, e)
        self.body.append(
            f"    {guard}{name} {', '.join(texts)};" if texts else f"    {guard}{name};"
        )
        if self.batch is not None:
            self.batch.after(self, name, operands, pred)

    def special_operand(self, name: str) -> tuple[str, isa.Operand] | None:
        """A special register by its name without `%`, or what stands for it; None if it is none."""
        replaced = None if self.batch is None else self.batch.special(self, name)
        if replaced is not None:
            return replaced.text, replaced.operand
        if name not in TYPES:
            return None
        self.require_special(name)
        return f"%{name}", SPECIAL[TYPES[name]]

    def require_special(self, name: str) -> None:
        """Notes what a special register needs."""
        if is_of_cluster(name):
            self.require((7, 8), Target(90), f"%{name}")

    def branch(self, label: str, pred: object = None) -> None:
        """Appends a branch to a label of the trace's own."""
        self.emit("bra", (Value(self, label, SYMBOL),), pred)

    def label(self, label: str) -> None:
        """Appends a label."""
        self.body.append(f"{label}:")

    def require(
        self, version: Version, target: Target, what: str, also: Sequence[Target] = ()
    ) -> None:
        """Notes that `what` needs a PTX version and a target; refuses what the author ruled out.

        Args:
            version: the least version that has it.
            target: the least target that has it.
            what: what it is, for the error.
            also: targets that have it too, and that code for `target` does not run on.

        Raises:
            ValueError: the author named a target or a version that lacks it, or no target has it
                together with what came before.
        """
        enough = (target, *also)
        left = tuple(t for t in self._targets if any(supports(t, needed) for needed in enough))
        if not left:
            needs = f"{what} needs target {' or '.join(map(str, enough))}"
            if self.target is None:
                raise ValueError(f"{needs}, and another instruction {self._targets[0]}")
            raise ValueError(
                f'{needs}; this kernel is for {self.target}: arch="{target}" or arch="auto" has it'
            )
        if self.version is not None and version > self.version:
            raise ValueError(
                f"{what} needs PTX version {version_text(version)}; this kernel is for version "
                f"{version_text(self.version)}: version=None takes the least that is needed"
            )
        self._targets = left
        self._least_version = max(self._least_version, version)

    def _guard(self, pred: object) -> str:
        if not isinstance(pred, Value) or pred.operand.kind != "predicate":
            what = pred.text if isinstance(pred, Value) else repr(pred)
            raise TypeError(f"pred= takes a predicate register or its negation ~p, got {what}")
        self.check_owner(pred)
        return f"@{pred.text} "

    # ---- errors ----

    def check_owner(self, value: Value) -> None:
        """Refuses a register, address or array of another trace."""
        if value.trace is not self:
            raise TypeError(
                f"{shown(value)} belongs to another run of a kernel (of {value.trace.name})"
            )

    def _refuse_stale(self, operands: Sequence[object]) -> NoReturn:
        """An operator of a register, or an access to an array, of a trace that is over."""
        running = current()
        for value in reversed(operands):  # the destination is often a new register
            if isinstance(value, Value):
                try:
                    running.check_owner(value)
                except TypeError as e:
                    raise running.error(TypeError, str(e)) from None
        raise running.error(TypeError, f"{self.name} is not the kernel that is being traced")

    def error(
        self, kind: Callable[[str], Exception], message: str, where: str | None = None
    ) -> Exception:
        """An error of that kind which names the kernel, and the author's file and line."""
        name = (_current.get() or self).name  # not that of a kernel which is over
        error = kind(f"kernel {name}, {where or author_line()}: {message}")
        error.__dict__["jax_ptx_located"] = True
        return error

    def _refuse(self, name: str, operands: Sequence[object], reason: Exception) -> NoReturn:
        if getattr(reason, "jax_ptx_located", False):
            raise reason
        given = ", ".join(map(shown, operands))
        wrong = getattr(reason, "position", None)
        operand = None if wrong is None else operands[wrong]
        mend, special = "", str(operand)[1:]
        if special in TYPES and str(operand).startswith("%"):
            mend = f"; reg.from_(ptx.special.{special}(), {TYPES[special]}) copies it into one"
        raise self.error(
            type(reason), f"ptx.inst.{spelled(name)}({given}): {reason}{mend}"
        ) from None

    # ---- the end ----

    def finish(self, block: tuple[int, int, int]) -> Module:
        """The module. Ends the body with `ret` if the author did not."""
        if self.blocks:
            raise self.error(
                ValueError,
                f"{self.blocks[-1].what} is still open at the end of the kernel; an iterator "
                "of ptx.range_ belongs in a `for` statement",
            )
        check_unused(self)
        check_symbols(self)
        if self.version is not None and self.version > NEWEST_VERSION:
            raise self.error(
                ValueError,
                f"version={self.version} is newer than any that is known, "
                f"{version_text(NEWEST_VERSION)}; version=None takes the least that is needed",
            )
        if not self.body or self.body[-1] != "    ret;":
            self.emit("ret", ())
        shared = self.lay_out_shared()
        try:
            if shared.needs is not None and self.target is None:
                self.require(least_version(shared.needs), shared.needs, "this much shared memory")
        except ValueError as e:
            raise self.error(ValueError, str(e)) from None
        target = self._targets[0]
        least = max(self._least_version, least_version(target))
        if self.version is not None and self.version < least:
            raise self.error(
                ValueError,
                f"target {target} needs PTX version {version_text(least)}, got "
                f"version={self.version}; version=None takes the least that is needed",
            )
        return Module(
            name=self.name,
            version=self.version or least,
            target=target,
            parameters=(*self.tensors, *self.run_time_dims),
            block=block,
            registers=(
                *(
                    f".reg .{t} {prefix}<{n}>;"
                    for prefix, (t, n) in sorted(self._registers.items())
                ),
                *self._named.values(),
            ),
            shared=shared,
            body=tuple(self.body),
            raw=self.raw,
        )


def name_fault(name: object) -> str | None:
    """Why an author may not give this name to something in a PTX text; None if they may."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        return "is not a PTX identifier"
    return "is given out by the language; choose another" if _TAKEN.fullmatch(name) else None


def current() -> Trace:
    """The trace of the kernel whose body is running.

    Raises:
        RuntimeError: there is none.
    """
    trace = _current.get()
    if trace is None:
        raise RuntimeError(
            "no kernel is being traced: reg, ptx and smem work inside the body of a function "
            "decorated with @kernel, while .ptx(), .launch() or a call runs it"
        )
    return trace


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Makes a trace the current one."""
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)
