"""The manifest: valid by Kubernetes' own schemas, and right about what must never be two and never be restarted."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from governor.config import Config, parse_config
from tests.deploy.promtool import ROOT

TEXT = (ROOT / "deploy" / "kubernetes" / "governor.yaml").read_text()
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))


def the(kind: str) -> dict[str, Any]:
    [found] = [document for document in DOCUMENTS if document["kind"] == kind]
    return found


POD: dict[str, Any] = the("Deployment")["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def config() -> Config:
    """As the pod has it: the file, and the tokens of the environment."""
    environ = {entry["name"]: f"a-secret-of-{entry['name']}" for entry in CONTAINER["env"]}
    return parse_config(the("ConfigMap")["data"]["governor.toml"], environ=environ)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document["kind"]))
def test_kubernetes_would_take_it(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_there_is_never_more_than_one_governor() -> None:
    """E10, D8: the locks do not reach from one pod to another."""
    spec = the("Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_a_backends_fault_restarts_nothing() -> None:
    for probe in ("livenessProbe", "startupProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] == "/healthz"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_the_end_has_time_for_the_drain_and_the_last_answers() -> None:
    server = config().server
    assert POD["terminationGracePeriodSeconds"] * 1000 >= server.graceful_timeout_ms + server.send_timeout_ms + 10_000


def test_its_configuration_works_and_is_protected() -> None:
    assert config().tokens.api is not None
    assert config().tokens.admin is not None
    assert config().server.port == CONTAINER["ports"][0]["containerPort"] == the("Service")["spec"]["ports"][0]["port"]
    path = CONTAINER["args"][1]
    mounts = {mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert path.rpartition("/")[0] in mounts


def test_it_may_do_nothing_but_its_work() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert (
        f"USER {POD['securityContext']['runAsUser']}:" in (ROOT / "deploy" / "container" / "Containerfile").read_text()
    )
    closed = CONTAINER["securityContext"]
    assert (closed["allowPrivilegeEscalation"], closed["readOnlyRootFilesystem"]) == (False, True)
    assert closed["capabilities"] == {"drop": ["ALL"]}
    assert POD["automountServiceAccountToken"] is False


def test_nobody_else_reaches_the_models() -> None:
    """E10: of Triton's ports, inference is the governor's alone."""
    rules = the("NetworkPolicy")["spec"]["ingress"]
    callers = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for rule in rules
        for peer in rule["from"]
        if 8000 in {port["port"] for port in rule["ports"]}
    ]
    assert callers == ["governor"]
    assert the("Deployment")["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "governor"
