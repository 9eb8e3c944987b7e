"""The special registers: `ptx.special.tid.x()`, `ptx.special.laneid()`."""

from __future__ import annotations

from jax_ptx.dsl.reg import Reg, Special
from jax_ptx.dsl.special_types import CLUSTER_SCALARS, CLUSTER_TRIPLES, SCALARS, TRIPLES
from jax_ptx.dsl.trace import current
from jax_ptx.types import DType, u32


def special_register(name: str, dtype: DType) -> Reg:
    """The special register of that name (without `%`), or what stands for it in a batch."""
    trace = current()
    try:
        trace.require_special(name)
    except ValueError as e:
        raise trace.error(ValueError, str(e)) from None
    if trace.batch is not None:
        replaced = trace.batch.special(trace, name)
        if replaced is not None:
            return replaced
    return Special(trace, f"%{name}", dtype)


class _Scalar:
    def __init__(self, name: str, dtype: DType) -> None:
        self.name: str = name
        self.dtype: DType = dtype

    def __call__(self) -> Reg:
        return special_register(self.name, self.dtype)


class _Triple:
    def __init__(self, name: str) -> None:
        self.x: _Scalar = _Scalar(f"{name}.x", u32)
        self.y: _Scalar = _Scalar(f"{name}.y", u32)
        self.z: _Scalar = _Scalar(f"{name}.z", u32)


class SpecialRegisters:
    """The namespace `ptx.special`."""

    tid: _Triple
    ntid: _Triple
    ctaid: _Triple
    nctaid: _Triple
    clusterid: _Triple
    nclusterid: _Triple
    cluster_ctaid: _Triple
    cluster_nctaid: _Triple
    tid, ntid, ctaid, nctaid = map(_Triple, TRIPLES)
    clusterid, nclusterid, cluster_ctaid, cluster_nctaid = map(_Triple, CLUSTER_TRIPLES)

    def __getattr__(self, name: str) -> _Scalar:
        dtype = SCALARS.get(name) or CLUSTER_SCALARS.get(name)
        if dtype is None:
            known = ", ".join([*TRIPLES, *CLUSTER_TRIPLES, *SCALARS, *CLUSTER_SCALARS])
            raise AttributeError(f"ptx.special.{name}: there is no such register; one of {known}")
        return _Scalar(name, dtype)
