"""The special registers and their types, as data."""

from __future__ import annotations

from jax_ptx.types import DType, pred, u32, u64

# PTX ISA, "Special Registers". Those of clusters came with sm_90.
TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
CLUSTER_TRIPLES = ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
SCALARS: dict[str, DType] = {
    **dict.fromkeys(("laneid", "warpid", "nwarpid", "smid", "nsmid", "clock", "clock_hi"), u32),
    **dict.fromkeys(("globaltimer_lo", "globaltimer_hi"), u32),
    **dict.fromkeys(("total_smem_size", "dynamic_smem_size"), u32),
    **{f"lanemask_{relation}": u32 for relation in ("eq", "le", "lt", "ge", "gt")},
    **dict.fromkeys(("gridid", "clock64", "globaltimer"), u64),
}
CLUSTER_SCALARS: dict[str, DType] = {
    "cluster_ctarank": u32,
    "cluster_nctarank": u32,
    "is_explicit_cluster": pred,
}
TYPES: dict[str, DType] = {
    **{f"{name}.{axis}": u32 for name in (*TRIPLES, *CLUSTER_TRIPLES) for axis in "xyz"},
    **SCALARS,
    **CLUSTER_SCALARS,
}
"""Every special register that the language knows, by its name without `%`."""


def is_of_cluster(name: str) -> bool:
    """Whether only targets with clusters have the register."""
    return name.partition(".")[0] in (*CLUSTER_TRIPLES, *CLUSTER_SCALARS)
