"""The files in deploy/: what can run here runs; the others are checked by the tools of their kind, where there are any."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from awaiting import until
from started_programs import CLUSTER_JVM, QUICK_JVM

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
RENDERED = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROGRAM = "from holdfast.datastream import StreamExecutionEnvironment\n"
DIGEST = "sha256:" + "0" * 64
OPTIONS = {
    "one-pod.yaml": [f"--set=image=registry.example/holdfast@{DIGEST}"],
    "with-executors.yaml": [
        "--set=executors.instances=2",
        f"--set=image=registry.example/holdfast-cluster@{DIGEST}",
        "--set=secrets.AWS_ACCESS_KEY_ID.secret=s3",
        "--set=secrets.AWS_ACCESS_KEY_ID.key=access-key",
    ],
    "bounded.yaml": ["--set=bounded=true", f"--set=image=registry.example/holdfast@{DIGEST}"],
    "standby.yaml": ["--set=drivers=2", f"--set=image=registry.example/holdfast@{DIGEST}"],
    "standby-with-executors.yaml": [
        "--set=drivers=2",
        "--set=executors.instances=2",
        f"--set=image=registry.example/holdfast-cluster@{DIGEST}",
    ],
}


@pytest.mark.spark
def a_job_runs_on_the_standalone_cluster_of_the_script(tmp_path: Path) -> None:
    daemons: list[subprocess.Popen[bytes]] = []

    secret = tmp_path / "secret"
    secret.write_text("hush-hush\n")

    def start(daemon: str, *options: str) -> Path:
        log = tmp_path / f"{daemon}.log"
        command = [
            sys.executable,
            DEPLOY / "standalone" / "standalone",
            daemon,
            "--secret-file",
            secret,
            *options,
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
        ]
        own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
        with log.open("wb") as said:
            daemons.append(subprocess.Popen(command, stdout=said, stderr=said, cwd=tmp_path, env={**os.environ, **own}))
        return log

    try:
        log = start("master", "--port", "0")
        master = until(lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text())).group(1)
        start("worker", master, "--cores", "2", "--memory", "1g")
        program = tmp_path / "program.py"
        program.write_text(
            "from holdfast.datastream import StreamExecutionEnvironment\n"
            "env = StreamExecutionEnvironment.get_execution_environment()\n"
            "env.from_collection([1, 2, 3]).key_by(lambda n: n % 2).map(lambda n: 10 * n).print()\n"
            "env.execute('tens')\n"
        )
        settings = {
            "spark.authenticate": "true",
            "spark.authenticate.secret.file": str(secret),
            "spark.network.crypto.enabled": "true",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.driver.extraJavaOptions": CLUSTER_JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.python.daemon.module": "holdfast.runtime.spark.pyspark_daemon",
            "execution.checkpointing.dir": f"file://{tmp_path}/checkpoints",
            "io.tmp.dirs": str(tmp_path / "local"),
            "rest.port": "0",
        }
        run = [sys.executable, "-m", "holdfast.cli", "run", f"--spark-master={master}", "-p", "2"]
        run += [f"-D{key}={value}" for key, value in settings.items()]
        done = subprocess.run([*run, program], capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sorted(line.rsplit(" ", 1)[-1] for line in done.stdout.splitlines()) == ["10", "20", "30"]
        assert "This Spark is open" not in done.stderr
        commands = b"".join(each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline") if each.exists())
        assert b"hush-hush" not in commands
        stranger = subprocess.run(
            [*run, "-Dspark.authenticate=false", program],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            cwd=tmp_path,
        )
        assert stranger.returncode != 0
        assert not stranger.stdout
    finally:
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(600)


def the_script_says_how_it_is_used() -> None:
    script = [sys.executable, DEPLOY / "standalone" / "standalone"]
    wrong = subprocess.run([*script, "slave"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "standalone worker --secret-file" in wrong.stderr) == (2, True)


def manifests(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def test_the_manifests_are_valid_by_the_schemas_of_kubernetes(path: Path) -> None:
    kinds = set()
    for manifest in manifests(path):
        kubernetes_validate.validate(manifest, "1.30", strict=True)
        kinds.add(manifest["kind"])
    driver = "Job" if path.name == "bounded.yaml" else "Deployment"
    assert {driver, "Service", "ServiceAccount", "ConfigMap", "NetworkPolicy"} <= kinds


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def the_container_runs_without_rights_and_with_options_that_the_command_line_has(path: Path) -> None:
    (driver,) = (each for each in manifests(path) if each["kind"] in ("Deployment", "Job"))
    pod = driver["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_rights(pod)
    assert "@sha256:" in container["image"]
    command = [sys.executable, "-m", "holdfast.cli", *container["args"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "/program/program.py" in done.stderr, "only the program is missing"
    assert done.returncode == 2


def check_rights(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    assert container["securityContext"] == rights
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], "Spark and Python write there"


@pytest.mark.parametrize("path", [path for path in RENDERED if "executors" in path.name], ids=lambda path: path.name)
def test_executors_run_without_rights_too(path: Path) -> None:
    found = {each["metadata"]["name"]: each for each in manifests(path) if each["kind"] == "ConfigMap"}
    template = yaml.safe_load(found["payments-executor"]["data"]["executor.yaml"])
    check_rights(template["spec"])
    assert template["spec"]["automountServiceAccountToken"] is False
    (driver,) = (each for each in manifests(path) if each["kind"] == "Deployment")
    pod = driver["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "-Dspark.kubernetes.executor.podTemplateFile=/executor/executor.yaml" in container["args"]
    assert {"name": "executor", "mountPath": "/executor", "readOnly": True} in container["volumeMounts"]
    assert {"name": "executor", "configMap": {"name": "payments-executor"}} in pod["volumes"]


def a_bounded_program_is_a_job_that_is_started_again_only_if_it_fails() -> None:
    (job,) = (each for each in manifests(DEPLOY / "kubernetes" / "bounded.yaml") if each["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["spec"]["backoffLimit"] == 100
    (deployment,) = (each for each in manifests(DEPLOY / "kubernetes" / "one-pod.yaml") if each["kind"] == "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.name)
def test_only_the_jobs_own_pods_reach_any_port_but_that_of_the_rest_api(path: Path) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in manifests(path) if each["kind"] == "NetworkPolicy"}
    driver = {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": "payments"}
    executor = {"holdfast/job": "payments"}
    of_driver = [{"from": [{"podSelector": {}}], "ports": [{"port": 8081}]}]
    if "executors" in path.name:
        of_driver.append({"from": [{"podSelector": {"matchLabels": executor}}]})
        of_executors = [{"from": [{"podSelector": {"matchLabels": each}} for each in (driver, executor)]}]
        assert policies.pop("payments-executors") == {
            "podSelector": {"matchLabels": executor},
            "policyTypes": ["Ingress"],
            "ingress": of_executors,
        }
    assert policies == {
        "payments": {"podSelector": {"matchLabels": driver}, "policyTypes": ["Ingress"], "ingress": of_driver}
    }


def the_notes_of_the_chart_name_commands_and_options_that_exist(tmp_path: Path) -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    commands = re.findall(r"-- holdfast (.*)", notes)
    assert commands
    own = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *command.split()], capture_output=True, text=True, check=False, env=own
        )
        assert (done.returncode, "No job of this user" in done.stderr) == (3, True), done.stderr


def a_program_that_has_ended_is_not_started_again_by_compose() -> None:
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yml").read_text())["services"]
    assert {name: each["restart"] for name, each in services.items()} == {
        "checkpoints": "no",
        "master": "unless-stopped",
        "worker": "unless-stopped",
        "job": "on-failure",
    }


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def an_image_without_a_digest_is_refused_unless_it_is_on_the_node_already(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--set=image=registry.example/holdfast:1.0", f"--set-file=program={tmp_path / 'program.py'}"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(*options)
    assert "name it by its digest" in refused.value.stderr
    assert "image: registry.example/holdfast:1.0" in render(*options, "--set=imagePullPolicy=Never")


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def a_bounded_program_has_no_standby_drivers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = [*OPTIONS["bounded.yaml"], "--set=drivers=2", f"--set-file=program={tmp_path / 'program.py'}"]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(*options)
    assert "set drivers to 1" in refused.value.stderr


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("name", OPTIONS)
def the_manifests_are_what_the_chart_gives(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert (
        render(*OPTIONS[name], f"--set-file=program={tmp_path / 'program.py'}") == (DEPLOY / "kubernetes" / name).read_text()
    )


def render(*options: str) -> str:
    directory = r"--set=config.execution\.checkpointing\.dir=s3://bucket/checkpoints"
    command = ["helm", "template", "payments", str(CHART), "--namespace=streams", directory, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "holdfast@.service").read_text().replace("/srv/holdfast/%i/.venv/bin/holdfast", "/bin/true")
    (tmp_path / "holdfast@payments.service").write_text(unit)
    checked = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "holdfast@payments.service"], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
