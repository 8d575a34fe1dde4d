"""Messages of a command that several processes run together, most often under torchrun: each is printed once."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

#: In a folder of its own for each process, below one for each start of all processes on this machine.
_LAUNCHERS_FILE = "TORCHELASTIC_ERROR_FILE"
#: Of gloo on a CPU, of NCCL on a GPU; both raise RuntimeErrors of several classes for many reasons.
_LOST = ("gloo/transport/", "ncclRemoteError")


def say_once(sentence: str) -> None:
    """Print on stderr, unless another of the launcher's processes on this machine has said something before."""
    file = os.environ.get(_LAUNCHERS_FILE)
    if file is not None:
        try:
            (Path(file).parents[1] / "said").open("x").close()  # the launcher removes the folder
        except FileExistsError:
            return
        except OSError:
            pass
    print(sentence, file=sys.stderr, flush=True)


def lost_connection(error: RuntimeError) -> str | None:
    """The sentence for a process whose connection to another one broke; None for any other error."""
    text = " ".join(str(error).split())
    if not any(mark in text for mark in _LOST):
        return None
    reason = re.sub(r"^\[[^]]*\] ", "", text).partition(". ")[0]
    rank, processes = os.environ.get("RANK", "?"), os.environ.get("WORLD_SIZE", "?")
    return (
        f"error: process {rank} of {processes} lost its connection to another one ({reason}), which has ended or "
        "cannot be reached; the launcher names the first that ended; a training goes on from its last checkpoint "
        "with --resume"
    )
