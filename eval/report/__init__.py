"""Reports: one self-contained HTML page from a template, with plots inside it."""
