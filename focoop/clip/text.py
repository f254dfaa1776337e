"""The prompt text engine: learnable contexts through a frozen causal text tower, cut at the EOT.

A sequence is `[SOT] v_1..v_n name-tokens "." [EOT]`. The mask is causal, so nothing after the EOT
can reach it: sequences end at the longest EOT of the batch, and the last block computes only the
state that is read. Both are exact. Weights never get gradients; contexts do.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.errors import BackboneError, ConfigError

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@dataclass(frozen=True)
class TextShape:
    """Architecture of a CLIP-style text tower."""

    width: int
    layers: int
    heads: int
    dim: int
    context_length: int
    activation: str = "gelu"
    norm_eps: float = 1e-5


@dataclass(frozen=True)
class Names:
    """N names ready to be prompted: all of each sequence but its context.

    Attributes:
        vocabulary: the names as written by the user, before any `select`.
        embeddings: (N, L, d_t) embeddings of name, period and EOT; zero after the EOT.
        lengths: (N,) number of those positions up to and including the EOT.
        index: (N,) place of each name in the vocabulary; None: in order.
    """

    vocabulary: tuple[str, ...]
    embeddings: Tensor
    lengths: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def texts(self) -> tuple[str, ...]:
        """The N names in order; waits for the device where names were selected."""
        if self.index is None:
            return self.vocabulary
        return tuple(self.vocabulary[i] for i in self.index.tolist())

    def select(self, index: Tensor) -> "Names":
        """The names at `index` (N',), for example after words changed slots."""
        index = index.to(self.lengths.device)
        source = index if self.index is None else self.index[index]
        return Names(self.vocabulary, self.embeddings[index], self.lengths[index], source)


class Block(nn.Module):
    """Pre-norm transformer block with a causal mask."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.activation = ACTIVATIONS[shape.activation]
        self.ln_1 = nn.LayerNorm(width, shape.norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, shape.norm_eps)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, d) -> (N, L, d)."""
        q, k, v = self.heads_of(self.qkv(self.ln_1(x)))  # each (N, heads, L, d/heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.finish(x, mixed)

    def read(self, x: Tensor, position: Tensor) -> Tensor:
        """(N, L, d) -> (N, d): the block's output at one position per sequence, and no other."""
        n, length, _ = x.shape
        q, k, v = self.heads_of(self.qkv(self.ln_1(x)))
        rows = torch.arange(n, device=x.device)
        q = q[rows, :, position].unsqueeze(2)  # (N, heads, 1, d/heads)
        seen = torch.arange(length, device=x.device) <= position[:, None]
        # Written out: the fused kernels divide one query among threads, which changes bits.
        match = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5)
        match = match.masked_fill(~seen[:, None, None, :], float("-inf"))
        weights = (match - match.detach().amax(dim=-1, keepdim=True)).exp()
        mixed = (weights / weights.sum(dim=-1, keepdim=True)).to(v.dtype) @ v
        return self.finish(x[rows, position].unsqueeze(1), mixed).squeeze(1)

    def heads_of(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, L, 3d) -> three of (N, heads, L, d/heads)."""
        n, length, _ = qkv.shape
        q, k, v = qkv.view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return q, k, v

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual of the attention (N, heads, L, d/heads), then the MLP."""
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        hidden = self.activation(self.f1(self.ln_2(x)))
        out: Tensor = x + self.f2(hidden)
        return out


