import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from fedrs_lightning.errors import ConfigError, RunError
from fedrs_lightning.results import plots
from fedrs_lightning.results.hold import Hold
from fedrs_lightning.results.plots import COLOURS, plot_clients, plot_curves, plot_weights, weighted_runs

KEY = "personal_common/overall_accuracy"


def shows(path, colour) -> bool:
    """Whether a picture has more than a few pixels of exactly this colour."""
    pixels = matplotlib.image.imread(path)[..., :3]
    return (np.abs(pixels - np.array(to_rgb(colour))).max(-1) < 0.01).sum() > 50


def test_curves_hold_the_logged_values_of_all_seeds(make_run, curve):
    stores = [make_run(seed=seed) for seed in (0, 1)] + [make_run(method="FedBN", level=0.4)]
    first, second = plots._curves(stores, KEY)
    np.testing.assert_allclose(first.values, curve(0.6, [0, 1]).mean(2))
    np.testing.assert_allclose(second.values, curve(0.4, [0]).mean(2))
    assert (first.label, first.running, list(first.rounds)) == ("FedMAD", False, [1, 2, 3, 4, 5, 6])


def test_runs_under_way_are_drawn_only_without_a_complete_one(make_run):
    stores = [
        make_run(seed=0),
        make_run(seed=1, done=2),
        make_run(method="FedBN", done=3),
        make_run(method="FedBN", seed=1, done=2),
    ]
    drawn = [
        (curve.label, len(curve.stores), curve.running, list(curve.rounds)) for curve in plots._curves(stores, KEY)
    ]
    assert drawn == [("FedMAD", 1, False, [1, 2, 3, 4, 5, 6]), ("FedBN", 2, True, [1, 2])]


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_curve_a_label_in_its_colour(make_run, tmp_path, suffix):
    stores = [
        make_run(method=method, seed=seed, level=level)
        for method, level in (("FedMAD", 0.6), ("FedBN", 0.3))
        for seed in (0, 1)
    ]
    out = plot_curves(stores, tmp_path / "new" / f"curves.{suffix}")
    if suffix == "png":
        assert [shows(out, colour) for colour in COLOURS[:3]] == [True, True, False]
    else:
        assert out.read_bytes().startswith(b"%PDF" if suffix == "pdf" else b"<?xml")
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_a_metric_of_a_class_has_clients_and_its_whole_name(make_run, tmp_path, monkeypatch):
    store = make_run()
    result = store.result()
    protocol = result["headline"]["protocol"]
    rows = [row | {"ap/forest": 0.5} for row in result["per_client"]]
    store.write_result(result | {"per_client": rows, "final": result["final"] | {f"{protocol}/ap/forest": 0.5}})
    last = store.rounds()[-1]
    store.append_round(last | {"round": last["round"] + 1, "metrics": last["metrics"] | {f"{protocol}/ap/forest": 0.5}})
    labels = []
    monkeypatch.setattr(
        plots, "save", lambda figure, out: labels.extend(axes.get_ylabel() for axes in figure.axes) or out
    )
    assert plot_clients([store], tmp_path / "a.png", "ap/forest") is not None
    assert labels == [f"ap/forest [%], {protocol}"]


def test_the_title_names_few_experiments(make_run):
    stores = [make_run(experiment=name) for name in ("a", "b", "c", "d")]
    assert plots._title(stores[:3]) == "a, b, c"
    assert plots._title(stores) == "a, b and 2 more"


def test_one_round_and_a_single_client_value_are_visible(make_run, tmp_path):
    assert shows(plot_curves([make_run(num_rounds=1)], tmp_path / "a.png"), COLOURS[0])
    assert shows(plot_curves([make_run(num_rounds=1)], tmp_path / "b.png", "train/loss"), COLOURS[0])


def test_clients_are_drawn_for_complete_runs(make_run, tmp_path):
    out = plot_clients([make_run(), make_run(method="FedBN", level=0.3)], tmp_path / "clients.png")
    assert [shows(out, colour) for colour in COLOURS[:3]] == [True, True, False]
    assert plot_clients([make_run()], tmp_path / "none.png", "train/loss") is None
    assert plot_clients([make_run(name="part", done=3)], tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_weights_are_drawn_for_runs_that_log_scores(make_run, tmp_path):
    fedmad, fedbn, part = (
        make_run(),
        make_run(method="FedBN"),
        make_run(seed=1, done=2, label="FedMAD p=1", config={"run": {"label": "p=1"}}),
    )
    assert weighted_runs([fedbn, fedmad, part]) == [("FedMAD", fedmad), ("FedMAD-p=1", part)]
    for store in (fedmad, part):
        out = plot_weights(store, tmp_path / "weights.png")
        assert matplotlib.image.imread(out).std() > 0.1
    assert plot_weights(fedbn, tmp_path / "none.png") is None


def test_grey_marks_clients_outside_the_cohort(make_run, tmp_path):
    store = make_run(done=2)
    store.append_clients([{"round": 3, "client": 1, "phase": "train", "weight": 1.0, "fedmad/score": -0.5}])
    assert shows(plot_weights(store, tmp_path / "weights.png"), "#eeeeee")


def test_faults_are_named(make_run, tmp_path):
    with pytest.raises(
        ConfigError, match="no run has the metric 'miou'; there are overall_accuracy, overall_accuracy_weighted"
    ):
        plot_curves([make_run()], tmp_path / "a.png", "miou")
    with pytest.raises(ConfigError, match="did you mean 'train/loss'"):
        plot_curves([make_run()], tmp_path / "a.png", "train/los")
    with pytest.raises(ConfigError, match="cannot be written as 'gifx'"):
        plot_curves([make_run()], tmp_path / "a.gifx")
    with pytest.raises(RunError, match="no round is finished"):
        plot_curves([make_run(name="begun", done=0)], tmp_path / "a.png")


def test_an_interrupted_run_is_not_called_running(make_run):
    store = make_run(done=2)
    assert plots._state(store) == "interrupted"
    with Hold(store.path, "another run is at work there"):
        assert plots._state(store) == "running"
