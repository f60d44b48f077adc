"""The agent's settings: one table, read from a file, the environment and flags.

A flag wins over the environment, and that over the file. Everything is checked before the agent
starts; a message names the key, and where its value came from.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gpumemprof.agent import parse
from gpumemprof.errors import UsageError

_MAX_FILE = 1 << 20
ENVIRONMENT_PREFIX = "GPUMEMPROF_"
IN_CLUSTER_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Set in every container of a pod."""
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
_OTHER_VARIABLES = {ENVIRONMENT_PREFIX + name for name in ("LIBBPF", "BCC", "BTF")}
"""Of the loaders (docs/kernels.md)."""
_OF_SERVICES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d+_\w+)$")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. ``key``: as in the file, sections with a dot."""

    key: str
    parse: parse.Parse
    default: object
    help: str

    @property
    def variable(self) -> str:
        """The environment variable: ``pyroscope.url`` is GPUMEMPROF_PYROSCOPE_URL."""
        return ENVIRONMENT_PREFIX + self.key.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The flag: ``pyroscope.url`` is --pyroscope-url."""
        return "--" + self.key.replace(".", "-").replace("_", "-")


SETTINGS: tuple[Setting, ...] = (
    Setting("node", parse.name, "", "Name of this node.  [default: the machine's name]"),
    Setting(
        "kubernetes",
        parse.choice("auto", "on", "off"),
        "auto",
        "Ask the Kubernetes API for pods and the switch: auto, on, or off to record every process.",
    ),
    Setting("namespace", parse.name, "", "Namespace that the agent runs in; the switch is there."),
    Setting(
        "switch",
        parse.name,
        "gpumemprof-profiling",
        "ConfigMap that says which namespaces are profiled.",
    ),
    Setting("interval", parse.seconds(1, 3600), "15s", "Time between profiles."),
    Setting(
        "loader",
        parse.choice("auto", "libbpf", "bcc"),
        "auto",
        "How the probes are loaded: auto, libbpf or bcc.",
    ),
    Setting(
        "log_level",
        parse.choice("debug", "info", "warning", "error"),
        "info",
        "Least severe messages to log: debug, info, warning or error.",
    ),
    Setting(
        "record.frames",
        parse.choice("mixed", "python", "native"),
        "mixed",
        "Frames in stacks: mixed, python or native.",
    ),
    Setting(
        "record.stack_bytes",
        parse.size(1024, 32 << 10),
        "32KiB",
        "Most bytes of a native stack to capture.",
    ),
    Setting("pyroscope.url", parse.text, "", "Where to push profiles; empty: nowhere."),
    Setting(
        "pyroscope.format",
        parse.choice("pprof", "folded"),
        "pprof",
        "Format of pushes: pprof or folded.",
    ),
    Setting("pyroscope.tenant", parse.text, "", "Tenant, sent as X-Scope-OrgID."),
    Setting("pyroscope.user", parse.text, "", "User for basic authentication."),
    Setting("pyroscope.password_file", parse.path, "", "File that holds the password."),
    Setting("pyroscope.token_file", parse.path, "", "File that holds a bearer token."),
    Setting("pyroscope.ca_file", parse.path, "", "Certificates to trust instead of the system's."),
    Setting("pyroscope.cert_file", parse.path, "", "Client certificate."),
    Setting("pyroscope.key_file", parse.path, "", "Key of the client certificate."),
    Setting(
        "pyroscope.insecure", parse.flag, False, "true: do not check the server's certificate."
    ),
    Setting("pyroscope.timeout", parse.seconds(0.1, 120), "10s", "Longest wait for an answer."),
    Setting(
        "pyroscope.jitter",
        parse.seconds(0, 600),
        "4s",
        "Spread of pushes after the interval's end; unless set, at most a third of the interval.",
    ),
    Setting("pyroscope.labels", parse.labels, "", "Labels to add, like cluster=west,env=prod."),
    Setting(
        "metrics.listen",
        parse.endpoint,
        "0.0.0.0:9464",
        "Address to serve /metrics, /healthz and /readyz at.",
    ),
    Setting(
        "metrics.max_series",
        parse.number(10, 1_000_000),
        12_000,
        "Most time series of memory in /metrics.",
    ),
    Setting(
        "page.listen",
        parse.optional_endpoint,
        "127.0.0.1:9465",
        "Address to serve the agent's page at; empty: no page.",
    ),
    Setting(
        "store.path", parse.path, "/var/lib/gpumemprof", "Where profiles are kept; empty: nowhere."
    ),
    Setting(
        "store.max_bytes",
        parse.size(1 << 20, 1 << 40),
        "256MiB",
        "Most bytes of disk that kept profiles take.",
    ),
    Setting(
        "limits.containers",
        parse.number(1, 100_000),
        512,
        "Most containers that are recorded at once.",
    ),
    Setting(
        "limits.held",
        parse.number(1, 10_000),
        256,
        "Most processes that are recorded before their pod is known.",
    ),
)
"""Adding a setting is adding a row."""

_BY_KEY = {setting.key: setting for setting in SETTINGS}


class Settings:
    """Values by key, all checked: ``settings["pyroscope.url"]``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = MappingProxyType(dict(values))

    def __getitem__(self, key: str) -> Any:
        """Raises KeyError for what is no row of the table."""
        return self._values[key]


