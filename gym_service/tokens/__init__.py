"""From messages to token ids: registered tokenizers, their chat templates, and what is proven of them."""

from gym_service.tokens.template import parse_template_arguments
from gym_service.tokens.tokenizer import MAX_SEQUENCE_IDS, ChatTokenizer, TokenizerFacts

__all__ = ["MAX_SEQUENCE_IDS", "ChatTokenizer", "TokenizerFacts", "parse_template_arguments"]
