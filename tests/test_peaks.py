"""What a container has used at most is read where its machine keeps it, and never from another's."""

import pytest

from gym_service.sandbox import peaks
from gym_service.sandbox.peaks import Peaks, read_peaks

ID = "5d2308a6"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(peaks, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(peaks, "_PROCESSES", tmp_path / "proc")

    def write(groups, **files):
        for path, text in {"proc/7/cgroup": groups, **files}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    return write


def test_of_version_1_each_controller_has_a_tree(machine):
    files = {
        f"cgroup/memory/docker/{ID}/memory.max_usage_in_bytes": "1000\n",
        f"cgroup/pids/docker/{ID}/pids.peak": "9\n",
    }
    machine(f"8:pids:/docker/{ID}\n4:memory:/docker/{ID}\n0::/docker/{ID}\n", **files)

    assert read_peaks(7, ID) == Peaks(1000, 9)


def test_of_version_2_there_is_one_tree_and_older_kernels_count_no_processes(machine):
    group = f"system.slice/docker-{ID}.scope"
    machine(f"0::/{group}\n", **{f"cgroup/{group}/memory.peak": "2000\n"})

    assert read_peaks(7, ID) == Peaks(2000, None)


def test_of_a_process_that_is_gone_or_another_by_now_nothing_is_told(machine):
    machine("0::/docker/another\n", **{"cgroup/docker/another/memory.peak": "2000\n"})

    assert read_peaks(7, ID) == read_peaks(8, ID) == Peaks(None, None)
