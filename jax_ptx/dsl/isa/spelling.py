"""How the name of an instruction is written in Python: `ld.global` is `ptx.inst.ld.global_`."""

from __future__ import annotations

from keyword import iskeyword


def read(attribute: str) -> str:
    """The word of an instruction's name that an attribute stands for."""
    word = attribute.removesuffix("_")
    if word[:1] == "_" and word[1:2].isdigit():
        word = word[1:]
    return word.replace("__", "::")


def spelled(name: str) -> str:
    """The attributes that stand for a name, such as `ld.shared__cluster.b32`."""
    words = (word.replace("::", "__") for word in name.split("."))
    return ".".join(f"{w}_" if iskeyword(w) else f"_{w}" if w[:1].isdigit() else w for w in words)
