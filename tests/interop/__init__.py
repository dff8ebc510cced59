"""The governor and the TypeScript client of qwen serve, as their users run them."""
