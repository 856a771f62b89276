"""The training that the README shows a diagnosis of: a classifier of short sentences; one sentence of the 13th batch is empty."""

import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32, padding_idx=0)
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        words = (tokens > 0).unsqueeze(-1).float()
        encoded = self.encoder(self.embed(tokens)) * words
        mean = encoded.sum(1) / words.sum(1)
        return self.head(mean)


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    tokens = torch.randint(1, 100, (32, 12))
    if step == 12:
        tokens[17] = 0
    loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
