# SPDX-License-Identifier: MIT
import json
from pathlib import Path

import pytest

from hmd.base.errors import Exit, MissingError
from hmd.cli.main import main
from hmd.emulate.assets import find_program, kernel_folders


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command"),
        (["--dilation", "-1", "--", "true"], "--dilation"),
        (["--env", "NAME", "--", "true"], "not NAME=VALUE"),
        (["--rw", "/nowhere", "--", "true"], "--rw /nowhere: no such folder"),
        (["--cwd", "/nowhere", "--", "true"], "--cwd /nowhere: no such folder"),
    ],
)
def test_emulate_wrong_usage_one_line_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["emulate", *arguments]) == 2
    except SystemExit as exit_of_parser:  # argparse's own
        assert exit_of_parser.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "dram-pn", "--", "true"], "no preset 'dram-pn'"),
        (["--node", "size=lots", "--", "true"], "nodes.0.size"),
        (["--without", "magic", "--", "true"], "unknown part of the timing model 'magic'"),
        (["--cpus", "99", "--", "true"], "--cpus"),
    ],
)
def test_emulate_invalid_machine_configuration_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *arguments]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "5ms", "10 parsecs", ""])
def test_emulate_timeout_without_duration_refused(
    timeout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["emulate", f"--timeout={timeout}", "--", "true"])
    assert left.value.code == Exit.USAGE
    assert "write a time from 10ms" in capsys.readouterr().err


def test_emulate_unwritable_json_refused_before_boot(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--json", "/nowhere/x.json", "--", "true"]) == Exit.MISSING
    assert (
        capsys.readouterr().err == "hmd: cannot write /nowhere/x.json: No such file or directory\n"
    )


def test_demo_output_that_is_a_file_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["demo", "--output", str(file)]) == Exit.MISSING
    assert f"cannot write to the folder {file}: File exists" in capsys.readouterr().err


def test_emulate_checkout_without_kernel_names_make_setup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setattr("hmd.emulate.assets.kernel_folders", lambda: [tmp_path])
    assert main(["emulate", "--no-model", "--", "true"]) == 4
    assert "run `make setup`" in capsys.readouterr().err


def test_emulate_installed_without_kernel_or_qemu_names_action(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("hmd.emulate.assets.CHECKOUT", tmp_path)
    monkeypatch.setattr("hmd.emulate.assets.kernel_folders", lambda: [tmp_path])
    assert main(["emulate", "--no-model", "--", "true"]) == 4
    error = capsys.readouterr().err
    assert "make setup" not in error
    assert "dpkg -x PACKAGE /var/lib/hmd-emulate/kernel" in error
    assert "HMD_MACHINE_DIR" in error
    monkeypatch.setattr("hmd.emulate.assets.shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingError, match=r"is not installed: install qemu-system-x86$"):
        find_program("qemu-system-x86_64", "qemu-system-x86")


def test_kernel_folders_environment_folder_first() -> None:
    first, second, *rest = kernel_folders({"HMD_MACHINE_DIR": "/srv/kernel"})
    assert (first, second) == (Path("/srv/kernel"), Path("/srv/kernel/kernel"))
    assert rest == kernel_folders({})


def test_emulate_list_shows_presets_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "hbm-dram" in out
    assert "Izraelevitz" in out
    assert main(["emulate", "--list", "--json"]) == 0
    latency_ns = {
        preset["name"]: preset["nodes"][1]["read_latency_ns"]
        for preset in json.loads(capsys.readouterr().out)["presets"]
    }
    assert latency_ns["dram-pm"] == 305


def test_emulate_counters_outside_guest_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--counters"]) == 4
    assert "not in an emulated machine" in capsys.readouterr().err
