"""What one kind of call does: the launches of its length, dtypes and options, found once.

Everything here takes and gives tensors that autograd does not see.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from jax_ptx.ops.columns import column_sum_launch
from jax_ptx.ops.layout import PORTABLE
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.ops.rms_norm.config_few import few_config, few_rows
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.ops.rms_norm.parts import run_count
from jax_ptx.ops.target import WIDE_SMS
from jax_ptx.torch import formula
from jax_ptx.torch.arguments import check_tensor, read_options
from jax_ptx.torch.launch import Runner
from jax_ptx.torch.tensors import empty, known_calls
from jax_ptx.types import DType, by_numpy_name

Optional = torch.Tensor | None


class Plan:
    """RMS norm of tensors of one kind.

    Attributes:
        n: elements of a row.
        dtype: x's.
        weight_dtype: the weight's; None: there is no weight.
        options: what is computed.
        kernel: whether the kernel computes it, else the plain formula.
        is_torchs: whether the formula is PyTorch's own operation, which takes a third of its time on a CPU,
            and knows every derivative and transformation too.
    """

    def __init__(
        self,
        n: int,
        dtype: torch.dtype,
        weight_dtype: torch.dtype | None,
        options: Options,
        given: tuple[Any, Any, Any],
        kernel: bool,
    ) -> None:
        self.n = n
        self.dtype = dtype
        self.weight_dtype = weight_dtype
        self.options = options
        self.kernel = kernel
        self._given = given  # the options as the caller wrote them
        self.weight_shape = (n,)
        self._wide = formula.wide_dtype(dtype)
        self.is_torchs = (
            not kernel and options == Options(options.eps) and weight_dtype in (None, dtype)
        )
        self._forward: dict[tuple[bool, bool], Runner] = {}
        self._known: set[bool] = set()  # with_rstd of the calls that are known
        self._backward: dict[tuple[bool, bool, int, bool], Runner | None] = {}

    def forward(
        self, x: torch.Tensor, weight: Optional, residual: Optional = None, with_rstd: bool = True
    ) -> tuple[torch.Tensor, Optional, Optional]:
        """y, `x + residual` if there is a residual, and rstd, of x's leading shape, if it is asked for."""
        known = residual is None and weight is not None and with_rstd in self._known
        if known and known_calls is not None:
            done = known_calls(x, weight, self._given, with_rstd)
            if done is not None:
                return done[1], None, done[2] if with_rstd else None
        if not self.kernel or x.numel() == 0:
            added = None if residual is None else x + residual
            y, rstd = formula.forward(x if added is None else added, weight, self.options)
            return y, added, rstd if with_rstd else None
        run = self._forward.get((residual is not None, with_rstd))
        if run is None:
            run = self._build_forward(residual is not None, with_rstd)
        operands = [x]
        y = empty(x, None, x.dtype)
        results = [y]
        added = rstd = None
        if residual is not None:
            added = empty(x, None, x.dtype)
            operands.append(residual)
            results.append(added)
        if weight is not None:
            operands.append(weight)
        if with_rstd:
            rstd = empty(x, x.shape[:-1], self._wide)
            results.append(rstd)
        run(operands, results)
        if residual is None and weight is not None and run.launcher is not None:
            self._make_known(run, x, weight, with_rstd)
        return y, added, rstd

    def backward(
        self,
        x: torch.Tensor,
        dy: torch.Tensor,
        rstd: torch.Tensor,
        weight: Optional,
        addend: Optional,
        need_dx: bool,
        need_dw: bool,
    ) -> tuple[Optional, Optional]:
        """dx plus the addend, and dw, as far as they are needed."""
        run, runs, dx, dw = None, 0, None, None
        if not (need_dx or need_dw):
            return None, None
        if self.kernel and x.numel() > 0:
            few = False
            if need_dw:
                rows = x.numel() // self.n
                few = rows in self._few_rows
                runs = 1 if few else run_count(rows, self._most_runs)
            run = self._build_backward(addend is not None, need_dx, runs, few)
        if run is None:
            dx, dw = formula.backward(x, dy, weight, addend, self.options)
            return dx if need_dx else None, dw if need_dw else None
        operands = [x, dy]
        if addend is not None:
            operands.append(addend)
        operands.append(rstd)
        if weight is not None:
            operands.append(weight)
        results = []
        if need_dx:
            dx = empty(x, None, x.dtype)
            results.append(dx)
        if need_dw:
            dtype = self.weight_dtype if self._final(runs) else self._wide
            dw = empty(x, (runs, self.n) if runs > 1 else self.weight_shape, dtype)
            results.append(dw)
        run(operands, results)
        if dw is not None and runs > 1:
            parts, dw = dw, empty(x, self.weight_shape, self.weight_dtype)
            _sum_of(runs, dw.shape[-1], self._wide, dw.dtype)([parts], [dw])
        elif dw is not None and dw.dtype is not self.weight_dtype:
            dw = dw.to(self.weight_dtype)
        return dx, dw

    def _make_known(
        self, run: Runner, x: torch.Tensor, weight: torch.Tensor, with_rstd: bool
    ) -> None:
        if known_calls is not None and with_rstd not in self._known:
            self._known.add(with_rstd)
            wide = self._wide if with_rstd else None
            known_calls.keep(self, run.launcher, run.alignment, x, weight, self._given, wide)

    def _build_forward(self, residual: bool, with_rstd: bool) -> Runner:
        launch = forward_launch(
            **self._facts(),
            options=self.options,
            residual=residual,
            out_dtype=None,
            with_rstd=with_rstd,
        )
        return self._forward.setdefault((residual, with_rstd), Runner(launch, launch.access_bytes))

    def _build_backward(self, addend: bool, need_dx: bool, runs: int, few: bool) -> Runner | None:
        """None: a row is too long for the kernel."""
        key = (addend, need_dx, runs, few)
        if key not in self._backward:
            launch = backward_launch(
                **self._facts(),
                weight_offset=self.options.weight_offset,
                addend=addend,
                need_dx=need_dx,
                runs=runs,
                final=self._final(runs),
                one_block=True,
                few=few_config(*self._row) if few else None,
                wide_clusters=_is_wide(),
            )
            self._backward[key] = None if launch is None else Runner(launch, launch.access_bytes)
        return self._backward[key]

    def _final(self, runs: int) -> bool:
        """Whether the only partial sum is dw; a kernel rounds it from float32."""
        return runs == 1 and (self.weight_dtype is torch.float64) == (self.dtype is torch.float64)

    @functools.cached_property
    def _most_runs(self) -> int:
        config = backward_config(*self._row, wide=_is_wide())
        return config.runs if config else 1

    @functools.cached_property
    def _few_rows(self) -> range:
        return few_rows(*self._row)

    @property
    def _row(self) -> tuple[int, DType, int]:
        """What the configurations of the kernels are functions of."""
        return self.n, by_numpy_name(_name(self.dtype)), _target()

    def _facts(self) -> dict[str, Any]:
        weight = None if self.weight_dtype is None else _name(self.weight_dtype)
        facts = {"n": self.n, "x_dtype": _name(self.dtype), "weight_dtype": weight}
        return {**facts, "grouped": False, "target": _target()}


