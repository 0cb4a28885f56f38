"""The server's own small data set D0, for filters and server learning; never a client's image.

`none` · `rendered` (characters drawn in a font) · `folder:PATH`, `npz:PATH`, `csv:PATH` · `holdout:N` (taken out of
the test set).
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from thistle.experiments.errors import UserError
from thistle.experiments.plugins import FORMS
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Task
from thistle.tasks.classes import match_classes
from thistle.tasks.dataset import Dataset, Images, Shape, joined
from thistle.tasks.stratified import stratified

KNOWN = "none, rendered, folder:PATH, npz:PATH, csv:PATH or holdout:N"
DEFAULT_FONT = "DejaVuSans"
ANGLES = (-20, -10, 0, 10, 20)
POINTS = (130, 120, 110, 100)  # the paper's font sizes; only their ratios matter here
DRAWN = 128  # pixels of the glyph before it is scaled down
SMALL = 16  # images below this side are filled by their ink, as 8x8 digits are
FILL = 22 / 28  # of the side of larger images, at the largest size: around MNIST's 20 of 28
NO_GLYPH = "\U0010ffff"  # assigned to no character, so drawn as the font's "missing" box


def load_server_data(task: Task, dataset: Dataset, seed: int) -> tuple[Images | None, Dataset]:
    """The server's images (None without any), and the data set, its test set smaller after a holdout."""
    kind, _, argument = check_server_data(task)
    if task.server_data == "none":
        return None, dataset
    if task.server_data == "rendered":
        return _sized(task, _rendered(task, dataset), seed), dataset
    if kind in FORMS:
        return _convert(_sized(task, _from_source(task, dataset), seed), dataset.shape), dataset
    held, dataset = _hold_out(int(argument), dataset, seed)
    return _sized(task, held, seed), dataset


def check_server_data(task: Task) -> tuple[str, str, str]:
    """What kind it is, and what stands behind the colon; refuses what is none of the known forms."""
    kind, colon, argument = task.server_data.partition(":")
    plain = task.server_data in ("none", "rendered")
    if not (plain or (kind in FORMS and argument) or (kind == "holdout" and argument.isdecimal())):
        raise UserError(f"task.server-data = {task.server_data!r} is not known; it is {KNOWN}")
    return kind, colon, argument


# -- choosing images


def _sized(task: Task, images: Images, seed: int) -> Images:
    if task.server_size == 0:
        return images
    if task.server_size > len(images):
        raise UserError(
            f"task.server-size = {task.server_size} but task.server-data = {task.server_data} has only "
            f"{len(images)} images; use at most {len(images)}, or 0 for all"
        )
    return images.take(stratified(images.labels, task.server_size, numpy_rng(seed, "server-data", "size")))


def _hold_out(count: int, dataset: Dataset, seed: int) -> tuple[Images, Dataset]:
    test = dataset.test
    if not 0 < count < len(test):
        raise UserError(
            f"task.server-data = holdout:{count} but the test set of {dataset.name} has {len(test)} images; "
            f"hold out from 1 to {max(len(test) - 1, 1)}"
        )
    held = stratified(test.labels, count, numpy_rng(seed, "server-data", "holdout"))
    return test.take(held), replace(dataset, test=test.take(np.delete(np.arange(len(test)), held)))


# -- another source


def _from_source(task: Task, dataset: Dataset) -> Images:
    """All images of a folder or an npz file, under the task's labels, in the source's own size."""
    return _all_of(task.server_data, task, dataset.classes, dataset.scheme, "task.server-data")


class Known(Protocol):
    """What a model, or a task, says of the data that it takes."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def scheme(self) -> str: ...


def read_under(name: str, task: Task, known: Known, key: str) -> Images:
    """All of a source, under other data's classes and in their shape. `key` gave its name."""
    return _convert(_all_of(name, task, known.classes, known.scheme, key), known.shape, key)


def _all_of(name: str, task: Task, classes: tuple[str, ...], scheme: str, key: str) -> Images:
    """Training and test set as one, under these classes."""
    from thistle.tasks.sources import read_source

    source = read_source(name, task.data_dir, need_test=False, key=key, need_train=False, options=task, scheme=scheme)
    own = match_classes(source.classes, classes, f"{key} = {name}")
    found = joined([part for part in (source.train, source.test) if len(part)])
    return replace(found, labels=own[found.labels])


def _convert(images: Images, shape: Shape, key: str = "task.server-data") -> Images:
    """To the task's channels and size."""
    if images.shape == shape:
        return images
    if not all(len(sides) == 3 and sides[0] in (1, 3) for sides in (images.shape, shape)):
        own, wanted = ("×".join(map(str, sides)) for sides in (images.shape, shape))
        raise UserError(f"{key}: its inputs are {own}, the task's {wanted}: only images can be resized")
    return replace(images, pixels=np.stack([fit_pixels(image, shape) for image in images.pixels]))


def fit_pixels(pixels: np.ndarray, shape: Shape) -> np.ndarray:
    """One image, c×h×w of 1 or 3 channels, in another size and other channels."""
    if pixels.shape == shape:
        return pixels
    channels, height, width = shape
    if pixels.dtype != np.uint8:
        return _fit_deep(pixels, channels, (width, height))
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))
    image = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BICUBIC)
    return np.moveaxis(np.asarray(image).reshape(height, width, channels), -1, 0)


