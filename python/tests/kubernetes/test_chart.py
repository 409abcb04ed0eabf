# SPDX-License-Identifier: Apache-2.0
"""The chart of deploy/kubernetes: what it renders, what it refuses, and that its renderer here refuses what it cannot."""

from __future__ import annotations

import copy
import re
import subprocess
from typing import Any

import chart
import pytest
import rules
import yaml
from conftest import command_path
from schema import SchemaError

DEPLOY = chart.CHART.parent
ROOT = DEPLOY.parents[1]
BARE = {"image": {"repository": "registry.example/kvcove"}, "insecure": True}
FORMS = ("minimal", "cluster")


def values_of(form: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / f"manifests/{form}.values.yaml").read_text())
    return loaded


def things(values: dict[str, Any]) -> list[dict[str, Any]]:
    return list(chart.objects(chart.manifest(values)))


def one(values: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    (found,) = (
        each for each in things(values) if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pod(values: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    template: dict[str, Any] = one(values, kind, name)["spec"]["template"]["spec"]
    return template


def words(values: dict[str, Any], kind: str, name: str) -> list[str]:
    (container,) = pod(values, kind, name)["containers"]
    assert "command" not in container, "the image's entry point is the command"
    given: list[str] = container["args"]
    return given


def example() -> list[dict[str, Any]]:
    return list(chart.objects((DEPLOY / "examples/vllm.yaml").read_text()))


@pytest.mark.parametrize("form", FORMS)
def test_the_plain_manifests_are_what_the_chart_renders(form: str) -> None:
    command = (
        f"python3 python/tests/kubernetes/chart.py kvcove kvcove deploy/kubernetes/manifests/{form}.values.yaml "
        f"> deploy/kubernetes/manifests/{form}.yaml"
    )
    there = (DEPLOY / f"manifests/{form}.yaml").read_text()
    assert chart.manifest(values_of(form)) == there, f"make it again: {command}"


@pytest.mark.parametrize("form", FORMS)
def test_each_object_is_as_its_kind_says_and_keeps_the_rules(form: str) -> None:
    for thing in things(values_of(form)):
        rules.check_kind(thing)
        assert rules.faults(thing) == []


def test_the_engine_is_as_its_kind_says_and_keeps_the_rules() -> None:
    for thing in example():
        rules.check_kind(thing)
        assert rules.faults(thing) == []


@pytest.mark.parametrize("form", FORMS)
def test_servers_run_as_the_user_of_the_image(form: str) -> None:
    for kind, name in (("StatefulSet", "kvcove-master"), ("DaemonSet", "kvcove-owner")):
        security = pod(values_of(form), kind, name)["securityContext"]
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == rules.USER


def test_each_name_is_there_once_and_each_reference_has_its_object() -> None:
    found = things(values_of("cluster"))
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in found
    ]
    assert len(names) == len(set(names))
    for each in found:
        for spec in rules.pods(each):
            space = each["metadata"]["namespace"]
            assert ("ServiceAccount", space, spec["serviceAccountName"]) in names
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            claims = each["spec"].get("volumeClaimTemplates", [])
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                for mount in container["volumeMounts"]:
                    assert mount["name"] in volumes or mount["name"] in [
                        claim["metadata"]["name"] for claim in claims
                    ]
            for volume in volumes.values():
                if claim := volume.get("persistentVolumeClaim"):
                    assert ("PersistentVolumeClaim", space, claim["claimName"]) in names
    for each in found:
        if each["kind"] == "PersistentVolume":
            claim = each["spec"]["claimRef"]
            assert ("PersistentVolumeClaim", claim["namespace"], claim["name"]) in names


def test_the_engine_uses_what_the_chart_makes() -> None:
    spec = example()[-1]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    names = [
        (each["kind"], each["metadata"]["name"])
        for each in things(values_of("cluster"))
        if each["metadata"].get("namespace") == example()[-1]["metadata"]["namespace"]
    ]
    for source in container["envFrom"]:
        assert ("ConfigMap", source["configMapRef"]["name"]) in names
    socket = next(volume for volume in spec["volumes"] if volume["name"] == "socket")
    assert ("PersistentVolumeClaim", socket["persistentVolumeClaim"]["claimName"]) in names
    owner = pod(values_of("cluster"), "DaemonSet", "kvcove-owner")["containers"][0]
    host = [each for each in owner["env"] if each["name"] == "KVCOVE_HOST_ID"]
    assert host == [each for each in container["env"] if each["name"] == "KVCOVE_HOST_ID"]
    place = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["socket"]
    assert f"--socket={place}/kvcove.sock" in owner["args"]
    group = next(word for word in owner["args"] if word.startswith("--engine-group="))
    assert int(group.partition("=")[2]) in spec["securityContext"]["supplementalGroups"]


@pytest.mark.parametrize("form", FORMS)
def test_the_program_has_each_option(form: str) -> None:
    for kind, name in (("StatefulSet", "kvcove-master"), ("DaemonSet", "kvcove-owner")):
        command = name.rpartition("-")[2]
        given = words(values_of(form), kind, name)
        options = given[given.index(command) + 1 :]
        ran = subprocess.run(
            [command_path(), command, "--help"], capture_output=True, text=True, check=True
        )
        for option in options:
            assert f"{option.partition('=')[0]} " in ran.stdout, option


def test_masters_with_etcd_have_no_volume_and_names_of_their_own() -> None:
    values = values_of("cluster")
    assert "volumeClaimTemplates" not in one(values, "StatefulSet", "kvcove-master")["spec"]
    given = words(values, "StatefulSet", "kvcove-master")
    assert "--advertise=$(POD_NAME).kvcove-master.kvcove.svc:7400" in given
    assert (
        "--store=etcd://etcd-0.etcd.etcd.svc:2379,etcd-1.etcd.etcd.svc:2379,etcd-2.etcd.etcd.svc:2379/kvcove"
        in given
    )
    masters = ",".join(
        f"kvcove-master-{number}.kvcove-master.kvcove.svc:7400" for number in range(3)
    )
    assert f"--master={masters}" in words(values, "DaemonSet", "kvcove-owner")
    engine = one({**values, "engines": {"namespaces": []}}, "ConfigMap", "kvcove-engine")
    assert engine["data"]["KVCOVE_POOL"] == f"kvcove://{masters}"
    assert one(values, "PodDisruptionBudget", "kvcove-master")["spec"]["maxUnavailable"] == 1


def test_one_master_keeps_its_facts_in_a_volume() -> None:
    (facts,) = one(BARE, "StatefulSet", "kvcove-master")["spec"]["volumeClaimTemplates"]
    assert facts["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert "storageClassName" not in facts["spec"], "the cluster's default"
    assert not [each for each in things(BARE) if each["kind"] == "PodDisruptionBudget"]


def test_disks_are_directories_of_the_node_or_claims() -> None:
    spec = pod(values_of("cluster"), "DaemonSet", "kvcove-owner")
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["disk-nvme0"]["persistentVolumeClaim"]["claimName"] == "kvcove-disk-nvme0"
    claim = volumes["disk-nvme1"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "local-nvme"
    given = words(values_of("cluster"), "DaemonSet", "kvcove-owner")
    assert (
        "--disk=/var/lib/kvcove/nvme0:500GiB" in given
        and "--disk=/var/lib/kvcove/nvme1:180GiB" in given
    )
    prepare = spec["initContainers"][0]
    assert prepare["args"] == ["/run/kvcove", "/var/lib/kvcove/nvme0"]


def test_without_prepare_nothing_is_root() -> None:
    off = {"prepare": {"enabled": False}}
    assert "initContainers" not in pod({**BARE, **off}, "DaemonSet", "kvcove-owner")
    (name,) = pod({**values_of("cluster"), **off}, "DaemonSet", "kvcove-owner")["initContainers"]
    assert "runAsUser" not in name["securityContext"], "it is the pod's"


def test_a_release_of_another_name_and_namespace_is_another() -> None:
    text = chart.manifest({**BARE, "engines": {"namespaces": ["jobs"]}}, "pool-b", "team")
    assert "kvcove-owner" not in text and "pool-b-owner" in text
    for thing in chart.objects(text):
        space = thing["metadata"].get("namespace")
        assert space in ("team", "jobs") or thing["kind"] == "PersistentVolume"


def test_options_that_are_off_leave_nothing() -> None:
    text = chart.manifest({**BARE, "networkPolicy": {"enabled": False}})
    assert "NetworkPolicy" not in text and "PodMonitor" not in text and "--tls" not in text
    assert "--credentials" not in text and "--insecure" in text
    notes = chart.render(BARE)["NOTES.txt"]
    assert "daemonset/kvcove-owner" in notes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"insecure": True}, "image.repository: name your registry's kvcove"),
        ({"image": BARE["image"]}, "credentials.secret, or say insecure"),
        ({**BARE, "credentials": {"secret": "s"}}, "exclude each other"),
        ({**BARE, "master": {"replicas": 3}}, "more than one master needs etcd"),
        ({**BARE, "engines": {"namespaces": ["kvcove"]}}, "has its claim anyway"),
        ({**BARE, "owners": {}}, "values: there is no 'owners'; there are credentials"),
        ({**BARE, "owner": {"memory": "64Gi"}}, "values.owner.memory: '64Gi' is not of the form"),
        ({**BARE, "owner": {"hugePages": False}}, "values.owner.hugePages: False is none of"),
        ({**BARE, "image": {"repository": "r", "tag": "latest"}}, "values.image.tag: 'latest'"),
        (
            {**BARE, "owner": {"disks": [{"name": "a", "size": "1GiB"}]}},
            r"values.owner.disks\[0\]: exactly one",
        ),
    ],
)
def test_values_that_cannot_be_meant_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises((chart.ChartError, SchemaError), match=message):
        chart.render(given)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ .Values.a | upper }}", "the function 'upper' is outside of the subset"),
        ("{{ if .a }}x", "'if' has no 'end'"),
        ("{{ end }}", "nothing is open here"),
        ("{{ if .a }}{{ else if .b }}{{ end }}", "'else if' is outside of the subset"),
        ("{{ range $k, $v := .a }}{{ end }}", "is outside of the subset"),
        ("{{ .Values.none }}", "there is no such value"),
        ("{{ .Values.a.b.c }}", "has no fields"),
        ('{{ include "none" . }}', "no template is named 'none'"),
        ("{{ $x }}", "the variable '\\$x' is not set"),
        ("{{ (.Values.a }}", "a parenthesis is not closed"),
        ("{{ .Values.a | }}", "a command is empty"),
        ("{{ .Values.a", "an action is not closed"),
        ("{{ $x = 1 }}", "is outside of the subset"),
        ('{{ printf "%v" 1 }}', "is outside of the subset"),
    ],
)
def test_the_renderer_refuses_what_it_does_not_know(template: str, message: str) -> None:
    with pytest.raises(chart.ChartError, match=message):
        tree = chart.Parser("t", template, {}).parse()
        dot = {"Values": {"a": {"b": "c"}}, "a": [1], "b": 1}
        chart.Renderer({}).render(tree, dot, {"$": dot})