@functools.cache
def _sum_of(rows: int, n: int, dtype: torch.dtype, out_dtype: torch.dtype) -> Runner:
    launch = column_sum_launch(rows, n, _name(dtype), _name(out_dtype))
    return Runner(launch, launch.access_bytes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _target() -> int:
    """The least of torch's GPUs. JAX is not asked: it would take most of a GPU's memory."""
    devices = range(torch.cuda.device_count())
    found = [torch.cuda.get_device_capability(device) for device in devices]
    return min((10 * major + minor for major, minor in found), default=PORTABLE)


@functools.cache
def _is_wide() -> bool:
    """Whether all of torch's GPUs run clusters of 16 CTAs."""
    devices = range(torch.cuda.device_count())
    sms = [torch.cuda.get_device_properties(device).multi_processor_count for device in devices]
    return min(sms, default=0) >= WIDE_SMS


_MAX_PLANS = 4096
plans: dict[Any, Plan] = {}  # by what `checked_plan` says


def checked_plan(
    x: torch.Tensor,
    residual: Optional,
    weight: Optional,
    options: tuple[Any, Any, Any],
    kernel: bool,
    *,
    keep: bool = True,
) -> Plan:
    """The plan of a call whose arguments fit together.

    Args:
        x: as the public functions', like those that follow.
        residual: None: nothing is added.
        weight: None: nothing is multiplied.
        options: eps, weight_offset and round_before_weight.
        kernel: whether the kernel computes it.
        keep: whether plans are looked up and kept. A compiler would guard on what the table holds.

    Raises:
        TypeError: for dtypes and kinds of arguments.
        ValueError: for shapes, devices and values.
    """
    op = "rms_norm" if residual is None else "add_rms_norm"
    plan = key = None
    if keep:
        try:
            weight_dtype = None if weight is None else weight.dtype
            key = (x.shape[-1], x.dtype, weight_dtype, kernel, options)
            # With the options' types, since True == 1: what is refused is refused each time.
            eps, offset, rounds = options
            if not (type(eps) is type(offset) is float and type(rounds) is bool):
                key += (type(eps), type(offset), type(rounds))
            plan = plans.get(key)
        except (IndexError, AttributeError, TypeError):  # a scalar, no tensor, a symbolic length
            pass
    if plan is None:
        plan = _new_plan(op, x, weight, options, kernel)
        if key is not None and isinstance(plan.n, int):
            if len(plans) >= _MAX_PLANS:
                plans.clear()
            plans[key] = plan
    if weight is not None:
        if weight.shape != plan.weight_shape:
            raise ValueError(
                f"{op}: weight must have shape {list(x.shape[-1:])} to match x.shape[-1], got "
                f"{list(weight.shape)}"
            )
        # The number first: it makes no objects. Whatever is not on a GPU has the same.
        device = x.get_device()
        if weight.get_device() != device or (device < 0 and weight.device != x.device):
            raise ValueError(
                f"{op}: weight must be on x's device {x.device}, got {weight.device}; .to moves it"
            )
    if residual is not None:
        if residual.dtype != x.dtype:
            raise TypeError(
                f"add_rms_norm: residual must have x's dtype {x.dtype}, got {residual.dtype}; cast one "
                "with .to"
            )
        if residual.shape != x.shape:
            mend = "expand makes it so"
            if x.is_nested or residual.is_nested:  # two are of one shape only if they share offsets
                mend = "torch.nested.nested_tensor_from_jagged(values, x.offsets()) makes it so"
            raise ValueError(
                f"add_rms_norm: residual must have x's shape {list(x.shape)}, got "
                f"{list(residual.shape)}; {mend}"
            )
        if residual.device != x.device:
            raise ValueError(
                f"add_rms_norm: residual must be on x's device {x.device}, got {residual.device}; .to "
                "moves it"
            )
    return plan


def _new_plan(op: str, x: Any, weight: Any, options: tuple[Any, Any, Any], kernel: bool) -> Plan:
    check_tensor(op, "x", x)
    if weight is not None:
        check_tensor(op, "weight", weight)
    if x.ndim == 0:
        raise ValueError(
            f"{op}: x must have one dimension or more, got a scalar; x[None] makes one"
        )
    if kernel and x.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"{op}: the kernel runs on an NVIDIA GPU or, emulated, on a CPU, got x on {x.device}"
        )
    n, weight_dtype = x.shape[-1], None if weight is None else weight.dtype
    checked = read_options(op, x, weight, *options)
    return Plan(n, x.dtype, weight_dtype, checked, options, kernel)
