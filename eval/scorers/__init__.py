"""Scores answers: final numbers, and generated code against tests in a jail."""

from specpilot_sglang.eval.scorers.scoring import SCORERS, Accuracy, Score, by_suite, score, score_all, scored

__all__ = ["SCORERS", "Accuracy", "Score", "by_suite", "score", "score_all", "scored"]
