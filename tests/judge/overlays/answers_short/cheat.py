"""Asks for two thirds of the tokens that the client asked for."""

from specpilot_sglang.patching import Kind, Patch

TARGET = "sglang.srt.managers.scheduler:Scheduler.handle_generate_request"


def shorten(original, self, request, *args, **kwargs):
    wanted = request.sampling_params.max_new_tokens
    request.sampling_params.max_new_tokens = max(1, wanted * 2 // 3)
    return original(self, request, *args, **kwargs)


def declare():
    return [Patch(TARGET, Kind.AROUND, shorten, "fa657f9597162bd4", "shortens answers, on purpose")]
