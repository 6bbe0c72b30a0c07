import json
from pathlib import Path

import pytest

from hmd.cli.main import main
from hmd.emulate.assets import find_program, kernel_folders
from hmd.errors import MissingError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no command"),
        (["--dilation", "-1", "--", "true"], "--dilation"),
        (["--env", "NAME", "--", "true"], "not NAME=VALUE"),
        (["--calibrate", "--without", "mlp"], "whole timing model"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--preset", "dram-pn", "--", "true"], "no preset 'dram-pn'"),
        (["--node", "size=lots", "--", "true"], "nodes.0.size"),
        (["--without", "magic", "--", "true"], "unknown part of the timing model 'magic'"),
        (["--cpus", "99", "--", "true"], "--cpus"),
    ],
)
def test_a_wrong_machine_is_a_wrong_configuration(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *arguments]) == 3
    assert told in capsys.readouterr().err


def test_a_machine_without_kernel_names_make_setup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setattr("hmd.emulate.assets.kernel_folders", lambda: [tmp_path])
    assert main(["emulate", "--no-model", "--", "true"]) == 4
    assert "run `make setup`" in capsys.readouterr().err


def test_an_installed_hmd_without_kernel_or_qemu_says_what_to_do_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("hmd.emulate.assets.CHECKOUT", tmp_path)
    monkeypatch.setattr("hmd.emulate.assets.kernel_folders", lambda: [tmp_path])
    assert main(["emulate", "--no-model", "--", "true"]) == 4
    said = capsys.readouterr().err
    assert "make setup" not in said
    assert "dpkg -x PACKAGE /var/lib/hmd/machine/kernel" in said
    assert "HMD_MACHINE_DIR" in said
    monkeypatch.setattr("hmd.emulate.assets.shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingError, match=r"is not installed: install qemu-system-x86$"):
        find_program("qemu-system-x86_64", "qemu-system-x86")


def test_the_kernel_folder_of_the_environment_is_searched_first() -> None:
    first, second, *rest = kernel_folders({"HMD_MACHINE_DIR": "/srv/kernel"})
    assert (first, second) == (Path("/srv/kernel"), Path("/srv/kernel/kernel"))
    assert rest == kernel_folders({})


def test_the_presets_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "hbm-dram" in out
    assert "Izraelevitz" in out
    assert main(["emulate", "--list", "--json"]) == 0
    latency_ns = {
        preset["name"]: preset["nodes"][1]["read_latency_ns"]
        for preset in json.loads(capsys.readouterr().out)
    }
    assert latency_ns["dram-pm"] == 305


def test_counters_of_a_machine_that_is_not_emulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--counters"]) == 4
    assert "not in an emulated machine" in capsys.readouterr().err
