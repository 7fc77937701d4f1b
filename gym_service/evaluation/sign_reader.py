"""Reads what submitted Python is written to do, by its syntax. A process of its own, which runs this file alone.

A parser can be made to exhaust the stack or the memory of its interpreter; here that costs one answer, and whoever
asked starts another reader. A request is a line of JSON, [[source, base, foreign], ...], `base` being what the task
began with, and `foreign` whether another Python than this one will run it; so is the answer,
[[sign, line, text], ...]. Nothing of a submission is executed or imported.

A name is followed through imports, `import ... as`, `from ... import *`, plain assignments, `getattr` with a name,
`__import__`, `sys.modules[...]` and code in a string; who goes further to hide one (decoding, building it of pieces)
shows that. Code that only runs as a program of its own (`if __name__ == "__main__"`) is not looked at.
"""

import ast
import builtins
import io
import json
import re
import resource
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator

_MOST_BYTES = 1 << 20
_MEMORY_BYTES = 2 << 30
_HUGE_BITS = 1 << 18
_MOST_TEXT = 160
_MANY = 1000
_LONG_SECONDS = 60
_LEVELS_OF_CODE = 3
"""How far code in a string in code in a string is followed."""

_NAMES = {
    "ends_process": "os._exit os.abort faulthandler._sigsegv faulthandler._sigabrt signal.raise_signal",
    "starts_processes": "os.fork os.forkpty os.system os.popen os.posix_spawn os.posix_spawnp os.spawn* os.exec* "
    "os.setsid os.startfile subprocess multiprocessing pty concurrent.futures.ProcessPoolExecutor "
    "asyncio.create_subprocess_* _posixsubprocess",
    "starts_threads": "threading.Thread threading.Timer _thread.start_new* concurrent.futures.ThreadPoolExecutor",
    "signals_processes": "os.kill os.killpg os.pidfd_open signal.pidfd_send_signal signal.pthread_kill os.getppid",
    "sets_signals": "signal.signal signal.alarm signal.setitimer signal.pthread_sigmask signal.set_wakeup_fd "
    "faulthandler.dump_traceback_later",
    "uses_network": "socket _socket socketserver ssl ftplib smtplib poplib imaplib nntplib telnetlib xmlrpc "
    "http.client http.server urllib.request requests httpx aiohttp urllib3 websockets paramiko "
    "asyncio.open_connection asyncio.open_unix_connection asyncio.start_server",
    "calls_native_code": "ctypes _ctypes cffi mmap",
    "writes_descriptors": "os.fdopen os.dup os.dup2 os.writev os.pwrite os.sendfile os.pipe os.close os.closerange "
    "fcntl sys.__stdout__ sys.__stderr__",
    "writes_files": "os.mkdir os.makedirs os.remove os.unlink os.rename os.replace os.rmdir os.removedirs os.truncate "
    "os.symlink os.link os.mknod os.mkfifo os.chmod os.chown os.chroot shutil tempfile",
    "reads_folders": "os.listdir os.scandir os.walk os.fwalk glob",
    "reads_environment": "os.environ os.environb os.getenv os.putenv os.unsetenv",
    "reads_frames": "sys._getframe sys._current_frames sys._current_exceptions inspect.currentframe inspect.stack "
    "inspect.trace inspect.getouterframes inspect.getinnerframes sys.settrace sys.setprofile "
    "sys.addaudithook threading.settrace threading.setprofile sys.monitoring sys.gettrace bdb pdb "
    "traceback.walk_stack",
    "walks_memory": "gc.get_objects gc.get_referrers gc.get_referents gc.callbacks tracemalloc",
    "changes_imports": "sys.meta_path sys.path_hooks sys.path_importer_cache importlib.machinery importlib.util "
    "importlib.abc importlib.reload imp site",
    "touches_tests": "pytest _pytest pluggy unittest nose",
    "runs_at_end": "atexit weakref.finalize os.register_at_fork",
    "unpickles": "pickle.load pickle.loads pickle.Unpickler _pickle marshal shelve dill cloudpickle",
    "changes_limits": "resource.setrlimit resource.prlimit os.nice os.setpriority os.sched_* sys.setswitchinterval",
}
"""By sign, what is imported or named; all below it belongs to it, and with a star all that starts so."""
_EXACT: dict[str, str] = {}
_STARTS: dict[str, str] = {}
for _sign, _words in _NAMES.items():
    for _word in _words.split():
        (_STARTS if _word.endswith("*") else _EXACT)[_word.rstrip("*")] = _sign

