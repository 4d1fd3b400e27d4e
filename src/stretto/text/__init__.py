"""From text to token ids and back: tokenizers, detokenizer, chat templates."""
