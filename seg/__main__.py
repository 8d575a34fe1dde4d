"""``python -m seg``: which commands there are."""

from __future__ import annotations

from dem_apps.runtime.command_list import print_listing

if __name__ == "__main__":
    print_listing("seg")