_ATTRIBUTES = {
    name: sign
    for sign, names in {
        "reads_frames": "f_back f_locals f_globals f_builtins f_trace tb_frame gi_frame cr_frame ag_frame _getframe "
        "_current_frames currentframe",
        "walks_memory": "__subclasses__ __globals__ __closure__ get_objects get_referrers get_referents",
        "changes_modules": "__builtins__",
        "unpickles": "__reduce__ __reduce_ex__",
        "runs_at_end": "__del__",
        "writes_files": "write_text write_bytes",
    }.items()
    for name in names.split()
}
"""What is told by its last name alone, of whatever it is."""
_ALWAYS = {
    **dict.fromkeys(
        ("__eq__", "__contains__", "__instancecheck__", "__subclasscheck__", "__le__", "__ge__"), True
    ),
    "__ne__": False,
}
"""Comparisons, and what each gives who is equal to everything."""
_RUNNERS = (
    "exec",
    "eval",
    "compile",
    "__import__",
    "importlib.import_module",
    "builtins.exec",
    "builtins.eval",
)
_DECODERS = {
    "b64decode", "b32decode", "b16decode", "b85decode", "a85decode", "urlsafe_b64decode", "decodebytes", "decompress",
    "unhexlify", "fromhex", "decode", "loads", "chr", "rot13", "translate", "maketrans", "join", "reversed",
}  # fmt: skip
_TEST_FRAMEWORKS = {"pytest", "_pytest", "pluggy", "unittest", "numpy"}
_BUILTINS = {name for name in dir(builtins) if not name.startswith("_")}
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\u2060\ufeff")
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Where a line ends to Python."""

Found = Iterator[tuple[str, ast.AST]]


class _Reading:
    """One source, and the names in it."""

    def __init__(self, tree: ast.Module, level: int) -> None:
        self._level = level
        self._known: dict[str, str] = {}
        self._starred: list[str] = []
        self._nodes: list[tuple[ast.AST, bool]] = []
        """Each with whether it runs when the file is imported."""
        self._collect(tree, at_import=True)
        # Imports first, and a name of a name after that; two in a row are followed.
        for kind in (ast.Import | ast.ImportFrom, ast.Assign | ast.NamedExpr, ast.Assign | ast.NamedExpr):
            for node, _ in self._nodes:
                if isinstance(node, kind):
                    self._bind(node)

    def _collect(self, tree: ast.AST, *, at_import: bool) -> None:
        waiting = [(tree, at_import)]
        while waiting:
            node, at_import = waiting.pop()
            if isinstance(node, ast.If) and _is_main(node.test):
                waiting += [(each, at_import) for each in node.orelse]
                continue
            self._nodes.append((node, at_import))
            inner = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
        self._nodes.reverse()

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for name in node.names:
                    self._known[name.asname or name.name.partition(".")[0]] = (
                        name.name if name.asname else name.name.partition(".")[0]
                    )
            case ast.ImportFrom(module=str(module), level=0):
                for name in node.names:
                    if name.name == "*":
                        self._starred.append(module)
                    else:
                        self._known[name.asname or name.name] = f"{module}.{name.name}"
            case (
                ast.Assign(targets=[ast.Name(name)], value=value)
                | ast.NamedExpr(target=ast.Name(name), value=value)
            ):
                if path := self._path(value):
                    self._known.setdefault(name, path)

    def _path(self, node: ast.AST) -> str:
        """The dotted name that an expression stands for; empty for anything else."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        match node:
            case ast.Name(name):
                root = self._known.get(name, "")
            case ast.Call(func=function, args=[ast.Constant(str(name)), *_]) if self._called(function) in (
                "__import__",
                "builtins.__import__",
                "importlib.import_module",
            ):
                root = name
            case ast.Call(func=ast.Name("getattr"), args=[of, ast.Constant(str(name)), *_]):
                root = f"{path}.{name}" if (path := self._path(of)) else ""
            case ast.Subscript(value=table, slice=ast.Constant(str(name))) if (
                self._path(table) == "sys.modules"
            ):
                root = name
            case _:
                root = ""
        return ".".join([root, *reversed(attributes)]) if root else ""

    def _called(self, function: ast.AST) -> str:
        """The dotted name of what is called, or that of a builtin."""
        if path := self._path(function):
            return path
        return function.id if isinstance(function, ast.Name) else ""

    def signs(self) -> Found:
        """Gives all that is found, with the place."""
        for node, at_import in self._nodes:
            for sign in self._of(node, at_import):
                yield sign, node
            if isinstance(node, ast.Call):
                for sign in self._of_inner_code(node):
                    yield sign, node

    def _of(self, node: ast.AST, at_import: bool) -> Iterable[str]:
        match node:
            case ast.Import():
                for name in node.names:
                    yield from self._of_import(name.name)
            case ast.ImportFrom(module=str(module), level=0):
                for name in node.names:
                    yield from self._of_import(f"{module}.{name.name}")
            case ast.Attribute() | ast.Name():
                yield from self._of_name(node)
            case ast.Call():
                yield from self._of_name(node)
                yield from self._of_call(node, at_import)
            case ast.While() if _is_endless(node):
                yield "endless_loop"
            case ast.For() | ast.While() if _nests(node):
                yield "huge_value"
            case ast.ClassDef():
                yield from _of_class(node)
            case ast.FunctionDef(name=name) if name in _ATTRIBUTES:
                yield _ATTRIBUTES[name]
            case ast.FunctionDef(name=name) if name.startswith("pytest_"):
                yield "touches_tests"
            case ast.FunctionDef(name=name, decorator_list=[]) if (
                at_import and name in _BUILTINS and not node.col_offset
            ):
                yield "shadows_builtins"
            case ast.Raise(exc=raised) if raised is not None:
                named = raised.func if isinstance(raised, ast.Call) else raised
                if isinstance(named, ast.Name) and named.id == "SystemExit":
                    yield "ends_process" if at_import else "exits"
            case ast.Constant(str(text)) if text in ("PYTEST_CURRENT_TEST", "_pytest", "pytest"):
                yield "touches_tests"
            case ast.BinOp() if _is_huge(node):
                yield "huge_value"
        yield from self._of_change(node, at_import)

    def _of_import(self, path: str) -> Iterable[str]:
        while path:
            if sign := _EXACT.get(path):
                yield sign
                return
            path = path.rpartition(".")[0]

    def _of_name(self, node: ast.Attribute | ast.Name | ast.Call) -> Iterable[str]:
        path = self._path(node)
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        candidates = [path] if path else []
        if isinstance(node, ast.Name) and not path:
            candidates += [f"{module}.{name}" for module in self._starred]
        for each in candidates:
            if sign := _EXACT.get(each):
                yield sign
            else:
                yield from (sign for start, sign in _STARTS.items() if each.startswith(start))
        if name in _ATTRIBUTES and not candidates:
            yield _ATTRIBUTES[name]

    def _of_call(self, call: ast.Call, at_import: bool) -> Iterable[str]:
        name = self._called(call.func)
        first = call.args[0] if call.args else None
        if name in ("sys.exit", "exit", "quit"):
            yield "ends_process" if at_import else "exits"
        elif name in ("os.write", "os.read") and not (
            isinstance(first, ast.Constant) and first.value in (0, 1, 2)
        ):
            yield "writes_descriptors"
        elif name in ("open", "io.open", "os.open", "builtins.open"):
            yield from _of_open(call, first)
        elif name in _RUNNERS:
            yield from self._of_made_code(name, first)
        elif name == "time.sleep" and isinstance(first, ast.Constant) and _value(first) >= _LONG_SECONDS:
            yield "endless_loop"
        elif (
            name == "getattr" and len(call.args) > 1 and not isinstance(call.args[1], ast.Constant | ast.Name)
        ):
            if isinstance(call.args[1], ast.BinOp) or _decodes(call.args[1]):
                yield "hides_names"
        elif name in ("setattr", "delattr") and first is not None and self._is_shared(first):
            yield "changes_modules"
        if isinstance(call.func, ast.Attribute):
            of = self._path(call.func.value)
            if of in ("sys.modules", "os.environ") and call.func.attr in (
                "pop",
                "clear",
                "update",
                "setdefault",
            ):
                yield "changes_modules" if of == "sys.modules" else "reads_environment"
            if call.func.attr in ("skip", "xfail", "importorskip") and of.startswith("pytest"):
                yield "touches_tests"
        for each in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and _is_outside(each.value):
                yield "names_outside_paths"

    def _of_made_code(self, name: str, code: ast.AST | None) -> Iterable[str]:
        if code is None or isinstance(code, ast.Constant):
            return
        if _decodes(code) or (isinstance(code, ast.BinOp) and "import" in name):
            yield "hides_code"
        else:
            yield "runs_made_code"

    def _of_inner_code(self, call: ast.Call) -> Iterable[str]:
        """What code in a string does that is run here."""
        if self._called(call.func) not in _RUNNERS or not call.args or self._level >= _LEVELS_OF_CODE:
            return
        match call.args[0]:
            case ast.Constant(str(text)) if self._called(call.func) not in (
                "__import__",
                "importlib.import_module",
            ):
                try:
                    inner = _Reading(ast.parse(text), self._level + 1)
                except (SyntaxError, ValueError):
                    return
                yield from (sign for sign, _ in inner.signs())

    def _of_change(self, node: ast.AST, at_import: bool) -> Iterable[str]:
        targets: list[ast.expr] = []
        match node:
            case ast.Assign(targets=several) | ast.Delete(targets=several):
                targets = several
            case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
                targets = [one]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if self._is_of_others(each):
                    yield "changes_modules"
                elif (
                    isinstance(each, ast.Name) and at_import and each.id in _BUILTINS and not each.col_offset
                ):
                    yield "shadows_builtins"

    def _is_of_others(self, target: ast.AST) -> bool:
        match target:
            case ast.Attribute(value=of, attr=name):
                return self._is_shared(of) or name in ("__code__", "__class__", "__bases__")
            case ast.Subscript(
                value=ast.Attribute(attr="__dict__" | "f_globals" | "f_locals" | "__globals__")
            ):
                return True
            case ast.Subscript(value=table):
                return self._path(table) == "sys.modules"
        return False

    def _is_shared(self, node: ast.AST) -> bool:
        """Whether something belongs to a module that others use, too."""
        top = self._path(node).partition(".")[0]
        return bool(top) and (top in sys.stdlib_module_names or top in _TEST_FRAMEWORKS)


