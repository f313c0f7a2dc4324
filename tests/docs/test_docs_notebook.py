from __future__ import annotations

from pathlib import Path

import pytest

from factories.commands import ROOT


# pyzmq's socket in a kernel client and jupyter's folders warn about their own future.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:zmq")
def test_the_notebook_runs_and_its_frames_hold_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in shown} == {"execute_result"}, "a cell printed or warned"
    pages = [output.data.get("text/html", "") for output in shown]
    assert [page for page in pages if "opt-350m" in page and "USD/h" in page]
    assert [page for page in pages if "devices.A100-40" in page]
    assert [page for page in pages if "usd_per_gpu_hour" in page]
    assert "varuna" in "".join(pages)
    assert max(len(output.data["text/plain"].splitlines()[0]) for output in shown) < 200
