"""Networks and experiments of the page, one module a section."""
