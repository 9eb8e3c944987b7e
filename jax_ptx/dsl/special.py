"""The special registers: `ptx.special.tid.x()`, `ptx.special.laneid()`."""

from __future__ import annotations

from jax_ptx.dsl.reg import Reg, Special
from jax_ptx.dsl.target import Target
from jax_ptx.dsl.trace import current
from jax_ptx.types import DType, pred, u32, u64

# PTX ISA, "Special Registers". Those of clusters came with sm_90.
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
_CLUSTER_TRIPLES = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SCALARS: dict[str, DType] = {
    **dict.fromkeys(("laneid", "warpid", "nwarpid", "smid", "nsmid", "clock", "clock_hi"), u32),
    **dict.fromkeys(("globaltimer_lo", "globaltimer_hi"), u32),
    **dict.fromkeys(("total_smem_size", "dynamic_smem_size"), u32),
    **{f"lanemask_{relation}": u32 for relation in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("gridid", "clock64", "globaltimer"), u64),
}
_CLUSTER_SCALARS: dict[str, DType] = {
    "cluster_ctarank": u32,
    "cluster_nctarank": u32,
    "is_explicit_cluster": pred,
}


def special_register(name: str, dtype: DType) -> Reg:
    """The special register of that name (without `%`), or what stands for it in a batch."""
    trace = current()
    if name.startswith(("cluster", "ncluster", "is_explicit")):
        try:
            trace.require((7, 8), Target(90), f"%{name}")
        except ValueError as e:
            raise trace.error(ValueError, str(e)) from None
    if trace.batch is not None:
        replaced = trace.batch.special(trace, name)
        if replaced is not None:
            return replaced
    return Special(trace, f"%{name}", dtype)


class _Scalar:
    def __init__(self, name: str, dtype: DType) -> None:
        self.name, self.dtype = name, dtype

    def __call__(self) -> Reg:
        return special_register(self.name, self.dtype)


class _Triple:
    def __init__(self, name: str) -> None:
        self.x = _Scalar(f"{name}.x", u32)
        self.y = _Scalar(f"{name}.y", u32)
        self.z = _Scalar(f"{name}.z", u32)


class SpecialRegisters:
    """The namespace `ptx.special`."""

    tid, ntid, ctaid, nctaid = map(_Triple, _TRIPLES)
    clusterid, nclusterid, cluster_ctaid, cluster_nctaid = map(_Triple, _CLUSTER_TRIPLES)

    def __getattr__(self, name: str) -> _Scalar:
        dtype = _SCALARS.get(name) or _CLUSTER_SCALARS.get(name)
        if dtype is None:
            known = ", ".join([*_TRIPLES, *_CLUSTER_TRIPLES, *_SCALARS, *_CLUSTER_SCALARS])
            raise AttributeError(f"ptx.special.{name}: there is no such register; one of {known}")
        return _Scalar(name, dtype)
