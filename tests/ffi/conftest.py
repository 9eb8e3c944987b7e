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


def build(source: Path, library: Path, header: str, *folders: str) -> None:
    """A shared library of one source, which needs a header of an installed package."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip(f"no C++ compiler: {source.name} cannot be built")
    sites = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    places = [site / folder for site in sites for folder in folders]
    include = next((place for place in places if (place / header).exists()), None)
    if include is None:
        pytest.skip(f"no {header} in {' or '.join(folders)}")
    command = [compiler, "-std=c++17", "-shared", "-fPIC", f"-I{include}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a libcuda.so.1 of our own."""
    folder = tmp_path_factory.mktemp("fake_cuda")
    folders = ("nvidia/cu13/include", "nvidia/cuda_runtime/include", "/usr/local/cuda/include")
    build(HERE / "fake_cuda.cc", folder / "libcuda.so.1", "cuda.h", *folders)
    return folder


@pytest.fixture
def driver(extension: str, fake_driver: Path, tmp_path: Path) -> Driver:
    return Driver(extension, fake_driver, tmp_path / "calls")
