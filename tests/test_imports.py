"""Who may import whom (docs: CONTRIBUTING.md): data flows one way through the package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import shutil
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
    "ahead": ("_ext",),
    "launch": ("_ext", "ahead", "ptx_text", "slices"),
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
    "ops.rms_norm.parts": (),
    "ops.rms_norm.reference": ("types", "ops.rms_norm.parts", "ops.rms_norm.options"),
    "findings": (),
    "check": ("types", "emulate", "entry", "findings", "launch", "ptx_text", "text_kernel"),
    "__main__": ("check",),
    "entry": ("text_kernel",),
    "emulate": ("_ext", "entry", "findings", "geometry", "kernel", "launch", "text_kernel"),
    "ops.layout": ("types",),
    "ops.rms_norm.config": ("types", "ops.layout"),
    "ops.rms_norm.config_backward": ("types", "ops.layout", "ops.rms_norm.config"),
    "ops.rms_norm.config_few": ("types", "ops.layout", "ops.rms_norm.config_backward"),
    "ops.rms_norm.kernels": ("types", "dsl", "kernel", "launch", "ops"),
    "ops.rms_norm.kernels_shares": ("types", "dsl", "ops"),
    "ops.rms_norm.kernels_staged": ("types", "dsl", "ops"),
    "ops.rms_norm.kernels_turns": ("types", "dsl", "ops"),
    "ops.rms_norm.kernels_few": ("types", "dsl", "ops"),
    "ops.rms_norm.kernels_backward": ("types", "dsl", "kernel", "launch", "ops"),
    "ops.rms_norm.gradient_row": ("dsl", "ops"),
    "ops.rms_norm.elementwise": ("types", "dsl", "ops"),
    "ops.columns": ("types", "dsl", "launch", "ops"),
    "ops.declare": ("dsl", "kernel", "launch"),
    "ops.rows": ("dsl", "ops"),
    "ops.ring": ("types", "dsl", "ops"),
    "ops.bulk": ("types", "dsl", "ops"),
    "ops.cluster": ("types", "dsl", "ops.layout", "ops.reduce"),
    "ops.target": ("ops.layout",),
    "ops.vectors": ("types", "dsl", "ops.layout"),
    "ops.reduce": ("types", "dsl", "ops.layout"),
    "ops": ("types", "launch", "ops"),
    "torch": ("_ext", "frameworks", "launch", "ops", "torch", "types"),
    "frameworks": (),
    "layers": ("ops",),
    "flax": ("flax", "frameworks", "layers", "ops"),
    "equinox": ("frameworks", "layers", "ops"),
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


@pytest.mark.parametrize("name", ["equinox", "flax", "torch"])
def test_a_framework_is_imported_when_its_module_is_named(name: str, monkeypatch) -> None:
    monkeypatch.delitem(vars(jax_ptx), name, raising=False)
    if importlib.util.find_spec(name):
        assert getattr(jax_ptx, name).__name__ == f"jax_ptx.{name}"
        monkeypatch.delitem(vars(jax_ptx), name, raising=False)
    for loaded in [key for key in sys.modules if starts(key, f"jax_ptx.{name}")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"needs the package {name}: pip install 'jax_ptx\["
    ):
        getattr(jax_ptx, name)
    inner = {"equinox": "equinox", "flax": "flax.nnx", "torch": "torch.module"}[name]
    with pytest.raises(ModuleNotFoundError, match=f"jax_ptx.{name} needs the package {name}"):
        importlib.import_module(
            f"jax_ptx.{inner}"
        )  # as `from jax_ptx.flax.nnx import RMSNorm` does


def test_the_frameworks_modules_are_listed() -> None:
    assert {"equinox", "flax", "torch", "rms_norm", "__version__"} <= set(dir(jax_ptx))


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'jax_ptx' has no attribute 'tensorflow'"):
        jax_ptx.tensorflow  # noqa: B018  # pyright: ignore


def test_a_source_folder_without_the_extension_says_so(tmp_path: Path) -> None:
    leave = shutil.ignore_patterns("_ext*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "jax_ptx", ignore=leave)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    # Without what an editable install puts before the path.
    program = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'Redirecting' not in repr(f)]"
    )
    command = [sys.executable, "-c", f"{program}; import jax_ptx"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    message = run.stderr.splitlines()[-1]
    assert message.startswith("ImportError: the extension of jax_ptx for Python 3.")
    assert f"is not in {tmp_path / 'jax_ptx'}; if that is a source folder, start" in message


def test_the_oldest_layer_has_files() -> None:
    assert (PACKAGE / "types.py") in FILES, "the package was not found where the test looks for it"


def test_jax_is_there_before_the_extension() -> None:
    """See `jax_ptx/__init__.py`: the other order ended the process on one machine."""
    code = "import sys, jax_ptx; print([name for name in sys.modules if name in ('jax', 'jax_ptx._ext')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "['jax', 'jax_ptx._ext']\n"