def _fit_deep(pixels: np.ndarray, channels: int, size: tuple[int, int]) -> np.ndarray:
    """The same for 16 bits and for floats, of which Pillow resizes a channel at a time."""
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in pixels]
    resized = np.stack([np.asarray(plane.resize(size, Image.Resampling.BICUBIC)) for plane in planes])
    if channels != len(resized):
        resized = resized.mean(0, keepdims=True) if channels == 1 else resized.repeat(channels, axis=0)
    if pixels.dtype.kind == "f":
        return resized.clip(pixels.min(), pixels.max())
    return np.rint(resized.clip(0, np.iinfo(pixels.dtype).max)).astype(pixels.dtype)


# -- drawn characters


def _rendered(task: Task, dataset: Dataset) -> Images:
    """20 white-on-black images per class: 5 rotations, 4 sizes of its character."""
    if len(dataset.shape) != 3:
        raise UserError(
            f"task.server-data = rendered draws images, but {dataset.name} has none: use holdout:N, none, "
            "csv:PATH or npz:PATH"
        )
    if any(len(name) != 1 for name in dataset.classes):
        raise UserError(
            f"task.server-data = rendered needs classes that are single characters; those of {dataset.name} are "
            f"{', '.join(dataset.classes[:3])}, …: use folder:, npz:, holdout:N or none"
        )
    channels, height, width = dataset.shape
    font = _load_font(task.server_font)
    drawn = [list(_views(name, font, height, width)) for name in dataset.classes]
    pixels = np.array(drawn).reshape(-1, 1, height, width).repeat(channels, axis=1)
    return Images(pixels, np.repeat(np.arange(len(drawn)), len(ANGLES) * len(POINTS)))


def _views(character: str, font: ImageFont.FreeTypeFont, height: int, width: int) -> Iterator[np.ndarray]:
    """The character at every angle and size, height x width."""
    glyph = _draw(character, font)
    if glyph.getbbox() is None or glyph.tobytes() == _draw(NO_GLYPH, font).tobytes():
        file = Path(str(font.path)).name
        raise UserError(f"task.server-font: {file} cannot draw the class {character!r}; name a font that can")
    upright = glyph.crop(glyph.getbbox())
    for angle in ANGLES:
        turned = upright.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        ink = turned.crop(turned.getbbox())
        for points in POINTS:
            yield np.asarray(_framed(ink, points / POINTS[0], height, width))


def _draw(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """White on black, in the middle of a canvas larger than any character."""
    canvas = Image.new("L", (4 * DRAWN, 4 * DRAWN))
    ImageDraw.Draw(canvas).text((2 * DRAWN, 2 * DRAWN), character, fill=255, font=font, anchor="mm")
    return canvas


def _framed(ink: Image.Image, scale: float, height: int, width: int) -> Image.Image:
    """The ink with a margin that grows as `scale` falls, its centre of mass in the middle, then scaled down.

    The margin is laid in the large drawing, so at 8x8 four sizes are still four different images.
    """
    fill = scale * (1.0 if min(height, width) < SMALL else FILL)
    unit = max(ink.height / height, ink.width / width) / fill  # drawn pixels for one of the image's
    frame = Image.new("L", (round(unit * width), round(unit * height)))
    mass = np.asarray(ink, dtype=float)
    left = _offset(mass.sum(axis=0), frame.width)
    top = _offset(mass.sum(axis=1), frame.height)
    frame.paste(ink, (left, top))
    return frame.resize((width, height), Image.Resampling.BOX)


def _offset(mass: np.ndarray, length: int) -> int:
    """Where the ink starts so that its centre of mass is at length/2, without leaving the frame."""
    centre = float(mass @ (np.arange(len(mass)) + 0.5) / mass.sum())
    return int(np.clip(round(length / 2 - centre), 0, max(length - len(mass), 0)))


def _load_font(name: str) -> ImageFont.FreeTypeFont:
    """A font of matplotlib's folder by name, or a file by path; basic layout, the same on every machine."""
    path = _font_path(name or DEFAULT_FONT)
    try:
        return ImageFont.truetype(path, DRAWN, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise UserError(f"task.server-font = {name}: {path} is not a font that can be read ({error})") from None


def _font_path(name: str) -> Path:
    if name.lower().endswith((".ttf", ".otf")) and Path(name).expanduser().is_file():
        return Path(name).expanduser()
    known = {path.stem.lower(): path for path in _font_folder().glob("*.ttf")}
    wanted = name.lower().replace(" ", "").removesuffix(".ttf")
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=4, cutoff=0.3)
    names = ", ".join(known[key].stem for key in near) or DEFAULT_FONT
    raise UserError(f"task.server-font = {name} is not known; similar: {names}; or give the path of a .ttf or .otf")


def _font_folder() -> Path:
    """matplotlib ships fonts; it is found, not imported (that takes a second)."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise UserError(
            "task.server-data = rendered takes its font from matplotlib, which is not installed; "
            "pip install 'thistle-fl[vision]', or set task.server-font to the path of a .ttf or .otf file"
        )
    return Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
