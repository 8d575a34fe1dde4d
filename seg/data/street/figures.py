"""The things in a street, as painted outlines, and the looks of the two domains.

The source looks as it does to a game, the target as it does to a camera.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Color = tuple[float, ...]  # RGB, 0 to 255
Colors = tuple[Color, ...]

#: Numbers of a look: the game's, the camera's, the smallest and the largest of each.
_NUMBERS = {
    "camera height": (1.75, 1.35, 0.8, 3.0),  # metres
    "focal": (0.92, 1.05, 0.6, 1.6),  # focal length / image width
    "horizon": (0.40, 0.43, 0.3, 0.55),  # its row / image height
    "vehicle gap": (17.0, 12.5, 6.0, 40.0),  # mean free metres between the vehicles of a lane
    "people gap": (13.0, 9.0, 5.0, 40.0),  # mean metres of pavement between people
    "sunlight": (0.9, 0.3, 0.0, 1.0),  # 0 is an overcast day without shadows
    "haze": (0.0015, 0.005, 0.0, 0.03),  # extinction per metre
    "texture": (0.45, 0.8, 0.0, 2.0),  # strength of the surfaces' textures
    "saturation": (1.15, 0.9, 0.0, 2.0),
    "contrast": (1.08, 0.94, 0.3, 2.0),
    "blur": (0.0, 0.4, 0.0, 2.0),  # standard deviation in pixels
    "noise": (0.0, 3.0, 0.0, 20.0),  # standard deviation in grey levels
    "vignette": (0.0, 0.2, 0.0, 0.8),  # share of the light that is missing in the corners
    "jpeg quality": (100.0, 85.0, 20.0, 100.0),  # 100 leaves a picture as drawn
    "exposure": (0.04, 0.12, 0.0, 0.5),  # standard deviation of the logarithm of a picture's
}


def _colors(codes: str) -> Colors:
    """Return RGB colours by their hexadecimal codes."""
    return tuple(tuple(bytes.fromhex(code)) for code in codes.split())


def _paints(table: str) -> dict[str, tuple[Colors, Colors]]:
    """Return the alternative colours of each paint of a table in the game and to the camera."""
    paints = {}
    for line in table.strip().splitlines():
        name, codes = line.strip().split(": ")
        groups = [_colors(group) for group in codes.split("/")]
        paints[name] = groups[0], groups[-1]
    return paints


#: Colours in the game and, where they are others, to the camera.
_PAINTS = _paints("""
    sky: 5496e4 / 7eacde
    low sky: bad6f0 / cadaea
    road: 767478 / 65665e
    marking: f4eee0 / bec2ae
    pavement: bcb2a4 / 8a8579
    lawn: 80aa4a / 6d7549
    leaves: 408830 589634 30743a / 405936 516138 384b38
    house: e0c08c b8604a eae0c6 96a6b4 / a39e86 866352 baba9e 7a7d76
    wall: c4b8a4 aa7a62 969696 / 8e8b79 806755 72756c
    fence: 604832 3c4246 c8c8c4 / 4e4738 404940 939788
    pole: 787c80 / 676d66
    housing: bc9628 / 2f3530
    coat: 242834 3c3e42 96282c 36548c cec8be 4a6042 be963c
    trousers: 1e2434 36383c 2e4674 785c46 96928a
    skin: e2b696 c4926e 8c6044 5c3e2e
    car: e8e8e6 62666c 1e1e22 a0181a 1e3e8c 285c40 cea43c
    cargo: e2e0d8 be7832 3c6096 969696
    bright: b0282c 245496 e0be50 326e46 e6e4dc
    rubber: 222224
    metal: 7c7a78
    glass: 38424e
    wood: 564436
    white: f0eee2
    red: c81e1e
    blue: 2054a8
    amber: f2b628
    green: 3cdc78
