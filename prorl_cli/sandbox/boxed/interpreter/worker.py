"""The process that keeps a policy's Python: runs one cell after the other in one namespace, says how each ended.

Plain Python 3.8 from what even Debian's `python3-minimal` has, for the image's interpreter runs it, from its text:
it comes through the channel (see `child`), which is descriptor 0 at first; 1 and 2 are the pipe of all output.
A frame is 4 bytes of length and a body: to the worker `NUMBER\\nCODE`, back NUMBER, KIND, DETAIL, FOLDER, with NUL
between them. Refuses to answer from a forked copy of itself, and to leave the protocol's ways to a cell: its own
descriptors, streams, builtins and names are out of reach or put back before the next one.
"""

# ruff: noqa: BLE001, SIM115 - a cell raises anything, and its streams stay open

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import linecache
import os
import signal
import sys
import traceback
import types
import warnings
from typing import Any, NoReturn

_getpid, _getcwd, _read, _write, _exit, _dup2 = os.getpid, os.getcwd, os.read, os.write, os._exit, os.dup2
_FILE = "<prorl>"
_streams: list[Any] = []
_future = [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]


class Plain:
    """Python's own prompt: the value of a last expression is shown."""

    name = "python"

    def __init__(self, module: types.ModuleType) -> None:
        self._names = module.__dict__
        self._flags = 0
        self._count = 0

    def run(self, code: str) -> BaseException | None:
        """What the cell raised, once it is shown; None where it ran to its end."""
        self._count += 1
        sys.displayhook = _display
        name = f"<cell {self._count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | self._flags, True)
            last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
            self._execute(tree, name, "exec")
            if last:
                self._execute(ast.Interactive(last), name, "single")
        except BaseException as error:
            if not isinstance(error, SystemExit):
                _show(error)
            return error
        return None

    def _execute(self, tree: Any, name: str, mode: str) -> None:
        code = compile(tree, name, mode, self._flags, True)
        for flag in _future:  # `from __future__ import …` holds for the cells after it, too
            self._flags |= code.co_flags & flag
        exec(code, self._names)


def _display(value: object) -> None:
    if value is not None:
        builtins._ = value  # type: ignore[attr-defined]
        _print(repr(value) + "\n")


def _show(error: BaseException) -> None:
    _print("".join(traceback.format_exception(type(error), error, _of_cell(error.__traceback__))))


def _of_cell(trace: Any) -> Any:
    """A traceback without the worker's own part in it."""
    while trace and trace.tb_frame.f_code.co_filename == _FILE:
        trace = trace.tb_next
    last = trace
    while last and last.tb_next:
        if last.tb_next.tb_frame.f_code.co_filename == _FILE:
            last.tb_next = None
        last = last.tb_next
    return trace


def _print(text: str) -> None:
    """To where output belongs, whatever the cell has made of its streams."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        _streams[1].write(text)
    except ValueError:  # closed
        os.write(1, text.encode("utf-8", "replace"))


def _ipython(module: types.ModuleType) -> Any:
    """IPython's shell without colours, prompts and history. Raises whatever an image's own makes it raise."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Quiet(DisplayHook):  # type: ignore[misc]
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
            _print(format_dict.get("text/plain", "") + "\n")

        def finish_displayhook(self) -> None:
            pass

        def update_user_ns(self, result: object) -> None:
            builtins._ = result  # type: ignore[attr-defined]

    class Shell(InteractiveShell):  # type: ignore[misc]
        name = "ipython"
        displayhook_class = Quiet
        system = InteractiveShell.system_raw  # without a terminal of its own between

        def showtraceback(self, *args: Any, **kwargs: Any) -> None:
            kind, _, trace = sys.exc_info()
            if kind is not SystemExit:
                _of_cell(trace)
                super().showtraceback(*args, **kwargs)

        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            _print(self.InteractiveTB.stb2text(stb).rstrip("\n") + "\n")

        def run(self, code: str) -> Any:
            result = self.run_cell(code, store_history=True)
            return result.error_before_exec or result.error_in_exec

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.xmode = "Plain"
    config.InteractiveShell.separate_in = ""
    for words in ("To exit: use", "IPython (dir|parent) "):
        warnings.filterwarnings("ignore", message=words)
    shell = Shell.instance(config=config, user_module=module)
    for name in ("_", "__", "___"):
        shell.user_ns.pop(name, None)
    shell.user_ns["exit"] = shell.user_ns["quit"] = sys.exit
    return shell


