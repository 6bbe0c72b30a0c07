# SPDX-License-Identifier: MIT
"""The seccomp profile, hmd under it, and the manifests checked by Kubernetes' schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hmd.cli.main import build_parser
from hmd.config import Config, loads
from hmd.linux.cgroups import in_unit, parse_cgroup

ROOT = Path(__file__).parents[3]
PACKAGING = ROOT / "packaging"
SECCOMP = PACKAGING / "container/seccomp.json"
UNDER = Path(__file__).with_name("under_seccomp.py")
OLDEST, NEWEST = "1.30", "1.34"
"""Kubernetes has appArmorProfile from 1.30 on."""


def test_seccomp_profile_equals_that_generated_from_the_unit() -> None:
    words = [sys.executable, str(PACKAGING / "container/seccomp.py")]
    made = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert json.loads(SECCOMP.read_text()) == json.loads(made)


def under_seccomp(*command: str) -> subprocess.CompletedProcess[str]:
    words = ["/usr/bin/python3", str(UNDER), str(SECCOMP), *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def test_daemon_under_seccomp_profile_ticks(tmp_path: Path) -> None:
    config = tmp_path / "hmd.yaml"
    config.write_text(
        "targets: [{name: all, cmdline: .}]\ntick: 100ms\n"
        f"observe: {{metrics: 'off', socket: {tmp_path}/hmd.sock}}\n"
    )
    hmd = [sys.executable, "-m", "hmd", "run", "--config", str(config), "--ticks", "3"]
    done = under_seccomp(*hmd)
    assert done.returncode == 0, done.stderr
    assert "ready: " in done.stderr
    assert "Operation not permitted" not in done.stderr


def test_seccomp_profile_refuses_unused_system_calls() -> None:
    done = under_seccomp("unshare", "--mount", "true")
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr


FORBIDDEN = {
    "ptrace": 101,
    "unshare": 272,
    "migrate_pages": 256,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "userfaultfd": 323,
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "pidfd_getfd": 438,
    "mount": 165,
    "bpf": 321,
    "add_key": 248,
    "init_module": 175,
}
"""Numbers of system calls on x86-64 that hmd never makes."""

CALL = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    assert libc.syscall(number, -1, -1, -1, -1, -1, -1) == -1
    print(errno.errorcode[ctypes.get_errno()])
"""


def test_seccomp_profile_forbids_what_the_daemon_never_calls() -> None:
    """Each fails with EPERM whatever its arguments, also for root."""
    numbers = list(map(str, FORBIDDEN.values()))
    done = under_seccomp(sys.executable, "-c", CALL, *numbers)
    assert dict(zip(FORBIDDEN, done.stdout.split(), strict=True)) == dict.fromkeys(
        FORBIDDEN, "EPERM"
    ), done.stderr


COMPARE = """
import os
from hmd.linux.mappings import compare_spaces
from hmd.linux.procfs import identify
this, other = identify(os.getpid()), identify(os.getppid())
print(compare_spaces(this, this), compare_spaces(this, other) in (-1, 1))
"""


