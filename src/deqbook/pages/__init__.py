"""What single pages use: one folder a page, with its claims and its experiments."""
