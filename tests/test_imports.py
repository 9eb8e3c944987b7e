"""Who may import whom (docs: CONTRIBUTING.md): data flows one way through the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jax_ptx

PACKAGE = Path(jax_ptx.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Module prefix -> prefixes inside the package that it may import. The first match counts.
ALLOWED = {
    "types": (),
    "dsl": ("types", "dsl"),
    "ptx_text": (),
    "slices": ("launch",),
    "launch": ("_ext", "ptx_text", "slices"),
    "geometry": (),
    "memo": (),
    "toolkit": (),
    "report": ("dsl", "ptx_text", "toolkit"),
    "declaration": ("dsl", "geometry", "report", "signature", "toolkit"),
    "signature": ("types", "dsl", "launch", "torch"),
    "kernel": (
        *("dsl", "declaration", "launch", "geometry", "memo", "signature", "report", "slices"),
    ),
    "text_kernel": (
        *("dsl", "declaration", "launch", "geometry", "memo", "ptx_text", "signature", "report"),
    ),
    "ops.rms_norm.options": (),
    "ops.rms_norm.reference": ("types", "ops.rms_norm.config", "ops.rms_norm.options"),
    "findings": (),
    "check": ("types", "emulate", "findings", "launch", "ptx_text", "text_kernel"),
    "__main__": ("check",),
    "emulate": ("_ext", "findings", "kernel", "launch", "text_kernel"),
    "ops.layout": ("types",),
    "ops.rms_norm.config": ("types", "ops.layout"),
    "ops.rms_norm.kernels": ("types", "dsl", "kernel", "launch", "ops"),
    "ops.rms_norm.kernels_turns": ("types", "dsl", "ops"),
    "ops.rms_norm.kernels_backward": ("types", "dsl", "kernel", "launch", "ops"),
    "ops.rms_norm.elementwise": ("types", "dsl", "ops"),
    "ops.declare": ("dsl", "kernel", "launch"),
    "ops.rows": ("dsl", "ops"),
    "ops.ring": ("types", "dsl", "ops"),
    "ops.bulk": ("types", "dsl", "ops"),
    "ops.cluster": ("types", "dsl", "ops.layout", "ops.reduce"),
    "ops.target": ("ops.layout",),
    "ops.vectors": ("types", "dsl", "ops.layout"),
    "ops.reduce": ("dsl", "ops.layout"),
    "ops": ("types", "launch", "ops"),
    "torch": ("_ext", "launch", "ops", "torch", "types"),
    "layers": ("ops",),
    "flax": ("flax", "layers", "ops"),
    "equinox": ("layers", "ops"),
    "": ("",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> list[str]:
    """Every absolute name that a file imports, at any depth."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def starts(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_flow_one_way(path: Path) -> None:
    module = module_name(path)
    allowed = next(names for prefix, names in ALLOWED.items() if starts(module, prefix))
    for name in imported(path):
        if starts(name, "jax_ptx") and module:
            inner = name.removeprefix("jax_ptx").removeprefix(".")
            assert any(starts(inner, prefix) for prefix in allowed), f"{module} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_jax_is_used_through_its_public_names(path: Path) -> None:
    for name in imported(path):
        assert not starts(name, "jax._src"), f"{module_name(path)} imports {name}"
        assert not starts(name, "jax.lib"), f"{module_name(path)} imports {name}"


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if starts(module_name(p), "dsl") or module_name(p) == "types"],
    ids=module_name,
)
def test_the_language_needs_neither_jax_nor_numpy(path: Path) -> None:
    for name in imported(path):
        assert not starts(name, "jax"), f"{module_name(path)} imports {name}"
        assert not starts(name, "numpy"), f"{module_name(path)} imports {name}"


def test_the_package_imports_no_framework_but_jax() -> None:
    code = "import sys, jax_ptx; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "jax_ptx.launch" in loaded.stdout.split()
    assert not {"flax", "equinox", "torch"} & set(loaded.stdout.split())


def test_the_oldest_layer_has_files() -> None:
    assert (PACKAGE / "types.py") in FILES, "the package was not found where the test looks for it"
