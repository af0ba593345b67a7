"""Configuration of a GLM trained by autoregressive blank infilling (arXiv 2103.10360)."""

from transformers import PretrainedConfig


class GLMConfig(PretrainedConfig):
    """Sizes of the model and the ids of its special tokens.

    Args:
        vocab_size: rows of the word table, padded.
        num_ids: ids of the tokenizer; the model scores these and no others.
        max_positions: largest position; both position tables have one row more.
        task_masks: whether the model knows [sMASK] and [gMASK]; otherwise it sees [MASK] in their place.

    bos_token_id is <|startofpiece|>, eos_token_id <|endofpiece|>, pad_token_id the token that ends a document.
    """

    # "glm" is the name of another model within transformers.
    model_type = "glm_blank_infilling"
    attribute_map = {"num_hidden_layers": "num_layers", "max_position_embeddings": "max_positions"}  # noqa: RUF012

    def __init__(
        self,
        vocab_size=30592,
        num_ids=30526,
        num_layers=12,
        hidden_size=768,
        num_attention_heads=12,
        max_positions=512,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        initializer_range=0.02,
        task_masks=True,
        mask_token_id=None,
        sentence_mask_token_id=None,
        document_mask_token_id=None,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.num_ids = num_ids
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.max_positions = max_positions
        self.hidden_dropout = hidden_dropout
        self.attention_dropout = attention_dropout
        self.initializer_range = initializer_range
        self.task_masks = task_masks
        self.mask_token_id = mask_token_id
        self.sentence_mask_token_id = sentence_mask_token_id
        self.document_mask_token_id = document_mask_token_id
        super().__init__(**kwargs)
