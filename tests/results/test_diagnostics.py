"""Pictures of a run's inside: drawn from its logs, readable as images, and absent where there is nothing to show."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from fedrs_lightning.results import diagnostics
from fedrs_lightning.results.store import RunStore

CLASSES = ["road", "roof", "tree"]


@pytest.fixture
def store(tmp_path):
    store = RunStore(tmp_path / "run")
    for number in (1, 2, 3):
        store.append_clients(
            [
                {
                    "round": number,
                    "client": client,
                    "phase": "train",
                    "num_samples": 5 + client,
                    "loss/task": 1 / number,
                    "loss/dap": 0.5,
                }
                | {f"feddap/gate/{index}": 0.3 * index for index in range(3)}
                for client in range(4)
                if (client + number) % 3
            ]
        )
    return store


def size(path):
    with Image.open(path) as image:
        image.verify()
        return image.size


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_the_title_of_few_classes_is_not_cut(classes, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(diagnostics, "save", lambda figure, out: drawn.append(figure) or out)
    title = "round 100, personal_common, counts of all clients summed"
    diagnostics.plot_confusion(
        np.eye(classes), [f"class {number}" for number in range(classes)], tmp_path / "a.png", title
    )
    (figure,) = drawn
    FigureCanvasAgg(figure).draw()
    for text in figure.findobj(Text):
        if text.get_text():
            box = text.get_window_extent()
            assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text.get_text()
            assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text.get_text()


def test_every_picture_is_an_image(store, tmp_path):
    assert (
        min(
            size(
                diagnostics.plot_confusion(
                    np.array([[4, 1, 0], [2, 2, 0], [0, 0, 0]]), CLASSES, tmp_path / "a.png", "test"
                )
            )
        )
        > 200
    )
    assert min(size(diagnostics.plot_loss_terms(store, tmp_path / "b.png"))) > 200
    assert (
        min(
            size(
                diagnostics.plot_by_class(store, "feddap/gate", "gate", CLASSES, tmp_path / "c.png", limits=(0.0, 1.0))
            )
        )
        > 200
    )
    vectors = {client: np.arange(6.0) * (1 + client // 2) for client in range(4)}
    assert (
        min(
            size(
                diagnostics.plot_descriptors(
                    vectors, {0: 0, 1: 0, 2: 1}, {0: "a", 1: "a", 2: "b", 3: "b"}, tmp_path / "d.png"
                )
            )
        )
        > 200
    )
    labels = np.array([[[0, 1], [2, 255]]] * 2)
    palette = np.array([[255, 255, 255], [0, 0, 255], [0, 255, 0]], dtype=np.uint8)
    picture = diagnostics.plot_predictions(
        np.random.default_rng(0).random((2, 3, 2, 2)),
        labels,
        labels % 3,
        CLASSES,
        palette,
        ["x", "y"],
        tmp_path / "e.png",
    )
    assert min(size(picture)) > 200


def test_nothing_to_show_draws_nothing(tmp_path):
    empty = RunStore(tmp_path / "empty")
    empty.append_clients([{"round": 1, "client": 0, "phase": "train", "num_samples": 3, "loss/task": 1.0}])
    assert diagnostics.plot_loss_terms(empty, tmp_path / "a.png") is None
    assert diagnostics.plot_by_class(empty, "feddap/gate", "gate", CLASSES, tmp_path / "b.png") is None
    assert not list(tmp_path.glob("*.png"))


def test_clients_of_one_descriptor_do_not_break_the_picture(tmp_path):
    same = {0: np.ones(3), 1: np.ones(3)}
    assert min(size(diagnostics.plot_descriptors(same, {}, {}, tmp_path / "a.png"))) > 200
