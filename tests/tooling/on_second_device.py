"""Every public path on a device that is not the CPU. ``test_second_device.py`` runs this file in a process of its own.

With ``GPT2_BOOK_TEST_DEVICE=cuda`` the device is a real GPU, and not the emulated one.

Each test computes the same on both devices, in float64, and asserts that the numbers agree and that they lie where they should.
Bands and rings, the cache, beams and int8 are here because each makes tensors of its own, and must make them in the right place.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch.testing import assert_close

from gpt2_book import GPT, GPTConfig
from gpt2_book.bert import BertConfig, BertForPreTraining
from gpt2_book.bert_training import BertClassifier, PretrainingObjective, Special
from gpt2_book.classification import GPTClassifier, class_logits
from gpt2_book.compare import first_difference
from gpt2_book.data import SequentialLoader, ShuffledLoader
from gpt2_book.decoding import int8
from gpt2_book.drafts import ModelDraft, TextDraft, write_with_draft
from gpt2_book.evaluation import evaluate_text, loss_by_position
from gpt2_book.finetuning import add_lora, lora_layers, merge_lora
from gpt2_book.generation import pad_left
from gpt2_book.gpt3 import GPT3, GPT3Config
from gpt2_book.multiple_choice import MultipleChoice, answer_questions
from gpt2_book.seq2seq import Seq2Seq, Seq2SeqConfig
from gpt2_book.training import TrainConfig, Trainer, evaluate
from gpt2_book.transformer import Transformer, TransformerConfig, label_smoothed_loss
from gpt2_book.workshop.adapters import load_adapters, save_adapters
from gpt2_book.workshop.checkpoints import Checkpoints, set_seed
from gpt2_book.workshop.tokenizer_files import load_tokenizer
from gpt2_book.workshop.writing import complete

REAL = os.environ.get("GPT2_BOOK_TEST_DEVICE", "")  # cuda, or nothing for the emulation
if REAL:
    DEVICE = torch.device(REAL, 0)
    own_generator = lambda: torch.Generator(DEVICE)  # noqa: E731
else:
    from second_device import DEVICE
    from second_device import SecondGenerator as own_generator

SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 61, "block_size": 16}
SAMPLERS = [
    {"temperature": 0}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2},
    {"temperature": 0, "repetition_penalty": 1.3}, {"top_k": 9, "top_p": 0.9, "min_p": 0.01, "temperature": 1.4},
]  # fmt: skip


def both(make):
    """Build a model in float64 and its copy on the second device, both in eval mode."""
    torch.manual_seed(0)
    ours = make().double().eval()
    return ours, copy.deepcopy(ours).to(DEVICE)


def there(x: torch.Tensor) -> torch.Tensor:
    """Assert that ``x`` is on the second device, and return its numbers."""
    assert x.device == DEVICE, f"on {x.device}"
    return x.cpu()


@pytest.fixture
def idx() -> torch.Tensor:
    return torch.randint(0, 61, (3, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[None, 3], ids=["dense", "banded"])
def pair(request):
    return both(lambda: GPT3(GPT3Config(**SHAPE, band=request.param)))


def test_the_device_refuses_to_mix():
    x = torch.ones(3, device=DEVICE)
    for mix in (lambda: x + torch.ones(3), lambda: torch.where(x > 0, x, torch.ones(3)), lambda: x @ torch.ones(3)):
        with pytest.raises(RuntimeError, match="cpu"):
            mix()
    for draw in (
        lambda: torch.rand(2, generator=own_generator()),
        lambda: torch.rand(2, device=DEVICE, generator=torch.Generator()),
        lambda: torch.multinomial(x, 1, generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match="device type for generator"):
            draw()
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert (x + 1).device == DEVICE


def test_logits_loss_and_gradients(pair, idx):
    ours, other = pair
    targets = idx.roll(-1, 1)
    targets[0, :3] = -100
    logits, loss = ours(idx, targets)
    loss.backward()
    logits2, loss2 = other(idx.to(DEVICE), targets.to(DEVICE))
    loss2.backward()
    assert_close(there(logits2), logits)
    assert_close(there(loss2), loss)
    for (name, p), q in zip(ours.named_parameters(), other.parameters()):
        assert_close(there(q.grad), p.grad, msg=name)


@pytest.mark.parametrize("how", SAMPLERS, ids=str)
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "whole"])
def test_every_sampler_with_generators_of_either_side(pair, idx, how, cache):
    ours, other = pair
    text = ours.generate(idx, 12, generator=torch.Generator().manual_seed(5), cache=cache, **how)
    found = other.generate(idx.to(DEVICE), 12, generator=torch.Generator().manual_seed(5), cache=cache, **how)
    assert_close(there(found), text)
    drawn = [
        there(other.generate(idx.to(DEVICE), 4, generator=own_generator().manual_seed(5), cache=cache, **how))
        for _ in range(2)
    ]
    assert_close(*drawn)
    if not REAL:  # a real GPU's generator has numbers of its own
        assert_close(drawn[0], text[:, : idx.shape[1] + 4])
    rows = [torch.Generator().manual_seed(i) for i in range(3)]
    of_both = [torch.Generator().manual_seed(0), own_generator().manual_seed(1), torch.Generator().manual_seed(2)]
    found = there(other.generate(idx.to(DEVICE), 4, generator=of_both, cache=cache, **how))
    expected = ours.generate(idx, 4, generator=rows, cache=cache, **how)
    assert_close(found[[0, 2]], expected[[0, 2]])
    assert REAL or torch.equal(found, expected)


def test_padded_prompts_and_beams(pair):
    ours, other = pair
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8]]
    idx, mask = pad_left(prompts)
    how = {"attention_mask": mask, "temperature": 0}
    found = other.generate(idx.to(DEVICE), 8, **how | {"attention_mask": mask.to(DEVICE)})
    assert_close(there(found), ours.generate(idx, 8, **how))
    how = {"n_beams": 3, "stop_tokens": (9,), "attention_mask": mask}
    found = other.beam_search(idx.to(DEVICE), 8, **how | {"attention_mask": mask.to(DEVICE)})
    assert_close(there(found), ours.beam_search(idx, 8, **how))


def test_int8(idx):
    ours, other = both(lambda: GPT(GPTConfig(**SHAPE | {"n_embd": 64})))
    ours, other = int8(ours), int8(other)
    assert_close(there(other(idx.to(DEVICE))[0]), ours(idx)[0])
    found = other.generate(idx.to(DEVICE), 6, temperature=0)
    assert_close(there(found), ours.generate(idx, 6, temperature=0))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_drafts(idx, temperature):
    ours, other = both(lambda: GPT(GPTConfig(**SHAPE)))
    start = idx[:1, :5]
    for draft in (lambda model: TextDraft(1), ModelDraft):
        found, expected = (
            torch.cat([there(new) if model is other else new for new in write_with_draft(
                model, where, 9, draft(model), temperature=temperature, generator=torch.Generator().manual_seed(5)
            )], dim=1)
            for model, where in ((other, start.to(DEVICE)), (ours, start))
        )  # fmt: skip
        assert_close(found, expected)


def test_text_and_evaluation():
    tokenizer = load_tokenizer("shakespeare")
    ours = GPT.from_pretrained("shakespeare")
    other = GPT.from_pretrained("shakespeare", device=DEVICE)
    assert {p.device for p in other.parameters()} == {DEVICE}
    how = {"temperature": 0, "stop_strings": ["\n\n"]}
    prompts = ["ROMEO:", "Good night, good"]
    assert complete(other, tokenizer, prompts, 12, **how) == complete(ours, tokenizer, prompts, 12, **how)
    text = "Good night, good night! Parting is such sweet sorrow,\nThat I shall say good night till it be morrow.\n" * 4
    found, expected = (evaluate_text(m, tokenizer, text, block_size=32, stride=16) for m in (other, ours))
    assert found.tokens == expected.tokens
    close = {"rtol": 1e-5, "atol": 0}  # float32, which two devices sum in two orders
    assert_close(found.nats_per_token, expected.nats_per_token, **close)
    tokens = tokenizer.encode(text)
    assert_close(
        loss_by_position(other, tokens, stride=8, block_size=16).cpu(),
        loss_by_position(ours, tokens, stride=8, block_size=16),
        **close,
    )
    questions = [
        MultipleChoice("The king", ("is dead.", "xylophone"), 0),
        MultipleChoice("My lord,", ("I am", "the"), 1),
    ]
    for a, b in zip(answer_questions(other, tokenizer, questions), answer_questions(ours, tokenizer, questions)):
        assert_close(a.log_likelihoods, b.log_likelihoods, rtol=1e-4, atol=0)  # float32


@pytest.mark.parametrize("chunk", [0, 5], ids=["whole", "chunks"])
def test_training_and_checkpoints(chunk, tmp_path):
    tokens = torch.randint(0, 61, (2000,), generator=torch.Generator().manual_seed(2)).numpy()
    config = TrainConfig(steps=6, warmup_steps=2, learning_rate=1e-2, accumulate=2, chunk=chunk)

    def trainer(device):
        set_seed(3)
        model = GPT(GPTConfig(**SHAPE)).double().to(device)
        return Trainer(model, ShuffledLoader(tokens, 4, 12, seed=1, device=device), config)

    ours, other = trainer("cpu"), trainer(DEVICE)
    for step in range(6):
        expected, found = ours.update(), other.update()
        assert_close(float(found.loss), float(expected.loss), rtol=1e-9, atol=0)
        if step == 2:
            Checkpoints(tmp_path).save(other)
    for (name, p), q in zip(ours.model.named_parameters(), other.model.parameters()):
        assert_close(there(q), p, msg=name)
    again = trainer(DEVICE)
    Checkpoints(tmp_path).resume(again)
    for _ in range(3):
        again.update()
    for p, q in zip(again.model.parameters(), other.model.parameters()):
        assert_close(there(p), there(q))
    loaders = (SequentialLoader(tokens, 4, 12, device=d) for d in ("cpu", DEVICE))
    expected, found = (evaluate(t.model, [loader.next_batch()]) for t, loader in zip((ours, other), loaders))
    assert_close(found, expected)


def test_saving_and_comparing(tmp_path, idx):
    ours, other = both(lambda: GPT(GPTConfig(**SHAPE)))
    other.save_pretrained(tmp_path / "out")
    again = GPT.from_pretrained(tmp_path / "out", dtype=torch.float64, device=DEVICE)
    assert_close(there(again(idx.to(DEVICE))[0]), ours(idx)[0])
    assert first_difference(other, copy.deepcopy(other), idx.to(DEVICE)) is None


def test_adapters_and_a_classifier(tmp_path):
    rows = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    ours, other = both(lambda: GPTClassifier(GPT(GPTConfig(**SHAPE)), 2))
    assert_close(class_logits(other, rows).cpu(), class_logits(ours, rows))
    fresh = copy.deepcopy(other)
    for model in (ours, other):
        add_lora(model, rank=2)
        with torch.no_grad():
            for i, layer in enumerate(lora_layers(model).values()):
                layer.lora_B += torch.randn(
                    layer.lora_B.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(i)
                ).to(layer.lora_B.device)
    for a, b in zip(lora_layers(ours).values(), lora_layers(other).values()):
        b.lora_A.data.copy_(a.lora_A.data)  # they are drawn where the layer is
    expected = class_logits(ours, rows)
    assert_close(class_logits(other, rows).cpu(), expected)
    save_adapters(other, tmp_path / "adapters.safetensors")
    load_adapters(fresh, tmp_path / "adapters.safetensors")
    assert_close(class_logits(fresh, rows).cpu(), expected)
    assert_close(class_logits(merge_lora(other), rows).cpu(), expected)


def test_bert():
    special = Special(pad=0, cls=1, sep=2, mask=3)
    shape = {"vocab_size": 53, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "max_position_embeddings": 24}  # fmt: skip
    ours, other = both(lambda: BertForPreTraining(BertConfig(**shape)))
    inputs = torch.tensor([special.row([5, 9, 8], [30, 31]), special.row([40, 41, 42], [9]) + [-1]])
    labels = torch.full_like(inputs, -100)
    labels[:, 0], labels[:, 2] = torch.tensor([0, 1]), torch.tensor([9, 41])
    found = PretrainingObjective(other, special)(inputs.to(DEVICE), labels.to(DEVICE))
    assert_close(there(found), PretrainingObjective(ours, special)(inputs, labels))
    ours, other = both(lambda: BertClassifier(BertForPreTraining(BertConfig(**shape)).bert, 3, special=special))
    found = other(inputs.to(DEVICE))
    expected = ours(inputs)
    found, expected = (x[0] if isinstance(x, tuple) else x for x in (found, expected))
    assert_close(there(found), expected)


def test_the_encoder_decoder():
    ours, other = both(
        lambda: Transformer(
            TransformerConfig(40, pad=37, bos=38, eos=39, n_layer=2, n_head=2, n_embd=16, block_size=24)
        )
    )
    check_translation(ours, other)


@pytest.mark.parametrize("attention", [True, False], ids=["attention", "one vector"])
def test_the_lstm(attention):
    ours, other = both(lambda: Seq2Seq(Seq2SeqConfig(40, 40, 37, 38, 39, n_embd=8, n_hidden=16, attention=attention)))
    check_translation(ours, other)


def check_translation(ours, other):
    src, tgt = (torch.randint(0, 37, (3, 6), generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 5 + [False]])
    logits, found = ours(src, tgt, mask), other(src.to(DEVICE), tgt.to(DEVICE), mask.to(DEVICE))
    assert_close(there(found), logits)
    loss = label_smoothed_loss(logits, tgt, pad=37)
    assert_close(there(label_smoothed_loss(found, tgt.to(DEVICE), pad=37)), loss)
    for how in ({}, {"n_beams": 3}):
        written = ours.generate(src, mask, max_new_tokens=7, **how)
        assert_close(there(other.generate(src.to(DEVICE), mask.to(DEVICE), max_new_tokens=7, **how)), written)
