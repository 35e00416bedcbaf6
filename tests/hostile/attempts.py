"""What a job tries against the allow-list of the sandbox: statements that succeed if they raise nothing.

`HOME`, `WORK` and `NIGHT` are folders of the user, `PID` a process of the user's. The working directory is `WORK`; the
state folder is `WORK/deep/state`, and an environment and repositories are in `WORK`, too.
"""

# ruff: noqa: E501 - a statement in a line
SECRET_FILES = (
    ".netrc", ".npmrc", ".pypirc", ".pgpass", ".vault-token", ".git-credentials", ".bash_history", ".bashrc",
    ".ssh/id_ed25519", ".aws/credentials", ".azure/token", ".docker/config.json", ".kube/config", ".gnupg/key",
    ".config/gh/hosts.yml", ".config/gcloud/key", ".config/pip/pip.conf", ".config/uv/uv.toml",
    ".config/containers/auth.json", ".config/git/credentials", ".local/share/uv/credentials/x",
    ".local/share/keyrings/login", ".kaggle/kaggle.json", ".cargo/credentials.toml", ".cache/huggingface/token",
    ".terraformrc", ".jupyter/secret", "notes.txt", "projects/other/.env",
)  # fmt: skip

READS = {f"reads ~/{name}": f"assert open(f'{{HOME}}/{name}').read(1)" for name in SECRET_FILES} | {
    "reads shadow": "open('/etc/shadow').read(1)",
    "reads sudoers": "open('/etc/sudoers').read(1)",
    "reads private keys of the system": "assert os.listdir('/etc/ssl/private') is None",
    "reads the logs of the system": "assert os.listdir('/var/log')",
    "reads another job": "open(f'{NIGHT}/jobs/other/result.json').read(1)",
    "reads the night": "open(f'{NIGHT}/night.json').read(1)",
    "reads the store": "open(f'{WORK}/deep/state/store.sqlite').read(1)",
    "reads variables": "open(f'/proc/{PID}/environ').read(1)",
    "reads the root of a process": "os.listdir(f'/proc/{PID}/root/')",
    "reads the memory of the system": "os.listdir('/dev/shm').index('nightjar-hostile')",
    "reads the kernel's memory": "open('/proc/kcore', 'rb').read(1)",
    "reads another's temporary file": "open('/tmp/nightjar-hostile').read(1)",
    "opens kvm": "os.open('/dev/kvm', os.O_RDWR)",
    "opens fuse": "os.open('/dev/fuse', os.O_RDWR)",
    "opens the disk": "[os.open(p, 0) for p in ('/dev/vda', '/dev/sda', '/dev/nvme0n1') if os.path.exists(p)][0]",
    "lists the homes": "assert set(os.listdir(HOME)) - {'.cache'}",
    "lists other folders": "os.listdir(f'{HOME}/../elsewhere')",
    "connects to a socket in the home": "socket.socket(socket.AF_UNIX).connect(f'{HOME}/agent')",
    "connects to a socket of a service": "[socket.socket(socket.AF_UNIX).connect(p) for p in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket')]",
    "goes through the working directory of a process": "os.listdir(f'/proc/{PID}/cwd/')",
}
WRITES = {
    "writes the home": "open(f'{HOME}/x', 'w')",
    "rewrites a start-up file": "open(f'{HOME}/.bashrc', 'a').write('x')",
    "writes below its cache": "open(f'{HOME}/.cache/models/x', 'w')",
    "writes an environment": "open(f'{WORK}/.venv/lib/x.pth', 'w')",
    "renames an environment": "os.rename(f'{WORK}/.venv', f'{WORK}/v'); os.mkdir(f'{WORK}/.venv')",
    "renames the folder of an environment": "os.rename(f'{WORK}/.nox', f'{WORK}/n')",
    "writes an environment in a folder": "open(f'{WORK}/.nox/tests/x', 'w')",
    "writes the configuration of the repository": "open(f'{WORK}/.git/config', 'a').write('x')",
    "adds a hook": "open(f'{WORK}/.git/hooks/post-checkout', 'w')",
    "renames the repository": "os.rename(f'{WORK}/.git', f'{WORK}/g')",
    "replaces the repository of a submodule": "os.unlink(f'{WORK}/lib/sub/.git')",
    "rewrites the repository of a submodule": "open(f'{WORK}/lib/sub/.git', 'w')",
    "renames the folder of a submodule": "os.rename(f'{WORK}/lib', f'{WORK}/l')",
    "renames a submodule": "os.rename(f'{WORK}/lib/sub', f'{WORK}/lib/s')",
    "writes the state": "open(f'{WORK}/deep/state/x', 'w')",
    "renames the state": "os.rename(f'{WORK}/deep/state', f'{WORK}/deep/s')",
    "renames the folder of the state": "os.rename(f'{WORK}/deep', f'{WORK}/d'); os.makedirs(f'{WORK}/deep/state')",
    "removes the state": "shutil.rmtree(f'{WORK}/deep/state')",
    "writes another job": "open(f'{NIGHT}/jobs/other/result.json', 'w')",
    "adds a job": "os.mkdir(f'{NIGHT}/jobs/new')",
    "writes the night": "open(f'{NIGHT}/night.json', 'w')",
    "renames the night": "os.rename(NIGHT, f'{WORK}/old')",
    "renames its output folder": "os.rename(OUT, OUT + '-2')",
    "writes the supervisor": "open(SUPERVISOR, 'a').write('')",
    "writes a program": "open('/usr/bin/nightjar-hostile', 'w')",
    "writes Python": "open(os.path.join(os.path.dirname(os.__file__), 'hostile.py'), 'w')",
    "writes the settings of the system": "open('/etc/hostile', 'w')",
    "writes the root": "open('/hostile', 'w')",
    "sets a program for crashes": "open('/proc/sys/kernel/core_pattern', 'w')",
    "sets a program for modules": "open('/proc/sys/kernel/modprobe', 'w')",
    "sets the host's name": "open('/proc/sys/kernel/hostname', 'w')",
    "asks the kernel for help": "open('/proc/sysrq-trigger', 'w')",
    "writes the kernel's settings": "open('/sys/kernel/mm/transparent_hugepage/enabled', 'w')",
    "writes a control group": "os.mkdir('/sys/fs/cgroup/hostile')",
    "writes the memory of the system": "open('/dev/shm/nightjar-hostile', 'r+')",
}
PRIVILEGES = {
    "mounts": "run('mount', '-t', 'tmpfs', 'x', WORK)",
    "remounts": "run('mount', '-o', 'remount,rw', '/')",
    "unmounts the state": "run('umount', f'{WORK}/deep/state')",
    "unmounts in a namespace": "run('unshare', '-rm', 'umount', f'{WORK}/deep/state')",
    "remounts in a namespace": "run('unshare', '-rm', 'mount', '-o', 'remount,bind,rw', '/usr')",
    "remounts an environment in a namespace": "run('unshare', '-rm', 'mount', '-o', 'remount,bind,rw', f'{WORK}/.venv')",
    "mounts over the state in a namespace": "run('unshare', '-rm', 'sh', '-c', f'umount -l {WORK}/deep/state && ls {WORK}/deep/state/store.sqlite')",
    "enters a process": "run('nsenter', '-t', str(PID), '-m', 'true')",
    "makes a device": "os.mknod(f'{OUT}/disk', 0o660 | 0o060000, os.makedev(254, 0))",
    "changes its root": "os.chroot('/proc/1/root/..')",
    "kills a process": "os.kill(PID, 9)",
    "becomes another user": "os.setuid(12345)",
    "links a file of the host": "os.link(f'{WORK}/deep/state/store.sqlite', f'{OUT}/store')",
    "links an environment": "os.link(f'{WORK}/.venv/pyvenv.cfg', f'{OUT}/cfg')",
    "reaches the network": "socket.create_connection(('127.0.0.1', PORT), 3)",
}
ATTEMPTS = {**READS, **WRITES, **PRIVILEGES}

PROGRAM = """import json, os, shutil, socket, subprocess, sys
globals().update(json.load(open(sys.argv[1])))
def run(*command):
    subprocess.run(command, check=True, capture_output=True)
done = []
for name, text in ATTEMPTS.items():
    try:
        exec(text)
        done.append(name)
    except BaseException:
        pass
print(json.dumps(done))
"""