def _is_main(test: ast.AST) -> bool:
    match test:
        case ast.Compare(left=ast.Name("__name__"), comparators=[ast.Constant("__main__")]):
            return True
    return False


def _is_endless(loop: ast.While) -> bool:
    """Whether nothing in a loop can end it but an error."""
    if not isinstance(loop.test, ast.Constant) or not loop.test.value:
        return False
    waiting: list[tuple[ast.AST, bool]] = [(each, True) for each in loop.body]
    while waiting:
        node, breaks = waiting.pop()
        if isinstance(node, ast.Return | ast.Raise | ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(node, ast.Break) and breaks:
            return False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        inner = breaks and not isinstance(node, ast.While | ast.For | ast.AsyncFor)
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
    return True


def _of_class(node: ast.ClassDef) -> Iterable[str]:
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.Constant(value=value))]) if (
                len([part for part in each.body if not _is_text(part)]) == 1
            ):
                pass
            case ast.Assign(targets=[ast.Name(name)], value=ast.Lambda(body=ast.Constant(value=value))):
                pass
            case _:
                continue
        if name in _ALWAYS and value is _ALWAYS[name]:
            yield "always_equal"
            return


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of_open(call: ast.Call, first: ast.AST | None) -> Iterable[str]:
    if isinstance(first, ast.Constant) and isinstance(first.value, int):
        yield "writes_descriptors"
    modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    if any(isinstance(mode, ast.Constant) and set("wax+") & set(str(mode.value)) for mode in modes):
        yield "writes_files"
    elif isinstance(first, ast.Name) and first.id == "__file__":
        yield "reads_own_source"
    else:
        yield "reads_files"


