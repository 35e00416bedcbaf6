"""What hostile jobs do: each a Python program; `OUT` is its output folder, `HOST` a file of the user's machine.

Each wants one of these: a secret in what is published, a night that hangs or that nobody can read, a file outside of
its own folder, or a good result that it did not earn.
"""

# ruff: noqa: E501 - a program in a line
START = """import json, os, pathlib, shutil, signal, socket, subprocess, sys, time
OUT = pathlib.Path(os.environ['NIGHTJAR_OUT']); HOST = pathlib.Path(os.getcwd()).parent / 'host-file.txt'
"""

LINKS = {
    "result-link": "(OUT / 'result.json').symlink_to(HOST)",
    "result-link-to-proc": "(OUT / 'result.json').symlink_to('/proc/self/environ')",
    "stderr-link": "os.unlink(OUT / 'stderr.log'); (OUT / 'stderr.log').symlink_to(HOST); sys.exit(1)",
    "stdout-link": "os.unlink(OUT / 'stdout.log'); (OUT / 'stdout.log').symlink_to(HOST); sys.exit(1)",
    "folder-link": "shutil.rmtree(OUT); OUT.symlink_to(HOST.parent); sys.exit(0)",
    "folder-gone": "shutil.rmtree(OUT)",
    "folder-file": "shutil.rmtree(OUT); OUT.write_text('x')",
    "profile-link": "(OUT / 'profile.json').symlink_to(HOST); sys.exit(1)",
    "link-loop": "(OUT / 'result.json').symlink_to('result.json')",
    "link-to-next": "(OUT / 'result.json').symlink_to('../folder-gone/stdout.log')",
    "outcome-link": "(OUT / 'outcome.json').symlink_to(HOST); sys.exit(1)",
}
KINDS = {
    "result-fifo": "os.mkfifo(OUT / 'result.json')",
    "stderr-fifo": "os.unlink(OUT / 'stderr.log'); os.mkfifo(OUT / 'stderr.log'); sys.exit(1)",
    "result-socket": "os.chdir(OUT); socket.socket(socket.AF_UNIX).bind('result.json')",
    "result-folder": "(OUT / 'result.json').mkdir()",
    "result-zero": "(OUT / 'result.json').symlink_to('/dev/zero')",
    "result-sparse": "open(OUT / 'result.json', 'wb').truncate(1 << 40)",
    "result-unreadable": "(OUT / 'result.json').write_text('{}'); OUT.chmod(0)",
    "many-files": "[(OUT / f'f{i}').touch() for i in range(20000)]",
    "deep-folders": "os.chdir(OUT); [(os.mkdir('d'), os.chdir('d')) for _ in range(900)]",
    "strange-names": "[open(os.fsencode(OUT) + b'/' + n, 'w') for n in (b'-rf', b'a\\nb', b'\\xff\\xfe', b'\\x1b[2J')]",
}
DOCUMENTS = {
    "result-empty": "(OUT / 'result.json').touch()",
    "result-binary": "(OUT / 'result.json').write_bytes(bytes(range(256)))",
    "result-deep": "(OUT / 'result.json').write_text('[' * 1000000)",
    "result-deep-object": "(OUT / 'result.json').write_text('{\"a\":' * 200000)",
    "result-number": "(OUT / 'result.json').write_text('1e999999')",
    "result-long-number": "(OUT / 'result.json').write_text('9' * 5000000)",
    "result-nan": "(OUT / 'result.json').write_text('{\"schema\": NaN}')",
    "result-schema-list": "(OUT / 'result.json').write_text('{\"schema\": [\"nightjar.run/1\"]}')",
    "result-newer": "(OUT / 'result.json').write_text('{\"schema\": \"nightjar.run/999\"}')",
    "result-huge-version": "(OUT / 'result.json').write_text('{\"schema\": \"nightjar.run/' + '9' * 5000 + '\"}')",
    "result-surrogates": "(OUT / 'result.json').write_text('{\"schema\": \"\\\\ud800\"}')",
    "result-escapes": "(OUT / 'result.json').write_text('{\"\\\\u001b[2J::add-mask::\": \"\\\\u202e\"}')",
    "result-repeated-keys": "(OUT / 'result.json').write_text('{' + '\"schema\": 1,' * 100000 + '\"x\": 1}')",
    "result-half": "(OUT / 'result.json').write_text('{\"schema\": \"nightjar.run/1\", ')",
    "result-utf16": "(OUT / 'result.json').write_text('{}', encoding='utf-16')",
}
TALK = {
    "prints-its-variables": "print(dict(os.environ)); sys.exit(1)",
    "prints-its-variables-in-base64": "import base64; print(base64.b64encode(str(dict(os.environ)).encode())); sys.exit(1)",
    "prints-for-ever": "\nwhile True: os.write(1, b'x' * 65536)",
    "one-long-line": "[os.write(2, b'x' * 65536) for _ in range(1000)]; sys.exit(1)",
    "control-sequences": "print('\\x1b]0;pwned\\x07\\x1b[2J\\x9b1A\\u202e', file=sys.stderr); sys.exit(1)",
    "workflow-commands": "print('\\n::add-mask::ok\\n::set-output name=x::y\\n##[error]x', file=sys.stderr); sys.exit(1)",
    "html": "print('<script>alert(1)</script><img src=x onerror=alert(1)>', file=sys.stderr); sys.exit(1)",
    "markdown": "print('![x](http://127.0.0.1:9/x) [y](javascript:alert(1)) ``` </details>', file=sys.stderr); sys.exit(1)",
    "forged-error": "print('error: nightjar: every job passed\\nHint: merge', file=sys.stderr); sys.exit(1)",
    "not-utf-8": "os.write(2, bytes(range(128, 256)) * 100); sys.exit(1)",
    "nul-bytes": "os.write(2, b'\\0' * 100000); sys.exit(1)",
    "claims-code-4": "sys.exit(4)",
    "claims-code-255": "sys.exit(255)",
    "kills-itself": "os.kill(os.getpid(), signal.SIGKILL)",
}
REACH = {
    "another-job": "OUT.with_name('result-empty').mkdir(exist_ok=True); (OUT.parent / 'result-empty' / 'result.json').write_text(json.dumps({'x': 1})); sys.exit(1)",
    "the-night": "(OUT.parent.parent / 'night.json').write_text('{}'); sys.exit(1)",
    "the-state": "[shutil.rmtree(p, ignore_errors=True) for p in OUT.parent.parent.parent.parent.glob('environments')]; sys.exit(1)",
    "its-parent": "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.2); os.kill(os.getppid(), signal.SIGCONT); sys.exit(1)",
    "environment-of-its-parent": "print(open(f'/proc/{os.getppid()}/environ').read()); sys.exit(1)",
    "hangs": "time.sleep(3600)",
    "ignores-sigterm": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)",
    "leaves-a-daemon": "subprocess.Popen(['sleep', '7118'], start_new_session=True, stdout=subprocess.DEVNULL); sys.exit(1)",
    "keeps-the-pipes": "subprocess.Popen(['sleep', '7118'], start_new_session=True); sys.exit(1)",
    "double-fork": "\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(7118)\nsys.exit(1)",
    "many-processes": "[subprocess.Popen(['sleep', '7118']) for _ in range(100)]; sys.exit(1)",
    "closes-everything": "os.closerange(0, 100); time.sleep(0.1); os._exit(1)",
    "asks-for-input": "input(); sys.exit(1)",
    "asks-the-terminal": "open('/dev/tty').read()",
    "stops-itself": "os.kill(os.getpid(), signal.SIGSTOP)",
}
PATTERNS = {"outruns-a-pattern": "print('a' * 50000 + '!'); sys.exit(0)"}
# Only the sandbox stops these: without one, a job does what its user may.
CONFINED = {
    "result-hardlink": "os.link(HOST, OUT / 'result.json')",
    "rewrites-the-store": "(OUT.parents[3] / 'store.sqlite').write_text('x'); sys.exit(1)",
    "rewrites-its-home": "pathlib.Path.home().joinpath('.bashrc').write_text('x'); sys.exit(1)",
    "plants-a-hook": "pathlib.Path('.git/hooks/post-checkout').write_text('x'); sys.exit(1)",
    "leaves-the-machine": "socket.create_connection(('127.0.0.1', int(os.environ['PORT'])), 3).sendall(b'out')",
}
CONFINED |= {
    f"reads{path.replace('/', '-')}": f"print(open(os.path.expanduser('~/{path}')).read()); sys.exit(1)"
    for path in (".netrc", ".ssh/id_ed25519", ".aws/credentials", ".docker/config.json", ".config/gh/hosts.yml")
}
ATTACKS = {**LINKS, **KINDS, **DOCUMENTS, **TALK, **REACH, **PATTERNS}
