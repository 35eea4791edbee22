"""All that two processes must agree on: messages, keys in Redis, errors, and how text becomes token ids."""
