"""The Helm chart: rendered without helm, and checked against what the commands and the image expect.

Not seen here: helm's own lint, an API server's validation, pods that run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gotemplates import render
from thistle.commands.deploy.server import server_files

CHART = Path(__file__).resolve().parents[2] / "docker" / "helm" / "thistle"
NORTH = {"name": "north", "keys": "thistle-north", "data": "npz:/data/north.npz", "claim": "north-data"}
SOUTH = {"name": "south", "keys": "k", "server": "fl.example.org:8443", "arguments": ["--role", "calibrated"]}
API = {"Service": "v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}


def rendered(**changes: Any) -> list[dict[str, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | changes
    about = {"Values": values, "Release": {"Name": "fl"}}
    texts = [render(path.read_text(), about) for path in sorted((CHART / "templates").glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in documents if "template" in one["spec"]}


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_every_object_is_of_a_known_kind_and_finds_its_own_pods() -> None:
    documents = rendered(nodes=[NORTH, SOUTH])
    assert [one["apiVersion"] for one in documents] == [API[one["kind"]] for one in documents]
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-z0-9-]{1,63}", name) for _, name in names)
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in documents
        if "template" in one["spec"]
    }
    for one in documents:
        spec = one["spec"]
        chosen = spec.get("podSelector", {}).get("matchLabels") or spec["selector"]
        chosen = chosen.get("matchLabels", chosen)
        found = {name for name, own in labels.items() if matches(chosen, own)}
        name = one["metadata"]["name"]
        nodes = {"fl-north", "fl-south"}
        assert found == ({name} if name not in ("fl-nodes",) else nodes), one["kind"]


def test_pods_mount_what_they_name_and_are_allowed_little() -> None:
    for name, pod in pods(rendered(nodes=[NORTH, SOUTH])).items():
        (container,) = pod["containers"]
        volumes = {one["name"] for one in pod["volumes"]} | ({"state"} if name == "fl-server" else set())
        assert {one["name"] for one in container["volumeMounts"]} == volumes
        assert pod["securityContext"]["runAsUser"] == 10001 and pod["securityContext"]["runAsNonRoot"]
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"] and not allowed["allowPrivilegeEscalation"]
        assert allowed["capabilities"] == {"drop": ["ALL"]} and container["resources"]["limits"]["memory"]
        assert not pod["automountServiceAccountToken"]
    dockerfile = (CHART.parents[1] / "Dockerfile").read_text()
    assert "--uid 10001" in dockerfile and "THISTLE_STATE=/state" in dockerfile


def test_the_containers_run_commands_that_there_are(tmp_path: Path) -> None:
    import typer.main

    from thistle.commands.deploy import app

    command = typer.main.get_command(app)
    documents = pods(rendered(nodes=[NORTH, SOUTH]))
    for name, pod in documents.items():
        deploy, verb, *rest = pod["containers"][0]["args"]
        context = command.commands[verb].make_context(verb, list(map(str, rest)))  # type: ignore[attr-defined]
        assert deploy == "deploy" and context.params["certs"]
        if name != "fl-server":
            wanted = "fl-server:8443" if name == "fl-north" else "fl.example.org:8443"
            assert context.params["server"] == wanted
    north = documents["fl-north"]["containers"][0]
    assert north["args"][-2:] == ["--data", "npz:/data/north.npz"] and "/data" in str(north["volumeMounts"])
    for file in ("ca.crt", "server.pem", "server.key"):
        (tmp_path / file).touch()
    server_files(tmp_path)  # the files of the Secret, as values.yaml names them
    assert "Secret with ca.crt, server.pem and server.key" in (CHART / "values.yaml").read_text()


def test_only_the_gateway_is_published_and_two_pods_never_share_a_key() -> None:
    documents = rendered(nodes=[NORTH])
    ports = [port["port"] for one in documents if one["kind"] == "Service" for port in one["spec"]["ports"]]
    assert ports == [8443]
    kinds = {one["kind"]: one["spec"] for one in documents}
    assert kinds["Deployment"]["strategy"] == {"type": "Recreate"} and kinds["StatefulSet"]["replicas"] == 1


def test_a_hospitals_cluster_has_nodes_only() -> None:
    server = yaml.safe_load((CHART / "values.yaml").read_text())["server"] | {"enabled": False}
    policy = {"enabled": False}
    assert [one["kind"] for one in rendered(server=server, nodes=[SOUTH], networkPolicy=policy)] == ["Deployment"]


def test_what_the_small_renderer_does_not_know_is_an_error() -> None:
    with pytest.raises(AssertionError, match="not"):
        render('{{ include "x" . }}', {})
