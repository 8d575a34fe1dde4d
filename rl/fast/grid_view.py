"""What a MiniGrid agent sees, made some ten times faster than by MiniGrid itself and equal to it.

MiniGrid cuts the view out of the grid, turns the piece up to four times and walks over its cells in Python for what is
hidden behind walls and closed doors. Here the cells of the view are looked up at once, and a row of the view is seven
bits, so that what light does in a row is one lookup too; ``tests/rl/envs/test_fast_envs.py`` compares all of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall
from minigrid.minigrid_env import MiniGridEnv

_HIDDEN = bytes((OBJECT_TO_IDX["unseen"], 0, 0))
_EMPTY = bytes((OBJECT_TO_IDX["empty"], 0, 0))
_WALLS = {color: bytes((OBJECT_TO_IDX["wall"], index, 0)) for color, index in COLOR_TO_IDX.items()}
#: What lies around the grid.
_OUTSIDE = Wall()
#: Where an agent that faces right, down, left, up looks to, and what is to its right.
_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
_RIGHT = ((0, 1), (-1, 0), (0, -1), (1, 0))


def use_fast_view(env: gym.Env) -> bool:
    """Give a MiniGrid environment the fast view; False, and nothing is changed, where it has a view of its own."""
    inner = env.unwrapped
    if not isinstance(inner, MiniGridEnv):
        return False
    own = type(inner)
    if own.gen_obs is not MiniGridEnv.gen_obs or own.gen_obs_grid is not MiniGridEnv.gen_obs_grid:
        return False
    inner.gen_obs = functools.partial(_observation, inner)  # type: ignore[method-assign]
    return True


def _observation(env: MiniGridEnv) -> dict[str, Any]:
    """What ``MiniGridEnv.gen_obs`` returns."""
    return {"image": view_image(env), "direction": env.agent_dir, "mission": env.mission}


def view_image(env: MiniGridEnv) -> np.ndarray:
    """The agent's view (V, V, 3) uint8: from left to right, from far to near; kind, colour and state of each cell."""
    size, grid = env.agent_view_size, env.grid
    if type(grid) is not Grid:
        raise TypeError(f"view_image: expected minigrid's own Grid, got {type(grid).__name__}")
    x, y = env.agent_pos
    cells = _cells_in_view(grid.width, grid.height, size, int(x), int(y), int(env.agent_dir))([*grid.grid, _OUTSIDE])
    codes = [_HIDDEN] * (size * size)
    lit = (1 << size) - 1 if env.see_through_walls else 1 << (size // 2)
    for start in range(size * (size - 1), -1, -size):  # row by row, away from the agent
        row = cells[start : start + size]
        clear, bit = 0, 1
        for cell in row:
            if cell is None or (cell is not _OUTSIDE and cell.see_behind()):
                clear |= bit
            bit <<= 1
        seen, lit = (lit, lit) if env.see_through_walls else _light(lit, clear, size)
        for column, cell in enumerate(row, start):
            if seen & 1:
                codes[column] = _code(cell)
            seen >>= 1
        if not lit:
            break
    # what the agent carries is shown where it stands
    codes[size * (size - 1) + size // 2] = _code(env.carrying)
    rows = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(size, size, 3)
    return np.ascontiguousarray(rows.transpose(1, 0, 2))


def _code(cell: Any) -> bytes:
    if cell is None:
        return _EMPTY
    return _WALLS[cell.color] if cell.__class__ is Wall else bytes(cell.encode())


@functools.cache
def _cells_in_view(
    width: int, height: int, size: int, x: int, y: int, direction: int
) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Picks the cells of the view, row by row from far to near, out of the grid's list with the outside at its end."""
    (ahead_x, ahead_y), (right_x, right_y) = _AHEAD[direction], _RIGHT[direction]
    picked = []
    for far in range(size - 1, -1, -1):
        for side in range(-(size // 2), size - size // 2):
            i, j = x + ahead_x * far + right_x * side, y + ahead_y * far + right_y * side
            picked.append(j * width + i if 0 <= i < width and 0 <= j < height else -1)
    return operator.itemgetter(*picked)


@functools.cache
def _light(lit: int, clear: int, size: int) -> tuple[int, int]:
    """Light in one row of the view, one bit per cell from left to right.

    Args:
        lit: cells that the row nearer to the agent lets light into.
        clear: cells that can be seen through.
        size: cells in the row.

    Returns:
        the cells that are seen, and those of the next row that get light. A clear cell that is lit lights the cell
        beside it and, in the next row, that one's neighbour and its own; first for all to the right, then to the left.
    """
    ahead = 0
    for step, cells in ((1, range(size - 1)), (-1, range(size - 1, 0, -1))):
        for i in cells:
            if lit >> i & 1 and clear >> i & 1:
                lit |= 1 << (i + step)
                ahead |= 1 << (i + step) | 1 << i
    return lit, ahead
