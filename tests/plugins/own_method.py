"""A method of a user's own, as the text of its file, and settings under which it runs quickly."""

METHOD = """
from dataclasses import dataclass

import torch

import focoop


class Mine(focoop.Method):
    \"\"\"One context, averaged plainly.\"\"\"

    @dataclass(frozen=True)
    class Config:
        tokens: int = focoop.setting(2, "length of the context", low=1)

    paper = "mine"
    shares = "context"

    def init(self, task, generator):
        return focoop.State({"context": focoop.first_context(task, generator, self.config.tokens)})

    def prompts(self, params, task):
        return {"id": focoop.Prompt(params["context"], task.id_names)}

    def logits(self, text, pooled, patches):
        return focoop.cosines(text, pooled)

    def loss(self, params, text, batch, task, noise):
        logits = self.logits(text, batch.pooled, batch.patches)
        return torch.nn.functional.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def score(self, logits, task):
        return focoop.scores.mcm(logits.id)

    def aggregate(self, server, updates, task):
        return focoop.Server({"context": focoop.weighted_mean(updates, "context")})
"""


QUICK = {"federation.rounds": 1, "federation.evaluate_every": 1}
