"""A copy of the repository, with what is not committed yet."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def clone(folder: Path, *without: str) -> None:
    """Copy the files that git knows or does not ignore, but for those below the folders ``without``."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(without):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
        elif (ROOT / name).is_symlink() and not name.startswith(without):  # to a folder
            (folder / name).symlink_to((ROOT / name).readlink())
