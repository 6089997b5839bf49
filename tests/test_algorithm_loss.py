"""The token losses, in float64, against hand-computed numbers and closed forms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_cli.algorithm.loss import Clip, importance_weights, k3, policy_loss, token_logprobs

PLAIN = Clip(low=0.2, high=0.4, is_cap=2.0, kl_beta=0.0)
ALL = torch.ones(1, 3, dtype=torch.bool)


def t(*values):
    return torch.tensor([values], dtype=torch.float64)


def loss_of(logprobs, *, old=None, engine=None, reference=None, advantage=1.0, mask=ALL, clip=PLAIN, total=3):
    old = logprobs.detach() if old is None else old
    engine = old if engine is None else engine
    advantages = torch.as_tensor(advantage, dtype=torch.float64).reshape(-1, 1)
    return policy_loss(logprobs, old, engine, reference, advantages, mask, total=total, clip=clip)


def test_three_tokens_by_hand():
    # ratios 1.5 (clipped to 1.4), 1.1, 0.5 with A = 2; weights 1, 2 (capped from 3), 0.5; k3 of d = ln 2, 0, -ln 2
    old = t(-1.0, -1.0, -1.0)
    lp = old + torch.tensor([[1.5, 1.1, 0.5]], dtype=torch.float64).log()
    engine = old - torch.tensor([[1.0, 3.0, 0.5]], dtype=torch.float64).log()
    reference = lp + torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64).log()
    terms = loss_of(
        lp,
        old=old,
        engine=engine,
        reference=reference,
        advantage=2.0,
        clip=Clip(low=0.2, high=0.4, is_cap=2.0, kl_beta=0.1),
    )
    surrogate = -(1 * 1.4 * 2 + 2 * 1.1 * 2 + 0.5 * 0.5 * 2)
    kl = (2 - 1 - math.log(2)) + 0 + (0.5 - 1 + math.log(2))
    assert terms.loss.item() == pytest.approx((surrogate + 0.1 * kl) / 3, abs=1e-12)
    assert terms.kl.item() == pytest.approx(kl, abs=1e-12)
    assert terms.clipped.item() == 1
    assert terms.weight.item() == pytest.approx(3.5, abs=1e-12)


def test_negative_advantage_clips_the_low_side_only():
    old = t(-1.0, -1.0, -1.0)
    lp = old + torch.tensor([[1.5, 1.0, 0.5]], dtype=torch.float64).log()
    terms = loss_of(lp, old=old, advantage=-1.0)
    assert terms.loss.item() == pytest.approx((1.5 + 1.0 + 0.8) / 3, abs=1e-12)
    assert terms.clipped.item() == 1


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [(1, 1.41, False), (1, 1.39, True), (1, 0.5, True), (-1, 0.79, False), (-1, 0.81, True), (-1, 3.0, True)],
)
def test_the_gradient_is_zero_exactly_where_the_clip_says(advantage, ratio, moves):
    old = t(-1.0)
    lp = (old + math.log(ratio)).requires_grad_()
    loss_of(lp, old=old, advantage=float(advantage), mask=ALL[:, :1], total=1).loss.backward()
    assert lp.grad.item() == pytest.approx(-advantage * ratio if moves else 0.0, abs=1e-12)


def test_on_policy_the_loss_is_minus_the_mean_advantage_and_the_gradient_is_reinforce():
    advantages = torch.tensor([1.5, -0.5], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    logits = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (2, 4))
    lp, _ = token_logprobs(logits, targets, mask, torch.ones(2, 1))
    terms = loss_of(lp, advantage=advantages, mask=mask, total=4)
    assert terms.loss.item() == pytest.approx(-(3 * 1.5 - 0.5) / 4, abs=1e-12)
    (ours,) = torch.autograd.grad(terms.loss, logits)
    plain = torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    (reinforce,) = torch.autograd.grad(-(plain * advantages[:, None] * mask).sum() / 4, logits)
    assert torch.allclose(ours, reinforce, atol=1e-14, rtol=0)


def random_batch(seed, rows=7, length=9):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, 6, generator=draw, dtype=torch.float64)
    old, engine, reference = (-3 * torch.rand(rows, length, generator=draw, dtype=torch.float64) for _ in range(3))
    return {
        "logits": logits, "old": old, "engine": engine, "reference": reference,
        "targets": torch.randint(6, (rows, length), generator=draw),
        "mask": torch.rand(rows, length, generator=draw) < 0.6,
        "advantage": torch.randn(rows, generator=draw, dtype=torch.float64),
    }  # fmt: skip


def loss_and_gradient(batch, shares):
    logits = batch["logits"].clone().requires_grad_()
    total = int(batch["mask"].sum())
    value = 0.0
    for rows in shares:
        part = {name: value[rows] for name, value in batch.items()}
        lp, _ = token_logprobs(logits[rows], part["targets"], part["mask"], torch.full((len(rows), 1), 1.2))
        clip = Clip(low=0.2, high=0.28, is_cap=2.0, kl_beta=0.04)
        terms = policy_loss(
            lp,
            part["old"],
            part["engine"],
            part["reference"],
            part["advantage"][:, None],
            part["mask"],
            total=total,
            clip=clip,
        )
        terms.loss.backward()
        value += terms.loss.item()
    return value, logits.grad


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(7)), st.integers(1, 5), st.integers(1, 5))
def test_one_batch_equals_uneven_micro_batches_in_loss_and_gradient(seed, order, a, b):
    batch = random_batch(seed)
    cuts = sorted((a, min(6, a + b)))
    shares = [s for s in (order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]) if s]
    whole, whole_gradient = loss_and_gradient(batch, [list(range(7))])
    split, split_gradient = loss_and_gradient(batch, shares)
    assert split == pytest.approx(whole, abs=1e-12)
    assert torch.allclose(split_gradient, whole_gradient, atol=1e-13, rtol=0)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_whatever_lies_under_the_mask_changes_neither_loss_nor_gradient(poison):
    batch = random_batch(5)
    clean = loss_and_gradient(batch, [list(range(7))])
    dirty = {name: value.clone() for name, value in batch.items()}
    dirty["logits"][~batch["mask"]] = poison
    for name in ("old", "engine", "reference"):
        dirty[name][~batch["mask"]] = poison
    loss, gradient = loss_and_gradient(dirty, [list(range(7))])
    assert loss == clean[0]
    assert torch.equal(gradient, clean[1])
    assert not gradient[~batch["mask"]].any()


def test_a_ratio_beyond_any_float_gives_a_finite_loss_and_gradient():
    lp = t(-0.0, -200.0, -1.0).float().requires_grad_()
    old = t(-300.0, -0.0, -1.0).float()
    for advantage in (1.0, -1.0):
        lp.grad = None
        terms = loss_of(lp, old=old, reference=t(-0.0, -0.0, -150.0).float(), advantage=advantage)
        terms.loss.backward()
        assert terms.loss.isfinite()
        assert lp.grad.isfinite().all()


def test_importance_weights_truncate_above_only_and_carry_no_gradient():
    old = (t(-1.0, -1.0, -1.0) + torch.tensor([[4.0, 0.01, 1.5]], dtype=torch.float64).log()).requires_grad_()
    weights = importance_weights(old, t(-1.0, -1.0, -1.0), ALL, 2.0)
    assert weights.tolist()[0] == pytest.approx([2.0, 0.01, 1.5])
    assert not weights.requires_grad
    assert importance_weights(old, t(-1.0, -5.0, -1.0), ALL, 0.0).tolist() == [[1.0, 1.0, 1.0]]


def categorical_pair():
    draw = torch.Generator().manual_seed(11)
    theta = torch.randn(5, generator=draw, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(5, generator=draw, dtype=torch.float64), -1)
    return theta, reference


def test_k3_is_unbiased_in_value_and_never_negative_by_enumeration():
    theta, reference = categorical_pair()
    policy = torch.log_softmax(theta, -1).detach()
    values = k3(policy, reference, torch.ones(5, dtype=torch.bool))
    exact = (policy.exp() * (policy - reference)).sum()
    assert (values >= 0).all()
    assert (policy.exp() * values).sum().item() == pytest.approx(exact.item(), abs=1e-14)


def test_k3_gradient_by_enumeration_is_that_of_the_reversed_kl():
    theta, reference = categorical_pair()
    policy = torch.log_softmax(theta, -1)
    sampled = (policy.exp().detach() * k3(policy, reference, torch.ones(5, dtype=torch.bool))).sum()
    (ours,) = torch.autograd.grad(sampled, theta, retain_graph=True)
    (closed,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), theta)
    assert torch.allclose(ours, closed, atol=1e-15, rtol=0)


def test_k3_against_itself_is_exactly_zero_with_zero_gradient():
    lp = t(-0.1, -5.0, -30.0).requires_grad_()
    value = k3(lp, lp.detach(), ALL)
    value.sum().backward()
    assert not value.any()
    assert not lp.grad.any()


def test_logprobs_and_entropy_are_of_the_tempered_distribution():
    logits = torch.tensor([[[0.0, math.log(4.0)]]], dtype=torch.float64)
    lp, entropy = token_logprobs(logits, torch.tensor([[1]]), torch.ones(1, 1, dtype=torch.bool), torch.tensor([[2.0]]))
    assert lp.item() == pytest.approx(math.log(2 / 3), abs=1e-12)  # sqrt(4) : 1
    assert entropy.item() == pytest.approx(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)), abs=1e-12)


def test_entropy_of_a_certain_token_is_zero_not_nan():
    logits = torch.tensor([[[0.0, -math.inf]]])
    _, entropy = token_logprobs(logits, torch.tensor([[0]]), torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1))
    assert entropy.item() == 0.0


def test_gradient_equals_finite_differences():
    batch = random_batch(3, rows=2, length=3)
    clip = Clip(low=0.2, high=0.28, is_cap=2.0, kl_beta=0.1)

    def loss(lp):
        return policy_loss(
            lp,
            batch["old"],
            batch["engine"],
            batch["reference"],
            batch["advantage"][:, None],
            batch["mask"],
            total=4,
            clip=clip,
        ).loss

    assert torch.autograd.gradcheck(loss, (batch["old"].clone().add(0.05).requires_grad_(),))
