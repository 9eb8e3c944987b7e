"""`python -m jax_ptx check`: what it takes, prints, and exits with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jax_ptx
from jax_ptx.check import main
from tests.ffi.emulation import HEADER

SCALE = f"""{HEADER}
.visible .entry scale(.param .u64 out, .param .f32 factor, .param .u64 x, .param .u32 n)
.reqntid 64, 1, 1
{{
.reg .pred %p<2>; .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [x];
ld.param.f32 %f1, [factor]; ld.param.u32 %r1, [n];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r2, %r2, 64, %r3;
setp.ge.u32 %p1, %r2, %r1; @%p1 ret;
mad.wide.u32 %rd1, %r2, 4, %rd1; mad.wide.u32 %rd2, %r2, 4, %rd2;
ld.global.f32 %f2, [%rd2]; mul.f32 %f2, %f2, %f1; st.global.f32 [%rd1], %f2;
ret;
}}
"""
PARAMS = ["--param", "out=f32[100]:out", "--param", "x=f32[100]:arange", "--param", "factor=0.5"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "scale.ptx"
    path.write_text(SCALE)
    return str(path)


def test_a_kernel_without_findings(file: str, capsys) -> None:
    assert main(["check", file, "--grid", "2", *PARAMS, "--param", "n=100", "--race-check"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "scale: nothing found; grid (2, 1, 1), block (64, 1, 1)"
    assert "  global memory: 400 bytes read, 400 bytes written, 26 sectors" in out[1]
    assert out[-1] == "  out: float32[100] from 0 to 49.5"


def test_a_kernel_with_findings(file: str, capsys) -> None:
    assert main(["check", file, "--grid", "2", *PARAMS, "--param", "n=101"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("scale: 1 finding; ")
    assert "read of 4 bytes at byte offset 400 of parameter 2 (`x`) with 400 bytes" in out
    assert main(["check", file, *PARAMS, "--param", "n=100"]) == 1
    assert "unwritten_output: " in capsys.readouterr().out


def test_inputs_from_a_file_and_outputs_into_one(file: str, tmp_path: Path, capsys) -> None:
    x, saved = np.linspace(-1, 1, 100, dtype=np.float32), tmp_path / "outputs.npz"
    np.save(tmp_path / "x.npy", x)
    params = [*PARAMS, "--param", "n=100", "--param", f"x=@{tmp_path}/x.npy", "--save", str(saved)]
    assert main(["check", file, "--grid", "2", *params]) == 0
    np.testing.assert_array_equal(np.load(saved)["out"], x / 2)
    for value, message in (("@none.npy", "cannot read none.npy"), ("@x.npy:out", "neither in nor")):
        with pytest.raises(SystemExit, match="2"):
            main(["check", file, *PARAMS, "--param", f"x={value}", "--param", "n=100"])
        assert message in capsys.readouterr().err


# A struct of two floats by value, a scalar, and a tensor that is updated in place.
AFFINE = f"""{HEADER}
.visible .entry affine(.param .align 4 .b8 ab[8], .param .u32 n, .param .u64 x)
{{
.reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<2>;
ld.param.f32 %f1, [ab]; ld.param.f32 %f2, [ab+4]; ld.param.u32 %r1, [n]; ld.param.u64 %rd1, [x];
mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1; @%p1 ret;
mad.wide.u32 %rd1, %r2, 4, %rd1;
ld.global.f32 %f3, [%rd1]; fma.rn.f32 %f3, %f3, %f1, %f2; st.global.f32 [%rd1], %f3;
ret;
}}
"""


def test_any_text_against_numpy() -> None:
    x, ab = np.arange(10, dtype=np.float32), np.array([2, 3], np.float32).tobytes()
    report = jax_ptx.emulate(AFFINE, ab, 7, x, block=32, in_place=["x"], race_check=True)
    np.testing.assert_array_equal(report.outputs["x"][:7], 2 * x[:7] + 3)
    np.testing.assert_array_equal(report.outputs["x"][7:], x[7:])
    out, ones = jax.ShapeDtypeStruct((100,), np.float32), np.ones(100, np.float32)
    report = jax_ptx.emulate(SCALE, out, 0.5, ones, np.int32(100), grid=2, block=64)
    np.testing.assert_array_equal(report.outputs["out"], ones / 2)
    with pytest.raises(jax_ptx.EmulationError, match=r"parameter 2 .`x`. with 400 bytes"):
        jax_ptx.emulate(SCALE, out, 0.5, ones, 101, grid=2, block=64)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ((b"", 7), {}, r"its 3 parameters are ab \(.b8\[\]\), n \(.u32\), x \(.u64\); 2 values"),
        ((1.0, 7, np.ones(3)), {}, r"the parameter ab is a struct, .b8\[\]: pass its bytes"),
        ((bytes(8), "7x", np.ones(3)), {}, "the parameter n is .u32: pass a number.*got '7x'"),
        ((bytes(8), 7, np.ones(3)), {"in_place": ["y"]}, "in_place names 'y'"),
        ((bytes(4), 7, np.ones(3)), {"in_place": ["x"]}, "ab"),
    ],
)
def test_values_that_do_not_fit_a_text(values, options, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        jax_ptx.emulate(AFFINE, *values, **options)


def test_a_text_that_does_not_parse(tmp_path: Path, capsys) -> None:
    path = tmp_path / "bad.ptx"
    path.write_text(SCALE.replace("mul.f32", "frob.f32"))
    assert main(["check", str(path), *PARAMS, "--param", "n=100"]) == 1
    assert "unknown instruction `frob.f32`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            PARAMS,
            "the entry scale needs --param n (.u32); its parameters: out (.u64), factor (.f32)",
        ),
        ([*PARAMS, "--param", "m=3"], "the entry scale has no parameter 'm'; its parameters: "),
        (["--param", "n"], "--param takes NAME=VALUE, got 'n'"),
        (
            [*PARAMS, "--param", "n=many"],
            "--param n: 'many' is neither a .u32 nor a tensor such as",
        ),
        ([*PARAMS, "--param", "n=-1e3"], "--param n: '-1e3' is neither a .u32 nor a tensor"),
        ([*PARAMS, "--param", "n=float[3]"], "--param n: 'float' is no PTX type such as f32"),
        (
            [*PARAMS, "--param", "n=f32[3]:big"],
            "--param n: 'big' is none of in, out, inout, random",
        ),
        (
            [*PARAMS, "--param", "n=f32[999999999999999]"],
            "--param n: f32[999999999999999] is too large (",
        ),
        (
            [*PARAMS, "--param", "n=1", "--trace", "/nonexistent/trace"],
            "No such file or directory: '/nonexistent/trace'",
        ),
        (["--entry", "other"], "has no entry 'other'; the file has scale"),
        (["--grid", "9" * 20], "argument --grid: a size is below 2**31, got '9999"),
        (["--grid", "2,0"], "argument --grid: expected up to three sizes, X,Y,Z, got '2,0'"),
    ],
)
def test_a_wrong_command(file: str, arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", file, *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_files_that_lack_something(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "none.ptx")])
    assert "cannot read" in capsys.readouterr().err
    path = tmp_path / "free.ptx"
    path.write_text(SCALE.replace(".reqntid 64, 1, 1", ""))
    with pytest.raises(SystemExit):
        main(["check", str(path), *PARAMS, "--param", "n=1"])
    assert "has neither .reqntid nor .maxntid: give --block" in capsys.readouterr().err


def test_the_entry_says_how_many_ctas_a_cluster_has(tmp_path: Path, capsys) -> None:
    path = tmp_path / "pairs.ptx"
    path.write_text(SCALE.replace(".reqntid", ".reqnctapercluster 2 .reqntid"))
    command = ["check", str(path), *PARAMS, "--param", "n=100", "--grid"]
    assert main([*command, "2"]) == 0
    assert "cluster (2, 1, 1)" in capsys.readouterr().out
    assert main([*command, "2", "--cluster", "1"]) == 1
    message = ".reqnctapercluster asks for clusters of 2 CTAs, the launch has 1"
    assert message in capsys.readouterr().out


@pytest.mark.parametrize("body", ["", "add.u32 %r, 1, 0; L: add.u32 %r, %r, 1; bra L;"])
def test_ctrl_c_ends_it(tmp_path: Path, body: str) -> None:
    path = tmp_path / "long.ptx"
    path.write_text(f"{HEADER}.visible .entry long() .reqntid 32 {{ .reg .b32 %r; {body} ret; }}")
    # As `python -m jax_ptx`, also where a shell runs the tests in the background and ignores Ctrl-C.
    start = """if True:
        import runpy, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module("jax_ptx", run_name="__main__", alter_sys=True)
    """
    command = [sys.executable, "-c", start, "check", str(path), "--grid", str(2**31 - 1)]
    command += ["--step-limit", str(2**60), "--trace", str(tmp_path / "trace")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while not (tmp_path / "trace").exists():  # it is made when the run begins
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=30) == (b"", b"interrupted\n")
            assert process.returncode == 130
        finally:
            process.kill()


def test_as_a_command(file: str) -> None:
    command = [sys.executable, "-m", "jax_ptx", "check", file, *PARAMS, "--param", "n=64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "144 of the 400 bytes of parameter 0 (`out`) were never written" in done.stdout
