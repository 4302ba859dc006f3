"""Runs on the features of a frozen encoder."""

import json

import fedtailor


def test_a_run_says_which_encoder_made_its_features(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    config = fedtailor.make_config(
        {
            "data": {"clients": 3, "encoder": "tiny_encoders:tiny"},
            "federation": {"rounds": 1},
            "evaluation": {"baselines": "none"},
        }
    )
    fedtailor.run(config, out=tmp_path / "run")
    inputs = json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert inputs["shape"] == [6]
    assert inputs["encoder"]["target"] == "tiny_encoders:tiny"
    assert inputs["encoder"]["inputs"]["shape"] == [1, 8, 8]