class Worker:
    """Serves cells until the channel closes."""

    def __init__(self) -> None:
        self._owner = _getpid()
        self._running = False
        self._buffer = b""
        self._keep_descriptors()
        self._open_streams()
        self._flush_c = _flusher_of_c()
        self._main = types.ModuleType("__main__")
        self._name_main()
        self._shell = _shell(self._main)
        sys.argv = [""]
        sys.path.insert(0, "")  # only now: a cell's folder may have a module of any name
        self._builtins = _guarded_builtins()

    def _keep_descriptors(self) -> None:
        """Out of the way of a cell that closes or reuses small numbers; programs that it starts do not get them."""
        top = min(os.sysconf("SC_OPEN_MAX"), 1024)
        self._channel = _dup2(0, top - 8, False)
        self._output = _dup2(1, top - 7, False)
        self._nothing = _dup2(os.open(os.devnull, os.O_RDONLY), top - 6, False)
        os.closerange(3, top - 8)
        self._point_descriptors()

    def _point_descriptors(self) -> None:
        for source, target in ((self._nothing, 0), (self._output, 1), (self._output, 2)):
            _dup2(source, target)

    def _open_streams(self) -> None:
        kind = {"encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
        modes = ("r", "w", "w")
        _streams[:] = [open(number, mode, 1, **kind) for number, mode in enumerate(modes)]  # type: ignore[call-overload]
        sys.stdin, sys.stdout, sys.stderr = _streams

    def serve(self) -> NoReturn:
        version = ".".join(map(str, sys.version_info[:3]))
        self._say(b"0", "hello", f"{self._shell.name} {version}")
        while True:
            number, code = self._next()
            kind, detail = self._run(code.decode("utf-8", "replace"))
            if _getpid() != self._owner:  # a fork that a cell left to run on
                _exit(int(detail) if kind == "exit" else kind == "raised")
            self._say(number, kind, detail)

    def _next(self) -> tuple[bytes, bytes]:
        while True:
            try:
                return self._take()
            except BaseException as error:  # of a handler that a cell left behind, unless
                _exit_without_channel(error)
                self._complain()

    def _take(self) -> tuple[bytes, bytes]:
        while True:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) >= max(end, 5):
                body, self._buffer = self._buffer[4:end], self._buffer[end:]
                number, _, code = body.partition(b"\n")
                return number, code
            data = _read(self._channel, 1 << 20)
            if not data:
                _exit(0)
            self._buffer += data

    def _run(self, code: str) -> tuple[str, str]:
        error = None
        try:
            self._restore()
            self._running = True
            try:
                error = self._shell.run(code)
                self._flush()
            finally:
                self._running = False
        except BaseException as escaped:
            error = escaped
            if not isinstance(error, SystemExit):
                self._complain()
        self._put_back_builtins()
        if isinstance(error, SystemExit):
            return "exit", _exit_code(error)
        return ("raised", type(error).__name__) if error is not None else ("ok", "")

    def _restore(self) -> None:
        """What the cell before may have changed."""
        self._point_descriptors()
        if not all(map(_usable, _streams)):
            self._open_streams()
        sys.stdin, sys.stdout, sys.stderr = _streams
        signal.signal(signal.SIGINT, self._interrupt)
        self._name_main()
        sys.settrace(None)
        sys.setprofile(None)

    def _name_main(self) -> None:
        """The cells' namespace is what pickle and multiprocessing look for."""
        sys.modules["__main__"] = self._main
        self._main.__dict__["__builtins__"] = builtins

    def _interrupt(self, *_: object) -> None:
        if self._running:
            raise KeyboardInterrupt

    def _put_back_builtins(self) -> None:
        now = builtins.__dict__
        for name, value in self._builtins.items():
            if now.get(name) is not value:
                now[name] = value

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, *_streams[1:], sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(Exception):  # a cell's own, or closed
                stream.flush()
        self._flush_c()

    def _complain(self) -> None:
        with contextlib.suppress(Exception):
            _write(self._output, traceback.format_exc().encode("utf-8", "replace"))

    def _say(self, number: bytes, kind: str, detail: str) -> None:
        try:
            folder = _getcwd()
        except OSError:
            folder = ""
        fields = [number] + [field.encode("utf-8", "replace")[:4096] for field in (kind, detail, folder)]
        body = b"\0".join(field.replace(b"\0", b"?") for field in fields)
        data = len(body).to_bytes(4, "big") + body
        while data:
            try:
                data = data[_write(self._channel, data) :]
            except BaseException as error:
                _exit_without_channel(error)


def _exit_without_channel(error: BaseException) -> None:
    """Where a cell closed the channel; what handlers raise, such as `TimeoutError`, has no number of an error."""
    if isinstance(error, OSError) and error.errno is not None:
        _exit(1)


def _usable(stream: Any) -> bool:
    try:
        return not stream.closed and stream.fileno() >= 0
    except ValueError:  # detached
        return False


def _exit_code(error: SystemExit) -> str:
    code = error.code
    return "0" if code is None else str(code & 0xFF) if isinstance(code, int) else "1"


def _flusher_of_c() -> Any:
    """Flushes the streams of C, which extensions print to. Nothing where this Python has no ctypes."""
    try:
        import ctypes

        flush = ctypes.CDLL(None).fflush
    except Exception:
        return lambda: None
    return lambda: flush(None)


def _shell(module: types.ModuleType) -> Any:
    try:
        return _ipython(module)
    except Exception:  # none there, or one that does not work
        return Plain(module)


def _refuse_input(prompt: object = "") -> NoReturn:
    """There is nobody to answer."""
    raise EOFError("input() is not available: nobody types into this session")


def _guarded_builtins() -> dict[str, Any]:
    builtins.input = _refuse_input
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    return {name: value for name, value in builtins.__dict__.items() if name != "_"}


def _take_name() -> None:
    """So that `pkill python` does not end it."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb", 0) as name:
        name.write(b"prorl-cells")


if __name__ == "prorl_worker":
    _take_name()
    Worker().serve()
