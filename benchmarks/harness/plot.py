"""The picture of the README: which fraction of the memory's speed each implementation reaches."""

from __future__ import annotations

from pathlib import Path

from .report import Results, shown_peers

# Name in the picture, and colour.
STYLES = {
    "ours": ("jax_ptx", "#1f6feb"),
    "xla": ("XLA", "#d1495b"),
    "compile": ("torch.compile", "#e9963e"),
    "liger": ("Liger", "#8f6bb3"),
    "quack": ("QuACK", "#2e9d6a"),
    "F.rms_norm": ("F.rms_norm", "#7a7a7a"),
    "eager": ("PyTorch eager", "#b5b5b5"),
    "tokamax": ("tokamax", "#6aa9c9"),
    "pyptx": ("pyptx", "#a0785a"),
}


def curves(results: Results, which: str) -> dict[str, list[tuple[int, float]]]:
    """By implementation, (n, floor / time) at the bfloat16 tensors of full size, by rising n."""
    found: dict[str, list[tuple[int, float]]] = {}
    for peer in shown_peers(results):
        points = []
        for (case, name, passed), _ in results.answers.items():
            wanted = case.op == "rms_norm" and case.dtype == "bfloat16"
            if name != peer or passed != which or not wanted:
                continue
            if results.groups.get(case) not in ("table", "models"):
                continue
            us, floor = results.us(case, peer, which), results.floor(case, which)
            if us and floor:
                points.append((case.n, floor / us))
        if points:
            found[peer] = sorted(points)
    return found


def plot(results: Results, path: Path) -> None:
    """Two panels, forward and forward + backward; writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), dpi=110, sharey=True)
    titles = {
        "forward": "forward: a copy's time over the kernel's",
        "both": "forward + backward: (copy + add)'s time over the kernels'",
    }
    for axis, (which, title) in zip(axes, titles.items(), strict=True):
        # Ours last, on top of the others.
        for peer, points in reversed(curves(results, which).items()):
            ours, (name, colour) = peer == "ours", STYLES[peer]
            axis.plot(
                *zip(*points, strict=True),
                label=name,
                color=colour,
                linewidth=2.4 if ours else 1.3,
                marker="o",
                markersize=4.5 if ours else 3,
            )
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 1.05)
        axis.axhline(1, color="#333333", linewidth=0.8, linestyle=":")
        axis.set_xlabel("row length n")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("fraction of what the memory allows")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle(f"RMS norm, bfloat16, tensors of 268 MB, {device(results)}", fontsize=11)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    if handles:
        figure.legend(
            *(handles[::-1], labels[::-1]),
            loc="lower center",
            ncols=len(labels),
            fontsize=9,
            frameon=False,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def device(results: Results) -> str:
    """The GPU and both frameworks' versions; each side says the GPU's name."""
    said = [side["device"] for side in results.facts.values() if "device" in side]
    return ", ".join(dict.fromkeys(part for one in said for part in one.split(", ")))