""")


@dataclass(frozen=True)
class Look:
    """The way in which one domain sees, fills and spoils the street."""

    #: 0 is the source, 1 the target; part of the random seed, so that the two have no street in common
    code: int
    numbers: dict[str, float]
    paints: dict[str, Colors]


def target_look(seed: int = 0, gap: float = 1.0) -> Look:
    """Return the target's look in the world of a seed.

    Every number of it lies on the line from the game, a gap of 0, through the demo's camera, 1, and
    up to 2. Worlds of another seed than 0 draw a factor from 0.5 to 1.5 for each number, so that
    their gaps differ in kind as well.
    """
    rng = np.random.default_rng([seed, 1, 2])  # a stream apart from the streets'

    def between(game: Any, camera: Any, low: float, high: float) -> Any:
        share = gap * rng.uniform(0.5, 1.5) if seed else gap
        return np.add(game, share * np.subtract(camera, game)).clip(low, high).tolist()

    numbers = {name: between(*row) for name, row in _NUMBERS.items()}
    paints = {
        name: tuple(tuple(between(*pair, 0, 255)) for pair in zip(*colors, strict=True))
        for name, colors in _PAINTS.items()
    }
    return Look(1, numbers, paints)


SOURCE_LOOK = replace(target_look(gap=0.0), code=0)

Outlines = NDArray[np.float64]  # (N, K, 2): N polygons of K corners, x and y, that do not overlap
# (3, 3): world points of a plane's origin, and its directions across and up
Plane = NDArray[np.float64]


class Part(NamedTuple):
    """Outlines of one paint."""

    label: str
    paint: str
    outlines: Outlines
    gain: float = 1.0  #: brightness


Parts = tuple[Part, ...]
#: Parts on a plane, and the side that it looks to, for its light: left, right, near or top.
Face = tuple[Plane, Iterable[Part], str]


def plane(*vectors: tuple[float, float, float]) -> Plane:
    """Return a plane by its origin and the vectors of a unit across and up."""
    return np.asarray(vectors, np.float64)


def upright(x: float, depth: float, to_right: float, ahead: float, height: float = 1.0) -> Plane:
    """Return a plane on the ground at x and depth."""
    return plane((x, 0, depth), (to_right, 0, ahead), (0, height, 0))


def polygon(*corners: float) -> Outlines:
    """Return a polygon by x and y of its corners."""
    return np.reshape(corners, (1, -1, 2))


def boxes(*limits: ArrayLike) -> Outlines:
    """Return rectangles by left, low, right and high of each."""
    corners = [[0, 1], [2, 1], [2, 3], [0, 3]]
    return np.asarray(limits, np.float64).reshape(-1, 4)[:, corners]


def discs(wide: float, high: float, *centers: float) -> Outlines:
    """Return ellipses of the same half width and half height, by x and y of their centres."""
    angles = np.linspace(0, 2 * np.pi, 17)[:-1]
    ring = np.stack((wide * np.cos(angles), high * np.sin(angles)), -1)
    return np.asarray(ring + np.reshape(centers, (-1, 1, 2)))


def grid(
    columns: float, rows: float, wide: float, tall: float, low: float = 0.0, high: float = 1.0
) -> Outlines:
    """Return rectangles between two heights of a face.

    Each is a ``wide`` and ``tall`` share of its cell.
    """
    middles = np.meshgrid(np.arange(columns) + 0.5, np.arange(rows) + 0.5)
    cells = np.stack(middles, -1).reshape(-1, 1, 2) + 0.5 * boxes(-wide, -tall, wide, tall)
    return np.asarray(cells / (columns, rows) * (1, high - low) + (0, low))


def leaves(seed: int, x: float, y: float, across: float, up: float) -> Iterator[Part]:
    """Yield clusters of leaves around (x, y), in three tones, darker below."""
    rng = np.random.default_rng(seed)
    for gain in (0.75, 0.9, 1.05):
        spots = rng.normal((0, gain - 0.9), 0.35, (9, 1, 2))
        clusters = discs(1, 0.9, 0, 0) * rng.uniform(0.14, 0.34, (9, 1, 1)) + spots
        yield Part("vegetation", "leaves", clusters * (across, up) + (x, y), gain)


_FORMS: dict[str, Callable[..., Outlines]] = {
    "polygon": polygon,
    "boxes": boxes,
    "discs": discs,
    "grid": grid,
}


def _parts(table: str) -> Parts:
    """Return the parts of a table, with a line for each: label, paint, brightness, form and numbers.

    The numbers are the arguments of the form's function in :data:`_FORMS`.
    """
    parts = []
    for line in table.strip().splitlines():
        label, paint, gain, form, *numbers = line.replace(",", " ").split()
        outlines = _FORMS[form](*map(float, numbers))
        parts.append(Part(label, paint, outlines, float(gain)))
    return tuple(parts)


# a whole wheel is labelled
_BICYCLE = _parts("""
    bicycle     rubber    1     discs 0.34,0.34 -0.54,0.34 0.54,0.34
    bicycle     metal     1     discs 0.24,0.24 -0.54,0.34 0.54,0.34
    bicycle     car       0.8   polygon -0.54,0.36 -0.1,0.26 0.54,0.36 0.6,1.0 0.3,0.9 -0.4,0.9
