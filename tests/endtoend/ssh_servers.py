"""An ssh server on each host of a network, and the key by which all of them let each other in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.endtoend.hosts import Network, until

_SYSTEM = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
_CLIENT = Path("/etc/ssh/ssh_config")


def lacks() -> str:
    """Why this machine can have no ssh servers; empty if it can."""
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=_SYSTEM) is None]
    return f"no {', '.join(missing)}: apt-get install openssh-server" if missing or not _CLIENT.exists() else ""


def serve_ssh(network: Network, directory: Path) -> None:
    """Start them; they end with their hosts."""
    directory.mkdir()
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", directory / name], check=True
        )
    shutil.copy(directory / "user.pub", directory / "authorized")
    settings = directory / "sshd_config"
    settings.write_text(
        f"HostKey {directory / 'host'}\nAuthorizedKeysFile {directory / 'authorized'}\nStrictModes no\n"
        "PermitRootLogin prohibit-password\nPidFile none\nPrintMotd no\nUsePAM no\n"
    )
    client = f"IdentityFile {directory / 'user'}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    server = shutil.which("sshd", path=_SYSTEM)
    for host in network.hosts.values():
        host.run("mkdir", "-m", "755", "/run/sshd")
        host.lies_over(_CLIENT, f"{client}BatchMode yes\nLogLevel ERROR\n")
        host.start([server, "-D", "-f", settings])
    for host in network.hosts.values():
        until(lambda host=host: host.run("ssh", host.name, "true", code=None) == "", lambda: "no ssh")