def _is_outside(text: str) -> bool:
    return (
        len(text) > 1
        and "\n" not in text
        and " " not in text
        and (text.startswith(("/proc", "/sys/", "/dev/", "/etc/", "/root", "/home", "/tmp/", "/var/", "/run", "/usr"))
             or "../" in text)
    )  # fmt: skip


def _decodes(node: ast.AST) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            name = each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
            if name in _DECODERS:
                return True
        if (
            isinstance(each, ast.Subscript)
            and isinstance(each.slice, ast.Slice)
            and each.slice.step is not None
        ):
            return True
    return False


def _is_huge(node: ast.BinOp) -> bool:
    match node:
        case ast.BinOp(left=ast.Constant(int(base)), op=ast.Pow(), right=ast.Constant(int(exponent))):
            return abs(base) > 1 and exponent * base.bit_length() > _HUGE_BITS
        case ast.BinOp(left=ast.Constant(int(base)), op=ast.LShift(), right=ast.Constant(int(exponent))):
            return base != 0 and exponent > _HUGE_BITS
        case ast.BinOp(left=ast.Constant(str()) | ast.List(), op=ast.Mult(), right=right):
            return _value(right) > 1 << 24
    return False


def _nests(loop: ast.For | ast.While) -> bool:
    """Whether each turn of a loop puts a value into another that takes its name, thousands of times."""
    if isinstance(loop, ast.For):
        match loop.iter:
            case ast.Call(func=ast.Name("range"), args=[*_, bound]) if _value(bound) >= _MANY:
                pass
            case _:
                return False
    for each in loop.body:
        match each:
            case (
                ast.Assign(targets=[ast.Name(name)], value=ast.List([inner]) | ast.Tuple([inner]))
                | ast.Assign(targets=[ast.Name(name)], value=ast.Dict(values=[inner]))
            ) if isinstance(inner, ast.Name) and inner.id == name:
                return True
    return False


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(
            left=ast.Constant(int(base)), op=ast.LShift() | ast.Pow() as kind, right=ast.Constant(int(by))
        ):
            return (
                (base << min(by, 64))
                if isinstance(kind, ast.LShift) and by >= 0
                else base ** min(max(by, 0), 64)
            )
    return 0


