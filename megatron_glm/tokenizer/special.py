"""The special tokens that blank infilling needs, by role."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from megatron_glm.errors import TokenizerError

# How the roles are written, in decoded text and in the prompts of generation, where a vocabulary has no spelling of
# its own (RoBERTa's [CLS] is <s>).
ROLE_PIECES = {
    "eos": "<|endoftext|>",
    "cls": "[CLS]",
    "mask": "[MASK]",
    "start_of_piece": "<|startofpiece|>",
    "end_of_piece": "<|endofpiece|>",
    "sentence_mask": "[sMASK]",
    "document_mask": "[gMASK]",
    "block_mask": "[dBLOCK]",
}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids by role; eos ends a document and is the padding token too."""

    cls: int
    eos: int
    mask: int
    sentence_mask: int
    document_mask: int
    start_of_piece: int
    end_of_piece: int
    block_mask: int | None = None  # [dBLOCK]: corrupts inputs of part B, where a run asks for it

    def by_role(self) -> dict[str, int]:
        """The ids of the roles there are."""
        return {role: id for role, id in asdict(self).items() if id is not None}

    def check(self, vocab_size: int) -> None:
        """Refuse ids that would silently train one role as another.

        Raises:
            TokenizerError: an id that two roles share (the released GLM-10B-Chinese had [gMASK] = end of
                piece, THUDM/GLM issue 55), or one outside the vocabulary.
        """
        roles: dict[int, str] = {}
        for role, id in self.by_role().items():
            if not 0 <= id < vocab_size:
                raise TokenizerError(f"special token '{role}': id {id} is outside the vocabulary, 0..{vocab_size - 1}")
            if id in roles:
                raise TokenizerError(f"special tokens '{roles[id]}' and '{role}' share the id {id}; each needs its own")
            roles[id] = role