def test_the_renderer_does_what_helm_does() -> None:
    named: dict[str, Any] = {}
    source = (
        '{{- define "t" -}}\n{{ .x | quote }}\n{{- end -}}\n'
        'a: {{ include "t" (dict "x" .name) }}\n'
        "{{- range $i := until 2 }}\n- {{ $i }}{{ $.name }}\n{{- end }}\n"
        "{{- with .none }}\nnever\n{{- else }}\nelse: {{ default 7 .none }}\n{{- end }}\n"
        "list:\n{{- toYaml .list | nindent 2 }}\n"
        "{{- if and .name (not .none) (gt 2 1) }}\nlast: {{ .yes }}\n{{- end }}"
    )
    dot = {"name": "n", "none": "", "list": [{"b": 1, "a": "x"}], "yes": True}
    tree = chart.Parser("t", source, named).parse()
    assert chart.Renderer(named).render(tree, dot, {"$": dot}) == (
        'a: "n"\n- 0n\n- 1n\nelse: 7\nlist:\n  - a: x\n    b: 1\nlast: true'
    )


def test_the_rules_find_each_fault() -> None:
    good = one(values_of("cluster"), "DaemonSet", "kvcove-owner")
    spoils: list[tuple[str, Any]] = [
        ("hostIPC is set", lambda pod: pod.update(hostIPC=True)),
        ("hostPID is set", lambda pod: pod.update(hostPID=True)),
        ("hostNetwork is set", lambda pod: pod.update(hostNetwork=True)),
        ("token of its service", lambda pod: pod.pop("automountServiceAccountToken")),
        ("may be taken for", lambda pod: pod.pop("enableServiceLinks")),
        ("may run as root", lambda pod: pod["securityContext"].pop("runAsNonRoot")),
        ("seccomp profile", lambda pod: pod["securityContext"].pop("seccompProfile")),
        ("lets the group write", lambda pod: pod["securityContext"].pop("fsGroupChangePolicy")),
        ("refuses a hostPath", lambda pod: pod["volumes"][0].update(hostPath={"path": "/"})),
        ("others may read", lambda pod: pod["volumes"][-1]["secret"].pop("defaultMode")),
        ("no livenessProbe", lambda pod: pod["containers"][0].pop("livenessProbe")),
        ("what it needs", lambda pod: pod["containers"][0].pop("resources")),
        ("no fixed tag", lambda pod: pod["containers"][0].update(image="kvcove:latest")),
        ("may get privileges", lambda pod: security(pod).update(privileged=True)),
        ("not read-only", lambda pod: security(pod).update(readOnlyRootFilesystem=False)),
        ("drop all", lambda pod: security(pod)["capabilities"].update(drop=[])),
        ("adds capabilities", lambda pod: security(pod)["capabilities"].update(add=["IPC_LOCK"])),
        ("it is root", lambda pod: security(pod).update(runAsUser=0)),
        ("nothing but install", lambda pod: pod["initContainers"][0].update(command=["sh"])),
    ]

    def security(pod: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = pod["containers"][0]["securityContext"]
        return found

    for message, spoil in spoils:
        bad = copy.deepcopy(good)
        spoil(bad["spec"]["template"]["spec"])
        (fault,) = rules.faults(bad)
        assert message in fault
    misspelt = copy.deepcopy(good)
    misspelt["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(SchemaError, match="there is no 'livenesProbe'"):
        rules.check_kind(misspelt)


def test_the_chart_is_of_this_version() -> None:
    metadata = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    numbers = re.findall(
        r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (ROOT / "kvcove/version.h").read_text()
    )
    assert metadata["version"] == metadata["appVersion"] == ".".join(numbers)