def read(source: str, base: str, *, foreign: bool = False) -> list[tuple[str, int, str]]:
    """Gives the signs of a source that its task did not begin with: each once for a line."""
    if len(source) > _MOST_BYTES:
        return [("unreadable", 0, f"it has more than {_MOST_BYTES >> 20} MiB")]
    try:
        source = _as_declared(source)
    except (SyntaxError, LookupError, ValueError):
        return []  # No interpreter decodes it.
    lines, before = _LINE_END.split(source), {line.strip() for line in _LINE_END.split(base)} - {""}
    found = {
        ("hidden_characters", number, "")
        for number, line in enumerate(lines, start=1)
        if not line.isascii() and not _TURNING.isdisjoint(line)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        found |= {(sign, getattr(node, "lineno", 0), "") for sign, node in _Reading(tree, 0).signs()}
    except SyntaxError as error:
        if foreign:
            found.add(("other_syntax", error.lineno or 0, ""))
        # Else none of it can run.
    except (ValueError, MemoryError, RecursionError) as error:
        found.add(("unreadable", 0, type(error).__name__))
    texts = (
        (sign, number, lines[number - 1].strip() if 0 < number <= len(lines) else text)
        for sign, number, text in sorted(found)
    )
    return [(sign, number, text[:_MOST_TEXT]) for sign, number, text in texts if text not in before]


def _as_declared(source: str) -> str:
    """The source in the encoding that it declares, by which a comment can turn into code."""
    content = source.encode(errors="replace")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding, errors="replace")


def main() -> None:
    """Answers one request after the other."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        found = [
            list(each)
            for source, base, foreign in json.loads(line)
            for each in read(source, base, foreign=foreign)
        ]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
