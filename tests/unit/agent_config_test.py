"""The agent's settings: file, environment and flags, and what is told of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumemprof.agent.config import SETTINGS, Setting, load, unknown_variables
from gpumemprof.agent.parse import Endpoint
from gpumemprof.errors import UsageError
from scripts import generate_settings


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return path


def test_everything_has_a_default_that_is_valid() -> None:
    settings = load(None, {}, {})

    assert settings["interval"] == 15.0
    assert settings["metrics.listen"] == Endpoint(("0.0.0.0", 9464))
    assert settings["store.max_bytes"] == 256 << 20
    assert settings["pyroscope.password_file"] is None


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, "node: file\nswitch: file\npyroscope:\n  url: http://file\n")
    environment = {"GPUMEMPROF_SWITCH": "environment", "GPUMEMPROF_PYROSCOPE_URL": "http://env"}

    settings = load(path, {"pyroscope.url": "http://flag"}, environment)

    assert settings["node"] == "file"
    assert settings["switch"] == "environment"
    assert settings["pyroscope.url"] == "http://flag"


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, "interval: 1m\n")

    assert load(None, {}, {"GPUMEMPROF_CONFIG": str(path)})["interval"] == 60.0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_each_setting_can_be_given_in_each_way(setting: object, tmp_path: Path) -> None:
    assert isinstance(setting, Setting)
    examples = {"page.listen": "[::1]:1", "metrics.listen": ":1", "pyroscope.labels": "a=b"}
    default = "false" if setting.default is False else str(setting.default)
    text = examples.get(setting.key, default)
    *section, key = setting.key.split(".")
    needed = {"namespace": "ns"} if setting.key != "namespace" else {}

    by_flag = load(None, {**needed, setting.key: text}, {})[setting.key]
    by_variable = load(None, needed, {setting.variable: text})[setting.key]
    line = f"{key}: '{text}'\n"
    by_file = load(config(tmp_path, f"{section[0]}:\n  {line}" if section else line), needed, {})

    assert by_flag == by_variable == by_file[setting.key]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("interval: soon", "interval (from {path}) is 'soon': it must be a time like 15s"),
        ("interval: 0.1s", "between 1s and 3600s"),
        ("intervall: 15s", "there is no setting 'intervall' (is it interval?)"),
        ("pyroscope:\n  uri: x", "there is no setting 'pyroscope.uri' (is it pyroscope.url?)"),
        ("metrics:\n  listen: 9464x", "metrics.listen"),
        ("metrics:\n  listen: 1:99999", "metrics.listen"),
        ("store:\n  max_bytes: 1", "store.max_bytes"),
        ("loader: [bcc]", "loader"),
        ("node: Node_1", "node"),
        ("- a", "must be keys with values"),
        ("a: [", "is not YAML"),
        ("kubernetes: on", "namespace is needed"),
        (
            "interval: 2s\npyroscope:\n  url: http://x\n  jitter: 4s",
            "pyroscope.jitter (4 s) must be shorter than interval (2 s)",
        ),
        ("pyroscope:\n  password_file: /x", "pyroscope.password_file needs pyroscope.user"),
        ("pyroscope:\n  cert_file: /x", "go together"),
        ("pyroscope:\n  labels: {a-b: c}", "'a-b' is no label name"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("a: &a [*a]", "there is no setting 'a'"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(text: str, told: str, tmp_path: Path) -> None:
    path = config(tmp_path, text)

    with pytest.raises(UsageError) as error:
        load(path, {}, {})

    assert told.format(path=path) in str(error.value)


def test_in_a_pod_nothing_is_recorded_by_an_oversight() -> None:
    """Without the namespace there would be no switch, and every process would be recorded."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(UsageError, match="namespace is needed"):
        load(None, {"node": "node-a"}, pod)
    with pytest.raises(UsageError, match="node is needed"):
        load(None, {"namespace": "gpumemprof"}, pod)

    assert load(None, {"node": "node-a", "namespace": "gpumemprof"}, pod)["kubernetes"] == "auto"
    assert load(None, {"kubernetes": "off"}, pod)["kubernetes"] == "off"


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(tmp_path / "none", {}, {})


def test_a_yaml_truth_value_is_what_it_was_written_as(tmp_path: Path) -> None:
    """YAML 1.1 reads an unquoted ``off`` as false."""
    assert load(config(tmp_path, "kubernetes: off\n"), {}, {})["kubernetes"] == "off"


def test_the_documented_settings_are_those_of_the_table() -> None:
    page = generate_settings.PAGE.read_text()

    assert page == generate_settings.current(page), "run scripts/generate_settings.py"


def test_a_jitter_that_is_not_given_fits_any_interval() -> None:
    given = {"pyroscope.url": "http://x"}

    assert load(None, {**given, "interval": "3s"}, {})["pyroscope.jitter"] == 1.0
    assert load(None, given, {})["pyroscope.jitter"] == 4.0
    assert load(None, {**given, "interval": "1m"}, {})["pyroscope.jitter"] == 4.0


def test_a_misspelt_variable_is_told_and_what_kubernetes_sets_is_not() -> None:
    environment = {
        "GPUMEMPROF_INTERVALL": "3",
        "GPUMEMPROF_INTERVAL": "3s",
        "GPUMEMPROF_CONFIG": "/x",
        "GPUMEMPROF_LIBBPF": "/x",
        "GPUMEMPROF_SERVICE_HOST": "10.0.0.1",
        "GPUMEMPROF_PORT_9464_TCP_ADDR": "10.0.0.1",
        "PATH": "/bin",
    }

    assert unknown_variables(environment) == ["GPUMEMPROF_INTERVALL"]
