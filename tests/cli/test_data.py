import pytest

from fedrs_lightning.cli.main import main


def test_synth_then_check(tmp_path, capsys):
    command = ["data", "synth", "eurosat", "--out", str(tmp_path / "s"), "--domains", "2", "--layout", "EuroSAT_RGB"]
    command += ["--with-defect", "junk-files"]
    assert main(command) == 0
    assert "200 synthetic tiles, 2 domains" in capsys.readouterr().out
    assert main(command) == 0
    assert "already holds this sample" in capsys.readouterr().out
    partition = ["--data.partition", "Dirichlet", "--data.partition.num_clients", "3", "--data.partition.alpha", "1.0"]
    assert main(["data", "check", "eurosat", "--root", str(tmp_path / "s"), *partition]) == 0
    out = capsys.readouterr().out
    assert "2: client 2" in out
    assert "note: " in out


def test_synth_and_check_a_bigearthnet_archive(tmp_path, capsys, monkeypatch):
    from fedrs_lightning.synth.bigearthnet import sample as bigearthnet

    monkeypatch.setitem(bigearthnet.SIZES, "tiny", 1)
    command = ["data", "synth", "bigearthnet", "--out", str(tmp_path / "b"), "--spectral-shift", "0.5"]
    assert main([*command, "--with-defect", "val-split-name"]) == 2  # it needs a second patch of the country
    assert main([*command, "--with-defect", "missing-band,junk-files"]) == 0
    assert "13 synthetic patches, 1 of each of 8 countries in summer" in capsys.readouterr().out
    assert main(["data", "check", "bigearthnet", "--root", str(tmp_path / "b")]) == 2
    assert "_B05.tif: no such file" in capsys.readouterr().err
    assert main(["data", "check", "bigearthnet", "--root", str(tmp_path / "b"), "--json", str(tmp_path)]) == 2
    assert (
        capsys.readouterr().err
        == f"fedrs data: {tmp_path}: cannot be written (Is a directory); name another place with --json\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["chek"], "unknown command 'chek'; did you mean 'check'?"),
        (
            ["synth", "eurosta", "--out", "x"],
            "'eurosta' is not one of eurosat, potsdam, vaihingen, loveda, bigearthnet; did you mean 'eurosat'?",
        ),
        (["synth", "eurosat"], "required: --out"),
        (["synth", "eurosat", "--out", "x", "--sise", "tiny"], "unknown option '--sise'; did you mean '--size'?"),
        (
            ["synth", "eurosat", "--out", "x", "--size", "tinny"],
            "'tinny' is not one of tiny, small, medium; did you mean 'tiny'?",
        ),
        (["synth", "eurosat", "--out", "x", "--seed", "one"], "argument --seed: invalid int value: 'one'"),
        (
            ["synth", "bigearthnet", "--out", "x", "--domains", "3"],
            "--domains is not for bigearthnet, whose domains are its countries",
        ),
        (["synth", "bigearthnet", "--out", "x", "--layout", "official"], "--layout is not for bigearthnet"),
        (
            ["synth", "bigearthnet", "--out", "x", "--with-defect", "orphans"],
            "unknown defect 'orphans'; did you mean 'orphan'?",
        ),
        (["synth", "eurosat", "--out", "x", "--with-defect", "gray"], "unknown defect 'gray'; did you mean 'grey'?"),
        (["check", "eurosat", "--root", "x", "--depp"], "unknown option '--depp'; did you mean '--deep'?"),
    ],
)
def test_mistakes_get_one_line_and_code_2(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_help(capsys):
    assert main(["data", "--help"]) == 0
    assert "fedrs data {synth,check," in capsys.readouterr().out
    assert main(["data"]) == 2
