"""The endpoint that stands in for LangSmith keeps a whole experiment."""

from __future__ import annotations

import pytest
from langsmith import evaluate

from notebooks.local_langsmith import local_langsmith


def test_an_experiment_is_recorded_whole(capsys: pytest.CaptureFixture[str]) -> None:
    client, recorded = local_langsmith()
    assert not client.has_dataset(dataset_name="batches")
    dataset = client.create_dataset("batches")
    examples = [{"inputs": {"n": n}, "outputs": {"even": n % 2 == 0}} for n in range(3)]
    client.create_examples(dataset_id=dataset.id, examples=examples)
    assert client.has_dataset(dataset_name="batches")

    def target(inputs: dict) -> dict:
        return {"even": inputs["n"] != 1, "n": inputs["n"]}

    def right(outputs: dict, reference_outputs: dict) -> dict:
        return {"key": "right", "score": outputs["even"] == reference_outputs["even"]}

    def share(outputs: list[dict], reference_outputs: list[dict]) -> dict:
        return {"key": "share", "score": 0.25}

    evaluate(
        target,
        data="batches",
        evaluators=[right],
        summary_evaluators=[share],
        experiment_prefix="try",
        client=client,
    )
    client.flush()

    [experiment] = recorded.experiments.values()
    assert experiment["name"].startswith("try-")
    assert experiment["reference_dataset_id"] == str(dataset.id)
    tried = [r for r in recorded.runs.values() if r.get("reference_example_id")]
    assert sorted(run["outputs"]["n"] for run in tried) == [0, 1, 2]
    scores = [(f["key"], f["score"]) for f in recorded.feedback]
    assert sorted(scores) == [("right", True)] * 3 + [("share", 0.25)]
    client.cleanup()
