"""What is taken of recurrent layers, against their recurrence written out in numpy, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import hookscope as hs


class Tagger(nn.Module):
    """An embedding, an LSTM, a head; sequences packed or not."""

    def __init__(self, *, packed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.lstm, self.head, self.packed = nn.Embedding(9, 3), nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2), packed
        self.double()

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.token(ids)
        found, (last, _) = self.lstm(pack_padded_sequence(x, lengths, batch_first=True) if self.packed else x)
        found.data.mul_(1) if self.packed else found.mul_(-1)  # after it was taken
        return self.head(last[-1])


def by_hand(model: Tagger, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states of every step, and the last cell."""
    weights = {name: value.detach().numpy() for name, value in model.lstm.named_parameters()}
    h, c, states = np.zeros(4), np.zeros(4), []
    for token in tokens:
        x = model.token.weight.detach().numpy()[token]
        gates = weights["weight_ih_l0"] @ x + weights["bias_ih_l0"] + weights["weight_hh_l0"] @ h + weights["bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        states.append(h)
    return np.stack(states), c


@pytest.mark.parametrize("packed", [False, True])
def test_an_lstm_gives_the_states_of_its_recurrence(packed: bool) -> None:
    model, ids, lengths = Tagger(packed=packed), torch.tensor([[1, 5, 2, 8], [3, 3, 7, 0]]), torch.tensor([4, 3 if packed else 4])
    with hs.capture(model, ["lstm", "head:input"]) as taken:
        model(ids, lengths)
    hands = [by_hand(model, ids[i, : lengths[i]].tolist()) for i in range(2)]
    if packed:  # step by step over the sequences that go on
        wanted = np.concatenate([[states[t] for states, _ in hands if t < len(states)] for t in range(4)])
        found = taken["lstm:output[0].data"]
    else:
        wanted, found = np.stack([states for states, _ in hands]), taken["lstm:output[0]"]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(taken["lstm:output[1][1]"][0].numpy(), np.stack([cell for _, cell in hands]), rtol=1e-12)
    np.testing.assert_allclose(taken["head:input"].numpy(), np.stack([states[-1] for states, _ in hands]), rtol=1e-12)
