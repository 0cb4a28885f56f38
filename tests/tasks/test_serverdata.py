"""Server data: every spec gives images like the task's, and every mistake names its key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Task
from thistle.tasks.classes import match_classes
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.serverdata import _font_path, load_server_data

DIGITS = tuple("0123456789")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """What a test decodes stays out of the user's cache."""
    monkeypatch.setenv("THISTLE_CACHE", str(tmp_path_factory.mktemp("cache")))


def fake(classes=DIGITS, shape=(1, 8, 8), test=100, name="fake") -> Dataset:
    """A data set of random pixels; the test labels run through the classes in turn."""
    rng = np.random.default_rng(0)

    def images(count: int) -> Images:
        return Images(rng.integers(0, 256, (count, *shape), dtype=np.uint8), np.arange(count) % len(classes))

    return Dataset(name, tuple(classes), images(20), images(test))


def load(dataset: Dataset, seed: int = 1, **task) -> Images:
    images, _ = load_server_data(Task(**task), dataset, seed)
    assert images is not None
    assert images.pixels.dtype == np.uint8
    assert images.labels.dtype == np.int64
    assert images.shape == dataset.train.shape
    assert len(images.pixels) == len(images.labels)
    return images


def write_folder(root: Path, classes: dict[str, int], mode: str = "RGB", side: int = 12) -> Path:
    """root/train/<class>/<k>.png, each class in its own brightness."""
    for name, shade in classes.items():
        (root / "train" / name).mkdir(parents=True)
        for k in range(3):
            colour = shade if mode == "L" else (shade, shade, shade)
            Image.new(mode, (side, side), colour).save(root / "train" / name / f"{k}.png")
    return root


def test_none():
    dataset = fake()
    images, same = load_server_data(Task(server_data="none"), dataset, 1)
    assert images is None
    assert same is dataset


# -- rendered


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_rendered_gives_twenty_different_images_a_class(shape):
    images = load(fake(shape=shape), server_data="rendered")
    assert np.bincount(images.labels).tolist() == [20] * 10
    for label in range(10):
        views = images.pixels[images.labels == label].reshape(20, -1)
        assert len(np.unique(views, axis=0)) == 20
    assert (images.pixels == images.pixels[:, :1]).all()


def test_rendered_is_white_on_black_and_grows_with_the_size():
    images = load(fake(shape=(1, 28, 28)))
    ink = images.pixels.reshape(10, 5, 4, -1).astype(float).sum(axis=-1)
    assert (np.diff(ink, axis=2) < 0).all()
    assert images.pixels.mean() < 80
    assert images.pixels.max() > 240


def test_rendered_fills_small_images_and_leaves_a_margin_in_large_ones():
    upright = 2 * 4  # angle 0 at the largest size
    small, large = (load(fake(shape=shape)).pixels[upright, 0] for shape in [(1, 8, 8), (1, 28, 28)])
    assert small[0].max() > 0
    assert small[-1].max() > 0
    rows = np.flatnonzero(large.max(axis=1))
    assert rows[-1] - rows[0] + 1 in (22, 23)


def test_rendered_is_centred_by_mass_in_large_images():
    pixels = load(fake(shape=(1, 28, 28))).pixels[:, 0].astype(float)
    total = pixels.sum(axis=(1, 2))
    for axis in (1, 2):
        centre = (pixels.sum(axis=3 - axis) @ (np.arange(28) + 0.5)) / total
        assert np.abs(centre - 14).max() < 0.5


def test_rendered_takes_letters_and_other_fonts():
    letters = fake(classes=("A", "a", "Q"))
    plain, italic = load(letters), load(letters, server_font="cmmi10")
    assert not np.array_equal(plain.pixels, italic.pixels)
    assert np.array_equal(plain.pixels, load(letters, server_font="DejaVu Sans").pixels)
    assert np.array_equal(italic.pixels, load(letters, server_font="CMMI10.ttf").pixels)


def test_rendered_takes_a_font_by_its_path(tmp_path):
    mine = shutil.copy(_font_path("cmr10"), tmp_path / "mine.ttf")
    assert np.array_equal(load(fake(), server_font=str(mine)).pixels, load(fake(), server_font="cmr10").pixels)


def test_rendered_needs_single_characters():
    with pytest.raises(UserError, match=r"task\.server-data = rendered needs classes that are single .*cat.*holdout:N"):
        load(fake(classes=("cat", "dog")), server_data="rendered")


def test_an_unknown_font_names_the_nearest():
    with pytest.raises(UserError, match=r"task\.server-font = cmm10 is not known; similar: .*cmmi10"):
        load(fake(), server_font="cmm10")


def test_a_file_that_is_no_font(tmp_path):
    path = tmp_path / "broken.ttf"
    path.write_bytes(b"no font")
    with pytest.raises(UserError, match=r"task\.server-font = .*broken\.ttf.* not a font"):
        load(fake(), server_font=str(path))


@pytest.mark.parametrize("character", ["\u4e2d", " "])
def test_a_character_that_the_font_lacks(character):
    with pytest.raises(UserError, match=r"task\.server-font: DejaVuSans\.ttf cannot draw the class"):
        load(fake(classes=("0", character)))