""")
_MOTORCYCLE = _parts("""
    motorcycle  rubber    1     discs 0.34,0.32 -0.68,0.32 0.68,0.32
    motorcycle  car       1     polygon -0.8,0.4 0.8,0.34 0.6,1.15 0.2,1.05 0.14,0.9 -0.7,0.9
""")
_RIDER = _parts("""
    rider       trousers  1     polygon -0.2,0.9 0.14,0.5 -0.02,0.2 0.14,0.2 0.3,0.62 0.1,1.0
    rider       coat      1     polygon -0.26,0.86 0.16,0.86 0.5,1.06 0.5,1.16 0.36,1.4 0.2,1.52 -0.12,1.4
    rider       skin      1     discs 0.13,0.16 0.26,1.66
    rider       bright    1     discs 0.15,0.12 0.26,1.72
""")
_PERSON = _parts("""
    person      trousers  1     polygon -0.26,0 -0.08,0 0,0.5 0.1,0 0.26,0 0.18,0.9 -0.18,0.9
    person      coat      1     polygon -0.36,0.8 0.36,0.8 0.27,1.4 0.12,1.5 -0.12,1.5 -0.27,1.4
    person      skin      1     discs 0.11,0.15 0,1.62
    person      wood      0.6   discs 0.11,0.08 0,1.7
""")
_LAMP = _parts("""
    pole        pole      1     boxes -0.08,0,0.08,6.6 -0.08,6.6,1.1,6.75 1.1,6.55,1.7,6.75
