"""Containers without an engine for them: the services of docker/compose.yaml as Docker would run them, made by hand.

What `docker-compose config` and docker/Dockerfile say is what runs: user, groups, environment, command, mounts,
aliases. Each service has a root of its own that is read-only, a network namespace of its own on one bridge, no
capabilities and no new privileges. An image's packages are links to those of its list alone, and kvdeck is installed
from its wheel. Needs root, as CI has; nothing outside the namespaces is touched, and all ends with the test process.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SITE = Path(distribution("numpy").locate_file("")).resolve()
BIN = Path(sys.executable).parent
PATIENCE_SECONDS = 120.0
ETC = ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "host.conf", "ld.so.cache")
MARK = ".container"
LEFT_TO_TORCH = ("torch", "filelock", "fsspec", "jinja2", "networkx", "sympy", "mpmath")
LINKS = ("bin", "sbin", "lib", "lib64")


def composed(*files: str, **environment: str) -> dict[str, Any]:
    """What Docker Compose itself makes of these files of docker/. Raises CalledProcessError when it refuses them."""
    named = [word for file in files for word in ("--file", str(DOCKER / file))]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KVDECK_")}
    said = subprocess.run(
        [BIN / "docker-compose", *named, "config", "--format", "json"],
        env={**clean, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(said.stdout)
    return found


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the Dockerfile with all it stands on."""

    instructions: list[tuple[str, str]]

    @property
    def environment(self) -> dict[str, str]:
        """Every ENV, the later ones first to count."""
        pairs = (pair for name, value in self.instructions if name == "ENV" for pair in shlex.split(value))
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    def last(self, name: str) -> str:
        """The instruction of this name that counts."""
        return [value for found, value in self.instructions if found == name][-1]


def stages() -> dict[str, Stage]:
    """The Dockerfile's stages by name."""
    with (DOCKER / "Dockerfile").open("rb") as file:
        parsed = DockerfileParser(fileobj=file, env_replace=False).structure
    found: dict[str, Stage] = {}
    current = Stage(instructions=[])
    for line in parsed:
        if line["instruction"] == "FROM":
            parent, _, name = line["value"].partition(" AS ")
            current = found[name] = Stage(instructions=list(found[parent].instructions) if parent in found else [])
        current.instructions.append((line["instruction"], line["value"]))
    return found


class Images:
    """The images, as folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stages = stages()

    @cached_property
    def _installed(self) -> Path:
        """kvdeck by its wheel: what `pip install --no-deps /wheels/*.whl` puts down."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        wheels = self._folder / "wheels"
        _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(wheels), str(ROOT))
        prefix = self._folder / "installed"
        (wheel,) = wheels.glob("*.whl")
        _run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", "--prefix", str(prefix), str(wheel))
        return prefix

    @cached_property
    def base(self) -> Path:
        """The root of stage `kvdeck`, with its RUN really run."""
        base = self._folder / "base"
        base.mkdir(parents=True)
        (base / MARK).touch()
        for name in ("etc", "opt/kvdeck", "proc", "dev", "tmp", "usr", "var/lib", "var/run", "run", "root"):
            (base / name).mkdir(parents=True)
        for name in LINKS:
            (base / name).symlink_to(f"usr/{name}")
        for name in ETC:
            if Path("/etc", name).exists():
                shutil.copy2(Path("/etc", name), base / "etc" / name)
        for place in (Path(sys.base_prefix), SITE):
            (base / place.relative_to("/")).mkdir(parents=True, exist_ok=True)
        command = self.stages["kvdeck"].last("RUN")
        mounts = f"mount --rbind /usr {base}/usr; mount --rbind /dev {base}/dev"
        script = f"set -e; mount --make-rprivate /; {mounts}; exec chroot {base} /bin/sh -ec {shlex.quote(command)}"
        _run("unshare", "--mount", "/bin/sh", "-c", script)
        return base

    def environment_folder(self, image: str) -> Path:
        """/opt/kvdeck of an image: a virtual environment with the packages of its list and no other."""
        made = self._folder / "environments" / image
        if made.exists():
            return made
        _run(sys.executable, "-m", "venv", "--without-pip", str(made))
        (site,) = made.glob("lib/python*/site-packages")
        for name in packages_of(image):
            link_package(name, site)
        (installed,) = self._installed.glob("lib/python*/site-packages")
        for entry in installed.iterdir():
            (shutil.copytree if entry.is_dir() else shutil.copy2)(entry, site / entry.name)
        script = (self._installed / "bin" / "kvdeck").read_text(encoding="utf-8").split("\n", 1)[1]
        (made / "bin" / "kvdeck").write_text(f"#!/opt/kvdeck/bin/python\n{script}", encoding="utf-8")
        (made / "bin" / "kvdeck").chmod(0o755)
        return made


