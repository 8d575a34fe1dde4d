"""How a command ends that several processes run together, most often under torchrun or a launcher built on it.

A process that fails ends all of them: the others lose their connection to it, and the launcher tells them to stop.
What went wrong is said once, by the process that knows it first; the others have nothing to add.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

#: In a folder of its own for each process, below one for each start of all processes on this machine.
_LAUNCHERS_FILE = "TORCHELASTIC_ERROR_FILE"
#: The launcher looks after its processes several times a second and kills what does not stop within 30 s.
_LAUNCHER_TAKES = 30.0
#: Gloo's threads let go of their last tensors within milliseconds.
_GLOO_LETS_GO = 0.5
#: Of gloo on a CPU, of NCCL on a GPU; both raise RuntimeErrors of several classes for many reasons.
_LOST = ("gloo/transport/", "ncclRemoteError")


def leave_group() -> None:
    """Leave the process group, if there is one, when every process has come this far.

    A process that exits within the group may be aborted after all is written, and one that leaves while another still
    sends can hang it. Gloo's threads need Python's lock to let go of the tensors they worked on; torch 2.6 holds the
    lock while it waits for these threads to end, so they get the time before.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    dist.barrier()
    if dist.get_backend() == "gloo":
        time.sleep(_GLOO_LETS_GO)
    dist.destroy_process_group()


def say_once(sentence: str) -> None:
    """Print on stderr, unless another of the launcher's processes on this machine has said something before."""
    if _first_to_speak():
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


def leave_to_launcher() -> None:
    """Wait to be stopped, so that the launcher finds the process that failed ended first, and not this one."""
    if _LAUNCHERS_FILE in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_LAUNCHER_TAKES)


def _first_to_speak() -> bool:
    file = os.environ.get(_LAUNCHERS_FILE)
    if file is None:
        return True
    try:
        # the launcher removes the folder in the end
        os.close(os.open(Path(file).parents[1] / "said", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:
        return True  # better twice than never
    return True
