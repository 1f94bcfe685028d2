"""What users ask is answered near the README, and each answer leads on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^```python\n", re.MULTILINE)
HOME = ROOT / "docs" / "troubleshooting.md"
QUESTION = re.compile(r"\[([^\]]+\?)\]\(([\w-]+\.md)?#([\w-]+)\)")
INDEX = QUESTION.findall(HOME.read_text("utf-8").partition("\n## ")[0].partition("\n```")[0])
# A word that the answer cannot do without.
TOLD = {
    "I have AdamW at 3e-4: which lr?": "3 to 10 times your AdamW rate",
    "How long a warm-up?": "5–10 % of steps",
    "The batch grows 16 times: what changes?": "√k",
    "nan with LARS?": 'rule="lars"',
    "Which tensor was not finite?": "isfinite",
    "It does not move?": "3 to 10 times",
    "Are gradients clipped?": "Only if you ask",
    "Gradient accumulation?": "/ 4",
    "torch.compile?": "opts out",
    "Freeze a layer?": "requires_grad_(False)",
    "AMP and GradScaler?": "scaler.step(opt)",
    "bfloat16 weights?": "master_weights",
    "No decay and no ratio for biases?": "no_adapt",
    "Muon with AdamW in the Trainer?": "optimizers=(Mixed(groups), None)",
    "TensorBoard, W&B?": "TensorBoard",
    "Resume on another number of GPUs?": "any number of processes",
    "Load AdamW's or apex's checkpoint?": "convert(",
    "A 7 B model: how much memory?": "8.2 B",
    "Too slow?": "layerwise info",
    "Faster than fused AdamW?": "fused Adam",
    "It does not fit on the GPU?": "host, LAMB",
    "FSDP2 with tensor parallelism?": "also with FSDP2",
    "ZeRO-3?": "stage 3",
    "AMD, Mac, Windows?": "Windows",
    "JAX: chain, schedule, mask?": "trust_ratio_mask",
    "Keras: compile?": "compile",
}


def links_to_pages(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+\.md)", page.read_text("utf-8"))}


def anchor_of(head: str) -> str:
    return re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", head)).strip().lower().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor_of(head) for head in re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)}


def section(page: Path, anchor: str) -> str:
    """Return a heading of a page and what stands below it, up to the next one of its level or a higher one."""
    text = page.read_text("utf-8")
    heads = [(found.start(), len(found[1]), found[0]) for found in re.finditer(r"^(#+) .*$", text, re.MULTILINE)]
    at, level, _ = next(one for one in heads if anchor_of(one[2].lstrip("# ")) == anchor)
    ends = (begin for begin, depth, _ in heads if begin > at and depth <= level)
    return text[at : next(ends, len(text))]


def test_the_index_has_these_questions() -> None:
    assert [question for question, _, _ in INDEX] == list(TOLD)
    assert HOME in links_to_pages(ROOT / "README.md")


@pytest.mark.parametrize(("question", "page", "anchor"), INDEX, ids=[one for one, _, _ in INDEX])
def test_a_question_is_answered_two_clicks_from_the_readme(question: str, page: str, anchor: str) -> None:
    """From README to the index, and from there to a heading below which the answer is."""
    assert TOLD[question] in " ".join(section(ROOT / "docs" / (page or HOME.name), anchor).split())


def test_troubleshooting_leads_on_from_each_of_its_answers() -> None:
    _, *answers = HOME.read_text("utf-8").split("\n## ")
    assert len(answers) == 10
    for answer in answers:
        assert CODE.search(answer), answer
        for page, anchor in re.findall(r"\]\((\w[\w-]*\.md)?(?:#([\w-]+))?\)", answer):
            assert not anchor or anchor in anchors(ROOT / "docs" / (page or "troubleshooting.md"))
        assert re.search(r"\]\(\w[\w-]*\.md", answer), answer
    for page in ("README.md", "docs/start.md", "docs/reference/errors.md"):
        assert ROOT / "docs" / "troubleshooting.md" in links_to_pages(ROOT / page)
