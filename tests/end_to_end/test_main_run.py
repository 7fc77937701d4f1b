"""The main job as a user runs it: the trainer's command line against a service over real containers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gym_service import control
from gym_service.state import StateFolder
from tests.engine import containers_of
from trainer_client.checkpoint import state_hash
from trainer_client.collate import collate
from trainer_client.config import RunConfig
from trainer_client.credit import shaped_reward, turn_advantages
from trainer_client.curriculum import choose_groups
from trainer_client.gym import GymClient
from trainer_client.models.load import load_model
from trainer_client.models.sampler import Sampler
from trainer_client.models.tiny import build_tiny
from trainer_client.rollout import RolloutSettings, play_groups
from trainer_client.session import register
from trainer_client.update import make_optimizer, update_policy

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

SERVICE = ("--capacity", "32", "--graders", "2")
SMALL = {
    "steps": 4,
    "tasks-per-step": 2,
    "group-size": 4,
    "cohort-size": 4,
    "validate-every": 2,
    "validation-episodes": 2,
    "test-episodes": 2,
    "learning-rate": 0.01,
}


class Trainer:
    """A service and the folder in which runs of it are made."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.runs = folder / "runs"
        self.environment = os.environ | {
            "GYM_STATE_DIR": str(self.state),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        self.folder = folder

    def start(self, name, **settings):
        """Starts a run in the background."""
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in (SMALL | settings).items()]
        return subprocess.Popen(
            [sys.executable, "-m", "trainer_client.run", "--name", name, *flags],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A test run in the background has Ctrl-C ignored, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def resume(self, name):
        """Goes on with a run and returns what it printed."""
        command = [sys.executable, "-m", "trainer_client.run", "--resume", "--name", name]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, name, **settings):
        """Makes a run to its end and returns what it printed."""
        process = self.start(name, **settings)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def rows(self, name):
        """Reads the metrics of a run as far as they are written."""
        path = self.runs / name / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_step(self, name, step):
        """Waits until a run has finished a step."""
        deadline = time.monotonic() + 200
        while not any(row.get("step") == step and "reward" in row for row in self.rows(name)):
            assert time.monotonic() < deadline, "the run does not get there"
            time.sleep(0.05)

    def result(self, name):
        """Reads the result of a run."""
        return json.loads((self.runs / name / "result.json").read_text())

    def weights(self, name):
        """Gives the bytes of the last checkpoint of a run: what it was to learn, whichever is chosen in the end."""
        *_, last = sorted((self.runs / name / "checkpoints").iterdir())
        return (last / "model.safetensors").read_bytes()

    def live_episodes(self):
        """Asks the service how many episodes are live."""
        return control.status(self.state).live_episodes


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("main_run"))
    control.up(trainer.state, SERVICE)
    yield trainer
    control.down(trainer.state)


@pytest.fixture(scope="module")
def reference(trainer):
    """A run in one piece; returns what it printed."""
    return trainer.run("reference")


def test_a_run_ends_with_a_summary_and_a_readable_folder(trainer, reference):
    folder = trainer.runs / "reference"

    assert "report.html" in reference
    assert {"config.json", "metrics.jsonl", "dashboard.png", "report.html", "checkpoints"} <= {
        path.name for path in folder.iterdir()
    }
    assert (folder / "dashboard.png").read_bytes().startswith(b"\x89PNG")
    assert len([row for row in trainer.rows("reference") if "reward" in row]) == 4
    html = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="(https?:)?//', html)


def test_a_run_is_repeatable_bit_for_bit(trainer, reference):
    trainer.run("again")

    assert trainer.weights("again") == trainer.weights("reference")


def test_another_seed_is_another_run(trainer, reference):
    trainer.run("other", seed=1)

    assert trainer.weights("other") != trainer.weights("reference")


