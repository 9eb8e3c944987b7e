"""Launch records against buffers: what is refused before anything runs, in one sentence each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jax_ptx import _ext

COPY = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y)
{
  .reg .u32 %r<2>;
  .reg .u64 %rd<6>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd2, %r0, 4;
  add.s64 %rd3, %rd0, %rd2;
  add.s64 %rd4, %rd1, %rd2;
  ld.global.u32 %r1, [%rd3];
  st.global.u32 [%rd4], %r1;
  ret;
}
"""


def record(**changes: Any) -> dict[str, Any]:
    """A copy of four 32-bit words by one CTA."""
    return {
        "ptx": COPY,
        "entry": "copy",
        "key": 0,
        "grid": (1, 1, 1),
        "block": (4, 1, 1),
        "cluster": (1, 1, 1),
        "smem_bytes": 0,
        "rows_per_cta": 0,
        "unit_bytes": (16, 16),
        "dims": (0, 0),
        "global_dims": (0,) * max(changes.get("dims", (0,))),
        "batch": (),
        "batch_mask": (),
        **changes,
    }


def words(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.uint32).reshape(shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (1, 2)}, "attribute grid must have 3 elements, got 2"),
        ({"dims": (0,)}, "attribute dims must have 2 elements, got 1"),
        ({"batch": (2,)}, "attribute batch_mask must have 2 elements, got 0"),
        ({"grid": (-1, 1, 1)}, "-1 CTAs along x; a GPU takes 0 to 2147483647"),
        ({"grid": (1, 65536, 1)}, "65536 CTAs along y; a GPU takes 0 to 65535"),
        ({"grid": (1, 1, 65536)}, "65536 CTAs along z; a GPU takes 0 to 65535"),
        ({"block": (0, 1, 1)}, "0 threads along x; a GPU takes 1 to 1024"),
        ({"block": (1, 1, 65)}, "65 threads along z; a GPU takes 1 to 64"),
        ({"block": (64, 32, 1)}, r"block \(64, 32, 1\) has 2048 threads; a CTA has at most 1024"),
        ({"cluster": (0, 1, 1)}, r"cluster \(0, 1, 1\) must be 1 to 16 CTAs along each axis"),
        ({"cluster": (2, 1, 1)}, r"grid \(1, 1, 1\) must be whole clusters of \(2, 1, 1\) along x"),
        ({"grid": (8, 8, 1), "cluster": (8, 4, 1)}, "has 32 CTAs; a cluster has at most 16"),
        ({"smem_bytes": 232449}, "smem_bytes must be between 0 and 232448 .227 KiB.*got 232449"),
        ({"smem_bytes": -1}, "smem_bytes must be between 0"),
        ({"unit_bytes": (16, -16)}, r"attribute unit_bytes\[1\] must be between 0 and .*got -16"),
        ({"dims": (3, 1)}, r"attribute dims\[0\] must be between 0 and 2, got 3"),
        ({"dims": (2, 0)}, "run-time dimensions 1 to 2 without a gap; no tensor has 1"),
        ({"batch": (-1,), "batch_mask": (1, 1)}, r"attribute batch\[0\] must be between 0"),
        (
            {"batch": (1,), "batch_mask": (1, 2)},
            r"attribute batch_mask\[1\] must be between 0 and 1",
        ),
        ({"rows_per_cta": 1}, "rows_per_cta takes the grid from run-time dimension 1"),
        ({"rows_per_cta": -1, "dims": (1, 1)}, "rows_per_cta must be 0 or more, got -1"),
        (
            {"dims": (1, 1), "global_dims": ()},
            "global_dims must have an element for each run-time dimension, 1, got 0",
        ),
        (
            {"dims": (1, 1), "global_dims": (-1,)},
            r"attribute global_dims\[0\] must be between 0 and .*got -1",
        ),
        ({"ptx": ""}, "no PTX text"),
        ({"ptx": COPY + "\0"}, "NUL character, at offset"),
        ({"unit_bytes": (16, 8)}, "result 0 must have 8 bytes, got 16"),
        ({"unit_bytes": (20, 16)}, "operand 0 must have 20 bytes, got 16"),
        ({"unit_bytes": (16,), "dims": (0,)}, "describes 1 tensors, and 2 buffers came"),
        (
            {"unit_bytes": (4, 8), "dims": (1, 1)},
            r"result 0 must have 32 bytes \(8 for each of the 4 that run-time dimension 1 counts\)",
        ),
        ({"unit_bytes": (5, 5), "dims": (1, 1)}, "operand 0 must have 15 bytes .* got 16"),
        ({"batch": (2**40, 2**40), "batch_mask": (1, 1) * 2}, r"more than 2\^63"),
        ({"batch": (2,), "batch_mask": (0, 0)}, "result 0 lacks batch axis 0"),
    ],
)
def test_a_wrong_record_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"kernel `copy`: .*{message}"):
        _ext.emulate(record(**changes), [words(4), words(4)], 1)


def test_an_entry_must_have_a_name() -> None:
    with pytest.raises(ValueError, match="the launch record has no entry name"):
        _ext.emulate(record(entry=""), [words(4), words(4)], 1)


