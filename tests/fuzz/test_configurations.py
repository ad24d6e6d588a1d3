"""Whatever stands in a configuration file or in options: a line, or a configuration that reads back the same."""

import contextlib
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrs_lightning.cli.config.command_line import configure
from fedrs_lightning.cli.config.yaml_files import YamlFile
from fedrs_lightning.errors import FedrsError
from fedrs_lightning.results.run import Run, flatten

BASE = {
    "data": {
        "root": "tiles",
        "archive": {"class_path": "EuroSAT"},
        "image_size": 16,
        "partition": {"class_path": "IID", "init_args": {"num_clients": 3}},
    },
    "task": {"class_path": "ClassificationTask", "init_args": {"backbone": "resnet18", "width": 4}},
    "method": {"class_path": "FedMAD", "init_args": {"power": 1.0, "initial_gamma": 1.0}},
    "schedule": {"num_rounds": 3, "batch_size": 16},
    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.5}},
    "fabric": {"devices": 1, "upload_memory": 1.0},
    "run": {"name": "x", "loggers": ["csv"]},
    "seed": 0,
}
WORDS = ["None", "null", "1e3", "nan", ".inf", "-1e308", "../..", "EuroSAT", "os.system", "x.yaml", "", "\0", "~", "on"]
NUMBERS = st.sampled_from([-1, 0, 1, 10**12, 10**400, -(2**63), 1e308, -1e308, math.nan, math.inf, 0.5, 1e-320])
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=6),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(["class_path", "init_args", "dict_kwargs", "lr"]) | st.text(max_size=4), inside
        )
    ),
    max_leaves=5,
)


def keys(value, above=()):
    """Every place of the base configuration, groups included."""
    for key, inner in value.items():
        yield (*above, key)
        if isinstance(inner, dict):
            yield from keys(inner, (*above, key))


MORE = [("nothing",), ("run", "dir"), ("run", "label"), ("data", "domains"), ("fabric", "prefetch")]
PLACES = [*keys(BASE), *MORE]


def changed(changes):
    config = yaml.safe_load(yaml.safe_dump(BASE))
    for (*above, last), value in changes:
        inside = config
        for key in above:
            inside = inside.setdefault(key, {}) if isinstance(inside, dict) else {}
        if isinstance(inside, dict):
            inside[last] = value
    return config


def read(arguments, folder):
    """The configuration, read back from what a run would write"""
    try:
        run = configure(arguments)
    except FedrsError:
        return  # a line that says what is wrong
    for key, value in flatten(run.config).items():
        values = value if isinstance(value, list) else [value]
        assert all(math.isfinite(one) for one in values if isinstance(one, float)), key
        assert value != "None", key
    assert 0 <= run.seed < 2**63
    assert run.path.is_relative_to(run.config["run"]["root"]) or run.config["run"]["dir"] is None
    again = folder / "again.yaml"
    again.write_text(yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    assert configure(["--config", str(again)]).hash == Run(run.config).hash


@settings(settings.get_profile("fuzz"))
@given(st.lists(st.tuples(st.sampled_from(PLACES), PLAIN), max_size=3))
def test_values_in_a_file(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("config")
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(changed(changes), allow_unicode=True), encoding="utf-8")
    read(["--config", str(path)], folder)


@settings(settings.get_profile("fuzz"))
@given(st.lists(st.tuples(st.sampled_from(PLACES), PLAIN.map(str) | st.text(max_size=9)), max_size=3))
def test_options(tmp_path_factory, options):
    folder = tmp_path_factory.mktemp("config")
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(BASE))
    read(["--config", str(path), *(f"--{'.'.join(keys)}={text}" for keys, text in options)], folder)


@pytest.mark.parametrize("letters", ["[]{},: \n-&*!|>'\"%@`#?~a1\t\0", None])
@settings(settings.get_profile("fuzz"))
@given(data=st.data())
def test_any_text_as_a_file(tmp_path_factory, letters, data):
    text = data.draw(st.text(letters, max_size=60) if letters else st.text(max_size=60))
    path = tmp_path_factory.mktemp("config") / "x.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with contextlib.suppress(FedrsError):
        assert isinstance(YamlFile.read(path, "--config").content, dict)
        configure(["--config", str(path)])
