"""Data-parallel training over eight devices: RMS norm stays where its rows are.

    python examples/sharded_training.py --mesh explicit      # or auto

Rows of the batch are split over a mesh, weights are on every device. The program reads the compiled step: the
only communication is the all-reduce of loss and gradients; there is no all-gather. Without GPUs, JAX splits
the CPU into eight devices, and with `--norm ptx` the kernel of each is emulated.
"""

from __future__ import annotations

import argparse
import collections
import os
import re

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_ptx

WIDTH, HIDDEN, LAYERS, RATE = 64, 128, 2, 0.2
Params = list[dict[str, jax.Array]]


def first_params(key: jax.Array) -> Params:
    """Each layer's norm and two matrices."""
    params = []
    for layer in jax.random.split(key, LAYERS):
        up, down = jax.random.split(layer)
        params.append(
            {
                "norm": jnp.ones(WIDTH),
                "up": jax.random.normal(up, (WIDTH, HIDDEN)) / WIDTH**0.5,
                "down": jax.random.normal(down, (HIDDEN, WIDTH)) / HIDDEN**0.5,
            }
        )
    return params


def loss_of(params: Params, x: jax.Array, target: jax.Array, norm: str | None) -> jax.Array:
    for layer in params:
        y = jax_ptx.rms_norm(x, layer["norm"], implementation=norm)
        x = x + jax.nn.silu(y @ layer["up"]) @ layer["down"]
    return jnp.mean((x - target) ** 2)


def collectives(text: str) -> dict[str, int]:
    """How often each kind of communication stands in a compiled program."""
    names = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    return dict(collections.Counter(re.findall(rf"= \S.* ({names})(?:-start)?\(", text)))


def make_mesh(kind: str) -> Mesh:
    axis = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    return jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(axis,))


def positive(text: str) -> int:
    """An argument that is 1 or more."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


def main(arguments: list[str] | None = None) -> list[float]:
    """Runs the program; returns the losses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", choices=("explicit", "auto"), default="explicit")
    parser.add_argument("--norm", choices=("ptx", "xla"), help="default: ptx on a GPU")
    parser.add_argument("--steps", type=positive, default=20)
    options = parser.parse_args(arguments)

    mesh = make_mesh(options.mesh)
    rows, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        key = jax.random.key(0)
        params = jax.device_put(first_params(key), everywhere)
        x = jax.device_put(jax.random.normal(key, (16 * mesh.size, WIDTH)), rows)
        target = jax.device_put(jnp.roll(x, 1, axis=-1), rows)

        @jax.jit
        def step(params: Params, x: jax.Array, target: jax.Array) -> tuple[Params, jax.Array]:
            loss, gradient = jax.value_and_grad(loss_of)(params, x, target, options.norm)
            return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), loss

        compiled = step.lower(params, x, target).compile()
        found = collectives(compiled.as_text())
        print(f"{mesh.size} x {jax.devices()[0].device_kind}, {options.mesh} mesh: {found}")
        if set(found) - {"all-reduce"}:
            raise SystemExit(f"expected nothing but an all-reduce, found {found}")
        losses = []
        for _ in range(options.steps):
            params, loss = compiled(params, x, target)
            losses.append(float(loss))
    print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {options.steps} steps")
    return losses


if __name__ == "__main__":
    main()
