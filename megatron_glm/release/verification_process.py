"""The other side of verification.py: what a user of transformers does with a release, and nothing of ours.

Run as `python verification_process.py FOLDER`; FOLDER holds release/, inputs.safetensors and texts.json,
and gets logits.safetensors and report.json.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")


def main(folder: Path) -> None:
    release = str(folder / "release")
    report = {"loading": {}, "tokens": []}
    for auto in (AutoModel, AutoModelForCausalLM):
        model, loading = auto.from_pretrained(
            release, trust_remote_code=True, output_loading_info=True, dtype=torch.float32
        )
        report["loading"][auto.__name__] = {
            problem.split("_")[0]: sorted(map(str, loading.get(problem, ()))) for problem in PROBLEMS
        }
    tokenizer = AutoTokenizer.from_pretrained(release, trust_remote_code=True)
    for text in json.loads((folder / "texts.json").read_text(encoding="utf-8")):
        ids = tokenizer(text)["input_ids"]
        report["tokens"].append({"ids": ids, "text": tokenizer.decode(ids)})
    with torch.inference_mode():
        save_file(answers(model.eval(), load_file(folder / "inputs.safetensors")), folder / "logits.safetensors")
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


def answers(model, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logits at part B for each way of giving the samples: [N, num_ids]."""
    input_ids, position_ids, part_a = inputs["input_ids"], inputs["position_ids"], inputs["part_a"]
    bounds = list(zip(part_a.tolist(), inputs["lengths"].tolist(), strict=True))
    place = torch.arange(input_ids.shape[1])
    mask = (place[:, None] >= place) | (place < part_a[:, None])[:, None]
    padded = model(input_ids, position_ids=position_ids, attention_mask=part_a).logits
    masked = model(input_ids, position_ids=position_ids, attention_mask=mask[:, None]).logits
    single = [
        model(input_ids[[i], :end], position_ids=position_ids[[i], :, :end], attention_mask=part_a[[i]]).logits[0]
        for i, (_, end) in enumerate(bounds)
    ]
    return {
        name: torch.cat([logits[i][begin:end] for i, (begin, end) in enumerate(bounds)])
        for name, logits in {"padded": padded, "masked": masked, "single": single}.items()
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
