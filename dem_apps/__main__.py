"""``python -m dem_apps``: lists every command."""

from __future__ import annotations

from dem_apps.runtime.command_list import COMMANDS, print_listing

if __name__ == "__main__":
    print_listing(*COMMANDS)
