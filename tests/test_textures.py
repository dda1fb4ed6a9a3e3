"""From pictures to features, on textures that are made here."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from kernelmesh_experiments import brodatz
from kernelmesh_experiments.base import run
from kernelmesh_experiments.textures import images as loading
from kernelmesh_experiments.textures.features import features, leung_malik, responses

(EXPERIMENT,) = brodatz.EXPERIMENTS


def stripes(angle, size=96, period=8.0, seed=0):
    """Stripes in a direction, with some noise, as 8-bit gray values."""
    up, across = np.mgrid[:size, :size]
    wave = np.sin(2 * np.pi * (np.cos(angle) * across + np.sin(angle) * up) / period)
    noise = np.random.default_rng(seed).standard_normal((size, size))
    return np.clip(128 + 60 * wave + 20 * noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    for number, angle in enumerate((0.0, 0.8, 1.6)):
        picture = stripes(angle, seed=number)
        picture[-3:] = 0  # black rows, as scans have them
        Image.fromarray(picture).save(place / f"{number}.png")
    return place


def cut(images, split="random", seed=0):
    rng = np.random.default_rng(seed)
    return features(images, split=split, train=90, test=60, textons=16, patch=12, rng=rng)


class TestFilters:
    def test_there_are_48_and_all_but_the_gaussians_see_no_flat_gray(self):
        bank = leung_malik()
        assert bank.shape == (48, 49, 49)
        np.testing.assert_allclose(np.abs(bank).sum(axis=(1, 2)), 1.0, rtol=1e-12)
        np.testing.assert_allclose(bank[:44].sum(axis=(1, 2)), 0.0, atol=1e-12)
        assert (bank[44:] >= 0).all()
        assert len(np.unique(bank.round(9).reshape(48, -1), axis=0)) == 48

    def test_bars_are_answered_by_the_filter_that_lies_along_them(self):
        # second derivatives of the largest size: filters 30 to 35, in steps of 30 degrees
        for direction in range(6):
            picture = stripes(np.pi * direction / 6, period=12.0) / 255.0
            strength = np.abs(responses(picture)[30:-30, 30:-30, 30:36]).mean(axis=(0, 1))
            answered = int(strength.argmax())
            assert strength[answered] > 1.5 * np.sort(strength)[-3]
            if direction == 0:
                first = answered
            # turning the picture by 30 degrees turns the filter by 30 degrees, one way or the other
            assert (answered - first) % 6 in (direction % 6, -direction % 6)

    def test_responses_have_the_size_of_the_picture(self):
        assert responses(np.zeros((30, 40))).shape == (30, 40, 48)


class TestHistograms:
    def test_squares_sum_to_one(self, folder):
        images, _ = loading.load(folder)
        np.testing.assert_allclose((cut(images).points ** 2).sum(axis=1), 1.0)

    def test_splits(self, folder):
        images, _ = loading.load(folder)
        random, disjoint = cut(images, "random"), cut(images, "disjoint")
        assert disjoint.overlap == 0
        assert random.overlap > 0.8
        for patches in (random, disjoint):
            assert patches.points.shape == (90, 16)
            assert patches.held_points.shape == (60, 16)
            assert set(patches.labels) == {0, 1, 2}

    def test_a_seed_repeats_and_patches_differ(self, folder):
        images, _ = loading.load(folder)
        np.testing.assert_array_equal(cut(images, seed=4).points, cut(images, seed=4).points)
        assert not np.array_equal(cut(images, seed=4).points, cut(images, seed=5).points)

    def test_too_many_patches_are_refused(self, folder):
        images, _ = loading.load(folder)
        with pytest.raises(ValueError, match="must be at most the"):
            features(images, split="random", train=10**6, test=1, textons=4, patch=12, rng=np.random.default_rng(0))


class TestImages:
    def test_black_rows_are_cut_off_and_grey_is_scaled(self, folder):
        images, names = loading.load(folder)
        assert names == ["0", "1", "2"]
        assert all(image.shape == (93, 96) for image in images)
        assert 0 <= images[0].min() < images[0].max() <= 1

    def test_bad_folders_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="brodatz: images must be a folder with two or more"):
            loading.load(tmp_path / "nowhere")
        with pytest.raises(ValueError, match=r"must be a folder with two or more of \.png"):
            loading.load(tmp_path)
        for name in ("a.png", "b.png"):
            (tmp_path / name).write_text("this is no picture")
        with pytest.raises(ValueError, match="must be readable images"):
            loading.load(tmp_path)

    def test_offline_says_what_to_do(self, monkeypatch, tmp_path):
        def offline(*_, **__):
            raise ConnectionError("no route")

        monkeypatch.setattr(loading.pooch, "os_cache", lambda _: tmp_path)
        monkeypatch.setattr(loading.pooch, "retrieve", offline)
        with pytest.raises(loading.Unavailable, match=r"no Brodatz textures from .* --images DIR"):
            loading.load(None)

    def test_fetched_images_are_checked_by_their_pixels(self, monkeypatch, tmp_path):
        def forged(_, *, fname, path, **__):
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(stripes(0.3)).save(path / fname)

        monkeypatch.setattr(loading.pooch, "os_cache", lambda _: tmp_path)
        monkeypatch.setattr(loading.pooch, "retrieve", forged)
        with pytest.raises(loading.Unavailable, match=r"1\.1\.01 as downloaded is not the expected image"):
            loading.load(None)
        assert not list((tmp_path / "brodatz").glob("*"))


class TestExperiment:
    def settings(self, folder, **changes):
        small = {"samples": 192, "held_out": 90, "epochs": 2, "textons": 16, "patch": 12, "agents": 3}
        return brodatz.Config(images=str(folder), **{**small, **changes})

    @pytest.mark.parametrize(("split", "least"), [("random", 0.8), ("disjoint", 0.6)])
    def test_both_splits(self, split, least, folder, tmp_path):
        run(EXPERIMENT, self.settings(folder, split=split), tmp_path)
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert all(re.match("^[a-z][a-z0-9_]*$", key) for key in summary)
        assert summary["accuracy_worst"] > least
        assert summary["overlap"] == 0 if split == "disjoint" else summary["overlap"] > 0.9

    def test_all_of_it_has_ten_times_as_many_epochs(self, folder, tmp_path):
        finished = run(EXPERIMENT, self.settings(folder, epochs=1, agents=1, protocol="local"), tmp_path, table=True)
        assert finished.summary["samples_per_agent"] == 10 * 192

    def test_a_resumed_run_has_the_same_patches(self, folder, tmp_path):
        config = self.settings(folder)
        (first, _), (again, _) = (brodatz.prepare(config, tmp_path, resume=resume) for resume in (False, True))
        np.testing.assert_array_equal(again.points, first.points)
        np.testing.assert_array_equal(again.labels, first.labels)

    @pytest.mark.parametrize(("learner", "agents"), [("averaged", 3), ("second-order", 1), ("gradient", 1)])
    def test_other_learners_and_a_network_of_one(self, folder, tmp_path, learner, agents):
        config = self.settings(folder, learner=learner, agents=agents, epochs=1)
        summary = run(EXPERIMENT, config, tmp_path).summary
        assert (summary["learner"], summary["agents"]) == (learner, agents)
        assert summary["accuracy_worst"] > 0.8
        assert (summary["bytes_per_sample"] > 0) == (agents > 1)
