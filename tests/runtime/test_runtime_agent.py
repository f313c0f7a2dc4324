"""The agent's protocol, with rank programs that need no torch."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from factories.running_agent import AGENT, RunningAgent, environment, is_gone, wait_until
from sailor_runtime.agent.preemption import PreemptionWatch, Provider
from sailor_runtime.agent.ranks import Rank

pytestmark = pytest.mark.timeout(150)
PATIENCE_S = 60.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Callable[..., RunningAgent]]:
    running: list[RunningAgent] = []

    def begin(behaviour: str, *options: str, home: str = "node-0") -> RunningAgent:
        running.append(RunningAgent(tmp_path / home, behaviour, *options))
        return running[-1]

    yield begin
    for agent in running:
        agent.process.kill()
        agent.process.wait()


def test_an_agent_says_hello_within_a_fraction_of_a_second_of_work_and_ends_on_sigterm(agents):
    agent = agents("serve")
    [hello] = agent.wait_for("hello")
    # Its own time, since others may have the processors; about 0.15 s on an idle core, of which Python is a part.
    used = Path(f"/proc/{agent.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    assert sum(map(int, used)) / os.sysconf("SC_CLK_TCK") < 0.6
    assert (hello["v"], hello["seq"], hello["node"], hello["pid"]) == (1, 1, "node-0", agent.process.pid)
    assert len(hello["runtime_sha"]) == 64
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("stopped")[-1]["reason"] == "requested"


def test_a_generation_that_finishes_is_reported_with_its_last_step(agents):
    agent = agents("finish")
    agent.start()
    [stopped] = agent.wait_for("stopped")
    assert (stopped["generation"], stopped["reason"], stopped["step"]) == (1, "finished", 1)
    assert agent.events("generation_started")[0]["ranks"] == [0, 1]
    assert {event["rank"] for event in agent.events("step")} == {0, 1}
    assert [event["seq"] for event in agent.events()] == list(range(1, len(agent.events()) + 1))
    assert sorted(path.name for path in (agent.home / "logs").iterdir()) == ["g1-rank0.log", "g1-rank1.log"]


def test_ranks_inherit_the_environment_so_that_process_tags_survive(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    assert json.loads((agent.home / "environment-1.json").read_text())["SAILOR_CLOUD_RUN"] == "run-1"


@pytest.mark.parametrize(
    ("behaviour", "how"),
    [("crash", {"exit_code": 7}), ("killed", {"signal": 9}), ("finish, then killed", {"signal": 9})],
)
def test_a_dead_rank_ends_the_generation_and_its_other_ranks(agents, behaviour, how):
    agent = agents(behaviour)
    agent.start()
    [stopped] = agent.wait_for("stopped")
    [dead] = agent.events("rank_dead")
    assert stopped["reason"] == "failed"
    assert dead["rank"] == 1
    assert {key: dead[key] for key in how} == how
    if behaviour == "crash":
        assert "the last words of rank 1" in dead["tail"]
    wait_until(lambda: agent.rank_pids() == [], "all ranks to be gone")


@pytest.mark.parametrize(("least_s", "iterations"), [("0.5", "1"), ("0.1", "5")])
def test_a_rank_that_is_silent_for_some_times_the_predicted_iteration_is_hung(agents, least_s, iterations):
    agent = agents("silent", "--hung-training-s", least_s, "--hung-iterations", iterations)
    agent.start(predicted_iteration_s=0.1)
    [stopped] = agent.wait_for("stopped")
    assert stopped["reason"] == "hung"
    assert agent.events("rank_hung")[0]["silent_s"] > 0.5
    assert agent.rank_pids() == []


def test_checkpoint_and_stop_reach_the_ranks(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    agent.command("checkpoint")
    agent.wait_for("checkpoint", 2)
    agent.command("stop")
    [stopped] = agent.wait_for("stopped")
    assert stopped["reason"] == "requested"
    assert agent.rank_pids() == []


def test_a_signal_to_the_agent_asks_for_a_checkpoint(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    agent.process.send_signal(signal.SIGUSR1)
    agent.wait_for("checkpoint", 2)


class _Metadata(http.server.BaseHTTPRequestHandler):
    """Answers as the metadata servers of GCP and AWS do; `taken` is the notice, `confused` makes no sense."""

    taken = False
    confused = False
    asked = 0

    def do_PUT(self) -> None:
        type(self).asked += 1
        self._answer(200, "a-token" if self.path == "/latest/api/token" else "")

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.path == "/computeMetadata/v1/instance/preempted":
            known = self.headers["Metadata-Flavor"] == "Google"
            self._answer(200 if known else 403, "TRUE" if self.taken else "FALSE")
        elif self.path == "/latest/meta-data/spot/instance-action":
            known = self.headers["X-aws-ec2-metadata-token"] == "a-token"
            self._answer(401 if not known else 200 if self.taken else 404, '{"action": "terminate"}')

    def _answer(self, code: int, text: str) -> None:
        if self.confused:
            self.wfile.write(b"no answer that HTTP knows\r\n\r\n")
            return
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def metadata() -> Iterator[tuple[type[_Metadata], str]]:
    handler = type("Metadata", (_Metadata,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("provider", list(Provider))
def test_a_notice_of_the_metadata_server_is_found_and_its_absence_too(metadata, provider):
    handler, address = metadata
    watch = PreemptionWatch(provider, address=address, every_s=0.02)
    for confused in (False, True, False):
        handler.confused = confused
        asked = handler.asked
        wait_until(lambda asked=asked: handler.asked > asked + 2, "questions")
        assert watch.notice is None
    handler.taken = True
    wait_until(lambda: watch.notice is not None, "a notice")


def test_a_preemption_notice_is_reported_and_asks_for_a_checkpoint(agents, metadata):
    handler, address = metadata
    handler.taken = True
    agent = agents("serve", "--provider", "gcp", "--metadata-address", address)
    agent.wait_for("preempt_notice")
    agent.start()
    agent.wait_for("checkpoint", 2)


def test_a_system_that_shuts_down_gives_the_ranks_time_to_save_and_the_agent_ends_with_them(agents, metadata):
    # Systems that shut down send this signal to all processes at once.
    agent = agents("serve", "--provider", "gcp", "--metadata-address", metadata[1], "--shutdown-s", "3600")
    agent.start()
    agent.wait_for("step", 2)
    ranks = agent.rank_pids()
    for pid in (*ranks, agent.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert agent.wait_for("preempt_notice")[0]["notice"] == "the system shuts down"
    assert {event["rank"] for event in agent.wait_for("checkpoint", 2)} == {0, 1}
    assert agent.rank_pids() == ranks
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("stopped")[-1]["reason"] == "requested"
    assert all(is_gone(pid) for pid in ranks)


def test_an_agent_without_a_provider_ends_its_ranks_with_itself_at_once(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("checkpoint") == agent.rank_pids() == []


def test_commands_that_do_not_fit_are_refused_with_the_reason(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    agent.command("stop", generation=2)
    agent.command("stop", plan_hash="other")
    agent.command("start", spec="spec.json")
    agent.command("dance")
    agent.command("start", generation=2, spec="missing.json")
    reasons = [event["reason"] for event in agent.wait_for("refused", 5)]
    assert "command is for generation 2, the spec for 1" in reasons[0]
    assert "'other'" in reasons[1]
    assert "generation 1 is not newer than 1" in reasons[2]
    assert "unknown command 'dance'; known: start, checkpoint, stop" in reasons[3]
    assert "missing.json" in reasons[4]
    assert len(agent.rank_pids()) == 2


def test_half_a_line_of_a_rank_is_left_out(tmp_path):
    path = tmp_path / "events"
    path.write_text('{"event": "step"}\n{"event": "st{"event": "ended"}\n{"event": "progress"}\n{"ev')
    rank = Rank(number=0, process=None, events=path, log=tmp_path / "log")
    assert [event["event"] for event in rank.new_events()] == ["step", "progress"]


def test_a_newer_generation_replaces_the_running_one(agents):
    agent = agents("serve")
    agent.start()
    agent.wait_for("step", 2)
    first = agent.rank_pids()
    agent.start(generation=2)
    agent.wait_for("step", 4)
    assert agent.events("stopped")[0]["generation"] == 1
    assert all(is_gone(pid) for pid in first)
    assert len(agent.rank_pids()) == 2


def _trains_or_not(agent: RunningAgent) -> bool:
    return len(agent.events("step")) >= 2 or bool(agent.events("refused")) or agent.process.poll() is not None


def test_the_agent_ends_itself_and_its_ranks_at_the_expiry(agents):
    # On a machine that is busy with other things ranks may not begin in so short a time.
    for left_s in (1.5, 5.0, 40.0):
        agent, expires_at = agents("serve", home=f"ends-in-{left_s}"), time.time() + left_s
        agent.start(expires_at=expires_at)
        wait_until(partial(_trains_or_not, agent), "steps of two ranks, or the reason why there are none")
        if agent.process.poll() is None and time.time() < expires_at - left_s / 3:
            break
        agent.process.kill()
        agent.process.wait()
    ranks = agent.rank_pids()
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("stopped")[-1]["reason"] == "expired"
    assert len(agent.events("checkpoint")) == 2, "each rank was asked to save once"
    assert all(is_gone(pid) for pid in ranks)


def test_after_a_generation_the_agent_holds_and_then_leaves(agents):
    agent = agents("finish", "--hold-s", "0.5")
    agent.start()
    assert agent.process.wait(PATIENCE_S) == 0
    assert [event["reason"] for event in agent.events("stopped")] == ["finished", "held"]


def test_a_machine_whose_agent_was_left_alone_powers_off(agents, tmp_path, monkeypatch):
    off = tmp_path / "off"
    monkeypatch.setenv("SAILOR_CLOUD_POWER_OFF", f"touch {off}")
    agent = agents("finish", "--hold-s", "0.5", "--power-off")
    agent.start()
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("stopped")[-1]["reason"] == "held"
    assert off.exists()


@pytest.mark.parametrize("how", ["requested", "a local node"])
def test_a_machine_stays_on_whose_agent_was_ended_or_that_is_no_cloud_s(agents, tmp_path, monkeypatch, how):
    off = tmp_path / "off"
    monkeypatch.setenv("SAILOR_CLOUD_POWER_OFF", f"touch {off}")
    agent = agents(
        "finish", "--hold-s", "0.5" if how == "a local node" else "60", *["--power-off"][how != "requested" :]
    )
    agent.start()
    agent.wait_for("stopped")
    if how == "requested":
        agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE_S) == 0
    assert not off.exists()


def test_a_stand_in_for_a_cloud_s_machine_never_powers_the_real_one_off(agents, tmp_path, monkeypatch):
    sudo = tmp_path / "sudo"
    sudo.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SAILOR_CLOUD_ACCELERATORS", "cpu")
    agent = agents("finish", "--hold-s", "0.1", "--power-off")
    agent.start()
    assert agent.process.wait(PATIENCE_S) == 0
    assert not (tmp_path / "called").exists()
    monkeypatch.delenv("SAILOR_CLOUD_ACCELERATORS")
    other = agents("finish", "--hold-s", "0.1", "--power-off", home="node-1")
    other.start()
    assert other.process.wait(PATIENCE_S) == 0
    assert (tmp_path / "called").exists()


def test_heartbeats_of_a_controller_keep_an_agent_without_a_generation(agents):
    agent = agents("finish", "--hold-s", "1.5")
    agent.start()
    agent.wait_for("stopped")
    word = agent.home / "controller"
    begun = time.monotonic()
    while time.monotonic() - begun < 3.0:
        word.write_bytes(b"")
        assert agent.process.poll() is None
        time.sleep(0.1)
    assert agent.process.wait(PATIENCE_S) == 0
    assert agent.events("stopped")[-1]["reason"] == "held"


def test_a_generation_that_trains_continues_without_a_controller(agents):
    agent = agents("serve", "--hold-s", "0.1")
    agent.start()
    agent.wait_for("step", 2)
    time.sleep(0.5)
    assert agent.process.poll() is None
    assert len(agent.rank_pids()) == 2


def test_ranks_die_with_a_killed_agent(agents):
    agent = agents("silent")
    agent.start()
    agent.wait_for("step", 2)
    ranks = agent.rank_pids()
    assert len(ranks) == 2
    agent.process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in ranks), "orphans to be gone")


def test_a_second_agent_in_the_same_folder_is_rejected(agents):
    agents("serve").wait_for("hello")
    second = agents("serve")
    assert second.process.wait(PATIENCE_S) == 1


def test_sequence_numbers_continue_after_a_restart_and_a_torn_line(agents):
    agent = agents("serve")
    agent.wait_for("hello")
    agent.process.kill()
    agent.process.wait()
    with (agent.home / "agent.jsonl").open("a") as file:
        file.write('{"v": 1, "se')
    agents("serve")
    wait_until(lambda: agent.home.joinpath("agent.jsonl").read_text().count("hello") == 2, "a second hello")
    assert json.loads(agent.home.joinpath("agent.jsonl").read_text().splitlines()[-1])["seq"] == 2


def test_a_detached_agent_outlives_its_parent_and_is_ready_when_that_returns(tmp_path):
    home = tmp_path / "node-0"
    command = [*AGENT, "--home", str(home), "--detach"]
    done = subprocess.run(command, env=environment("serve"), timeout=PATIENCE_S, check=False)
    assert done.returncode == 0
    hello = json.loads((home / "agent.jsonl").read_text().splitlines()[0])
    assert os.getsid(hello["pid"]) != os.getsid(0)
    os.kill(hello["pid"], signal.SIGTERM)
    wait_until(lambda: is_gone(hello["pid"]), "the agent to end")


def test_a_torch_that_cannot_be_imported_ends_the_generation_with_the_reason_and_not_the_agent(tmp_path, monkeypatch):
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12 is missing')")
    # The agent puts its own folder in front, where there is no torch.
    path = os.pathsep.join([str(tmp_path / "broken"), environment("")["PYTHONPATH"]])
    monkeypatch.setattr("factories.running_agent.environment", lambda behaviour: {**os.environ, "PYTHONPATH": path})
    agent = RunningAgent(tmp_path / "node-0", "", rank_module="sailor_runtime.training")
    try:
        agent.start()
        [stopped] = agent.wait_for("stopped")
        assert stopped["reason"] == "failed"
        assert "libcudart.so.12 is missing" in agent.events("rank_dead")[0]["tail"]
        assert agent.process.poll() is None
    finally:
        agent.process.kill()
        agent.process.wait()


def test_the_agent_needs_the_standard_library_only():
    code = (
        "import sys, sailor_runtime.agent.agent, sailor_runtime.agent.__main__;"
        "foreign = {'torch', 'numpy', 'deepspeed', 'yaml', 'pydantic'} & set(sys.modules); assert not foreign, foreign"
    )
    subprocess.run([sys.executable, "-c", code], env=environment("serve"), timeout=PATIENCE_S, check=True)