class TextTower(nn.Module):
    """A frozen causal text transformer that takes contexts as embeddings.

    `token_embedding` maps token ids to (.., d_t); it may be any frozen module, so that a factorised
    table stays factorised.
    """

    def __init__(self, shape: TextShape, token_embedding: nn.Module) -> None:
        super().__init__()
        self.shape = shape
        self.tok = token_embedding
        self.pos = nn.Parameter(torch.zeros(shape.context_length, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.lnf = nn.LayerNorm(shape.width, shape.norm_eps)
        self.proj = nn.Linear(shape.width, shape.dim, bias=False)
        self.autocast: torch.dtype | None = None
        self._fast: tuple[Block, ...] = ()  # not a module: no part of the state
        self.freeze()

    def freeze(self) -> "TextTower":
        """Evaluation mode, no gradients for any weight."""
        self.eval()
        self.requires_grad_(False)
        return self

    def train_in(self, dtype: torch.dtype | None) -> "TextTower":
        """Run in `dtype` where gradients are asked for; None: float32 everywhere.

        Products run in `dtype`, the residual stream, norms and all that is evaluated in float32.
        Call it once the tower is where it stays: weights in `dtype` are copied here.
        """
        self.autocast = dtype
        self._fast = ()
        if dtype is not None:
            copies = deepcopy(self.blocks)
            for linear in (m for m in copies.modules() if isinstance(m, nn.Linear)):
                linear.to(dtype)  # autocast would cast frozen weights again at every step
            self._fast = tuple(copies)  # type: ignore[arg-type]
        return self

    @property
    def width(self) -> int:
        """Width d_t of token embeddings and contexts."""
        return self.shape.width

    @property
    def dim(self) -> int:
        """Width D of the joint space."""
        return self.shape.dim

    @property
    def device(self) -> torch.device:
        """Where the tower lives."""
        return self.pos.device

    def prepare(
        self,
        tokenize: Callable[[Sequence[str]], Tensor],
        names: Sequence[str],
        *,
        period: bool = True,
    ) -> Names:
        """Tokenise and embed names once; `encode` then adds contexts to them."""
        if not names:
            raise ConfigError("no class names were given: at least one is needed")
        ending = "." if period else ""
        texts = [name.replace("_", " ") + ending for name in names]
        tokens = tokenize(texts)[:, 1:]  # without SOT
        lengths = tokens.argmax(dim=1) + 1  # the EOT has the largest token id
        self.check_names(names, lengths)
        tokens = tokens[:, : int(lengths.max())].to(self.device)
        lengths = lengths.to(self.device)
        inside = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        with torch.no_grad():
            embeddings = self.tok(tokens).float() * inside[:, :, None]
        return Names(tuple(names), embeddings, lengths)

    def forward(self, contexts: Tensor, names: Names) -> Tensor:
        """Unified (n, d_t) or (..., N, n, d_t) contexts + N names -> (..., N, D) unit features."""
        count = len(names)
        if contexts.dim() == 2:
            contexts = contexts.expand(count, -1, -1)
        *lead, rows, tokens, width = contexts.shape
        if rows != count or width != self.width:
            raise ConfigError(
                f"contexts of shape {tuple(contexts.shape)} do not fit {count} names "
                f"of a tower of width {self.width}"
            )
        self.check_length(1 + tokens + names.embeddings.shape[1])
        sot = self.sot.expand(*lead, count, 1, -1)
        suffix = names.embeddings.expand(*lead, -1, -1, -1)
        x = torch.cat([sot, contexts, suffix], dim=-2)  # (..., N, 1+n+L, d_t)
        position = (tokens + names.lengths).expand(*lead, count)
        out = self.run(x.reshape(-1, *x.shape[-2:]), position.reshape(-1))
        return out.view(*lead, count, -1)

    def encode_tokens(self, tokens: Tensor, batch_size: int = 1024) -> Tensor:
        """(N, context_length) tokens with SOT -> (N, D) unit features without gradient."""
        ends = tokens.argmax(dim=1)
        order = ends.argsort(stable=True)  # sequences of one length together: little padding
        out = torch.empty(len(tokens), self.dim, device=self.device)
        bounds = [*range(0, len(tokens), batch_size), len(tokens)]
        for start, stop in pairwise(bounds):
            rows = order[start:stop]
            cut = tokens[rows, : int(ends[rows].max()) + 1].to(self.device)
            with torch.no_grad():
                out[rows.to(self.device)] = self.run(self.tok(cut), ends[rows].to(self.device))
        return out

    @property
    def sot(self) -> Tensor:
        """(d_t,) embedding of the start token, second to last of the vocabulary."""
        # Filled, not copied: a copy from the host would make the device wait.
        token: Tensor = self.tok(torch.full((1,), self.vocabulary - 2, device=self.device))
        return token.float()[0]

    @property
    def vocabulary(self) -> int:
        """Number of tokens; the last two are SOT and EOT."""
        size: int = self.tok.num_embeddings  # type: ignore[assignment]
        return size

    def check_names(self, names: Sequence[str], lengths: Tensor) -> None:
        """Refuse a name that leaves no position for a context: it may have been cut off."""
        room = self.shape.context_length - 2  # beside SOT and one context position
        if int(lengths.max()) > room:
            name = names[int(lengths.argmax())]
            raise ConfigError(
                f"the class name {name!r} does not fit the text tower's "
                f"{self.shape.context_length} positions: give it a shorter name"
            )

    def check_length(self, length: int) -> None:
        """Refuse sequences the tower has no positions for."""
        if length > self.shape.context_length:
            raise BackboneError(
                f"a prompt of {length} positions does not fit the text tower's "
                f"{self.shape.context_length}: use a shorter context or shorter class names"
            )

    def run(self, x: Tensor, position: Tensor) -> Tensor:
        """(N, L, d_t) embeddings -> (N, D) unit features read at `position` (N,)."""
        enabled = self.autocast is not None and torch.is_grad_enabled()
        with torch.autocast(x.device.type, dtype=self.autocast, enabled=enabled):
            x = x + self.pos[: x.shape[1]]
            *body, last = self._fast if enabled else self.blocks
            for block in body:
                x = block(x)
            assert isinstance(last, Block)
            out = self.proj(self.lnf(last.read(x, position)))
        return F.normalize(out.float(), dim=-1)
