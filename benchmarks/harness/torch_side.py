"""The implementations in PyTorch, and the floors: its `copy_` is a plain cuMemcpy, which JAX lacks."""

from __future__ import annotations

import importlib
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .cases import Case
from .side import EPS, N_SETS, Kernels, Side, wall_us

FLOORS = ("copy", "add3")
# Module and distribution of the implementations that may not be installed.
OPTIONAL = {"liger": ("liger_kernel.ops", "liger_kernel"), "quack": ("quack", "quack-kernels")}


def formula(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm as users write it."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return (wide * rstd * weight).to(x.dtype)


class TorchSide(Side):
    """See `Side`."""

    def __init__(self, rehearse: bool) -> None:
        super().__init__(rehearse)
        if not rehearse and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} finds no GPU")
        self.on = torch.device("cpu" if rehearse else "cuda")
        self.peers = dict.fromkeys((*FLOORS, "eager", "F.rms_norm", "compile"), torch.__version__)
        for name, (module, distribution) in OPTIONAL.items():
            try:
                importlib.import_module(module)
                self.peers[name] = importlib.metadata.version(distribution)
            except Exception as error:  # whatever stops a peer's import, the others go on
                self.missing[name] = f"{type(error).__name__}: {error}"

    def device(self) -> str:
        name = "cpu" if self.rehearse else torch.cuda.get_device_name()
        return f"{name}, torch {torch.__version__}"

    def inputs(self, case: Case) -> list[Any]:
        generator = torch.Generator(self.on).manual_seed(0)
        options: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": self.on}
        draw = lambda *shape: torch.randn(*shape, generator=generator, **options)
        weight = draw(case.n).requires_grad_()
        sets = []
        for _ in range(N_SETS):
            tensors = [draw(case.rows, case.n) for _ in range(_n_primals(case) * 2 - 2)]
            primals, cotangents = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
            sets.append((*(t.requires_grad_() for t in primals), weight, *cotangents))
        return sets

    def function(
        self, case: Case, peer: str, which: str, operands: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        n_primals = _n_primals(case)
        if peer in FLOORS:
            return _floor(peer, torch.empty_like(operands[0])), {}
        norm = self._norm(case, peer)

        def forward(*operands: Any) -> Any:
            with torch.no_grad():
                y = norm(*operands[:n_primals])
            return y if isinstance(y, tuple) else (y,)

        def both(*operands: Any) -> Any:
            y = norm(*operands[:n_primals])
            y = y if isinstance(y, tuple) else (y,)
            # The residual's gradient is x's.
            wanted = (operands[0], operands[n_primals - 1])
            return (*y, *torch.autograd.grad(y, wanted, operands[n_primals:]))

        return (forward if which == "forward" else both), {}

    def _norm(self, case: Case, peer: str) -> Callable[..., Any]:
        """(x, weight) -> y, or (x, residual, weight) -> (y, sum)."""
        add = case.op == "add_rms_norm"
        if peer == "liger":
            ops = importlib.import_module("liger_kernel.ops")
            # Not in place: dy would be lost, and as many bytes are moved.
            if add:
                fused = ops.LigerFusedAddRMSNormFunction
                return lambda x, r, w: fused.apply(x, r, w, EPS, 0.0, "llama", False)
            return lambda x, w: ops.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)
        if peer == "quack":
            quack = importlib.import_module("quack.rmsnorm")
            if add:
                return lambda x, r, w: quack.rmsnorm(x, w, residual=r, eps=EPS, prenorm=True)
            return lambda x, w: quack.rmsnorm(x, w, eps=EPS)
        norm: Callable[..., Any] = formula
        if peer == "F.rms_norm":
            norm = lambda x, w: torch.nn.functional.rms_norm(x, (case.n,), w, EPS)
        chosen = _after_sum(norm) if add else norm
        if peer == "compile":
            torch.compiler.reset()  # or it would make the lengths it has seen symbolic
            return torch.compile(chosen, dynamic=False)
        return chosen

    def errors(self, case: Case, results: Any, operands: Any) -> list[float]:
        if isinstance(results, torch.Tensor):  # a floor's
            return []
        with torch.no_grad():
            return _errors(case, results, operands)

    def kernels(self, call: Callable[..., Any], sets: Sequence[Any], runs: int) -> Kernels:
        if self.rehearse:
            return [[("wall", wall_us(lambda i=i: call(*sets[i % N_SETS])))] for i in range(runs)]
        for operands in sets:
            call(*operands)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for i in range(runs):
                call(*sets[i % N_SETS])
            torch.cuda.synchronize()
        events = [e for e in profile.events() or () if e.device_type.name == "CUDA"]
        events.sort(key=lambda e: e.time_range.start)
        count, rest = divmod(len(events), runs)
        if rest or not count:
            raise RuntimeError(f"{len(events)} kernels in {runs} runs: not as many in each")
        times = [(e.name, e.time_range.elapsed_us()) for e in events]
        return [times[i * count : (i + 1) * count] for i in range(runs)]

    def first_ms(self, case: Case, peer: str, which: str, operands: Any) -> dict[str, float]:
        start = time.perf_counter()
        call, _ = self.function(case, peer, which, operands)
        call(*operands)
        self.synchronize()
        return {"total": (time.perf_counter() - start) * 1e3}

    def synchronize(self) -> None:
        if not self.rehearse:
            torch.cuda.synchronize()


def _n_primals(case: Case) -> int:
    return 3 if case.op == "add_rms_norm" else 2


def _after_sum(norm: Callable[..., Any]) -> Callable[..., Any]:
    def added(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        total = x + residual
        return norm(total, weight), total

    return added


def _floor(peer: str, target: torch.Tensor) -> Callable[..., Any]:
    def copy(*operands: Any) -> Any:
        with torch.no_grad():
            return target.copy_(operands[0])

    def add3(*operands: Any) -> Any:
        with torch.no_grad():
            return torch.add(operands[0], operands[-1], out=target)

    return copy if peer == "copy" else add3


def _errors(case: Case, results: Any, operands: Any) -> list[float]:
    """As the JAX side's."""
    n_primals = _n_primals(case)
    x, weight, dy = (operands[i].double() for i in (0, n_primals - 1, n_primals))
    exact, dsum = [], 0.0
    if n_primals == 3:
        exact, dsum = [x + operands[1].double()], operands[-1].double()
        x = exact[0].to(operands[0].dtype).double()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    normal, dn = x * rstd, dy * weight
    dx = rstd * (dn - normal * (dn * normal).mean(-1, keepdim=True)) + dsum
    exact = [normal * weight, *exact, dx]
    errors = [
        float(((got.double() - value).abs() / value.abs().clamp(min=1)).max())
        for got, value in zip(results, exact, strict=False)
    ]
    if len(results) > len(exact):
        products = dy * normal
        scale = products.square().sum(0).sqrt()
        errors.append(float(((results[-1].double() - products.sum(0)).abs() / scale).max()))
    return errors
