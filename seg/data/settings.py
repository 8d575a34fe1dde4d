"""Settings of a domain's data, of the built-in pair and of bands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dem_apps.errors import InputError
from dem_apps.runtime.settings import LARGEST_SEED, option
from seg.data.layouts import AUTO, LAYOUTS

LAYOUT_HELP = f"how its folders are laid out: {', '.join(LAYOUTS)}; auto looks"
LAYOUT_CHOICES = (AUTO, *LAYOUTS)


@dataclass(frozen=True)
class DataConfig:
    """One domain's data."""

    root: str | None = option(
        None, "folder of the data set; default: the built-in demo pair", value="DIR", exists=True
    )
    layout: str = option(AUTO, LAYOUT_HELP, LAYOUT_CHOICES, value="NAME")
    size: list[int] | None = option(
        None, "width and height to resize to; default: the images' own", at_least=1, value="W,H"
    )
    exclude: list[str] = option(
        [], "images to leave out: path below the root, file name or stem", value="NAME,NAME"
    )
    augmentation: list[dict[str, Any]] = option(
        [{"HorizontalFlip": {"p": 0.5}}],
        "albumentations, as a list of {Name: {arguments}}",
        value="LIST",
    )


@dataclass(frozen=True)
class SourceConfig(DataConfig):
    """The labelled images that training starts from, which may get the target's style."""

    rare_class_temperature: float | None = option(
        0.01,
        "draw images by rare classes at this temperature, the lower the more; null: every image once per pass",
        at_least=0.0001,
    )
    rare_class_pixels: float = option(
        0.005,
        "share of an image's pixels that a class must have for the image to be drawn for it",
        at_least=0,
        at_most=1,
    )
    style: Literal["none", "fourier"] = option(
        "none", "what source images take from a random target training image"
    )
    style_beta: float = option(
        0.05,
        "up to this share of the shorter side, drawn per image, is the highest frequency exchanged",
        at_least=0.0,
        at_most=0.5,
    )
    style_probability: float = option(
        1.0, "share of the source images that get a style", at_least=0.0, at_most=1.0
    )

    def described_style(self) -> str:
        """Return the style in a few words, ``none`` without one."""
        if self.style == "none":
            return self.style
        share = f", probability {self.style_probability:g}" if self.style_probability < 1 else ""
        return f"{self.style}, beta up to {self.style_beta:g}{share}"


@dataclass(frozen=True)
class TargetDataConfig(DataConfig):
    """The images that are adapted to."""

    labelled_part: float | None = option(
        None,
        "share of its training images that are read with labels, such as 0.0625; default: none",
        at_least=0,
        at_most=1,
    )
    labelled_use: Literal["beside", "instead"] = option(
        "beside",
        "half of every batch of labelled images are these beside the source's, or all of it instead of them",
    )

    def replaces_source(self) -> bool:
        """Tell whether its labelled images are all that there are, so that no source is opened."""
        return self.labelled_domains() == ("target",)

    def labelled_domains(self) -> tuple[str, ...]:
        """Return the domains that labelled images come from."""
        if not self.labelled_part:
            return ("source",)
        return ("source", "target") if self.labelled_use == "beside" else ("target",)


@dataclass(frozen=True)
class DemoConfig:
    """The built-in street world, where no root is given."""

    seed: int = option(
        0,
        "seed of the world: its streets and, other than with 0, what its gap is made of",
        at_least=0,
        at_most=LARGEST_SEED,
    )
    gap: float = option(
        1.0,
        "how far the target looks from the source: 0 alike, 1 as in the demo",
        at_least=0,
        at_most=2.0,
    )


@dataclass(frozen=True)
class BandConfig:
    """The bands of images that are no 8-bit RGB: TIFF, GeoTIFF, 16-bit PNG."""

    number: int | None = option(
        None,
        "bands that the network sees; default: all that the images have but transparency",
        at_least=1,
        at_most=512,
    )
    shown: list[int] | None = option(
        None,
        "bands shown as red, green and blue, such as 3,2,1 (default: the named ones, else the first)",
        at_least=1,
        value="R,G,B",
    )

    def shown_from_0(self, bands: int) -> tuple[int, int, int] | None:
        """Return ``shown`` counted from 0.

        Raises:
            InputError: ``shown`` does not name three of as many ``bands``.
        """
        if self.shown is None:
            return None
        if len(self.shown) != 3 or max(self.shown) > bands:
            raise InputError(
                f"--bands.shown: expected three of 1 to {bands}, such as 3,2,1, got {self.shown}"
            )
        return self.shown[0] - 1, self.shown[1] - 1, self.shown[2] - 1
