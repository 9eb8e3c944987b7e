"""Which state space an instruction addresses, against what its addresses are."""

from __future__ import annotations

from functools import cache

from jax_ptx.dsl.operands import Address

_SPACES = ("const", "global", "local", "param", "shared")
# Their further addresses are mbarriers, or destinations in the shared memory of a cluster.
_ASYNC = ("cp.", "red.async.", "st.async.")


@cache
def spaces(name: str) -> tuple[str, ...]:
    """The state spaces that the name says, in the order of the addresses; "" is a generic one."""
    words = (modifier.partition("::")[0] for modifier in name.split(".")[1:])
    said = tuple(word for word in words if word in _SPACES)
    if name.startswith(_ASYNC) and "mbarrier::" in name:
        return (*said, "shared", "shared", "shared")
    return said or ("",)


def check_address(name: str, position: int, address: Address) -> None:
    """Refuses an address that cannot be in the state space of an instruction.

    Args:
        name: the instruction.
        position: which of its addresses it is.
        address: the address.

    Raises:
        ValueError: it cannot.
    """
    said, place = spaces(name), address.place
    space = said[min(position, len(said) - 1)]
    where = f"`{name}` addresses {space or 'generic'} memory"
    if place == "param" and space != "param":
        raise ValueError(
            f"{address.symbol} is a parameter, and {where}: load the parameter first, as "
            f"ptx.global_ptrs({address.symbol}) loads a tensor's pointer"
        )
    if place == "shared" and space not in ("shared", ""):
        raise ValueError(f"{address.symbol} is in shared memory, and {where}")
    if place == "narrow" and space in ("global", ""):
        raise ValueError(
            f"the base of {address} has 32 bits, and {where}, whose addresses have 64: "
            "ptx.inst.cvt.u64.u32 widens a register, ptx.inst.cvta.shared.u64 makes a shared "
            "address a generic one"
        )
