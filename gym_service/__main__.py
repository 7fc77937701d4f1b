"""The command line of the service: `python -m gym_service COMMAND`."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_service import evaluate_command, task_commands
from gym_service.callers import ROLES
from gym_service.config import ServiceConfig, add_limit_options, default_state_folder, limits_from
from gym_service.state import HELD_STATUS, StateFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gym_contract.v1 import gym_pb2 as pb

    from gym_service.sandbox.isolation import RuntimeResult


def main() -> int:
    """Runs one command and returns the exit status."""
    arguments, rest = _parser().parse_known_args()
    if rest and arguments.command != "up":
        _parser().error(f"unknown arguments: {' '.join(rest)}")
    handler = {
        "serve": _serve,
        "up": _up,
        "down": _down,
        "status": _status,
        "view": _view,
        "tasks": _tasks,
        "evaluate": _evaluate,
        "self-test": _self_test,
        "verify-record": _verify_record,
        "token": _token,
        "certificates": _certificates,
    }
    try:
        return handler[arguments.command](arguments, rest)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


class _OneLine(logging.Formatter):
    """Writes an event as one line and escapes what does not print: a message may quote a stranger."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(_printable, super().formatException(ei).split("\n")))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gym_service", description=__doc__)
    parser.add_argument(
        "--state-folder", type=Path, default=default_state_folder(), help="where endpoint, log and seed lie"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve in the foreground")
    serve.add_argument(
        "--bind",
        default="127.0.0.1:0",
        metavar="ADDRESS",
        help="where to listen: HOST:PORT (127.0.0.1:0, which takes a free port, by default), unix:PATH, or unix for a "
        "socket in the state folder; what other machines reach takes TLS, and so certificates (`certificates make`)",
    )
    serve.add_argument("--tls", action="store_true", help="TLS on the loopback interface, too")
    serve.add_argument(
        "--client-certificates",
        choices=["off", "require"],
        default="off",
        help="whether clients have to show a certificate (`certificates client`) beside their token",
    )
    serve.add_argument("--capacity", type=int, default=64, help="episodes that can be live at once")
    serve.add_argument("--graders", type=int, default=4, help="sandboxes kept for grading")
    serve.add_argument("--single-use", action="store_true", help="throw each sandbox away after one use")
    serve.add_argument("--max-lease-seconds", type=float, default=300.0, help="the longest lease")
    add_limit_options(serve)
    serve.add_argument(
        "--runtime", default="", help="OCI runtime of the sandboxes; the engine's default if absent"
    )
    serve.add_argument(
        "--profile",
        default="training",
        help="training serves on a machine with known gaps and names them; evaluation refuses it, and is --single-use",
    )
    serve.add_argument(
        "--records",
        default="",
        help="the records of graded episodes that are written to the state folder: none, flagged or all; "
        "flagged by default, all with --profile evaluation",
    )
    serve.add_argument(
        "--verdict-cache",
        choices=["on", "off"],
        help="whether the same files under the same seed are run once only; on by default for training, else off",
    )
    serve.add_argument(
        "--tokenizer",
        action="append",
        default=[],
        metavar="FOLDER_OR_NAME",
        help="register the tokenizer of a model folder, or of a model in the local cache of transformers, at start; "
        "may be given several times",
    )
    serve.add_argument(
        "--viewer-port",
        type=int,
        metavar="PORT",
        help="serve a page that shows episodes turn by turn (`view` opens it), and metrics for Prometheus at /metrics, "
        "on this port of the loopback interface; 0 for a free one; off if absent",
    )
    commands.add_parser("up", help="serve in the background; takes the options of serve")
    commands.add_parser("down", help="stop the background service")
    commands.add_parser("status", help="describe the background service")
    commands.add_parser(
        "view", help="print a link that opens the service's page in a browser, once and for five minutes"
    )
    self_test = commands.add_parser(
        "self-test", help="try every wall of a sandbox, on each runtime of the engine"
    )
    self_test.add_argument("--runtime", default="", help="only this runtime")
    task_commands.add_parser(commands)
    evaluate_command.add_parser(commands)
    verify = commands.add_parser(
        "verify-record",
        help="find any change in the records of graded episodes, and in review sheets of evaluations",
        description="Finds any change in the records of graded episodes and in review sheets of evaluations. The exit "
        "status is 0 only where every record is intact and something outside the file vouches for it: its seal, "
        "checked with the grading.seed of --state-folder, or --head. A chain alone proves nothing, because who "
        "rewrites a record can make a new one.",
    )
    verify.add_argument("files", nargs="+", type=Path, metavar="FILE")
    verify.add_argument(
        "--head", metavar="SHA256", help="what the client got as record_sha256; with one FILE"
    )
    token = commands.add_parser("token", help="give others a token of their own, with a role and an end")
    actions = token.add_subparsers(dest="action", required=True)
    issue = actions.add_parser("issue", help="print a new token; only its hash is kept")
    issue.add_argument("name", metavar="NAME", help="who it is for")
    issue.add_argument("--role", required=True, choices=ROLES, help="what it allows")
    issue.add_argument("--days", type=float, default=30.0, help="how long it is good (default: 30)")
    issue.add_argument(
        "--episodes",
        type=int,
        default=0,
        help="live episodes at once at most; 0 (default) for all there can be",
    )
    issue.add_argument(
        "--rate",
        type=float,
        default=0.0,
        help="commands per second at most, kept by waiting; 0 (default) for any number",
    )
    issue.add_argument(
        "--weight",
        type=float,
        default=1.0,
        help="its share of places and time that others want as well, beside theirs (default: 1)",
    )
    revoke = actions.add_parser("revoke", help="take a token back, from now on")
    revoke.add_argument("name", metavar="NAME", help="whose it is")
    actions.add_parser("list", help="list who has one")
    certificates = commands.add_parser("certificates", help="let other machines in, encrypted")
    actions = certificates.add_subparsers(dest="action", required=True)
    make = actions.add_parser(
        "make", help="make the service's certificate, and at the first time the authority that signs it"
    )
    make.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address by which clients call this machine; may be given several times; those of the last time "
        "if absent, and the loopback interface in any case",
    )
    client = actions.add_parser("client", help="make a certificate that a client shows")
    client.add_argument("name", metavar="NAME", help="who it is for")
    for action in (make, client):
        action.add_argument("--days", type=float, default=397.0, help="how long it is good (default: 397)")
    return parser


