"""What an installation has, for the values that people give."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from gpumemprof import __version__
from gpumemprof.agent import config
from tests.chart.helm_tool import CHART
from tests.chart.helm_tool import REPOSITORY as ROOT
from tests.chart.matrix import MATRIX
from tests.chart.rendering import Refused, Rendered, render
from tests.chart.rendering import helm as run_helm

AZURE = {"key": "kubernetes.azure.com/accelerator", "operator": "In", "values": ["nvidia"]}
DISCOVERED = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_lint_finds_nothing(helm: int) -> None:
    run_helm(helm, "lint", "--strict", str(CHART))


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_agent_takes_the_configuration_it_is_given(
    helm: int, values: dict[str, object], tmp_path: Path
) -> None:
    rendered = render(helm, values, release="prof")
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(rendered.config))

    settings = config.load(file, environment={"GPUMEMPROF_NAMESPACE": "monitoring"})

    assert settings["kubernetes"] == "on"
    name = "probe" if "fullnameOverride" in values else "prof"
    assert settings["switch"] == f"{name}-profiling"
    assert rendered.one("ConfigMap", settings["switch"])


def test_values_reach_the_agent(helm: int, tmp_path: Path) -> None:
    values = {
        "interval": "30s",
        "loader": "libbpf",
        "logLevel": "debug",
        "record": {"frames": "python", "stackBytes": "16KiB"},
        "limits": {"containers": 7, "held": 8},
        "metrics": {"port": 1234, "maxSeries": 50},
        "page": {"port": 2345},
        "store": {"maxBytes": "64MiB"},
        "pyroscope": {
            "url": "https://p.example/base",
            "format": "folded",
            "tenant": "7",
            "timeout": "3s",
            "jitter": "2s",
            "labels": {"cluster": "west"},
            "insecure": True,
            "user": "u",
            "password": "p",
        },
    }
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump(render(helm, values).config))

    settings = config.load(file, environment={"GPUMEMPROF_NAMESPACE": "monitoring"})

    wanted = {
        "interval": 30.0,
        "loader": "libbpf",
        "log_level": "debug",
        "record.frames": "python",
        "record.stack_bytes": 16 << 10,
        "limits.containers": 7,
        "limits.held": 8,
        "metrics.listen": ("0.0.0.0", 1234),
        "metrics.max_series": 50,
        "page.listen": ("127.0.0.1", 2345),
        "store.path": Path("/var/lib/gpumemprof"),
        "store.max_bytes": 64 << 20,
        "pyroscope.url": "https://p.example/base",
        "pyroscope.format": "folded",
        "pyroscope.tenant": "7",
        "pyroscope.timeout": 3.0,
        "pyroscope.jitter": 2.0,
        "pyroscope.labels": {"cluster": "west"},
        "pyroscope.insecure": True,
        "pyroscope.user": "u",
        "pyroscope.password_file": Path("/etc/gpumemprof/pyroscope/password"),
    }
    got = {setting.key: settings[setting.key] for setting in config.SETTINGS}
    assert got == got | wanted


def test_it_needs_an_image_and_says_so(helm: int) -> None:
    with pytest.raises(Refused, match=r"image\.repository is not set: where the nodes pull"):
        render(helm, {"image": {}})


def test_the_images_name(helm: int) -> None:
    assert render(helm).agent["image"] == f"registry.example/gpumemprof:{__version__}"
    digest = MATRIX["everything else"]
    assert render(helm, digest).agent["image"] == f"registry.example/gpumemprof@sha256:{'0' * 64}"


def test_it_goes_to_gpu_nodes_of_either_label_and_past_their_taints(helm: int) -> None:
    pod = render(helm).pod
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = [term["matchExpressions"][-1] for term in terms["nodeSelectorTerms"]]
    assert wanted == [AZURE, DISCOVERED]
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    ]


def test_every_node_on_request(helm: int) -> None:
    pod = render(helm, MATRIX["every node, no store"]).pod
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    keys = [[e["key"] for e in t["matchExpressions"]] for t in terms["nodeSelectorTerms"]]
    assert keys == [["kubernetes.io/os", "kubernetes.io/arch"]]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert pod["tolerations"][-1] == {"key": "team", "operator": "Exists"}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_nothing_of_the_host_is_mounted_and_the_root_is_read_only(
    helm: int, values: dict[str, object]
) -> None:
    rendered = render(helm, values)
    assert all("hostPath" not in volume for volume in rendered.pod["volumes"])
    assert rendered.agent["securityContext"]["readOnlyRootFilesystem"] is True
    assert rendered.pod["hostPID"] is True
    assert "hostNetwork" not in rendered.pod
    mounted = {mount["name"] for mount in rendered.agent["volumeMounts"]}
    assert mounted == {volume["name"] for volume in rendered.pod["volumes"]}


def test_privileged_or_minimal(helm: int) -> None:
    assert render(helm).agent["securityContext"]["privileged"] is True

    minimal = MATRIX["minimal capabilities"]
    context = render(helm, minimal).agent["securityContext"]
    assert context["privileged"] is False
    assert context["capabilities"]["drop"] == ["ALL"]
    assert {"BPF", "PERFMON", "SYS_PTRACE"} <= set(context["capabilities"]["add"])
    assert "SYS_ADMIN" not in context["capabilities"]["add"]


def test_app_armor_is_asked_for_as_the_cluster_understands_it(helm: int) -> None:
    minimal = MATRIX["minimal capabilities"]
    annotation = "container.apparmor.security.beta.kubernetes.io/agent"

    old = render(helm, minimal, kubernetes="1.29.9")
    assert "appArmorProfile" not in old.agent["securityContext"]
    template = old.one("DaemonSet")["spec"]["template"]
    assert template["metadata"]["annotations"][annotation] == "unconfined"

    new = render(helm, minimal, kubernetes="1.30.0")
    assert new.agent["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}
    assert annotation not in new.one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]


def test_the_rights_are_exactly_these(helm: int) -> None:
    rendered = render(helm, release="prof")
    assert rendered.one("ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    assert rendered.one("Role")["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["prof-profiling"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    account = {"kind": "ServiceAccount", "name": "prof", "namespace": "monitoring"}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        assert rendered.one(kind)["subjects"] == [account]
    assert rendered.pod["serviceAccountName"] == "prof"


def test_the_switch_is_made_once_and_is_no_part_of_the_release(helm: int) -> None:
    switch = render(helm, {"profiling": {"ml-team": "on"}}).one("ConfigMap", "gpumemprof-profiling")
    assert switch["data"] == {"ml-team": "on"}
    annotations = switch["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "before-hook-creation" not in annotations["helm.sh/hook-delete-policy"]


def test_a_password_is_in_a_secret_only(helm: int) -> None:
    rendered = render(helm, MATRIX["pyroscope, password"])
    secret = rendered.one("Secret")
    assert base64.b64decode(secret["data"]["password"]) == b"hunter2"
    others = [item for item in rendered.objects if item is not secret]
    assert "hunter2" not in yaml.safe_dump(others)
    assert rendered.config["pyroscope"]["password_file"] == "/etc/gpumemprof/pyroscope/password"
    (volume,) = [v for v in rendered.pod["volumes"] if v["name"] == "pyroscope"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]


def test_a_secret_that_exists_is_used(helm: int) -> None:
    rendered = render(helm, MATRIX["pyroscope, existing secret"])
    assert rendered.all("Secret") == []
    assert rendered.config["pyroscope"]["token_file"] == "/etc/gpumemprof/pyroscope/api-token"
    assert rendered.config["pyroscope"]["ca_file"] == "/etc/gpumemprof/pyroscope/ca.crt"
    (volume,) = [v for v in rendered.pod["volumes"] if v["name"] == "pyroscope"]
    assert volume["secret"]["secretName"] == "mine"


@pytest.mark.parametrize(
    "pyroscope, message",
    [
        ({"existingSecret": "mine"}, "which of its keys to use"),
        ({"existingSecret": "mine", "token": "t"}, "exclude pyroscope.existingSecret"),
    ],
)
def test_contradictory_credentials_are_refused(
    helm: int, pyroscope: dict[str, str], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        render(helm, {"pyroscope": {"url": "http://p", **pyroscope}})


def test_another_configuration_rolls_the_pods(helm: int) -> None:
    def checksum(values: dict[str, object]) -> str:
        template = render(helm, values).one("DaemonSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({"interval": "30s"}) != checksum({})
    assert checksum({"profiling": {"a": "on"}}) == checksum({})


def test_pod_monitors_of_both_groups(helm: int) -> None:
    oss, azure = render(helm, MATRIX["every monitor"]).all("PodMonitor")
    assert oss["apiVersion"] == "monitoring.coreos.com/v1"
    assert azure["apiVersion"] == "azmonitoring.coreos.com/v1"
    limits = {"labelLimit": 63, "labelNameLengthLimit": 511, "labelValueLengthLimit": 1023}
    assert limits.items() <= azure["spec"].items()
    labels = render(helm).one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    for monitor in (oss, azure):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == "metrics" and endpoint["honorLabels"] is True


def test_dashboards_are_found_by_grafana(helm: int) -> None:
    rendered = render(helm, MATRIX["every monitor"])
    board = rendered.one("ConfigMap", "gpumemprof-dashboards")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: path.read_text() for path in (CHART / "dashboards").glob("*.json")}
    assert files, "no dashboards in the chart"
    assert {k: v.strip() for k, v in board["data"].items()} == {
        k: v.strip() for k, v in files.items()
    }
    assert len(yaml.safe_dump(board)) < 1 << 20, "a ConfigMap holds 1 MiB"


def test_the_alerts_are_those_of_deploy(helm: int) -> None:
    rule = render(helm, MATRIX["every monitor"]).one("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_network_policy_opens_the_metrics_and_what_the_agent_asks(helm: int) -> None:
    spec = render(helm, MATRIX["network policy"]).one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    (entry,) = spec["ingress"]
    assert entry["ports"] == [{"port": 9464, "protocol": "TCP"}]
    assert entry["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    ports = [{port["port"] for port in rule["ports"]} for rule in spec["egress"]]
    assert ports == [{53}, {443, 6443}, {4040}]


@pytest.mark.parametrize(
    "url, port", [("http://p", 80), ("https://p/x", 443), ("http://[::1]:4040/y", 4040)]
)
def test_pyroscopes_port_is_the_urls(helm: int, url: str, port: int) -> None:
    values = {"networkPolicy": {"enabled": True}, "pyroscope": {"url": url}}
    egress = render(helm, values).one("NetworkPolicy")["spec"]["egress"]
    assert egress[-1]["ports"] == [{"port": port, "protocol": "TCP"}]


def _names(rendered: Rendered) -> list[str]:
    return [item["metadata"]["name"] for item in rendered.objects]


def test_the_longest_release_name_still_fits(helm: int) -> None:
    release = "a" * 52 + "b"
    names = _names(render(helm, MATRIX["pyroscope, password"], release=release))
    namespaced = [name for name in names if ":" not in name]
    assert f"{release}-profiling" in namespaced
    assert all(len(name) <= 63 for name in namespaced)


def test_a_name_that_is_cut_ends_in_a_letter(helm: int) -> None:
    rendered = render(helm, {"fullnameOverride": "a" * 52 + "-" + "b" * 10})
    assert rendered.one("DaemonSet")["metadata"]["name"] == "a" * 52


def test_releases_in_two_namespaces_have_roles_of_their_own(helm: int) -> None:
    first = render(helm, namespace="one").one("ClusterRole")["metadata"]["name"]
    second = render(helm, namespace="two").one("ClusterRole")["metadata"]["name"]
    assert first != second


@pytest.mark.parametrize(
    "values",
    [
        {"pyroscop": {}},
        {"pyroscope": {"urll": "x"}},
        {"interval": "soon"},
        {"metrics": {"port": 70000}},
        {"security": {"mode": "root"}},
        {"profiling": {"ml-team": True}},
        {"profiling": {"ML_Team": "on"}},
        {"podMonitor": {"groups": ["example.com"]}},
        {"image": {"repository": "https://registry.example/gpumemprof"}},
        {"gpuNodes": {"labels": [{"key": "a"}]}},
    ],
    ids=str,
)
def test_wrong_values_are_refused_by_the_schema(helm: int, values: dict[str, object]) -> None:
    with pytest.raises(Refused, match="values don't meet the specifications of the schema"):
        render(helm, values)


def test_every_value_is_in_the_schema(helm: int) -> None:
    """Every default passes, so a key that values.yaml has and the schema lacks would be refused."""
    assert render(helm).objects


def test_it_can_be_a_part_of_another_chart(helm: int) -> None:
    assert render(helm, {"global": {"imageRegistry": "x"}}).objects
