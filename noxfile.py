"""What needs environments of its own.

`make matrix`: an installed wheel on each supported pair of Python and jax. `make wheel`: the wheel, built,
then used as a user would.
"""

import os
import shutil
import subprocess
import sys
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

# Where neither jax nor Python makes a difference, `make test` is enough: the emulator's arithmetic, the
# values that it gives for each length and dtype, what ptxas says of texts (that these are the same
# everywhere is tested), and the formula, which is jax's own.
ELSEWHERE = (
    "tests/ffi/test_emulator_*.py",
    "tests/ffi/test_parser_*.py",
    "tests/ffi/test_launch_record.py",
    "tests/ffi/test_includes.py",
    "tests/ffi/test_cuda_driver.py",
    "tests/dsl/test_isa*.py",
    "tests/ops/test_*_ptxas.py",
    "tests/ops/test_*_values.py",
    "tests/ops/test_*_clusters.py",
    "tests/ops/test_*_few.py",
    "tests/ops/test_*_shares.py",
    "tests/test_hypothesis_*.py",
)
PYTEST_ARGS = ["-n", "2", "--dist", "loadgroup", "-k", "not (test_row and xla)"]
PYTEST_ARGS += [f"--ignore-glob={pattern}" for pattern in ELSEWHERE]
# What passes with the oldest jax and the newest seldom fails between them: there this is enough.
BETWEEN = (
    "tests/processes",
    "tests/transformations",
    "tests/test_lowering.py",
    "tests/test_vmap.py",
    "tests/dsl/test_programs.py",
)

# Where compiling takes long, the fewest tests.
AS_USERS = next((python for python in FOUND if python not in (min(PAIRS), max(PAIRS))), max(PAIRS))

# What the matrix installs for Python 3.11, and for every later one: the latter may be what `make wheel`
# has just built (.ci/run), and else the first session that needs it builds it.
wheels: dict[bool, Path] = {}
if "-abi3-" in os.environ.get("MATRIX_WHEEL", ""):  # that of Python 3.11 is for it alone
    wheels[True] = Path(os.environ["MATRIX_WHEEL"]).resolve()


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
    """The tests that jax or Python could break, with this Python's jax."""
    python = str(session.python)
    jax = PAIRS[python]
    file = matrix_wheel(session, stable=python != "3.11")
    session.install(f"jax=={jax}", f"jaxlib=={jax}", f"jax_ptx[test] @ {file.as_uri()}")
    # Again, for an environment that has an earlier build of the same version.
    session.install("--force-reinstall", "--no-deps", str(file))
    # From a copy without the package: pytest would import this folder's, which has no extension.
    copy = session.cache_dir / f"checkout-{python}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(".", copy, ignore=left_out)
    session.chdir(copy)
    paths = () if python in (min(PAIRS), max(PAIRS)) else BETWEEN
    # As users compile, where the others compile quickly (tests/conftest.py).
    optimised = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"} if python == AS_USERS else {}
    arguments = session.posargs or [*PYTEST_ARGS, *paths]
    session.run("python", "-m", "pytest", *arguments, env=optimised)


def matrix_wheel(session: nox.Session, *, stable: bool) -> Path:
    """The wheel of this run, for the stable ABI or for Python 3.11."""
    if stable not in wheels:
        folder = session.cache_dir / ("wheel-stable" if stable else "wheel-3.11")
        shutil.rmtree(folder, ignore_errors=True)
        command = ["python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
        session.run(*command, str(folder), ".")
        (wheels[stable],) = folder.resolve().glob("*.whl")
    return wheels[stable]


def left_out(folder: str, names: list[str]) -> set[str]:
    hidden = {name for name in names if name.startswith(".") or name == "__pycache__"}
    return hidden | ({"jax_ptx", "build", "dist"} if folder == "." else set())


# One wheel serves every Python from 3.12 on (pyproject.toml, wheel.py-api).
@nox.session(python=([python for python in FOUND if python != "3.11"] or FOUND)[:1])
def wheel(session: nox.Session) -> None:
    """Builds dist/, then runs and type-checks with the wheel where there is neither compiler nor checkout."""
    shutil.rmtree("dist", ignore_errors=True)
    project = nox.project.load_toml("pyproject.toml")
    tools = nox.project.dependency_groups(project, "wheel")
    session.install(*tools, *project["build-system"]["requires"])
    static = {"SKBUILD_CMAKE_DEFINE": "JAX_PTX_STATIC_RUNTIME=ON"}
    # The sdist and, of what it holds, the wheel: here, and not in an environment of its own for each.
    session.run("python", "-m", "build", "--no-isolation", env=static)
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
    (place / "pyrightconfig.json").write_text('{"strict": ["typing"]}')
    pyright = Path(sys.executable).with_name("pyright")  # the environment that runs nox has it
    session.run(str(pyright), "--pythonpath", str(bin / "python"), "typing/user.py", external=True)