def _log(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _serve(arguments: argparse.Namespace, rest: list[str]) -> int:
    _log(logging.INFO)
    # The lock comes before the slow imports, so that `down` finds a service that is about to start.
    state = StateFolder(arguments.state_folder)
    if not state.lock():
        print(f"error: another service holds {state.folder}", file=sys.stderr)
        return HELD_STATUS
    import uvloop

    from gym_service.sandbox.base import SandboxLost
    from gym_service.server import serve

    try:
        config = ServiceConfig(
            state_folder=arguments.state_folder,
            bind=arguments.bind,
            tls=arguments.tls,
            client_certificates=arguments.client_certificates == "require",
            capacity=arguments.capacity,
            graders=arguments.graders,
            reuse=not arguments.single_use and arguments.profile != "evaluation",
            max_lease_seconds=arguments.max_lease_seconds,
            limits=limits_from(arguments),
            runtime=arguments.runtime,
            profile=arguments.profile,
            records=arguments.records or ("all" if arguments.profile == "evaluation" else "flagged"),
            # Whoever evaluates wants every verdict to be a run.
            verdict_cache=(arguments.verdict_cache or ("off" if arguments.profile == "evaluation" else "on"))
            == "on",
            tokenizers=tuple(arguments.tokenizer),
            viewer_port=arguments.viewer_port,
        )
        uvloop.run(serve(config, state))
    except (SandboxLost, ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _up(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service import control

    _parser().parse_args(["serve", *rest])  # Ends here with what is wrong with them, not in the log.
    try:
        info = control.up(arguments.state_folder, rest)
    except control.ControlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print_info(arguments.state_folder, info)
    return 0


def _down(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service import control

    stopped = control.down(arguments.state_folder)
    print("the gym is stopped" if stopped else "no gym was running")
    return 0


def _status(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service import control

    info = control.status(arguments.state_folder)
    if info is None:
        state = StateFolder(arguments.state_folder)
        process_id = state.holder()
        print(
            "no gym is running; start it with `make gym-up`"
            if process_id is None
            else f"process {process_id} holds the gym's folder and does not answer: it starts or stops, or its "
            f"certificates have ended or changed since it started (`make gym-down gym-up`); see {state.log}"
        )
        return 1
    _print_info(arguments.state_folder, info)
    return 0


def _view(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service import control

    try:
        print(control.viewer_link(arguments.state_folder))
    except control.ControlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _tasks(arguments: argparse.Namespace, rest: list[str]) -> int:
    return task_commands.run(arguments)


def _evaluate(arguments: argparse.Namespace, rest: list[str]) -> int:
    _log(logging.WARNING)
    return evaluate_command.run(arguments)


def _self_test(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service.sandbox import selftest
    from gym_service.sandbox.base import SandboxLost
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.policy import SandboxLimits
    from gym_service.server import find_gaps
    from sandbox_images.build import image_reference

    # Not the service's own, which would clear these sandboxes away when it starts.
    owner = f"{StateFolder(arguments.state_folder).owner}-self-test"
    try:
        first = DockerEngine(image_reference(), SandboxLimits(), owner, arguments.runtime)
        first.remove_leftovers()
        results = []
        for runtime in (first.facts.runtime,) if arguments.runtime else first.runtimes:
            engine = DockerEngine(image_reference(), SandboxLimits(), owner, runtime)
            results.append(asyncio.run(selftest.try_runtime(engine)))
            _print_result(engine.facts.runtime_version, results[-1])
        gaps = find_gaps(first)
    except SandboxLost as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"for --profile evaluation this machine lacks {len(gaps)} things" + (":" if gaps else ""))
    for gap in gaps:
        print(f"  {gap}")
    # The first is the one that would serve.
    return 0 if results[0].offered else 1


def _verify_record(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service.record_check import Finding, check_record
    from gym_service.state import read_grading_seed

    if arguments.head and len(arguments.files) > 1:
        print("error: --head is that of one record: give one FILE with it", file=sys.stderr)
        return 2
    try:
        private_seed = read_grading_seed(arguments.state_folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    every = True
    for path in arguments.files:
        try:
            finding = check_record(path.read_bytes(), private_seed, arguments.head or "")
        except OSError as error:
            # The others are looked at all the same.
            finding = Finding(f"it cannot be read: {error.strerror}")
        every = every and finding.vouched
        print(_printable(f"{path}: {finding.summary}"))
    return 0 if every else 1


def _token(arguments: argparse.Namespace, rest: list[str]) -> int:
    import time

    from gym_service.callers import TokenBook

    book = TokenBook(StateFolder(arguments.state_folder).tokens)
    try:
        if arguments.action == "issue":
            # Alone on stdout, so that it can go into a file that nobody has seen.
            print(
                book.issue(
                    arguments.name,
                    arguments.role,
                    arguments.days,
                    arguments.episodes,
                    arguments.rate,
                    arguments.weight,
                )
            )
        elif arguments.action == "revoke":
            book.revoke(arguments.name)
        else:
            for each in book.issued:
                days = (each.expires_at - time.time()) / 86_400
                left = f"{days:.1f} days left" if days > 0 else "expired"
                episodes = f"{each.quota} episodes" if each.quota else "any number of episodes"
                rate = f"{each.rate:g} commands/s" if each.rate else "any rate"
                print(f"{each.name:20}  {each.role:8}  {left}, {episodes}, {rate}, weight {each.weight:g}")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _certificates(arguments: argparse.Namespace, rest: list[str]) -> int:
    from gym_service.certificates import CertificateFolder

    folder = CertificateFolder(StateFolder(arguments.state_folder).folder)
    try:
        if arguments.action == "make":
            folder.make(arguments.host, arguments.days)
            print(f"good for   {', '.join(folder.hosts)}, {arguments.days:g} days")
            print(f"clients    take a copy of {folder.authority}, and name it in GYM_CA_FILE")
        else:
            path = folder.make_client(arguments.name, arguments.days)
            print(f"GYM_CLIENT_CERTIFICATE  {path}")
            print(f"GYM_CLIENT_KEY          {path.parent / (arguments.name + '.key')}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _print_result(version: str, result: "RuntimeResult") -> None:
    print(f"runtime {result.runtime} {version}: {'offered' if result.offered else 'refused'}")
    name_width = max(len(check.name) for check in result.checks)
    for check in result.checks:
        held = "held" if check.holds else "NOT HELD"
        print(f"  {check.name:{name_width}}  {held:8}  {_printable(check.observed)}")
        if check.remedy:
            print(f"  {'':{name_width}}  {'':8}  -> {check.remedy}")
    print()


def _print_info(folder: Path, info: "pb.GetGymInfoResponse") -> None:
    endpoint = StateFolder(folder).endpoint()
    isolation = info.isolation
    print(f"serving    {endpoint.address if endpoint else 'nowhere'}")
    if endpoint and endpoint.viewer:
        print(f"page       {endpoint.viewer}; `python -m gym_service view` prints a link that opens it")
    print(f"image      {isolation.image_digest}")
    print(
        f"isolation  {isolation.runtime}, engine {isolation.engine_version}, kernel {isolation.kernel_version}"
    )
    print(f"episodes   {info.capacity} at most, {info.live_episodes} live")
    print(f"sandboxes  {_pool_line(info.pool)}")
    print(f"grading    {_grading_line(info.grading)}")
    for tokenizer in info.tokenizers:
        print(f"tokenizer  {tokenizer.fingerprint[:12]}, {_append_only_line(tokenizer)}")


def _grading_line(grading: "pb.GradingStatus") -> str:
    """Says in one line what grading came to, alarms last."""
    verdicts = _counts(grading.verdicts)
    line = f"{verdicts}; {grading.public_only} pass the public tests alone, flags: {_counts(grading.flags)}; "
    line += f"{grading.retries} retries, {grading.cache_hits} of {grading.cache_hits + grading.cache_misses} on record"
    return "; ".join([line, *(f"ALARM {_printable(alarm)}" for alarm in grading.alarms)])


def _append_only_line(tokenizer: "pb.Tokenizer") -> str:
    """Says in one line whether episodes are the template's own rendering."""
    if tokenizer.append_only:
        return "append-only"
    first, *others = tokenizer.append_only_differences
    more = f"; {len(others)} more such differences" if others else ""
    return _printable(f"not append-only: {first}{more}")


def _counts(counts: "Mapping[str, int]") -> str:
    return ", ".join(f"{count} {name.lower()}" for name, count in sorted(counts.items())) or "none"


def _pool_line(pool: "pb.PoolStatus") -> str:
    """Says in one line how the sandboxes were used."""
    line = f"{pool.warm} of {pool.size} warm, {pool.started} started, retired: {_counts(pool.retired)}; "
    line += f"{pool.hits} lent at once"
    if pool.misses:
        average_seconds = pool.waited.ToNanoseconds() / 1e9 / pool.misses
        line += f", {pool.misses} after {average_seconds:.2f} s on average"
    return line


if __name__ == "__main__":
    sys.exit(main())
