"""The test suite on each supported pair of Python and jax. `make matrix` runs it."""

import os
import shutil
import subprocess

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

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
