"""What needs environments of its own.

`make matrix`: the test suite on each supported pair of Python and jax. `make wheel`: the wheel, built, then
used as a user would.
"""

import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["found", "tests"]

PAIRS = {"3.11": "0.10.2", "3.12": "0.11.2", "3.13": "0.12.0.1"}


def works(python: str) -> bool:
    """Whether `pythonX.Y` is on the path and starts: a version manager's stand-in may do neither."""
    path = shutil.which(f"python{python}")
    return path is not None and subprocess.run([path, "-V"], capture_output=True).returncode == 0


# What `make test` has just run need not run again (.ci/run).
SKIPPED = os.environ.get("MATRIX_SKIP", "").split()
FOUND = [python for python in PAIRS if works(python)]


@nox.session(python=False)
def found(session: nox.Session) -> None:
    """Says which interpreters the matrix has, and fails if it has none."""
    for python, jax in PAIRS.items():
        here = "found" if python in FOUND else "not found, left out"
        skipped = ", left to make test" if python in SKIPPED else ""
        session.log(f"Python {python} with jax {jax}: {here}{skipped}")
    if not FOUND:
        session.error(f"none of {', '.join(PAIRS)} is on the path")


@nox.session(python=[python for python in FOUND if python not in SKIPPED])
def tests(session: nox.Session) -> None:
    """The whole suite with this Python's jax."""
    jax = PAIRS[str(session.python)]
    # Editable, as in the Makefile: pytest finds the package in this folder, which has no extension.
    session.install(f"jax=={jax}", f"jaxlib=={jax}", "--editable", ".[test]")
    session.run("python", "-m", "pytest", *(session.posargs or ["-n", "2", "--dist", "loadgroup"]))


# One wheel serves every Python from 3.12 on (pyproject.toml, wheel.py-api).
@nox.session(python=[python for python in FOUND if python != "3.11"][:1])
def wheel(session: nox.Session) -> None:
    """Builds dist/, then runs and type-checks with the wheel where there is neither compiler nor checkout."""
    shutil.rmtree("dist", ignore_errors=True)
    session.install(
        *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "wheel")
    )
    static = {"SKBUILD_CMAKE_DEFINE": "JAX_PTX_STATIC_RUNTIME=ON"}
    session.run("python", "-m", "build", env=static)
    (built,) = Path("dist").glob("*.whl")
    session.run("auditwheel", "repair", "--wheel-dir", "dist", str(built))
    built.unlink()
    (portable,) = Path("dist").glob("*-manylinux*.whl")

    place = Path(session.create_tmp()).resolve()
    for folder in ("examples", "tests/typing"):
        shutil.copytree(folder, place / Path(folder).name, dirs_exist_ok=True)
    bin = place / "env" / "bin"
    session.run("python", "-m", "venv", "--clear", str(bin.parent))
    session.run(str(bin / "python"), "-m", "pip", "install", "-q", str(portable), external=True)
    nothing_else = {"PATH": str(bin)}
    session.chdir(place)
    session.run(str(bin / "python"), "examples/rms_norm.py", env=nothing_else, external=True)
    if shutil.which("pyright"):  # of the environment that runs nox
        (place / "pyrightconfig.json").write_text('{"strict": ["typing"]}')
        check = ("pyright", "--pythonpath", str(bin / "python"))
        session.run(*check, "typing/user.py", external=True)
