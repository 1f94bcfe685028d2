"""What users ask is answered near the README, and each answer leads on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^```python\n", re.MULTILINE)
# What newcomers ask, and where the answer is.
ANSWERS = {
    "lr, coming from AdamW at 3e-4": "start.md#3-choose-the-learning-rate",
    "how long a warm-up": "start.md#3-choose-the-learning-rate",
    "gradient accumulation": "troubleshooting.md#accumulate-gradients",
    "torch.compile": "troubleshooting.md#torchcompile",
    "resume on another number of processes": "troubleshooting.md#resume-also-on-another-number-of-gpus",
    "nan with LARS": "troubleshooting.md#the-loss-becomes-nan-or-inf",
    "which tensor made a skipped step": "troubleshooting.md#the-loss-becomes-nan-or-inf",
    "the state of a 7B model": "small-memory.md#large-models",
    "Muon and AdamW in the Trainer": "trainers.md#transformers",
    "no decay and no ratio": "pytorch.md#biases-embeddings-and-norms-layernorm-rmsnorm",
    "AMP and GradScaler": "troubleshooting.md#amp-and-gradscaler",
    "bfloat16 without master weights": "small-memory.md#weights-in-16-bits",
    "clipping": "pytorch.md#are-gradients-clipped",
    "JAX: chain, schedule, mask": "jax.md#options",
    "Keras: compile": "keras.md#what-works",
    "switch with an old checkpoint": "pytorch.md#checkpoints-of-other-optimizers",
    "FSDP2 and tensor parallelism": "sharding.md#supported-layouts",
    "ZeRO-3": "sharding.md#flat-shards",
    "AMD, Mac, Windows": "start.md#versions-and-platforms",
    "TensorBoard, W&B": "monitoring.md#trust-ratios-and-norms",
    "faster than fused AdamW?": "performance.md#a-step-on-a-cpu",
    "freeze a layer": "troubleshooting.md#freeze-a-layer",
}


def links_to_pages(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)", page.read_text("utf-8"))}


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", head)).strip().lower().replace(" ", "-") for head in heads
    }


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered_two_clicks_from_the_readme(question: str) -> None:
    page, _, anchor = ANSWERS[question].partition("#")
    first = links_to_pages(ROOT / "README.md")
    assert ROOT / "docs" / page in first.union(*(links_to_pages(one) for one in first))
    assert anchor in anchors(ROOT / "docs" / page)


def test_troubleshooting_leads_on_from_each_of_its_answers() -> None:
    _, *answers = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8").split("\n## ")
    assert len(answers) == 10
    for answer in answers:
        assert CODE.search(answer), answer
        for page, anchor in re.findall(r"\]\((\w[\w-]*\.md)?(?:#([\w-]+))?\)", answer):
            assert not anchor or anchor in anchors(ROOT / "docs" / (page or "troubleshooting.md"))
        assert re.search(r"\]\(\w[\w-]*\.md", answer), answer
    for page in ("README.md", "docs/start.md", "docs/reference/errors.md"):
        assert ROOT / "docs" / "troubleshooting.md" in links_to_pages(ROOT / page)
