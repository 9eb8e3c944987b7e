"""The driver's stand-in, built once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ffi.fake_driver import HERE, Driver


@pytest.fixture(scope="session")
def extension() -> str:
    spec = importlib.util.find_spec("jax_ptx._ext")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a libcuda.so.1 of our own."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: the stand-in for libcuda cannot be built")
    folders = [Path(entry) / "nvidia" for entry in sys.path if entry.endswith("-packages")]
    headers = [h for f in folders for h in (f / "cu13/include", f / "cuda_runtime/include")]
    headers.append(Path("/usr/local/cuda/include"))
    include = next((h for h in headers if (h / "cuda.h").exists()), None)
    if include is None:
        pytest.skip("no cuda.h: pip install nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("fake_cuda")
    command = [
        compiler,
        "-std=c++17",
        "-shared",
        "-fPIC",
        f"-I{include}",
        str(HERE / "fake_cuda.cc"),
    ]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


@pytest.fixture
def driver(extension: str, fake_driver: Path, tmp_path: Path) -> Driver:
    return Driver(extension, fake_driver, tmp_path / "calls")
