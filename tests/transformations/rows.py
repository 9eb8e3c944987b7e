"""The transformations of the table: each is a function of a case, and gives what is compared.

The case's norm is rms_norm, or the formula in float64 that the result must equal; where the two are not
transformed alike (the formula needs no mesh), a row says what is `plain`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_ptx


@dataclasses.dataclass(frozen=True)
class Case:
    """rms_norm, or a formula, of x and w, of which `argnums` are differentiated and mapped."""

    norm: Callable[[Any, Any], Any]
    operands: tuple[Any, Any]
    argnums: tuple[int, ...]
    devices: tuple[Any, ...] = ()

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self.operands[i] for i in self.argnums)

    @property
    def tangents(self) -> tuple[Any, ...]:
        return tuple(jnp.cos(v) for v in self.values)

    def f(self, *values: Any) -> Any:
        """The norm as a function of the chosen operands."""
        full = list(self.operands)
        for i, value in zip(self.argnums, values, strict=True):
            full[i] = value
        return self.norm(*full)

    def loss(self, *values: Any) -> Any:
        return cubes(self.f(*values))

    def grad(self, loss: Callable[..., Any] | None = None) -> Callable[..., Any]:
        return jax.grad(loss or self.loss, tuple(range(len(self.argnums))))

    def batches(self, axis: int = 0) -> tuple[Any, ...]:
        return tuple(jnp.stack([v, -2 * v, v + 1], axis) for v in self.values)

    def mesh(self, kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
        return jax.make_mesh((len(self.devices),), ("d",), axis_types=(kind,), devices=self.devices)


def cubes(y: Any) -> Any:
    return (y**3).sum()


OPERANDS = {"x only": (0,), "weight only": (1,), "both": (0, 1)}
"""What is transformed: positions of operands."""

Row = Callable[[Case], Any]
ROWS: dict[str, tuple[Row, Row]] = {}
"""What is run with rms_norm, and with the formula."""


def row(name: str, plain: Row | None = None) -> Callable[[Row], Row]:
    def add(run: Row) -> Row:
        ROWS[name] = (run, plain or run)
        return run

    return add


def value(c: Case) -> Any:
    return jax.jit(c.f)(*c.values)


def gradient(c: Case) -> Any:
    return jax.jit(c.grad())(*c.values)


ROWS["jit"] = (value, value)
ROWS["grad"] = (gradient, gradient)


@row("eager", plain=gradient)
def _(c: Case) -> Any:
    return c.grad()(*c.values)


# ---- vmap ----


@row("vmap")
def _(c: Case) -> Any:
    return jax.jit(jax.vmap(c.f))(*c.batches())


@row("vmap, last axis in and first but one out")
def _(c: Case) -> Any:
    return jax.jit(jax.vmap(c.f, -1, 1))(*c.batches(-1))


@row("vmap of vmap")
def _(c: Case) -> Any:
    twice = tuple(jnp.stack([b, b + 1]) for b in c.batches())
    return jax.jit(jax.vmap(jax.vmap(c.f), 0, 1))(*twice)


@row("vmap of grad: one gradient an example")
def _(c: Case) -> Any:
    x = jnp.stack([c.operands[0], 2 * c.operands[0]])
    of = lambda x: c.grad(dataclasses.replace(c, operands=(x, c.operands[1])).loss)
    per_example = lambda x: of(x)(*((x, c.operands[1])[i] for i in c.argnums))
    return jax.jit(jax.vmap(per_example))(x)


@row("grad of vmap")
def _(c: Case) -> Any:
    return jax.jit(c.grad(lambda *v: cubes(jax.vmap(c.f)(*v))))(*c.batches())


# ---- forward and reverse mode, to second order ----


@row("jvp")
def _(c: Case) -> Any:
    return jax.jit(lambda v, t: jax.jvp(c.f, v, t))(c.values, c.tangents)


@row("linearize")
def _(c: Case) -> Any:
    y, tangent = jax.linearize(c.f, *c.values)
    return y, jax.jit(tangent)(*c.tangents)


@row("vjp")
def _(c: Case) -> Any:
    return jax.jit(lambda *v: jax.vjp(c.f, *v)[1](jnp.sin(c.operands[0])))(*c.values)


@row("linear_transpose")
def _(c: Case) -> Any:
    return jax.jit(jax.linear_transpose(c.f, *c.values))(jnp.sin(c.operands[0]))


@row("jacfwd")
def _(c: Case) -> Any:
    return jax.jit(jax.jacfwd(c.f, tuple(range(len(c.argnums)))))(*c.values)


@row("jacrev")
def _(c: Case) -> Any:
    return jax.jit(jax.jacrev(c.f, tuple(range(len(c.argnums)))))(*c.values)


@row("hessian")
def _(c: Case) -> Any:
    return jax.jit(jax.hessian(c.loss, tuple(range(len(c.argnums)))))(*c.values)


@row("forward over reverse")
def _(c: Case) -> Any:
    return jax.jit(lambda v, t: jax.jvp(c.grad(), v, t))(c.values, c.tangents)


@row("reverse over forward")
def _(c: Case) -> Any:
    slope = lambda *v: cubes(jax.jvp(c.f, v, c.tangents)[1])
    return jax.jit(c.grad(slope))(*c.values)


@row("reverse over reverse")
def _(c: Case) -> Any:
    norm = lambda *v: sum((g**2).sum() for g in c.grad()(*v))
    return jax.jit(c.grad(norm))(*c.values)


@row("third order: hessian of a jvp")
def _(c: Case) -> Any:
    slope = lambda v: jax.jvp(c.loss, (v, *c.values[1:]), c.tangents)[1]
    return jax.jit(jax.hessian(slope))(c.values[0])


@row("check_grads, second order, both modes", plain=lambda c: ())
def _(c: Case) -> Any:
    with jax.enable_x64(True):
        wide = dataclasses.replace(
            c, operands=tuple(jnp.asarray(v).astype(jnp.float64)[..., :3] for v in c.operands)
        )
        check_grads(jax.jit(wide.f), wide.values, order=2, modes=("fwd", "rev"))
    return ()


# ---- rematerialisation, control flow, rules of a user's ----

POLICIES = {
    "nothing saved": jax.checkpoint_policies.nothing_saveable,
    "everything saved": jax.checkpoint_policies.everything_saveable,
    "dots saved": jax.checkpoint_policies.dots_saveable,
    "the norm saved": lambda primitive, *_, **__: primitive.name == "ptx_rms_norm",
}
for _name, _policy in POLICIES.items():

    @row(f"checkpoint, {_name}", plain=gradient)
    def _(c: Case, policy: Any = _policy) -> Any:
        return jax.jit(c.grad(jax.checkpoint(c.loss, policy=policy)))(*c.values)


def twice(norm: Callable[[Any, Any], Any], loop: Callable[[Any, Any], Any]) -> Row:
    """The norm of the norm, through `loop(body, x)`."""

    def run(c: Case) -> Any:
        inner = lambda x, w: loop(lambda y: c.norm(y, w), x)
        return jax.jit(dataclasses.replace(c, norm=inner).grad())(*c.values)

    return run


@row("grad of scan over weights")
def _(c: Case) -> Any:
    step = lambda w: lambda y, factor: (c.norm(y, w * factor), None)
    inner = lambda x, w: jax.lax.scan(step(w), x, jnp.arange(1.0, 3.0, dtype=w.dtype))[0]
    return jax.jit(dataclasses.replace(c, norm=inner).grad())(*c.values)


@row("grad of fori_loop")
def _(c: Case) -> Any:
    inner = lambda x, w: jax.lax.fori_loop(0, 2, lambda _, y: c.norm(y, w), x)
    return jax.jit(dataclasses.replace(c, norm=inner).grad())(*c.values)


@row("jvp of while_loop")
def _(c: Case) -> Any:
    body = lambda w: lambda state: (state[0] + 1, c.norm(state[1], w))
    inner = lambda x, w: jax.lax.while_loop(lambda s: s[0] < 2, body(w), (0, x))[1]
    inner_case = dataclasses.replace(c, norm=inner)
    return jax.jit(lambda v, t: jax.jvp(inner_case.f, v, t))(c.values, c.tangents)


@row("grad of cond")
def _(c: Case) -> Any:
    inner = lambda x, w: jax.lax.cond(x.sum() < 1e6, c.norm, lambda x, w: x, x, w)
    return jax.jit(dataclasses.replace(c, norm=inner).grad())(*c.values)


@row("vmap of cond: both branches")
def _(c: Case) -> Any:
    branch = lambda *v: jax.lax.cond(v[0].sum() > 0, c.f, lambda *v: 2 * c.f(*v), *v)
    return jax.jit(jax.vmap(branch))(*c.batches())


@row("grad of lax.map")
def _(c: Case) -> Any:
    loss = lambda *v: cubes(jax.lax.map(lambda each: c.f(*each), v))
    return jax.jit(c.grad(loss))(*c.batches())


@row("custom_vjp around it", plain=gradient)
def _(c: Case) -> Any:
    f = jax.custom_vjp(c.f)
    f.defvjp(lambda *v: jax.vjp(c.f, *v), lambda pull, dy: pull(dy))
    return jax.jit(c.grad(lambda *v: cubes(f(*v))))(*c.values)


@row("custom_jvp around it", plain=gradient)
def _(c: Case) -> Any:
    f = jax.custom_jvp(c.f)
    f.defjvp(lambda v, t: jax.jvp(c.f, v, t))
    return jax.jit(c.grad(lambda *v: cubes(f(*v))))(*c.values)


@row("donation", plain=gradient)
def _(c: Case) -> Any:
    donated = tuple(v + 0 for v in c.values)
    result = jax.jit(c.grad(), donate_argnums=tuple(range(len(donated))))(*donated)
    assert all(v.is_deleted() for v in donated)
    return result


@row("disable_jit", plain=gradient)
def _(c: Case) -> Any:
    with jax.disable_jit():
        return c.grad()(*c.values)


# ---- several devices, other programs ----


def sharded_operands(c: Case, mesh: jax.sharding.Mesh) -> tuple[Any, Any]:
    x, w = c.operands
    put = lambda v, spec: jax.device_put(v, NamedSharding(mesh, spec))
    return put(x, P("d")), put(w, P())


for _kind in (AxisType.Auto, AxisType.Explicit):

    @row(f"{_kind.name.lower()} sharding of rows", plain=gradient)
    def _(c: Case, kind: AxisType = _kind) -> Any:
        mesh = c.mesh(kind)
        with jax.set_mesh(mesh):
            operands = sharded_operands(c, mesh)
            grad = jax.jit(jax.grad(lambda *v: cubes(c.norm(*v)), c.argnums))
            compiled = grad.lower(*operands).compile()
            assert "all-gather" not in (compiled.as_text() or "")
            return compiled(*operands)


for _check in (True, False):

    @row(f"shard_map, check_vma={_check}", plain=gradient)
    def _(c: Case, check: bool = _check) -> Any:
        specs = {"in_specs": (P("d"), P()), "out_specs": P("d"), "check_vma": check}
        f = jax.shard_map(c.norm, mesh=c.mesh(), **specs)
        return jax.jit(jax.grad(lambda *v: cubes(f(*v)), c.argnums))(*c.operands)


def sum_over_devices(c: Case) -> Any:
    return jax.jit(jax.grad(lambda *v: cubes(c.norm(*v)), c.argnums))(*c.operands)


@row("grad inside shard_map", plain=sum_over_devices)
def _(c: Case) -> Any:
    # The weight varies over no axis: the transpose of the cast that makes it vary sums its gradient.
    local = jax.grad(lambda *v: cubes(c.norm(*v)), c.argnums)
    out_specs = tuple((P("d"), P())[i] for i in c.argnums)
    f = jax.shard_map(local, mesh=c.mesh(), in_specs=(P("d"), P()), out_specs=out_specs)
    return jax.jit(f)(*c.operands)


@row("pmap", plain=lambda c: jax.vmap(gradient_of(c))(*per_device(c)))
def _(c: Case) -> Any:
    x, w = per_device(c)
    return jax.pmap(gradient_of(c), devices=list(c.devices))(x, w)


def gradient_of(c: Case) -> Callable[..., Any]:
    return jax.grad(lambda *v: cubes(c.norm(*v)), c.argnums)


def per_device(c: Case) -> tuple[Any, Any]:
    x, w = c.operands
    count = max(len(c.devices), 1)
    return x.reshape(count, -1, *x.shape[1:]), jnp.broadcast_to(w, (count, *w.shape))


@row("compiled ahead of time", plain=gradient)
def _(c: Case) -> Any:
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in c.values]
    return jax.jit(c.grad()).lower(*types).compile()(*c.values)


@row("export, and its VJP", plain=gradient)
def _(c: Case) -> Any:
    export = jax.export.export(jax.jit(c.f), disabled_checks=jax_ptx.export_checks())
    artefact = export(*c.values).serialize(vjp_order=1)
    call = jax.export.deserialize(artefact).call
    return jax.jit(c.grad(lambda *v: cubes(call(*v))))(*c.values)
