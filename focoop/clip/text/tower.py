"""The prompt text engine: learnable contexts through a frozen causal text tower, cut at the EOT.

A sequence is `[SOT] v_1..v_n name-tokens "." [EOT]`. The mask is causal, so nothing after the EOT
can reach it: sequences end at the longest EOT of the batch, and the last block computes only the
state that is read. Both are exact. Weights never get gradients; contexts do.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.text import fused, mapped
from focoop.clip.text.blocks import Block, TextShape
from focoop.clip.text.layout import Bucket, Layout
from focoop.clip.text.names import Names, group
from focoop.errors import BackboneError, ConfigError
from focoop.progress import tell

__all__ = ["Block", "Names", "TextShape", "TextTower"]

# Texts of more batches than these are told of: all words of WordNet take minutes on a CPU.
MANY, WORDS = 8, "encoding words"


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
        self._stacks: dict[
            torch.dtype, fused.Stack
        ] = {}  # by the type of products; float32 without gradients
        self.freeze()

    def freeze(self) -> "TextTower":
        """Return the tower in evaluation mode, without gradients for any weight."""
        self.eval()
        self.requires_grad_(False)
        return self

    def train_in(self, dtype: torch.dtype | None) -> "TextTower":
        """Run in another type where gradients are asked for.

        Products run in that type, the residual stream, norms and all that is evaluated in float32.
        Call this once the tower is where it stays: weights are copied here.

        Args:
            dtype: The type; None: float32 everywhere.

        Returns:
            The tower.
        """
        if dtype == self.autocast and self._fast and self._fast[0].qkv.weight.device == self.device:
            return self  # recorded steps may hold these copies
        self.autocast = dtype
        self._fast, self._stacks = (), {}
        if dtype is not None:
            copies = deepcopy(self.blocks)
            for linear in (m for m in copies.modules() if isinstance(m, nn.Linear)):
                linear.to(dtype)  # autocast would cast frozen weights again at every step
            self._fast = tuple(copies)  # type: ignore[arg-type]
        return self

    @property
    def width(self) -> int:
        """Return the width d_t of token embeddings and contexts."""
        return self.shape.width

    @property
    def dim(self) -> int:
        """Return the width D of the joint space."""
        return self.shape.dim

    @property
    def device(self) -> torch.device:
        """Return where the tower lives."""
        return self.pos.device

    def prepare(
        self,
        tokenize: Callable[[Sequence[str]], Tensor],
        names: Sequence[str],
        *,
        period: bool = True,
        bucket_cost: float | None = None,
    ) -> Names:
        """Tokenise and embed names once; `encode` then adds contexts to them.

        Args:
            tokenize: texts to (N, L) token ids.
            names: class names or words; underscores become spaces.
            period: end each name with a period.
            bucket_cost: what a bucket of names of one length costs (`prompted.group`); None: as
                measured for the device.

        Returns:
            The names, grouped by length where that is cheaper.

        Raises:
            ConfigError: if there is no name, or one is too long for the tower.
        """
        if not names:
            raise ConfigError("no class names were given: at least one is needed")
        ending = "." if period else ""
        texts = [name.replace("_", " ") + ending for name in names]
        tokens = tokenize(texts)[:, 1:]  # without SOT
        lengths = tokens.argmax(dim=1) + 1  # the EOT has the largest token id
        self.check_names(names, lengths)
        tokens = tokens[:, : int(lengths.max())].to(self.device)
        known = tuple(lengths.tolist())
        grouping = group(known, self.width, self.device, bucket_cost)
        lengths = lengths.to(self.device)
        inside = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        with torch.no_grad():
            embeddings = self.tok(tokens).to(self.pos.dtype) * inside[:, :, None]
        return Names(tuple(names), embeddings, lengths, None, grouping, known, bucket_cost)

    def forward(self, contexts: Tensor, names: Names) -> Tensor:
        """Encode prompts; the result is differentiable in the contexts.

        Args:
            contexts: A context (n, d_t), or each of (..., 1, n, d_t), is for all names; (..., N, n,
                d_t) has one per name.
            names: N names.

        Returns:
            Unit features (..., N, D).

        Raises:
            ConfigError: The contexts' shape does not fit the names or the tower.
        """
        count = len(names)
        if contexts.dim() == 2:
            contexts = contexts[None]
        *lead, rows, tokens, width = contexts.shape
        if rows not in (1, count) or width != self.width:
            raise ConfigError(
                f"contexts of shape {tuple(contexts.shape)} do not fit {count} names "
                f"of a tower of width {self.width}"
            )
        length = 1 + tokens + names.embeddings.shape[1]
        self.check_length(length)
        if mapped.transformed(contexts) and not mapped.transformed(names.embeddings):
            return mapped.through(self, contexts, names)
        contexts = contexts.reshape(-1, rows, tokens, width)
        dtype = fused.products(self, contexts, length)
        if dtype is not None:
            return self.fused(contexts, names, dtype).view(*lead, count, self.dim)
        arrange = self.unified if rows == 1 else self.specific
        x, layout = arrange(contexts, names)
        out = self.blocks_over(x, layout)  # bucket after bucket, (K, names) each
        parts = [
            part.view(len(contexts), -1, self.dim) for part in torch.split(out, layout.sequences)
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if names.grouping is not None:
            out = out.index_select(1, names.grouping.back)
        return out.view(*lead, count, self.dim)

    def fused(self, contexts: Tensor, names: Names, dtype: torch.dtype) -> Tensor:
        """Encode prompts by the kernels of `fused.py`.

        Args:
            contexts: Contexts (K, N or 1, n, d_t).
            names: N names.
            dtype: Type of the products.

        Returns:
            Unit features (K * N, D).
        """
        _, rows, tokens, _ = contexts.shape
        layout = names.flats.get((tokens, rows == 1))
        if layout is None:
            layout = fused.flat(self.pos, names, tokens, unified=rows == 1)
            names.flats[tokens, rows == 1] = layout
        if dtype not in self._stacks:
            self._stacks[dtype] = fused.Stack.of(self, dtype)
            if contexts.device.type == "cuda":
                torch.cuda.synchronize()  # another stream may need it next
        run = fused.Tower.apply if torch.is_grad_enabled() else fused.run
        out = run(contexts, self._stacks[dtype], layout)
        return F.normalize(self.proj(self.lnf(out)), dim=-1)

    def unified(self, contexts: Tensor, names: Names) -> tuple[Tensor, Layout]:
        """Lay out prompts whose names share a context: the SOT and the context are computed once.

        Args:
            contexts: Contexts (K, 1, n, d_t).
            names: N names.

        Returns:
            Embeddings (T, d_t) and where they lie.
        """
        groups, _, tokens, width = contexts.shape
        shared = torch.cat([self.sot.expand(groups, 1, -1), contexts[:, 0]], dim=1)
        start = 1 + tokens
        x = [(shared + self.pos[:start]).view(-1, width)]
        buckets = []
        for embeddings, ends in names.buckets():  # (N_b, L_b, d_t)
            number, length, _ = embeddings.shape
            placed = embeddings + self.pos[start : start + length]
            x.append(placed.expand(groups, -1, -1, -1).reshape(-1, width))
            ends = None if ends is None else ends.repeat(groups)
            buckets.append(Bucket(number, length, ends))
        return torch.cat(x), Layout(groups, start, buckets)

    def specific(self, contexts: Tensor, names: Names) -> tuple[Tensor, Layout]:
        """Lay out prompts that have nothing but the SOT in common.

        On a GPU the SOT stays in every sequence: copying its keys would cost more than its
        products.

        Args:
            contexts: Contexts (K, N, n, d_t).
            names: N names.

        Returns:
            Embeddings (T, d_t) and where they lie.
        """
        many, _, tokens, width = contexts.shape
        share = contexts.device.type == "cpu"
        x = [(self.sot + self.pos[0])[None]] if share else []
        buckets, first = [], 0
        if names.grouping is not None:
            contexts = contexts.index_select(1, names.grouping.order)
        for embeddings, ends in names.buckets():
            number, length, _ = embeddings.shape
            parts = [contexts[:, first : first + number], embeddings.expand(many, -1, -1, -1)]
            if not share:
                parts.insert(0, self.sot.expand(many, number, 1, -1))
            sequences = torch.cat(parts, dim=2)  # (K, N_b, n + L_b, d_t), and SOT
            length = sequences.shape[2]
            sequences = sequences + self.pos[int(share) : int(share) + length]
            x.append(sequences.view(-1, width))
            ends = None if ends is None else (ends + tokens + int(not share)).repeat(many)
            buckets.append(Bucket(many * number, length, ends))
            first += number
        return torch.cat(x), Layout(1, int(share), buckets)

    def encode_tokens(self, tokens: Tensor, batch_size: int = 1024) -> Tensor:
        """Encode tokens, without gradient.

        Args:
            tokens: Tokens (N, context_length) with SOT.
            batch_size: Texts at once.

        Returns:
            Unit features (N, D).
        """
        ends = tokens.argmax(dim=1)
        order = ends.argsort(stable=True)  # sequences of one length together: little padding
        out = torch.empty(len(tokens), self.dim, device=self.device)
        bounds = [*range(0, len(tokens), batch_size), len(tokens)]
        for start, stop in pairwise(bounds):
            if len(bounds) > MANY:
                tell(WORDS, start, len(tokens))
            rows = order[start:stop]
            cut = tokens[rows, : int(ends[rows].max()) + 1].to(self.device)
            with torch.no_grad():
                out[rows.to(self.device)] = self.run(self.tok(cut), ends[rows].to(self.device))
        if len(bounds) > MANY:
            tell(WORDS, len(tokens), len(tokens))
        return out

    @property
    def sot(self) -> Tensor:
        """Return the embedding (d_t,) of the start token, second to last of the vocabulary."""
        # Filled, not copied: a copy from the host would make the device wait.
        token: Tensor = self.tok(torch.full((1,), self.vocabulary - 2, device=self.device))
        return token.to(self.pos.dtype)[0]

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens; the last two are SOT and EOT."""
        size: int = self.tok.num_embeddings  # type: ignore[assignment]
        return size

    def check_names(self, names: Sequence[str], lengths: Tensor) -> None:
        """Refuse a name that leaves no position for a context: it may have been cut off.

        Args:
            names: The names.
            lengths: Their tokens (N,).

        Raises:
            ConfigError: A name is too long.
        """
        room = self.shape.context_length - 2  # beside SOT and one context position
        if int(lengths.max()) > room:
            name = names[int(lengths.argmax())]
            raise ConfigError(
                f"the class name {name!r} does not fit the text tower's "
                f"{self.shape.context_length} positions: give it a shorter name"
            )

    def check_length(self, length: int) -> None:
        """Refuse sequences the tower has no positions for.

        Args:
            length: Tokens of the longest sequence.

        Raises:
            BackboneError: It is too long.
        """
        if length > self.shape.context_length:
            raise BackboneError(
                f"a prompt of {length} positions does not fit the text tower's "
                f"{self.shape.context_length}: use a shorter context or shorter class names"
            )

    def run(self, x: Tensor, position: Tensor) -> Tensor:
        """Run embeddings through the tower.

        Args:
            x: Embeddings (N, L, d_t).
            position: Where each sequence is read (N,).

        Returns:
            Unit features (N, D).
        """
        count, length, width = x.shape
        x = x + self.pos[:length]
        return self.blocks_over(x.view(-1, width), Layout(1, 0, [Bucket(count, length, position)]))

    def blocks_over(self, x: Tensor, layout: Layout) -> Tensor:
        """Run placed embeddings through the blocks.

        Args:
            x: Embeddings (T, d_t).
            layout: Where they lie.

        Returns:
            Unit features (S, D) of the S sequences.
        """
        enabled = self.autocast is not None and torch.is_grad_enabled()
        with torch.autocast(x.device.type, dtype=self.autocast, enabled=enabled):
            *body, last = self._fast if enabled else self.blocks
            for block in body:
                x = block(x, layout)
            assert isinstance(last, Block)
            out = self.proj(self.lnf(last.read(x, layout)))
        return F.normalize(out.to(x.dtype), dim=-1)
