"""``python -m rl``: which commands there are."""

from __future__ import annotations

from dem_apps.runtime.command import print_listing, run_command

if __name__ == "__main__":
    run_command(lambda: print_listing("rl"))