""")


def _signal(mast: Outlines, at: tuple[float, float], lit: int) -> Parts:
    """Return a traffic light with its housing centred ``at``.

    The lamp ``lit``, from the top, is on.
    """
    lamps = discs(0.15, 0.15, 0, 0.38, 0, 0, 0, -0.38) + at
    return (
        Part("pole", "pole", mast),
        Part("traffic light", "housing", boxes(-0.24, -0.6, 0.24, 0.6) + at),
        Part("traffic light", "rubber", lamps),
        Part("traffic light", ("red", "amber", "green")[lit], lamps[[lit]], 1.2),
    )


def _sign(rim: str, inside: str, outline: Outlines) -> Parts:
    """Return a traffic sign with a dark bar."""
    return (
        Part("pole", "pole", boxes(-0.07, 0, 0.07, 2.6)),
        Part("traffic sign", rim, 0.44 * outline + (0, 2.6)),
        Part("traffic sign", inside, 0.3 * outline + (0, 2.6)),
        Part("traffic sign", "rubber", boxes(-0.13, 2.54, 0.13, 2.64)),
    )


def _tree(seed: int) -> Parts:
    """Return a trunk under a crown."""
    trunk = Part("vegetation", "wood", boxes(-0.2, 0, 0.2, 4.5))
    crown = Part("vegetation", "leaves", discs(1.9, 2, 0, 4.6), 0.7)
    return trunk, crown, *leaves(seed, 0, 4.6, 2.1, 2.1)


_LOW_MAST = boxes(-0.09, 0, 0.09, 3.4)
_HIGH_MAST = boxes(-0.09, 0, 0.09, 5.6, 0.09, 5.4, 2.6, 5.6)
_DISC = discs(1, 1, 0, 0)
#: Alternatives of figures that face the camera, in metres from the foot.
FIGURES: dict[str, tuple[Parts, ...]] = {
    "person": (_PERSON,),
    "bicycle": (_BICYCLE,),
    "motorcycle": (_MOTORCYCLE,),
    "rider": (_BICYCLE + _RIDER, _MOTORCYCLE + _RIDER),
    "lamp": (_LAMP,),
    "signal": (
        *(_signal(_LOW_MAST, (0, 3.0), lit) for lit in range(3)),
        *(_signal(_HIGH_MAST, (2.6, 5.3), lit) for lit in range(3)),
    ),
    "sign": (
        _sign("red", "white", polygon(-1, -0.8, 1, -0.8, 0, 0.95)),
        _sign("red", "white", _DISC),
        _sign("amber", "amber", boxes(-1.7, -0.6, 1.7, 0.6)),
        _sign("blue", "blue", boxes(-1, -1, 1, 1)),
        _sign("blue", "white", _DISC),
    ),
    "tree": tuple(map(_tree, range(6))),
    "clutter": (
        _parts("static cargo 1 boxes -0.4,0,0.4,1"),
        _parts("dynamic bright 1 boxes -0.3,0,0.3,1"),
    ),
}
#: Faces along the street, in fractions of them.
WALLS: dict[str, Parts] = {
    "building": _parts("""
        building    house     1     boxes 0,0,1,1
        building    house     0.85  boxes 0,0,1,0.2 0,0.97,1,1
        building    glass     1     grid 5,4,0.45,0.55,0.22,0.98
        building    glass     1     grid 3,1,0.8,0.75,0,0.18
        building    bright    1     boxes 0.03,0.165,0.64,0.205
    """),
    "wall": _parts("""
        wall        wall      1     boxes 0,0,1,1
        wall        wall      0.78  grid 1,4,1,0.12
    """),
    "fence": _parts("""
        fence       leaves    0.7   boxes 0,0,1,1
        fence       fence     1     grid 28,1,0.62,0.94
        fence       fence     1     grid 1,2,1,0.18
    """),
    "hedge": (
        *_parts("vegetation leaves 0.7 boxes 0,0,1,0.8"),
        *leaves(6, 0.3, 0.5, 0.35, 0.45),
        *leaves(7, 0.7, 0.5, 0.35, 0.45),
    ),
    "park": (),
}
#: Bodies on wheels with a cabin on top, in metres, with depths from the end that is seen.
#: Each has a label, paints of body and cabin, width and length.
#: Heights of the body's lower edge, of the cabin's and of the roof follow.
#: Then come the cabin's first and last depth, and the lean of the windscreens.
#: The last two are the number of windows on a side and the radius of the wheels.
VEHICLES: dict[str, tuple[Any, ...]] = {
    "car": ("car", ("car", "car"), 1.8, 4.3, (0.25, 0.9, 1.5), (0.4, 3.4), 0.3, 2, 0.32),
    "van": ("car", ("car", "car"), 1.9, 4.6, (0.25, 1.1, 1.95), (0.05, 4.2), 0.15, 3, 0.34),
    "truck": ("truck", ("rubber", "cargo"), 2.45, 7.5, (0.5, 1.0, 3.3), (0.0, 7.5), 0.0, 0, 0.48),
    "bus": ("bus", ("bright", "bright"), 2.5, 11.0, (0.34, 1.4, 3.05), (0.0, 11.0), 0.05, 7, 0.48),
    "tram": ("train", ("bright", "cargo"), 2.5, 25.0, (0.2, 1.4, 3.6), (0.0, 25.0), 0.5, 12, 0.1),
}
