"""All that two processes must agree on: messages, keys in Redis, errors, text to token ids."""