def packages_of(image: str) -> list[str]:
    """The distributions that an image installs; torch brings those that it needs itself."""
    lines = (DOCKER / "requirements" / f"{image}.txt").read_text(encoding="utf-8").splitlines()
    names = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    return [*names, *LEFT_TO_TORCH] if image == "engine" else names


def link_package(name: str, site: Path) -> None:
    """Links everything at the top of site-packages that a distribution brought."""
    for file in distribution(name).files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not (site / top).exists():
            (site / top).symlink_to(SITE / top)


@dataclass
class Container:
    """One service that runs, or has run."""

    name: str
    service: Mapping[str, Any]
    address: str
    root: Path
    holder: subprocess.Popen[bytes]
    environment: Mapping[str, str]
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Runs its command."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._entered(self.command), stdout=log, stderr=subprocess.STDOUT)

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`docker exec`: a command of one's own, as the service's user in its namespaces."""
        return subprocess.run(
            self._entered(command), input=stdin, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )

    def healthy(self) -> bool:
        """Its health check, as written."""
        kind, *command = self.service["healthcheck"]["test"]
        assert kind == "CMD", self.name
        return self.run(*command).returncode == 0

    def stop(self) -> int:
        """SIGTERM, as Docker stops it; its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _entered(self, command: Sequence[str]) -> list[str]:
        user, _, group = str(self.service.get("user") or "10001:10001").partition(":")
        groups = ",".join(str(one) for one in self.service.get("group_add", ()))
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        return [
            "nsenter", f"--target={self.holder.pid}", "--mount", "--net", "--root", "--",
            "setpriv", f"--reuid={user}", f"--regid={group or user}",
            f"--groups={groups}" if groups else "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
            "--no-new-privs", "--pdeathsig=KILL", "env", "-i", f"--chdir={self.workdir}", *pairs, *command,
        ]  # fmt: skip

    @property
    def workdir(self) -> str:
        """Where its command starts."""
        return "/var/lib/kvdeck" if "KVDECK_DATA_DIR" in self.environment else "/"


