"""Values that people install the chart with."""

from __future__ import annotations

from typing import Any

MATRIX: dict[str, dict[str, Any]] = {
    "as it is": {},
    "pyroscope": {"pyroscope": {"url": "http://pyroscope.monitoring:4040"}},
    "pyroscope, folded, tenant, labels": {
        "pyroscope": {
            "url": "https://pyroscope.example/base",
            "format": "folded",
            "tenant": "team-a",
            "labels": {"cluster": "west"},
        }
    },
    "pyroscope, password": {
        "pyroscope": {"url": "https://p.example", "user": "u", "password": "hunter2"}
    },
    "pyroscope, existing secret": {
        "pyroscope": {
            "url": "https://p.example",
            "existingSecret": "mine",
            "secretKeys": {"token": "api-token", "ca": "ca.crt"},
        }
    },
    "minimal capabilities": {"security": {"mode": "capabilities"}},
    "every monitor": {
        "podMonitor": {
            "enabled": True,
            "groups": ["monitoring.coreos.com", "azmonitoring.coreos.com"],
        },
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPU"}},
    },
    "network policy": {
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
        },
        "pyroscope": {"url": "http://pyroscope:4040"},
    },
    "every node, no store": {
        "gpuNodes": {"affinity": False},
        "store": {"enabled": False},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
    },
    "everything else": {
        "fullnameOverride": "probe",
        "imagePullSecrets": [{"name": "pull"}],
        "image": {
            "repository": "registry.example/gpumemprof",
            "digest": "sha256:" + "0" * 64,
            "pullPolicy": "Always",
        },
        "profiling": {"ml-team": "on", "_default": "off"},
        "priorityClassName": "system-node-critical",
        "runtimeClassName": "nvidia",
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "platform"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "env": [{"name": "TZ", "value": "UTC"}],
        "extraConfig": {"page": {"listen": "127.0.0.1:9999"}},
        "nvml": {"enabled": False},
        "loader": "bcc",
    },
}
