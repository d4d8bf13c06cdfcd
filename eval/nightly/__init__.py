"""Nightly regression: AR, stock and the plugin measured again and again, judged against stock and against history."""
