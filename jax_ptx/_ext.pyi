"""Launching PTX: XLA FFI handlers, the driver, and the emulator (ffi/module.cc)."""

import typing
from collections.abc import Sequence

ffi_api_version: tuple[int, int]

def registrations() -> dict[str, dict[str, object]]:
    """
    The handlers of the FFI target, by platform and stage, for jax.ffi.register_ffi_target.
    """

def emulate(
    attributes: dict[str, object],
    buffers: Sequence[object],
    n_results: int,
    step_limit: int = 0,
) -> None:
    """
    Runs a launch record in the emulator, on numpy arrays.

    Args:
        attributes: the launch record, as Launch.attributes() gives it.
        buffers: C-contiguous arrays of any dtype, in the order of the entry's parameters. The last
            `n_results` are results and must be writable; an array that is an operand too is updated in
            place.
        n_results: how many of the buffers are results.
        step_limit: most instructions that the warps of a cluster may run; 0 for the default.

    Raises:
        ValueError: the text does not parse, sizes or limits do not hold, or the kernel did something
            wrong.
        NotImplementedError: the emulator lacks an instruction.
        RuntimeError: a limit of the emulator.
    """

def observe(
    attributes: dict[str, object],
    buffers: Sequence[object],
    roles: str,
    scalars: dict[int, bytes],
    settings: dict[str, object],
) -> dict[str, typing.Any]:
    """
    Runs a launch record in the emulator, on numpy arrays, and says what it saw (jax_ptx/emulate.py).

    Args:
        attributes: the launch record, as Launch.attributes() gives it.
        buffers: C-contiguous arrays of any dtype, in the order of the entry's parameters.
        roles: a letter for each buffer: i for an operand, o for a result, b for both.
        scalars: by their positions, the bytes of the parameters that are no tensors.
        settings: race_check, trace_limit, own_row_bytes, schedule, seed and step_limit.

    Returns:
        grid, findings, instructions, bytes and trace, as tuples in the order of ffi/emulator/finding.h.

    Raises:
        ValueError: the text does not parse, or sizes or limits do not hold.
        NotImplementedError: the emulator lacks an instruction.
        RuntimeError: a limit of the emulator.
    """

def warp_bytes(attributes: dict[str, object]) -> int:
    """The memory that the emulator takes for a resident warp, in bytes."""

def launch(
    attributes: dict[str, object],
    buffers: Sequence[tuple[int, int]],
    n_results: int,
    device: int,
    stream: int,
) -> None:
    """
    Enqueues a launch record on an NVIDIA GPU, and does not wait for it.

    Args:
        attributes: the launch record, as Launch.attributes() gives it.
        buffers: (device address, bytes) pairs in the order of the entry's parameters.
        n_results: how many of the buffers, the last ones, are results.
        device: the device's ordinal.
        stream: a CUDA stream of that device, as an integer; 0 is the default stream.

    Raises:
        ValueError: sizes or limits do not hold, or the driver refuses the text.
        RuntimeError: there is no driver, it is too old for the text, or the launch failed.
    """

def load(attributes: dict[str, object], device: int) -> None:
    """
    Loads a launch record's kernel, which the driver compiles, so that its first launch need not.

    Args:
        attributes: the launch record, as Launch.attributes() gives it.
        device: the device's ordinal.

    Raises:
        ValueError: limits do not hold, or the driver refuses the text.
        RuntimeError: there is no driver, or it is too old for the text.
    """

class Launcher:
    """What `launch` does, for a record that is launched often."""

    def __init__(self, attributes: dict[str, object], n_results: int) -> None:
        """Reads the record, as Launch.attributes() gives it."""

    def __call__(self, device: int, stream: int, *addresses_and_bytes: int) -> None:
        """Enqueues it: address and bytes of each buffer by turns."""

class Tensors:
    """PyTorch's tensors, read and made with few calls of Python's."""

    def __init__(
        self, exchange: object, is_neg: object, empty: object, empty_at_once: object
    ) -> None:
        """
        Takes PyTorch's own functions.

        Args:
            exchange: DLPack's C exchange API, a capsule.
            is_neg: torch.Tensor.is_neg.
            empty: torch.empty_strided.
            empty_at_once: the same of sizes, strides and dtype, on the current device, and faster; or None.

        Raises:
            TypeError: exchange is no such capsule.
            ValueError: it is of another version.
        """

    def launch(
        self,
        launcher: Launcher,
        alignment: int,
        operands: list[typing.Any],
        results: list[typing.Any],
    ) -> bool:
        """
        Enqueues a launch on the current stream of the tensors' GPU.

        False, and nothing is done, for tensors that are not on one GPU, operands that have no elements or
        that a kernel does not read as they are, and results that are not contiguous.

        Args:
            launcher: the record.
            alignment: what the addresses of operands must be multiples of, in bytes.
            operands: tensors.
            results: tensors, new ones or operands.
        """

    def empty(self, beside: object, shape: tuple[int, ...] | None, dtype: object) -> typing.Any:
        """
        A new contiguous tensor on another's GPU; None where that is on none.

        Args:
            beside: the other.
            shape: None: the other's.
            dtype: torch's.
        """

class KnownCalls:
    """Kernels of x, `[..., n]`, and a weight, `[n]`, that ran on PyTorch's tensors before."""

    def __init__(self, tensors: Tensors) -> None:
        """None is known yet."""

    def keep(
        self,
        plan: object,
        launcher: Launcher,
        alignment: int,
        x: object,
        weight: object,
        options: tuple[object, ...],
        rows_dtype: object,
    ) -> None:
        """
        From now on, calls of this row length, of these dtypes and options are known.

        Args:
            plan: what such a call gives back beside its results.
            launcher: gives x's like and, with a rows_dtype, an element for each row.
            alignment: what the addresses of x and of the weight must be multiples of, in bytes.
            x: a tensor of such a call.
            weight: the same.
            options: floats, bools and None.
            rows_dtype: of the second result; None: there is none.
        """

    def __call__(
        self, x: object, weight: object, options: tuple[object, ...], with_rows: bool
    ) -> tuple[typing.Any, ...] | None:
        """
        The plan and the results of a known call, which runs on the current stream; or None.

        None also for tensors that are not on one GPU, have no elements, or that a kernel does not read as
        they are. Asks nobody whether a gradient is needed or whether something traces.
        """
