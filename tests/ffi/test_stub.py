"""The extension's stub names what the extension has."""

from __future__ import annotations

import ast
from pathlib import Path

import jax_ptx
from jax_ptx import _ext

STUB = ast.parse((Path(jax_ptx.__file__).parent / "_ext.pyi").read_text())


def signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    returns = ast.unparse(node.returns) if node.returns else ""
    return f"def {node.name}({arguments}) -> {returns}"


def test_names() -> None:
    named = {n.name for n in STUB.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    named |= {n.target.id for n in STUB.body if isinstance(n, ast.AnnAssign)}
    assert named == {name for name in vars(_ext) if not name.startswith("__")}


def test_signatures() -> None:
    owners = [(_ext, STUB.body)]
    owners += [(getattr(_ext, n.name), n.body) for n in STUB.body if isinstance(n, ast.ClassDef)]
    for owner, body in owners:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                written = getattr(owner, node.name).__nb_signature__[0][0]
                written = written.replace("collections.abc.", "")
                (parsed,) = ast.parse(f"{written}: ...").body
                assert isinstance(parsed, ast.FunctionDef)
                assert signature(parsed) == signature(node)