def test_arguments_of_the_call_are_checked() -> None:
    x, y = words(4), words(4)
    with pytest.raises(ValueError, match="'grid' is missing"):
        _ext.emulate({k: v for k, v in record().items() if k != "grid"}, [x, y], 1)
    with pytest.raises(TypeError, match="'ptx' must be a str"):
        _ext.emulate(record(ptx=b""), [x, y], 1)
    with pytest.raises(
        ValueError, match="n_results must be between 0 and the number of buffers, 2"
    ):
        _ext.emulate(record(), [x, y], 3)
    with pytest.raises(TypeError, match=r"buffers\[0\] must be a numpy array"):
        _ext.emulate(record(), [[1, 2, 3, 4], y], 1)
    with pytest.raises(ValueError, match=r"buffers\[0\] must be C-contiguous"):
        _ext.emulate(record(), [words(8)[::2], y], 1)
    y.flags.writeable = False
    with pytest.raises(ValueError, match=r"buffers\[1\] is a result, and must be writable"):
        _ext.emulate(record(), [x, y], 1)


def test_a_read_only_operand_is_fine() -> None:
    x, y = words(4), np.zeros(4, np.uint32)
    x.flags.writeable = False
    _ext.emulate(record(), [x, y], 1)
    np.testing.assert_array_equal(y, x)


def test_a_result_may_be_an_operand_but_not_overlap_one() -> None:
    x = words(8)
    _ext.emulate(record(), [x[:4], x[:4]], 1)
    with pytest.raises(ValueError, match="result 0 overlaps operand 0"):
        _ext.emulate(record(), [x[:4], x[2:6]], 1)


def test_a_batch_is_one_launch_for_each_element() -> None:
    x, y = words(3, 4), np.zeros((2, 3, 4), np.uint32)
    _ext.emulate(record(batch=(2, 3), batch_mask=(0, 1, 1, 1)), [x, y], 1)
    np.testing.assert_array_equal(y, np.broadcast_to(x, y.shape))


def run_share(
    dims: tuple[int, ...], local: tuple[int, ...], whole: tuple[int, ...], n_results: int = 1
) -> None:
    """Launches on a device's share: tensor i has `local[dims[i] - 1]` words."""
    parameters = ", ".join(f".param .u64 p{i}" for i in range(len(dims) + len(local)))
    text = f".version 8.0\n.target sm_80\n.address_size 64\n.entry copy({parameters}) {{ ret; }}"
    launch = record(ptx=text, unit_bytes=(4,) * len(dims), dims=dims, global_dims=whole)
    _ext.emulate(launch, [words(local[dim - 1]) for dim in dims], n_results)


# XLA pads each tensor by itself: of 60 rows each of eight devices gets 8, of 12 sums 2.
@pytest.mark.parametrize(
    ("local", "whole"),
    [
        ((60, 12), (60, 12)),
        ((8, 2), (64, 16)),
        ((64, 2), (64, 2)),
        ((8, 8), (60, 60)),  # padded, and each sum is of one row
        ((8, 2), (60, 0)),  # not known
        ((8, 2), (0, 12)),
        ((0, 0), (0, 0)),
        ((2**20, 2**19), (2**31, 2**30)),
    ],
)
def test_rows_and_sums_that_were_split_alike(
    local: tuple[int, int], whole: tuple[int, int]
) -> None:
    run_share((1, 2), local, whole)
    run_share((2, 1), local[::-1], whole[::-1])


@pytest.mark.parametrize(
    ("local", "whole"),
    [
        ((8, 2), (60, 12)),
        ((8, 4), (60, 30)),  # alike, but a sum might take padding
        ((8, 1), (64, 1)),  # one sum, on every device
        ((60, 2), (60, 12)),
        ((1, 1), (2**62, 2**61)),
        ((4, 4), (2**62, 2**62 + 1)),
    ],
)
def test_rows_and_sums_that_were_split_unlike(
    local: tuple[int, int], whole: tuple[int, int]
) -> None:
    message = (
        f"kernel `copy`: XLA split the rows unevenly: a device has {local[0]} of the {whole[0]} that "
        f"run-time dimension 1 counts and {local[1]} of the {whole[1]} that run-time dimension 2 "
        "counts; make the sharded dimension a multiple of the devices over which it is sharded"
    )
    with pytest.raises(ValueError, match=message):
        run_share((1, 2), local, whole)
    with pytest.raises(ValueError, match="XLA split the rows unevenly"):
        run_share((2, 1), local[::-1], whole[::-1])  # the sums come first


def test_rows_and_their_groups_may_be_padded() -> None:
    run_share((1, 2, 1), (40, 8), (300, 60))  # groups are an operand: no sum takes padding
    with pytest.raises(ValueError, match="XLA split the rows unevenly"):
        run_share((1, 2, 1), (40, 8), (300, 50))
    with pytest.raises(ValueError, match="run-time dimension 3 counts"):
        run_share((1, 2, 1, 3), (40, 8, 16), (300, 60, 120))  # sums, with padding


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": (0, 1, 1)},
        {"grid": (1, 0, 1)},
        {"batch": (0,), "batch_mask": (1, 1)},
        {"unit_bytes": (16, 16), "dims": (1, 0), "rows_per_cta": 1},
        {"unit_bytes": (0, 16), "dims": (1, 0), "rows_per_cta": 1},
    ],
    ids=["grid", "grid y", "batch", "rows", "rows of no bytes"],
)
def test_nothing_to_do_leaves_zeros(changes: dict[str, Any]) -> None:
    x = words(4) if "dims" not in changes and "batch" not in changes else words(0)
    y = words(0 if "batch" in changes else 4)
    _ext.emulate(record(**changes), [x, y], 1)
    np.testing.assert_array_equal(y, 0)


def test_nothing_to_do_leaves_an_aliased_result_alone() -> None:
    x = words(4)
    _ext.emulate(record(grid=(0, 1, 1)), [x, x], 1)
    np.testing.assert_array_equal(x, words(4))
