"""What is left out of the table on purpose, by the first modifiers of a name and by any modifier."""

from __future__ import annotations

_TENSOR_MAP = "it copies through a tensor map"
_TEXTURE = "textures and surfaces"
_VIDEO = "scalar video instructions"

OUTSIDE: dict[str, str] = {
    "wgmma": "warpgroup matrix multiply, for sm_90a alone",
    "tcgen05": "tensor memory and its matrix multiply, for sm_100a and its kin alone",
    "tensormap": "tensor maps",
    "cp.async.bulk.tensor": _TENSOR_MAP,
    "cp.async.bulk.prefetch.tensor": _TENSOR_MAP,
    "cp.reduce.async.bulk.tensor": _TENSOR_MAP,
    "prefetch.tensormap": "tensor maps",
    "prefetch.const.tensormap": "tensor maps",
    "prefetch.param.tensormap": "tensor maps",
    "fence.proxy.tensormap::generic": "tensor maps",
    "wmma": "the older warp matrix multiply; mma.sync is in the table",
    "mma.sp": "sparse matrix multiply",
    "multimem": "multicast memory of several devices",
    "clusterlaunchcontrol": "work stealing between clusters",
    "tex": _TEXTURE,
    "tld4": _TEXTURE,
    "txq": _TEXTURE,
    "istypep": _TEXTURE,
    "suld": _TEXTURE,
    "sust": _TEXTURE,
    "sured": _TEXTURE,
    "suq": _TEXTURE,
    "call": "function calls",
    "alloca": "the stack",
    "stacksave": "the stack",
    "stackrestore": "the stack",
    **{
        f"v{name}{n}": _VIDEO
        for n in ("", "2", "4")
        for name in ("add", "sub", "absdiff", "min", "max", "set")
    },
    **dict.fromkeys(("vshl", "vshr", "vmad", "vavrg2", "vavrg4"), _VIDEO),
}

_SCALED = "matrix multiply of blocks that have scales of their own"
_WIDE = "types of 128 bits"
OUTSIDE_WITH: dict[str, str] = {
    **dict.fromkeys(("block_scale", "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"), _SCALED),
    **dict.fromkeys(("b128", "u128", "s128"), _WIDE),
}
