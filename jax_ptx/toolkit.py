"""NVIDIA's assembler and other tools, where they are installed: a registry package or the CUDA toolkit."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "ptxas": "nvidia-cuda-nvcc",
    "nvdisasm": "nvidia-cuda-nvdisasm",
    "compute-sanitizer": "nvidia-cuda-sanitizer-api",
}


class ToolkitError(RuntimeError):
    """A tool is not installed, or refused what it was given."""


@dataclass(frozen=True)
class Assembly:
    """What ptxas made of one entry.

    Attributes:
        target: such as "sm_90".
        registers: 32-bit registers of a thread.
        spill_bytes: bytes of a thread's registers that went to local memory, stores and loads.
        stack_bytes: local memory of a thread.
        smem_bytes: static shared memory of a CTA.
        cubin: the machine code, an ELF file.
    """

    target: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int
    cubin: bytes


def find(tool: str) -> Path:
    """The path of a tool of `PACKAGES`.

    Raises:
        ToolkitError: it is in no registry package, on no PATH and under no CUDA_HOME.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    inside = ("cu13/bin", "cuda_nvcc/bin", "cuda_nvdisasm/bin")
    candidates = [folder / place / tool for folder in folders for place in inside]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "bin" / tool)
    if on_path := shutil.which(tool):
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ToolkitError(
        f"{tool} is not installed: pip install {PACKAGES[tool]}, or put the CUDA toolkit's bin on PATH"
    )


def assemble(text: str, target: str) -> dict[str, Assembly]:
    """Assembles a PTX module for a target such as "sm_90"; one Assembly for each entry, by name.

    Raises:
        ToolkitError: ptxas is missing, or refused the text; then with all that it said.
    """
    ptxas = find("ptxas")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
        source.write_text(text)
        command = [str(ptxas), "-v", f"-arch={target}", str(source), "-o", str(cubin)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        log = (run.stdout + run.stderr).replace(str(source), "module.ptx")
        if run.returncode != 0:
            raise ToolkitError(f"ptxas refused the text for {target}:\n{log.strip()}")
        return _read_log(log, target, cubin.read_bytes())


def disassemble(cubin: bytes) -> str:
    """The machine code (SASS) of a cubin as text.

    Raises:
        ToolkitError: nvdisasm is missing, or refused the file.
    """
    nvdisasm = find("nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.cubin"
        path.write_bytes(cubin)
        run = subprocess.run(
            [str(nvdisasm), "-c", str(path)], capture_output=True, text=True, check=False
        )
    if run.returncode != 0:
        raise ToolkitError(f"nvdisasm refused the cubin: {run.stderr.strip()}")
    return run.stdout


def _read_log(log: str, target: str, cubin: bytes) -> dict[str, Assembly]:
    entries = {}
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'", 1)[0]

        def number(pattern: str, part: str = part) -> int:
            return sum(int(value) for value in re.findall(pattern, part))

        entries[name] = Assembly(
            target=target,
            registers=number(r"Used (\d+) registers"),
            spill_bytes=number(r"(\d+) bytes spill"),
            stack_bytes=number(r"(\d+) bytes stack frame"),
            smem_bytes=number(r"(\d+) bytes smem"),
            cubin=cubin,
        )
    return entries
