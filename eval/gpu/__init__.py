"""Measurements on a GPU host: model shapes with random weights, timed server starts, decode speed."""
