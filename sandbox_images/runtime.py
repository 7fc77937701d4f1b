"""Collects the warden's own Python, in the build of an image of somebody else's: `python3 runtime.py FOLDER`.

Runs in the gym's own image. What it gives is complete: the interpreter, its library, pytest, every shared library and
the loader. It is meant for `/opt/gym` and loads nothing else of an image, whatever lies there: the paths from which the
loader and two of the libraries would load more (libraries, preloads, locales, plug-ins) are overwritten with some below
`/opt/gym`, and so is the path of the loader in the interpreter. A path has to stay as long as it is; slashes fill it
up.
"""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
MULTIARCH = f"{platform.machine()}-linux-gnu"
LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}[
    platform.machine()
]
INTERPRETER = f"/usr/bin/{VERSION}"
LIBRARIES = "/opt/gym/runtime/lib"
OVERWRITTEN = {
    "bin/python3": {LOADER: f"/opt/gym/runtime{'ld.so':/>{len(LOADER) - len('/opt/gym/runtime')}}"},
    "ld.so": {
        # The short ones have no room for a path of ours: these hold no library anywhere.
        f"/lib/{MULTIARCH}/\0/usr/lib/{MULTIARCH}/\0/lib/\0/usr/lib/\0": (
            f"{LIBRARIES:/<{len(f'/lib/{MULTIARCH}/')}}\0"
            f"{LIBRARIES:/<{len(f'/usr/lib/{MULTIARCH}/')}}\0"
            "/sys/\0/opt/gym/\0"
        ),
        "/etc/ld.so.preload": "/opt/gym/nopreload",
        "/etc/ld.so.cache": "/opt/gym/nocache",
    },
    "lib/libc.so.6": {
        "/usr/lib/locale": "/opt/gym/locale",
        f"/usr/lib/{MULTIARCH}/gconv": f"{LIBRARIES:/<{len(f'/usr/lib/{MULTIARCH}/gconv')}}",
    },
    "lib/libcrypto.so.3": {"/usr/lib/ssl\0": "/opt/gym/ssl\0"},
}


def main() -> None:
    """Fills the folder with what is to lie at /opt/gym."""
    top = Path(sys.argv[1])
    runtime = top / "runtime"
    (runtime / "bin").mkdir(parents=True)
    shutil.copy(INTERPRETER, runtime / "bin/python3")
    shutil.copy(LOADER, runtime / "ld.so")
    # sitecustomize.py is the distribution's.
    skipped = shutil.ignore_patterns("sitecustomize*")
    shutil.copytree(f"/usr/lib/{VERSION}", runtime / "lib" / VERSION, ignore=skipped)
    shutil.copytree("/usr/lib/python3/dist-packages", runtime / "lib/python3/dist-packages")
    shutil.copytree("/usr/lib/locale/C.utf8", top / "locale/C.utf8")
    shutil.copytree("/opt/gym/warden", top / "warden")
    extensions = map(str, Path(f"/usr/lib/{VERSION}/lib-dynload").glob("*.so"))
    # The second is what a thread that is cancelled looks for, without being linked to it.
    for library in (*_libraries_of([INTERPRETER, *extensions]), f"/lib/{MULTIARCH}/libgcc_s.so.1"):
        shutil.copy(library, runtime / "lib")
    for name, paths in OVERWRITTEN.items():
        _overwrite(runtime / name, paths)


def _libraries_of(files: list[str]) -> set[str]:
    listed = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True).stdout
    return {line.split()[2] for line in listed.splitlines() if " => /" in line}


def _overwrite(file: Path, paths: dict[str, str]) -> None:
    content = file.read_bytes()
    for old, new in paths.items():
        if old.encode() not in content or len(new) != len(old):
            raise SystemExit(f"{file} holds no {old!r} that could be overwritten: another release of Debian?")
        content = content.replace(old.encode(), new.encode())
    file.write_bytes(content)


if __name__ == "__main__":
    main()