def test_seccomp_profile_allows_comparison_of_address_spaces() -> None:
    done = under_seccomp(sys.executable, "-c", COMPARE)
    assert done.stdout.split() == ["0", "True"], done.stderr


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((PACKAGING / "kubernetes/hmd.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("kind", ["Namespace", "ConfigMap", "NetworkPolicy", "DaemonSet"])
def test_manifests_are_valid_for_kubernetes(
    manifests: dict[str, dict[str, Any]], kind: str, version: str
) -> None:
    kubernetes_validate.validate(manifests[kind], version, strict=True)


def test_manifest_with_unknown_field_is_refused(manifests: dict[str, dict[str, Any]]) -> None:
    wrong = json.loads(json.dumps(manifests["DaemonSet"]))
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_container_capabilities_equal_those_of_the_unit(
    manifests: dict[str, dict[str, Any]],
) -> None:
    unit = (ROOT / "systemd/hmd.service").read_text()
    lines = [line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet=")]
    (container,) = manifests["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    may = container["securityContext"]["capabilities"]
    assert may["drop"] == ["ALL"]
    assert [f"CAP_{name}" for name in may["add"]] == lines[0].partition("=")[2].split()


@pytest.mark.parametrize("probe", ["livenessProbe", "readinessProbe", "startupProbe"])
def test_probes_ask_the_status_socket(manifests: dict[str, dict[str, Any]], probe: str) -> None:
    (container,) = manifests["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    command = container[probe]["exec"]["command"]
    assert command[0] == "hmd"
    assert build_parser(command[1:2]).parse_args(command[1:]).check is True


def test_manifests_expose_nothing(manifests: dict[str, dict[str, Any]]) -> None:
    assert metrics_address(manifests["ConfigMap"]).startswith("127.0.0.1:")
    volumes = manifests["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    files = {item["key"]: item["path"] for item in volumes[0]["configMap"]["items"]}
    assert files == {"hmd.yaml": "hmd.yaml", "metrics.yaml": "hmd.d/metrics.yaml"}
    assert set(files) == set(manifests["ConfigMap"]["data"])
    pod = manifests["DaemonSet"]["spec"]["template"]["spec"]
    assert "hostNetwork" not in pod
    assert "ports" not in pod["containers"][0]
    policy = manifests["NetworkPolicy"]["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress"]}


def metrics_address(config_map: dict[str, Any]) -> str:
    return loads(config_map["data"]["metrics.yaml"]).observe.metrics


def merged(document: Any, patch: Any) -> Any:
    """Return a document with a strategic merge patch that adds to no list."""
    if not isinstance(document, dict) or not isinstance(patch, dict):
        assert not isinstance(document, list)
        return patch
    new = {key: merged(document.get(key), value) for key, value in patch.items()}
    return document | new


def test_kustomization_opens_metrics_to_prometheus_alone(
    manifests: dict[str, dict[str, Any]],
) -> None:
    folder = PACKAGING / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert all((folder / name).exists() for name in kustomization["resources"])
    patched = {}
    for patch in kustomization["patches"]:
        change = yaml.safe_load(patch["patch"])
        before = manifests[change["kind"]]
        assert change["metadata"].items() <= before["metadata"].items()
        patched[change["kind"]] = merged(before, change)
        kubernetes_validate.validate(patched[change["kind"]], NEWEST, strict=True)
    address = metrics_address(patched["ConfigMap"])
    (rule,) = patched["NetworkPolicy"]["spec"]["ingress"]
    monitor = yaml.safe_load((folder / "podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert address == f"0.0.0.0:{endpoint['portNumber']}"
    assert rule["ports"] == [{"protocol": "TCP", "port": endpoint["portNumber"]}]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
    pods = manifests["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods.items()
    assert monitor["metadata"]["namespace"] == manifests["DaemonSet"]["metadata"]["namespace"]


def test_namespace_with_host_pid_enforces_privileged(
    manifests: dict[str, dict[str, Any]],
) -> None:
    assert manifests["DaemonSet"]["spec"]["template"]["spec"]["hostPID"]
    labels = manifests["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.fixture(scope="module")
def config(manifests: dict[str, dict[str, Any]]) -> Config:
    return loads(manifests["ConfigMap"]["data"]["hmd.yaml"])


@pytest.mark.parametrize(
    ("cgroup", "target"),
    [
        (b"0::/kubepods.slice/kubepods-pod1f_2.slice/cri-containerd-a.scope\n", "guaranteed"),
        (
            b"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f_2.slice/x.scope\n",
            "burstable",
        ),
        # As a container sees it whose own cgroup is the root of its namespace.
        (
            b"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-pod1f.slice/x.scope\n",
            "besteffort",
        ),
        (b"0::/../../../../system.slice/containerd.service\n", None),
    ],
)
def test_pod_cgroup_selects_target_of_its_qos_class(
    config: Config, cgroup: bytes, target: str | None
) -> None:
    paths = parse_cgroup(cgroup)
    found = [t.name for t in config.targets if any(in_unit(paths, unit) for unit in t.unit or ())]
    assert found == ([target] if target else [])
