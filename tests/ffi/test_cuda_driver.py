"""What the extension asks of NVIDIA's driver, against a stand-in that records it (fake_cuda.cc)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ffi.fake_driver import HEADER, Driver, call, ptx

# ---- where there is no driver, or one that will not do ----


def test_without_a_driver_there_is_one_sentence(extension: str, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("")  # found first, and no library
    (outcome,) = Driver(extension, tmp_path, tmp_path / "calls").run(call())
    assert outcome.startswith(
        "RuntimeError: an NVIDIA driver is needed to launch a kernel on a GPU"
    )
    assert "libcuda.so.1" in outcome


def test_a_driver_that_lacks_a_function_is_too_old(
    extension: str, fake_driver: Path, tmp_path: Path
) -> None:
    # The same stand-in with one name spoilt, as a driver from before CUDA 12.4 would be.
    library = (fake_driver / "libcuda.so.1").read_bytes()
    spoilt = library.replace(b"cuKernelGetParamInfo", b"cuKernelGotParamInfo")
    (tmp_path / "libcuda.so.1").write_bytes(spoilt)
    (outcome,) = Driver(extension, tmp_path, tmp_path / "calls").run(call(), version=12020)
    assert "the NVIDIA driver is too old: it is for CUDA 12.2" in outcome
    assert "lacks cuKernelGetParamInfo" in outcome
    assert "CUDA 12.4 or newer" in outcome


def test_a_machine_without_a_gpu(driver: Driver) -> None:
    (outcome,) = driver.run(call(), init=100)
    assert outcome.startswith(
        "RuntimeError: cuInit(0) failed: CUDA_ERROR_NO_DEVICE (words of the driver)"
    )
    assert "[ffi/cuda/driver.cc:" in outcome


def test_a_record_is_checked_before_the_driver_is_opened(extension: str, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("")
    (outcome,) = Driver(extension, tmp_path, tmp_path / "calls").run(call(block=[2048, 1, 1]))
    assert outcome.startswith("ValueError: kernel `copy`: block (2048, 1, 1)")


def test_buffers_are_pairs_of_integers(driver: Driver) -> None:
    for wrong in ([(4096, 64), (8192, -1)], [(4096, 64), ("x", 1)]):
        (outcome,) = driver.run(call(buffers=wrong))
        assert outcome == "TypeError: buffers[1] must be (device address, bytes)"


# ---- launching ----


def test_a_launch_as_the_driver_sees_it(driver: Driver) -> None:
    assert driver.run(call(grid=[4, 5, 6], block=[8, 4, 2], smem_bytes=100)) == ["ok"]
    assert driver.log("launch") == [
        "launch copy on 0 grid 4 5 6 block 8 4 2 smem 100 stream 7 parameters 4096 8192"
    ]


def test_a_cluster_is_an_attribute(driver: Driver) -> None:
    assert driver.run(call(cluster=[2, 1, 1])) == ["ok"]
    (launch,) = driver.log("launch")
    assert "cluster 2 1 1" in launch


def test_rows_decide_the_grid_and_follow_the_tensors(driver: Driver) -> None:
    text = ptx(parameters=("u64", "u64", "u64"))
    record = call(text, grid=[2147483647, 1, 1], rows_per_cta=3, unit_bytes=[16, 16], dims=[1, 1])
    assert driver.run({**record, "buffers": [(4096, 160), (8192, 160)]}) == ["ok"]
    (launch,) = driver.log("launch")
    assert "grid 4 1 1" in launch
    assert launch.endswith("parameters 4096 8192 10")


def test_a_batch_advances_the_tensors_that_have_it(driver: Driver) -> None:
    record = call(batch=[2, 3], batch_mask=[0, 1, 1, 1])
    assert driver.run({**record, "buffers": [(4096, 3 * 64), (8192, 6 * 64)]}) == ["ok"]
    addresses = [tuple(map(int, line.split()[-2:])) for line in driver.log("launch")]
    assert addresses == [
        (4096 + 64 * inner, 8192 + 64 * (3 * outer + inner))
        for outer in range(2)
        for inner in range(3)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": [0, 1, 1]},
        {"batch": [0], "batch_mask": [0, 0], "n_results": 0},
        {"rows_per_cta": 1, "dims": [1, 0], "buffers": [(0, 0), (8192, 64)]},
    ],
    ids=["grid", "batch", "rows"],
)
def test_an_empty_launch_fills_the_results_with_zeros(
    driver: Driver, changes: dict[str, Any]
) -> None:
    record = call(**changes)
    assert driver.run(record) == ["ok"]
    assert driver.log("launch", "load") == []
    assert driver.log("memset") == ["memset 8192 0 64 stream 7"] * record["n_results"]


def test_a_result_that_is_an_operand_keeps_its_contents_in_an_empty_launch(driver: Driver) -> None:
    assert driver.run(call(grid=[0, 1, 1], buffers=[(4096, 64), (4096, 64)])) == ["ok"]
    assert driver.log("memset") == []


def test_the_devices_context_is_current_during_the_call_only(driver: Driver) -> None:
    assert driver.run(call(device=1), call(device=0), call(device=2)) == [
        "ok",
        "ok",
        "ValueError: there is no device 2; the driver sees 2",
    ]
    assert [line for line in driver.log() if not line.startswith(("launch", "load", "ready"))] == [
        "retain 1",
        "release 1",
        "retain 0",
        "release 0",
    ]
    assert ["on 1" in line for line in driver.log("launch")] == [True, False]


# ---- the cache ----


def test_one_load_serves_every_call_and_device(driver: Driver) -> None:
    assert driver.run(call(times=3), call(device=1), call(grid=[9, 1, 1], times=2)) == ["ok"] * 3
    assert len(driver.log("load")) == 1
    assert driver.log("ready") == ["ready copy on 0", "ready copy on 1"]
    assert len(driver.log("launch")) == 6


def test_the_hash_is_not_trusted(driver: Driver) -> None:
    other = ptx("other")
    assert driver.run(call(), call(other, entry="other"), call()) == ["ok"] * 3  # all with key 1
    assert [line.split()[1] for line in driver.log("launch")] == ["copy", "other", "copy"]
    assert len(driver.log("load")) == 2


def test_threads_share_what_the_first_of_them_loaded(driver: Driver) -> None:
    assert driver.run(call(threads=8, times=20)) == ["ok"]
    assert len(driver.log("launch")) == 160
    assert len(driver.log("load")) == 1  # the others waited for it
    assert driver.log("unload") == []


def test_what_is_loaded_ahead_is_ready_for_its_launch(driver: Driver) -> None:
    assert driver.run({**call(), "ahead": True}, call(times=2)) == ["ok"] * 2
    kinds = [line.split()[0] for line in driver.log("load", "ready", "launch")]
    assert kinds == ["load", "ready", "launch", "launch"]


def test_a_refused_text_is_tried_again(driver: Driver) -> None:
    outcomes = driver.run(call(HEADER + "syntax error"), call(HEADER + "syntax error"))
    assert outcomes[0] == outcomes[1]
    assert len(driver.log("load")) == 2


# ---- what the driver refuses ----


def test_a_text_that_does_not_assemble(driver: Driver) -> None:
    (outcome,) = driver.run(call(HEADER + "syntax error"))
    assert outcome == (
        "ValueError: kernel `copy`: cuLibraryLoadData refused the PTX: CUDA_ERROR_INVALID_PTX "
        "(words of the driver). The text needs PTX ISA 8.0 and target sm_90; this is device 0 "
        "(Fake GPU, compute capability 9.0, driver for CUDA 13.0).\n"
        "JIT log:\nptxas line 7; unknown instruction"
    )


def test_a_version_that_is_too_new_for_the_driver(driver: Driver) -> None:
    (outcome,) = driver.run(call(ptx(header=".version 99.1\n.target sm_90\n")))
    assert outcome.startswith("RuntimeError: kernel `copy`: cuLibraryLoadData refused the PTX")
    assert "needs PTX ISA 99.1" in outcome
    assert "driver for CUDA 13.0" in outcome
    assert "Use an older .version, or a newer driver." in outcome


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("sm_100", 'The target is newer than the device: build the kernel with arch="sm_75"'),
        ("sm_70a", "A target with the suffix 'a' runs on that very compute capability only."),
        ("sm_70", ""),
    ],
)
def test_a_target_that_the_device_is_not(driver: Driver, target: str, hint: str) -> None:
    text = ptx(header=f".version 8.0\n.target {target}\n")
    (outcome,) = driver.run(call(text), capability=75)
    assert "cuKernelGetFunction refused the PTX: CUDA_ERROR_NO_BINARY_FOR_GPU" in outcome
    assert f"target {target}; this is device 0 (Fake GPU, compute capability 7.5" in outcome
    assert hint in outcome


def test_an_entry_that_is_not_there(driver: Driver) -> None:
    (outcome,) = driver.run(call(ptx("first") + "\n.entry second() { ret; }"))
    assert outcome == (
        "ValueError: kernel `copy`: the PTX has no .entry of that name; it has first, second"
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (("u64",), "the .entry has 1 parameters, and the launch record 2 tensors and 0 run-time"),
        (
            ("u64",) * 3,
            "the .entry has 3 parameters, and the launch record 2 tensors and 0 run-time",
        ),
        (("u64", "u32"), "parameter 1 must be a .u64 of 8 bytes, got one of 4"),
    ],
)
def test_parameters_that_do_not_match(
    driver: Driver, parameters: tuple[str, ...], message: str
) -> None:
    (outcome,) = driver.run(call(ptx(parameters=parameters)))
    assert outcome.startswith("ValueError: kernel `copy`: ")
    assert message in outcome
    assert driver.log("launch") == []


def test_limits_of_the_kernel_and_the_device(driver: Driver) -> None:
    large_block, large_smem, fits, small = driver.run(
        call(block=[1024, 1, 1]),
        call(smem_bytes=101376 - 1023),
        call(smem_bytes=101376 - 1024),
        call(smem_bytes=47 * 1024),
    )
    assert "a block of 1024 threads is too large" in large_block
    assert "allow 512 on device 0 (Fake GPU" in large_block
    assert "a CTA needs 101377 bytes of shared memory (1024 static, 100353 dynamic)" in large_smem
    assert "has 101376" in large_smem
    assert (fits, small) == ("ok", "ok")
    assert driver.log("smem") == ["smem 100352 on 0"]


def test_clusters_need_their_hardware(driver: Driver) -> None:
    plain, cluster = driver.run(call(), call(cluster=[2, 1, 1]), capability=89)
    assert plain == "ok"
    assert "a cluster needs compute capability 9.0 or newer; this is device 0" in cluster


def test_a_launch_that_fails_says_what_was_launched(driver: Driver) -> None:
    (outcome,) = driver.run(call(ptx("fails"), entry="fails"))
    assert outcome.startswith("RuntimeError: kernel `fails`: cuLaunchKernelEx(")
    assert "failed: CUDA_ERROR_LAUNCH_FAILED (words of the driver) [ffi/cuda/execute.cc:" in outcome
    assert outcome.endswith(
        "grid (4, 1, 1), block (128, 1, 1), cluster (1, 1, 1), 0 bytes of dynamic shared memory"
    )


# ---- a record that is read once ----
