"""Paired A/B: one candidate against one incumbent, launch by launch, with an interval and an accept rule."""
