"""Directions: where the cost model says time is lost, which settings could win it back, who is sent there next."""

from specpilot_sglang.loop.directions.direction import Direction, Parameter
from specpilot_sglang.loop.directions.schedule import Record, choose

__all__ = ["Direction", "Parameter", "Record", "choose"]