def load(
    path: Path | None,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read all settings. ``flags``: key → text, those given. UsageError names what is wrong."""
    environment = os.environ if environment is None else environment
    given: dict[str, tuple[object, str]] = {}
    if path is None and environment.get(CONFIG_VARIABLE):
        path = Path(environment[CONFIG_VARIABLE])
    if path is not None:
        given |= {key: (value, str(path)) for key, value in _read_file(path).items()}
    for setting in SETTINGS:
        if setting.variable in environment:
            given[setting.key] = environment[setting.variable], setting.variable
        if flags and setting.key in flags:
            given[setting.key] = flags[setting.key], setting.flag
    values = {}
    for setting in SETTINGS:
        value, source = given.get(setting.key, (setting.default, "the default"))
        try:
            values[setting.key] = setting.parse(value)
        except ValueError as error:
            raise UsageError(f"{setting.key} (from {source}) is {value!r}: {error}") from None
    if "pyroscope.jitter" not in given:
        values["pyroscope.jitter"] = min(values["pyroscope.jitter"], values["interval"] / 3)
    _check_together(values)
    _check_cluster(values, in_cluster=IN_CLUSTER_VARIABLE in environment)
    return Settings(values)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Variables that look like settings and are none. Those that Kubernetes makes of services
    named gpumemprof are not meant."""
    environment = os.environ if environment is None else environment
    known = {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE} | _OTHER_VARIABLES
    return sorted(
        name
        for name in environment
        if name.startswith(ENVIRONMENT_PREFIX)
        and name not in known
        and not _OF_SERVICES.search(name)
        and not name.startswith(ENVIRONMENT_PREFIX + "FAKE_")
    )


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"the configuration {path} cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE:
        raise UsageError(f"the configuration {path} is larger than {_MAX_FILE:,} bytes")
    try:
        tree = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the configuration {path} is not YAML: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UsageError(f"the configuration {path} must be keys with values")
    found: dict[str, object] = {}
    for section, value in tree.items():
        inner = value if isinstance(value, dict) and str(section) not in _BY_KEY else None
        for key, leaf in [(section, value)] if inner is None else inner.items():
            name = str(key) if inner is None else f"{section}.{key}"
            if name not in _BY_KEY:
                raise UsageError(f"{path}: there is no setting {name!r}{_meant(name)}")
            if leaf is not None:
                found[name] = leaf
    return found


def _meant(name: str) -> str:
    close = difflib.get_close_matches(name, _BY_KEY, 1)
    return f" (is it {close[0]}?)" if close else ""


def _check_together(values: Mapping[str, Any]) -> None:
    if values["pyroscope.url"] and values["pyroscope.jitter"] >= values["interval"]:
        raise UsageError(
            f"pyroscope.jitter ({values['pyroscope.jitter']:g} s) must be shorter than "
            f"interval ({values['interval']:g} s)"
        )
    if values["pyroscope.password_file"] and not values["pyroscope.user"]:
        raise UsageError("pyroscope.password_file needs pyroscope.user")
    if values["pyroscope.token_file"] and values["pyroscope.password_file"]:
        raise UsageError("pyroscope.token_file and pyroscope.password_file exclude each other")
    if bool(values["pyroscope.cert_file"]) != bool(values["pyroscope.key_file"]):
        raise UsageError("pyroscope.cert_file and pyroscope.key_file go together")


def _check_cluster(values: Mapping[str, Any], *, in_cluster: bool) -> None:
    """In a pod, forgotten settings must not make everything recorded, or nothing found."""
    wanted = values["kubernetes"]
    if (wanted == "on" or (wanted == "auto" and in_cluster)) and not values["namespace"]:
        raise UsageError(
            "namespace is needed: the release's, where the switch is (or set kubernetes to off)"
        )
    if in_cluster and wanted != "off" and not values["node"]:
        raise UsageError("node is needed: a pod's own name is not its node's (spec.nodeName)")