@dataclass
class Fleet:
    """The containers of one compose file on one network, and their volumes."""

    folder: Path
    images: Images
    services: Mapping[str, Any]
    containers: dict[str, Container] = field(default_factory=dict)

    def __post_init__(self) -> None:
        script = "ip link add net0 type bridge && ip link set net0 up && exec sleep infinity"
        self._switch = _held(script, "--net")
        self._enter = ["nsenter", f"--target={self._switch.pid}", "--net", "--"]
        _wait(lambda: _quiet(*self._enter, "ip", "link", "show", "net0") == 0, "the bridge")
        self._addresses = {name: f"10.77.0.{number}" for number, name in enumerate(self.services, start=10)}

    def create(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        packages: str | None = None,
    ) -> Container:
        """A container of a service: everything made, nothing started.

        Images that are not ours are stood in for by `command` and their `environment`, with what this machine has and,
        if one of our images is named in `packages`, with what is in that.
        """
        service = self.services[name]
        target = service.get("build", {}).get("target")
        root = self.folder / "roots" / name
        root.parent.mkdir(exist_ok=True)
        _run("cp", "--archive", str(self.images.base), str(root))  # owners too
        (root / "etc" / "hosts").write_text(self._hosts(), encoding="utf-8")
        words = command
        image_environment: Mapping[str, str] = environment or {}
        if target:
            stage = self.images.stages[target]
            image_environment = stage.environment
            words = [*json.loads(stage.last("ENTRYPOINT")), *(service["command"] or json.loads(stage.last("CMD")))]
        holder = _held(self._mounts(service, target or packages, root), "--mount", "--net")
        container = Container(
            name=name, service=service, address=self._addresses[name], root=root, holder=holder,
            environment={**image_environment, **service.get("environment", {})}, command=words,
            log=self.folder / f"{name}.log",
        )  # fmt: skip
        self.containers[name] = container
        # Not before it has changed its root: until then a command would run in this machine's own.
        _wait(lambda: Path(f"/proc/{holder.pid}/root/{MARK}").exists(), f"the namespaces of {name}")
        if service.get("network_mode") != "none":
            self._connect(container)
        return container

    def volume(self, name: str) -> Path:
        """A named volume's folder."""
        return self.folder / "volumes" / name

    def wait_healthy(self, name: str) -> None:
        """Until its health check passes. Raises AssertionError with its log."""
        container = self.containers[name]

        def ready() -> bool:
            ended = container.process.poll() if container.process else None
            assert ended is None, f"{name} ended with {ended}: {container.said()}"
            return container.healthy()

        _wait(ready, name, container.said)

    def close(self) -> None:
        """Ends every process of it."""
        started = [container.process for container in self.containers.values() if container.process]
        for process in (*started, *(container.holder for container in self.containers.values()), self._switch):
            process.kill()
            process.wait()

    def _hosts(self) -> str:
        lines = ["127.0.0.1 localhost"]
        for name, service in self.services.items():
            aliases = ((service.get("networks") or {}).get("default") or {}).get("aliases") or ()
            lines.append(" ".join([self._addresses[name], name, *aliases]))
        return "\n".join(lines) + "\n"

    def _mounts(self, service: Mapping[str, Any], target: str | None, root: Path) -> str:
        lines = ["set -e", "mount --make-rprivate /", f"mount --bind {root} {root}"]
        lines += [f"mount --rbind {place} {root}{place}" for place in ("/usr", "/dev", "/proc")]
        lines += [_read_only(place, f"{root}{place}") for place in (str(Path(sys.base_prefix)), str(SITE))]
        if target:
            lines.append(_read_only(str(self.images.environment_folder(target)), f"{root}/opt/kvdeck"))
        for mount in service.get("volumes", ()):
            lines.append(self._mount(mount, root))
        for line in service.get("tmpfs", ()):
            path, _, options = line.partition(":")
            (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount -t tmpfs -o {options} tmpfs {root}{path}")
        assert service["read_only"]
        lines += [f"mount -o remount,ro,bind {root}", f"exec chroot {root} /usr/bin/sleep infinity"]
        return "\n".join(lines)

    def _mount(self, mount: Mapping[str, Any], root: Path) -> str:
        inside = root / mount["target"].lstrip("/")
        if mount["type"] == "bind":
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
            return _read_only(mount["source"], str(inside))
        inside.mkdir(parents=True, exist_ok=True)
        kept = self.volume(mount["source"])
        if not kept.exists():  # a new volume takes over what the image has there
            kept.mkdir(parents=True)
            of_image = (self.images.base / mount["target"].lstrip("/")).stat() if inside.exists() else None
            if of_image:
                os.chown(kept, of_image.st_uid, of_image.st_gid)
                kept.chmod(of_image.st_mode & 0o7777)
        bound = f"mount --bind {kept} {inside}"
        return f"{bound}\nmount -o remount,ro,bind {inside}" if mount.get("read_only") else bound

    def _connect(self, container: Container) -> None:
        port = f"port{len(self.containers)}"
        pid = container.holder.pid
        _run(*self._enter, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _run(*self._enter, "ip", "link", "set", port, "master", "net0", "up")
        inside = ["nsenter", f"--target={pid}", "--net", "--"]
        _run(*inside, "ip", "address", "add", f"{container.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run(*inside, "ip", "link", "set", link, "up")


def _read_only(source: str, target: str) -> str:
    return f"mount --bind {source} {target}\nmount -o remount,ro,bind {target}"


def _held(script: str, *namespaces: str) -> subprocess.Popen[bytes]:
    """New namespaces, set up by a script that ends in doing nothing, for as long as they are held."""
    return subprocess.Popen(["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "/bin/sh", "-ec", script])


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def _quiet(*command: str) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def _wait(ready: Callable[[], bool], what: str, log: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < end, f"{what} was not ready in {PATIENCE_SECONDS:.0f} s: {log()}"
        time.sleep(0.5)
