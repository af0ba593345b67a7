"""GLM, a Transformer trained by autoregressive blank infilling (arXiv 2103.10360), for Hugging Face transformers.

Part A is a text whose blanks are single mask tokens; all of it sees all of it. Part B holds what belongs
into the blanks, span after span, each led by <|startofpiece|>; a token of B sees A and the B before it.
A token has two positions: row 0 is its place in part A, or that of its mask; row 1 is 0 in A, and
counts from 1 in each span of B.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from .configuration_glm import GLMConfig

LAYERNORM_EPS = 1e-5


class GLMAttention(nn.Module):
    """Multi-head self-attention, [B, L, H] -> [B, L, H]; the rows of query_key_value are [Q; K; V]."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.dropout = config.attention_dropout
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden, visible):
        batch, length, _ = hidden.shape
        query, key, value = (
            x.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for x in self.query_key_value(hidden).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        return self.dense(context.transpose(1, 2).reshape(batch, length, -1))


class GLMMLP(nn.Module):
    """[B, L, H] -> [B, L, H] through 4H features; GELU in its tanh form, as in training."""

    def __init__(self, config):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.dense_4h_to_h = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, hidden):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(hidden), approximate="tanh"))


class GLMLayer(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden_size, eps=LAYERNORM_EPS)
        self.attention = GLMAttention(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=LAYERNORM_EPS)
        self.mlp = GLMMLP(config)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden, visible):
        hidden = hidden + self.dropout(self.attention(self.input_layernorm(hidden), visible))
        return hidden + self.dropout(self.mlp(self.post_attention_layernorm(hidden)))


class GLMTransformer(nn.Module):
    """The stack of layers with the two position tables and the final norm."""

    def __init__(self, config):
        super().__init__()
        self.position_embeddings = nn.Embedding(config.max_positions + 1, config.hidden_size)
        self.block_position_embeddings = nn.Embedding(config.max_positions + 1, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(GLMLayer(config) for _ in range(config.num_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=LAYERNORM_EPS)

    def forward(self, words, position_ids, visible):
        hidden = words + self.position_embeddings(position_ids[:, 0])
        hidden = self.dropout(hidden + self.block_position_embeddings(position_ids[:, 1]))
        for layer in self.layers:
            hidden = layer(hidden, visible)
        return self.final_layernorm(hidden)


class GLMPreTrainedModel(PreTrainedModel):
    """What both models share: how they are configured, initialised and split."""

    config_class = GLMConfig
    base_model_prefix = "glm"
    _no_split_modules = ["GLMLayer"]  # noqa: RUF012

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class GLMModel(GLMPreTrainedModel):
    """Hidden states of a batch of samples."""

    def __init__(self, config):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer = GLMTransformer(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.word_embeddings

    def set_input_embeddings(self, value):
        self.word_embeddings = value

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        """Padding stands at the end of a sample, with any valid ids; what comes out there means nothing.

        Args:
            input_ids: [B, L].
            position_ids: [B, 2, L].
            attention_mask: length of part A of each sample, [B], or what each token sees, true or 1 where it
                sees, [B, 1, L, L].
            inputs_embeds: [B, L, H] in the place of input_ids.

        Returns last_hidden_state [B, L, H].
        """
        if position_ids is None or attention_mask is None:
            raise ValueError("GLM needs position_ids [B, 2, L] and attention_mask: the length of part A [B], or a mask")
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        visible = _visible(attention_mask.to(words.device), words.shape[1])
        return BaseModelOutput(last_hidden_state=self.transformer(words, position_ids, visible))


class GLMForBlankInfilling(GLMModel, GenerationMixin):
    """GLM with the scores of the next token; the word table serves as output layer.

    Of transformers' generation it has the generation_config, not `generate`.
    """

    def forward(
        self, input_ids=None, position_ids=None, attention_mask=None, labels=None, inputs_embeds=None, **kwargs
    ):
        """As GLMModel.

        Args:
            labels: [B, L], the token that each place predicts (not shifted: <|startofpiece|> predicts the first
                token of its span), -100 where there is nothing to learn.

        Returns logits [B, L, num_ids], without the padded rows of the word table, and the mean loss of the labels.
        """
        hidden = super().forward(input_ids, position_ids, attention_mask, inputs_embeds).last_hidden_state
        logits = F.linear(hidden, self.word_embeddings.weight[: self.config.num_ids])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)
        return CausalLMOutput(loss=loss, logits=logits)

    def generate(self, *args, **kwargs):
        raise NotImplementedError(
            "generate knows neither two rows of positions nor a text that sees all of itself; "
            "call fill(tokenizer, text)"
        )

    @torch.no_grad()
    def fill(self, tokenizer, text, max_new_tokens=64):
        """The text with each [MASK] and [sMASK] filled, and continued at a closing [gMASK]; greedy, without a cache."""
        config = self.config
        # The list comes with a release; a model made from a configuration alone has none.
        never = self.generation_config.suppress_tokens or tokenizer.all_special_ids
        masks = [config.mask_token_id, config.sentence_mask_token_id, config.document_mask_token_id]
        part_a = tokenizer.encode(text)  # [CLS] first, and eos last unless the text is to be continued
        if len(part_a) > config.max_positions:
            raise ValueError(f"the text has {len(part_a)} tokens, the model reads {config.max_positions}; shorten it")
        max_new_tokens = min(max_new_tokens, config.max_positions - 1)  # as many as there are block positions
        places = [place for place, token in enumerate(part_a) if token in masks]
        row = [(token, place, 0) for place, token in enumerate(part_a)]
        if not config.task_masks:
            row = [(masks[0] if token in masks else token, *positions) for token, *positions in row]
        filled = {}
        for place in places:
            stops = [config.eos_token_id]
            if place == len(part_a) - 1:
                stops.append(config.pad_token_id)  # a continuation ends as a document does
            row.append((config.bos_token_id, place, 1))
            filled[place] = []
            while len(filled[place]) < max_new_tokens:
                scores = self._next_token_scores(row, len(part_a))
                scores[[token for token in never if token not in stops]] = -torch.inf
                if not filled[place]:
                    scores[stops] = -torch.inf  # no blank is empty
                token = int(scores.argmax())
                if token in stops:
                    break
                filled[place].append(token)
                row.append((token, place, 1 + len(filled[place])))
        closed = part_a[1:-1] if len(part_a) - 1 not in places else part_a[1:]
        return tokenizer.decode([t for place, token in enumerate(closed, 1) for t in filled.get(place, [token])])

    def _next_token_scores(self, row, part_a):
        """Scores [num_ids] after the last of the (token, position, block position) of a row."""
        tokens, *positions = torch.tensor(row, device=self.device).T
        length_of_a = torch.tensor([part_a], device=self.device)
        return self(tokens[None], torch.stack(positions)[None], length_of_a).logits[0, -1].float()


def _visible(attention_mask, length):
    """Which keys (columns) each query (row) sees: bool [B, 1, L, L]."""
    if attention_mask.dim() == 4:
        return attention_mask.bool()
    if attention_mask.dim() != 1:
        raise ValueError(
            f"attention_mask has shape {list(attention_mask.shape)}; give the length of part A of each sample, [B], "
            "or a mask [B, 1, L, L]"
        )
    place = torch.arange(length, device=attention_mask.device)
    causal = place[:, None] >= place
    in_part_a = place < attention_mask[:, None]
    return (causal | in_part_a[:, None, :])[:, None]
