"""Which commands there are: what ``python -m seg``, ``python -m rl`` and ``python -m dem_apps`` say."""

from __future__ import annotations

#: By package what follows it on the command line, and what it does; a test holds this and the files together.
COMMANDS: dict[str, dict[str, str]] = {
    "seg": {
        "train": "adapt a segmentation network to images without labels",
        "evaluate": "score a run",
        "export": "predictions and entropy maps of any folder of images",
        "adapt": "a trained network adapted to a folder of images without labels, and whether it helped",
        "export_model": "a run's network as a folder that others load, and as ONNX",
        "data check": "every fault of the data before any training",
        "benchmark": "a grid of trainings: arms by seeds",
        "tune": "a search over settings, such as DEM*'s tau and alpha",
        "convert": "a checkpoint of ADVENT becomes a run",
    },
    "rl": {
        "train": "PPO or A2C with an entropy objective",
        "evaluate": "returns of a run, and a video",
        "benchmark": "a grid of trainings: environments by arms by seeds",
        "plots": "curves and tables of a grid",
        "tune": "a search over settings",
        "export": "a run's policy as a zip of Stable-Baselines3",
    },
    "dem_apps": {"report": "one page about a run, or about several"},
}


def print_listing(*packages: str) -> None:
    """What ``python -m PACKAGE`` does: the commands of the packages, one a line."""
    for package in packages:
        lines = {f"python -m {package}.{name}": what for name, what in COMMANDS[package].items()}
        width = max(map(len, lines))
        print("\n".join(f"{line:{width}}  {what}" for line, what in lines.items()), end="\n\n")
    print("--help behind a command lists its settings.")