def test_a_run_that_was_stopped_goes_on_to_the_same_result(trainer, reference):
    process = trainer.start("stopped")
    trainer.wait_for_step("stopped", 1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()

    assert process.returncode == 130, output
    assert "--resume --name stopped" in output
    assert (trainer.runs / "stopped" / "report.html").exists()
    assert trainer.live_episodes() == 0

    trainer.resume("stopped")

    assert trainer.weights("stopped") == trainer.weights("reference")


def test_a_cold_start_teaches_a_model_that_knows_nothing(trainer):
    build_tiny(trainer.folder / "raw")

    output = trainer.run(
        "cold",
        model=trainer.folder / "raw",
        demonstrations=4,
        cold_start_steps=150,
        cold_start_learning_rate=0.003,
        steps=1,
    )

    assert "Cold start: 80 demonstrations resolved" in output
    result = trainer.result("cold")
    assert result["test_pass_at_1_raw"]["estimate"] == 0.0
    assert result["test_pass_at_1_start"]["estimate"] > 0.3


def test_a_service_killed_in_the_middle_is_waited_for_and_nothing_is_lost(trainer, reference):
    process = trainer.start("bereft")
    trainer.wait_for_step("bereft", 2)
    os.kill(StateFolder(trainer.state).endpoint().process_id, signal.SIGKILL)
    time.sleep(2)
    control.up(trainer.state, SERVICE)
    output, _ = process.communicate()

    assert process.returncode == 0, output
    assert "does not answer" in output
    assert "is back" in output
    assert trainer.weights("bereft") == trainer.weights("reference")
    states = {each["State"]["Status"] for each in containers_of(StateFolder(trainer.state).owner)}
    assert states <= {"running", "created"}


def test_the_leases_of_a_killed_trainer_run_out(trainer, reference):
    process = trainer.start("dead", steps=50)
    trainer.wait_for_step("dead", 1)
    while trainer.live_episodes() == 0:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert trainer.live_episodes() > 0

    deadline = time.monotonic() + 120
    while trainer.live_episodes():
        assert time.monotonic() < deadline, "the episodes of a dead trainer live on"
        time.sleep(0.5)


def test_a_run_without_a_gym_says_how_to_start_one(trainer, tmp_path):
    environment = trainer.environment | {"GYM_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "trainer_client.run", "--name", "none"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 1
    assert "make gym-up" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_existing_run_is_not_overwritten(trainer, reference):
    process = trainer.start("reference")
    output, _ = process.communicate()

    assert process.returncode == 1
    assert "--resume" in output


async def bare_loop(model_folder, config):
    """All that training is: twelve lines without checkpoints, evaluations, checks or pictures."""
    async with GymClient.connect() as gym:
        loaded = load_model(model_folder)
        tokenizer = await register(gym, loaded)
        settings = RolloutSettings(
            config.seed,
            config.toolset,
            tokenizer.fingerprint,
            1024,
            config.turn_limit,
            cohort_size=config.cohort_size,
        )
        tasks = [task.task_id for task in await gym.list_tasks(config.suite, "train")]
        optimizer = make_optimizer(loaded.model, config)
        for step in range(1, config.steps + 1):
            policy = Sampler(
                loaded.model, stop_ids=tokenizer.stop_token_ids, max_new_tokens=config.max_new_tokens
            )
            played = (
                await play_groups(gym, policy, choose_groups(tasks, config, step), settings)
            ).trajectories
            rewards = [shaped_reward(episode, config) for episode in played]
            advantages = turn_advantages(played, rewards, config)
            learned = [each for each in zip(played, advantages, strict=True) if not each[0].outcome.truncated]
            if learned:
                update_policy(loaded.model, optimizer, collate(*zip(*learned, strict=True)), config)
    return loaded.model


async def test_the_bare_loop_and_the_run_with_its_instruments_end_in_the_same_bits(
    trainer, reference, monkeypatch
):
    """Preflight, checkpoints, validations, reports and pictures leave no trace in what is learned."""
    monkeypatch.setenv("GYM_STATE_DIR", str(trainer.state))
    settings = {key.replace("-", "_"): value for key, value in SMALL.items()}
    threads, folder = torch.get_num_threads(), trainer.runs / "reference" / "checkpoints"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        model = await bare_loop(folder / "step-000", RunConfig(**settings))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)

    assert state_hash(model) == state_hash(load_model(folder / "step-004").model)
    assert state_hash(model) != state_hash(load_model(folder / "step-000").model)
