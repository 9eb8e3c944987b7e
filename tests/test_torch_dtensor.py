"""rms_norm of DTensors in two processes: rows stay where they are, and values are those of plain tensors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import torch, torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
import jax_ptx.torch as jt

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
x, r, dy, w = torch.randn(6, 4, 8), torch.randn(6, 4, 8), torch.randn(6, 4, 8), torch.randn(8)

def both_ways(f, x, r, w, dy):
    at = [t.detach().requires_grad_() for t in (x, r, w)]
    outputs = f(*at)
    grads = torch.autograd.grad(outputs, at, [dy] * len(outputs), allow_unused=True)
    return [t for t in (*outputs, *grads) if t is not None]

def full(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t

for implementation in ("ptx", "torch"):
    for place in (Shard(0), Shard(1), Shard(2), Replicate()):
        rows = [distribute_tensor(t, mesh, [place]) for t in (x, r, dy)]
        weight = distribute_tensor(w, mesh, [Replicate()])
        for eps in (1e-6, 0.5):  # what is kept for one must not serve the other
            options = {"eps": eps, "implementation": implementation}
            norm = lambda x, r, w: [jt.rms_norm(x, w, **options)]
            added = lambda x, r, w: jt.add_rms_norm(x, r, w, **options)
            for f in (norm, added):
                got = both_ways(f, rows[0], rows[1], weight, rows[2])
                for a, b in zip(got, both_ways(f, x, r, w, dy), strict=True):
                    torch.testing.assert_close(full(a), b)
                local = got[:-1] if place in (Shard(0), Shard(1)) else []
                assert all(t.placements == (place,) for t in local), [t.placements for t in got]

model = torch.nn.Sequential(jt.RMSNorm(8, implementation="ptx"))
expected = model(x)
parallel = parallelize_module(model, mesh, {"0": SequenceParallel()})
torch.testing.assert_close(full(parallel(distribute_tensor(x, mesh, [Shard(1)]))), expected)
dist.destroy_process_group()
print("same")
"""


def test_rows_stay_where_they_are() -> None:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", PROGRAM]
    runs = [
        subprocess.Popen(
            command,
            env={**os.environ, **there, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for run in runs:
        output, errors = run.communicate(timeout=180)
        assert run.returncode == 0, errors
        assert output.strip() == "same"