# -- holdout


def test_holdout_moves_images_out_of_the_test_set():
    dataset = fake(test=100)
    held, rest = load_server_data(Task(server_data="holdout:30"), dataset, 1)
    assert held is not None
    assert np.bincount(held.labels).tolist() == [3] * 10
    assert len(rest.test) == 70
    assert rest.train is dataset.train
    both = np.concatenate([held.pixels, rest.test.pixels]).reshape(100, -1)
    assert np.array_equal(np.unique(both, axis=0), np.unique(dataset.test.pixels.reshape(100, -1), axis=0))


def test_holdout_depends_on_the_seed_alone():
    one, again, two = (load(fake(), seed, server_data="holdout:30").pixels for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, two)


@pytest.mark.parametrize("count", [0, 100, 5000])
def test_holdout_must_leave_a_test_set(count):
    with pytest.raises(UserError, match=rf"holdout:{count} but the test set of fake has 100 images; .*1 to 99"):
        load(fake(test=100), server_data=f"holdout:{count}")


# -- sizes


def test_server_size_takes_a_stratified_part():
    part, again = (load(fake(), server_size=50) for _ in range(2))
    assert np.bincount(part.labels).tolist() == [5] * 10
    assert np.array_equal(part.pixels, again.pixels)
    assert not np.array_equal(part.pixels, load(fake(), seed=2, server_size=50).pixels)


def test_server_size_above_what_there_is():
    with pytest.raises(UserError, match=r"task\.server-size = 201 but task\.server-data = rendered has only 200"):
        load(fake(), server_size=201)


# -- folder and npz


def test_folder_is_converted_and_matched_by_name(tmp_path):
    root = write_folder(tmp_path, {"Dog": 200, "cat": 50}, side=12)
    dataset = fake(classes=("bird", "cat", "dog"), shape=(1, 8, 8))
    images = load(dataset, server_data=f"folder:{root}")
    assert np.bincount(images.labels, minlength=3).tolist() == [0, 3, 3]
    assert np.abs(images.pixels[images.labels == 2].astype(int) - 200).max() <= 1
    assert np.abs(images.pixels[images.labels == 1].astype(int) - 50).max() <= 1


def test_gray_folder_becomes_three_channels(tmp_path):
    root = write_folder(tmp_path, {"cat": 50, "dog": 200}, mode="L", side=8)
    images = load(fake(classes=("cat", "dog"), shape=(3, 8, 8)), server_data=f"folder:{root}", server_size=4)
    assert np.bincount(images.labels).tolist() == [2, 2]
    assert (images.pixels[images.labels == 1] == 200).all()


def test_folder_with_a_class_the_task_lacks(tmp_path):
    root = write_folder(tmp_path, {"cat": 50, "frog": 90})
    with pytest.raises(UserError, match=r"task\.server-data = folder:.* classes that the task lacks: frog; .*cat, dog"):
        load(fake(classes=("cat", "dog")), server_data=f"folder:{root}")


def test_npz_gives_its_training_and_test_images(tmp_path):
    pixels = np.arange(6, dtype=np.uint8)[:, None, None] * np.full((6, 8, 8), 40, dtype=np.uint8)
    labels = np.array([0, 1, 0, 1, 0, 1])
    arrays = {"x_train": pixels[:4], "y_train": labels[:4], "x_test": pixels[4:], "y_test": labels[4:]}
    np.savez(tmp_path / "mine.npz", classes=np.array(["b", "A"]), **arrays)
    images = load(fake(classes=("a", "b")), server_data=f"npz:{tmp_path / 'mine.npz'}")
    assert images.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160, 200]


def test_an_exact_name_wins_over_another_case():
    assert match_classes(("a", "A", "B"), ("A", "a", "b"), "npz:x").tolist() == [1, 0, 2]


def test_an_ambiguous_case_is_unknown():
    with pytest.raises(UserError, match="lacks: Ab;"):
        match_classes(("Ab",), ("aB", "AB"), "npz:x")


@pytest.mark.parametrize("spec", ["", "render", "folder:", "folder", "npz:", "holdout:", "holdout:-3", "holdout:x"])
def test_any_other_spec_lists_the_valid_forms(spec):
    with pytest.raises(
        UserError, match=r"task\.server-data = .* none, rendered, folder:PATH, npz:PATH, csv:PATH or holdout:N"
    ):
        load(fake(), server_data=spec)


def test_stl10_as_server_data_of_a_cifar_like_task():
    data = os.environ.get("THISTLE_TEST_DATA")
    if not data:
        pytest.skip("THISTLE_TEST_DATA names no folder with stl10-server.tar.xz")
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    cifar = fake(classes=names, shape=(3, 32, 32), name="cifar10")
    images = load(cifar, server_data=f"folder:{data}/stl10-server.tar.xz", server_size=90)
    assert np.bincount(images.labels, minlength=10).tolist() == [10] * 6 + [0] + [10] * 3
    assert images.pixels.std() > 20


def test_the_module_imports_nothing_heavy():
    code = "import sys, thistle.tasks.serverdata, thistle.tasks.partition; print(*sys.modules)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert not {"torch", "sklearn", "matplotlib"} & set(done.stdout.split())
